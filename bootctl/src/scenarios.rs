//! The same scenarios over every backend: what they promise is one model, not two.

mod crash;
mod extended;
mod gptprio;
mod grub;
mod loaders;
pub(crate) mod machines;
mod refusals;
mod several_disks;
mod surroundings;
mod systemd_boot;
mod torn;
mod uboot;
mod unified;

use crate::backend::{Counting, NextBoot, SlotState};
use crate::efi::firmware::InFirmware;
use crate::error::ErrorKind;
use crate::facts::InspectSettings;
use crate::inspect::SlotView;
use crate::proof::ReadBack;
use crate::slot::SlotName;

use crate::gptprio::loader_model::Loader;
use SlotName::{A, B};
use gptprio::InAttributes;
use machines::grub::InGrub;
use machines::{InMemory, InRecord, Machine, OnDisk, image, open, options};
use uboot::Uboot;

/// Runs a scenario over every backend.
fn everywhere(scenario: impl Fn(&mut dyn Machine)) {
    scenario(&mut InMemory::new());
    scenario(&mut OnDisk::new());
    scenario(&mut machines::extended::OnExtended::new());
    scenario(&mut InRecord::new());
    scenario(&mut InAttributes::new(Loader::Grub));
    scenario(&mut InAttributes::new(Loader::Firmware));
    scenario(&mut InFirmware::new());
    scenario(&mut InGrub::modelled());
    scenario(&mut InGrub::real());
    scenario(&mut InGrub::rauc(true));
    for mut machine in Uboot::every_kind() {
        scenario(&mut machine);
    }
}

const fn trial(left: u32, done: u32) -> SlotState {
    SlotState::Trial { left, done }
}

const fn boots(slot: SlotName, trial: bool) -> NextBoot {
    NextBoot::Slot { slot, trial }
}

#[test]
fn staging_changes_nothing_about_the_next_boot() {
    everywhere(|machine| {
        machine.stage(B);
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
        assert_eq!(machine.next(), boots(A, false));
        assert_eq!(
            machine.backend().state().unwrap().staged,
            Some((B, image()))
        );
        assert_eq!(machine.power_cycle(), Some(A));
        let proof = machine.backend().staged(&machine.table()).unwrap().unwrap();
        assert_eq!((proof.name(), proof.proof().hex()), (B, "07".repeat(32)));
    });
}

#[test]
fn a_confirmed_trial_is_good_and_stays_the_next_boot_over_power_cycles() {
    everywhere(|machine| {
        let tries = machine.tries();
        machine.stage_and_arm(B);
        assert_eq!(machine.states().1, trial(tries, 0));
        assert_eq!(machine.next(), boots(B, true));
        assert_eq!(machine.power_cycle(), Some(B));
        assert_eq!(machine.states(), (SlotState::Good, trial(tries - 1, 1)));
        assert!(machine.backend().state().unwrap().trial_boot);
        for _ in 0..2 {
            machine.backend().mark_good(B).unwrap();
            assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
            assert!(!machine.backend().state().unwrap().trial_boot);
        }
        for _ in 0..10 {
            assert_eq!(machine.power_cycle(), Some(B));
            assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
            // RAUC's scripts count on: what the agent does on each boot is done.
            if !machine.spares_proven_slots() {
                assert_eq!(
                    machine.backend().state().unwrap().counting,
                    Counting::EveryBoot
                );
                machine.backend().mark_good(B).unwrap();
            }
        }
    });
}

#[test]
fn upgrades_alternate_between_the_slots() {
    everywhere(|machine| {
        for slot in [B, A, B, A] {
            machine.stage_and_arm(slot);
            assert_eq!(machine.power_cycle(), Some(slot));
            machine.backend().mark_good(slot).unwrap();
            assert_eq!(machine.power_cycle(), Some(slot));
        }
    });
}

#[test]
fn an_unconfirmed_trial_ends_after_its_boots_on_the_old_slot() {
    everywhere(|machine| {
        machine.stage_and_arm(B);
        let tries = machine.tries();
        for done in 1..=tries {
            assert_eq!(machine.power_cycle(), Some(B));
            let running = trial(tries - done, done);
            assert_eq!(machine.states(), (SlotState::Good, running));
        }
        for _ in 0..3 {
            assert_eq!(machine.power_cycle(), Some(A));
            assert_eq!(machine.states(), (SlotState::Good, SlotState::Bad));
        }
    });
}

#[test]
fn the_last_boot_of_a_trial_can_still_be_confirmed() {
    everywhere(|machine| {
        machine.stage_and_arm(B);
        let tries = machine.tries();
        for _ in 0..tries {
            assert_eq!(machine.power_cycle(), Some(B));
        }
        assert_eq!(machine.states().1, trial(0, tries));
        machine.backend().mark_good(B).unwrap();
        assert_eq!(machine.power_cycle(), Some(B));
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    });
}

#[test]
fn a_trial_marked_bad_is_never_started_again_whichever_boot_it_was() {
    for boots_before in 1..=3 {
        everywhere(|machine| {
            machine.stage_and_arm(B);
            for _ in 0..boots_before.min(machine.tries()) {
                assert_eq!(machine.power_cycle(), Some(B));
            }
            for _ in 0..2 {
                machine.backend().mark_bad(B).unwrap();
                assert_eq!(machine.states(), (SlotState::Good, SlotState::Bad));
            }
            assert_eq!(machine.next(), boots(A, false));
            assert_eq!(machine.power_cycle(), Some(A));
            assert_eq!(machine.states(), (SlotState::Good, SlotState::Bad));
        });
    }
}

#[test]
fn a_disarmed_trial_stays_staged_and_can_be_armed_again() {
    everywhere(|machine| {
        machine.stage_and_arm(B);
        for _ in 0..2 {
            machine.backend().disarm(B).unwrap();
            assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
        }
        assert_eq!(machine.next(), boots(A, false));
        let staged = machine.backend().staged(&machine.table()).unwrap().unwrap();
        let given = machine.tries().min(2);
        for _ in 0..2 {
            machine.backend().arm(&staged, 2, &options()).unwrap();
            assert_eq!(machine.states().1, trial(given, 0));
        }
    });
}

#[test]
fn a_bad_slot_can_be_tried_again_when_asked() {
    everywhere(|machine| {
        machine.stage_and_arm(B);
        machine.power_cycle();
        machine.backend().mark_bad(B).unwrap();
        machine.power_cycle();
        let staged = machine.backend().staged(&machine.table()).unwrap().unwrap();
        machine.backend().arm(&staged, 1, &options()).unwrap();
        assert_eq!(machine.power_cycle(), Some(B));
        assert_eq!(machine.states().1, trial(0, 1));
    });
}

#[test]
fn going_back_selects_the_old_slot_and_forth_the_new_one() {
    everywhere(|machine| {
        machine.stage_and_arm(B);
        machine.power_cycle();
        machine.backend().mark_good(B).unwrap();
        for slot in [A, B, A] {
            for _ in 0..2 {
                machine.backend().select(slot).unwrap();
                assert_eq!(machine.next(), boots(slot, false));
            }
            assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
            assert_eq!(machine.power_cycle(), Some(slot));
        }
    });
}

#[test]
fn selecting_the_old_slot_takes_a_trial_back_that_has_not_run() {
    everywhere(|machine| {
        machine.stage_and_arm(B);
        machine.backend().select(A).unwrap();
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
        assert_eq!(machine.next(), boots(A, false));
    });
}

#[test]
fn overwriting_an_armed_slot_takes_its_trial_back_first() {
    everywhere(|machine| {
        machine.stage_and_arm(B);
        let invalidated = machine
            .backend()
            .invalidate(machine.table().inactive(B).unwrap())
            .unwrap();
        assert_eq!(invalidated.name(), B);
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
        assert!(
            machine
                .backend()
                .staged(&machine.table())
                .unwrap()
                .is_none()
        );
        assert_eq!(machine.next(), boots(A, false));
    });
}

#[test]
fn what_would_endanger_the_last_good_slot_is_refused() {
    everywhere(|machine| {
        let unsafe_kind = |error: crate::error::Error| {
            assert_eq!(error.kind(), ErrorKind::Unsafe, "{error}");
        };
        // Only A is good.
        unsafe_kind(machine.backend().mark_bad(A).unwrap_err());
        machine.stage_and_arm(B);
        unsafe_kind(machine.backend().mark_good(B).unwrap_err());
        machine.power_cycle();
        // B runs on trial: A, the fallback, must stay.
        unsafe_kind(
            machine
                .backend()
                .invalidate(machine.table().inactive(A).unwrap())
                .unwrap_err(),
        );
        unsafe_kind(machine.backend().mark_bad(A).unwrap_err());
        unsafe_kind(machine.backend().disarm(B).unwrap_err());
        unsafe_kind(machine.backend().select(A).unwrap_err());
        let running = trial(machine.tries() - 1, 1);
        assert_eq!(machine.states(), (SlotState::Good, running));
    });
}

#[test]
fn what_makes_no_sense_is_rejected() {
    everywhere(|machine| {
        let rejected = |error: crate::error::Error| {
            assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
        };
        rejected(machine.backend().mark_good(B).unwrap_err());
        rejected(machine.backend().select(B).unwrap_err());
        rejected(machine.backend().disarm(A).unwrap_err());
        let verified = machine.stage(B);
        rejected(machine.backend().arm(&verified, 0, &options()).unwrap_err());
        machine.backend().mark_bad(B).unwrap();
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
    });
}

#[test]
fn an_image_without_a_kernel_is_not_installed() {
    everywhere(|machine| {
        let invalidated = machine
            .backend()
            .invalidate(machine.table().inactive(B).unwrap())
            .unwrap();
        let proof = ReadBack {
            expanded_sha256: [7; 32],
            expanded_size: 1,
        };
        let verified = invalidated.attest(proof);
        let empty = tempfile::tempdir().unwrap();
        let view = SlotView::of_tree(empty.path(), &InspectSettings::default()).unwrap();
        let error = machine
            .backend()
            .install_boot_files(&verified, &view, &image(), &options())
            .unwrap_err();
        assert!(error.to_string().contains("no kernel"), "{error}");
        assert!(
            machine
                .backend()
                .staged(&machine.table())
                .unwrap()
                .is_none()
        );
    });
}
