//! The shared scenarios under RAUC's script, whose trial has one boot; and by name what it cannot keep.

use std::fs;

use crate::backend::{Counting, NextBoot, ProblemCode, SlotState};
use crate::error::ErrorKind;
use crate::scenarios::machines::Machine;
use crate::scenarios::machines::grub::InGrub;
use crate::scenarios::machines::options;
use crate::scenarios::{A, B, boots, trial};

fn machine() -> InGrub {
    InGrub::rauc(true)
}

#[test]
fn staging_changes_nothing_about_the_next_boot() {
    let mut machine = machine();
    machine.stage(B);
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
    assert_eq!(machine.power_cycle(), Some(A));
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
}

#[test]
fn a_confirmed_trial_is_good_and_stays_the_next_boot_over_power_cycles() {
    let mut machine = machine();
    machine.stage_and_arm(B);
    // As many as it can give.
    assert_eq!(machine.states().1, trial(1, 0));
    assert_eq!(machine.next(), boots(B, true));
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.states(), (SlotState::Good, trial(0, 1)));
    assert!(machine.backend().state().unwrap().trial_boot);
    for _ in 0..2 {
        machine.backend().mark_good(B).unwrap();
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    }
    // As long as the agent gives the try back after each.
    for _ in 0..5 {
        assert_eq!(machine.power_cycle(), Some(B));
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    }
}

#[test]
fn upgrades_alternate_between_the_slots() {
    let mut machine = machine();
    for slot in [B, A, B, A] {
        machine.stage_and_arm(slot);
        assert_eq!(machine.power_cycle(), Some(slot));
        machine.backend().mark_good(slot).unwrap();
        assert_eq!(machine.power_cycle(), Some(slot));
    }
}

#[test]
fn an_unconfirmed_trial_ends_after_its_boot_on_the_old_slot() {
    let mut machine = machine();
    machine.stage_and_arm(B);
    assert_eq!(machine.power_cycle(), Some(B));
    for _ in 0..4 {
        assert_eq!(machine.power_cycle(), Some(A));
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Bad));
    }
}

#[test]
fn a_trial_marked_bad_is_never_started_again() {
    let mut machine = machine();
    machine.stage_and_arm(B);
    machine.power_cycle();
    for _ in 0..2 {
        machine.backend().mark_bad(B).unwrap();
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Bad));
    }
    for _ in 0..3 {
        assert_eq!(machine.power_cycle(), Some(A));
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Bad));
    }
    // Until it is asked for again.
    let staged = machine.backend().staged(&machine.table()).unwrap().unwrap();
    machine.backend().arm(&staged, 1, &options()).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.states().1, trial(0, 1));
}

#[test]
fn a_trial_is_taken_back_before_it_ran() {
    let mut machine = machine();
    machine.stage_and_arm(B);
    machine.backend().disarm(B).unwrap();
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
    let staged = machine.backend().staged(&machine.table()).unwrap().unwrap();
    machine.backend().arm(&staged, 1, &options()).unwrap();
    machine.backend().select(A).unwrap();
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
    assert_eq!(machine.power_cycle(), Some(A));
}

#[test]
fn going_back_selects_the_old_slot_and_forth_the_new_one() {
    let mut machine = machine();
    machine.stage_and_arm(B);
    machine.power_cycle();
    machine.backend().mark_good(B).unwrap();
    for slot in [A, B, A] {
        machine.backend().select(slot).unwrap();
        assert_eq!(machine.next(), boots(slot, false));
        assert_eq!(machine.power_cycle(), Some(slot));
    }
}

#[test]
fn what_would_endanger_the_last_good_slot_is_refused() {
    let mut machine = machine();
    let unsafe_kind = |error: crate::error::Error| {
        assert_eq!(error.kind(), ErrorKind::Unsafe, "{error}");
    };
    unsafe_kind(machine.backend().mark_bad(A).unwrap_err());
    machine.stage_and_arm(B);
    machine.power_cycle();
    let inactive = machine.table().inactive(A).unwrap();
    unsafe_kind(machine.backend().invalidate(inactive).unwrap_err());
    unsafe_kind(machine.backend().mark_bad(A).unwrap_err());
    unsafe_kind(machine.backend().select(A).unwrap_err());
    assert_eq!(machine.states(), (SlotState::Good, trial(0, 1)));
}

#[test]
fn status_says_which_promises_its_script_cannot_keep() {
    let state = machine().backend().state().unwrap();
    assert_eq!(state.counting, Counting::EveryBoot);
    let kept: Vec<_> = state.problems.iter().map(|problem| problem.code).collect();
    assert_eq!(kept, [ProblemCode::PromiseNotKept; 2]);
    let unannounced = &state.problems[1].message;
    assert!(
        unannounced.contains("does not tell the system that a boot is a trial")
            && unannounced.contains("`panic=` is missing"),
        "{unannounced}"
    );
    for words in ["every boot", "one boot", "first menu entry", "slotd.trial"] {
        assert!(
            state.problems[0].message.contains(words),
            "{:?}",
            state.problems
        );
    }
}

/// Not kept: a proven slot loses its try to a power cycle where nothing gave it back in between.
#[test]
fn a_proven_slot_that_is_cut_off_twice_is_passed_over_and_said_to_be() {
    let mut machine = InGrub::rauc(false);
    machine.stage_and_arm(B);
    machine.power_cycle();
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    let problem = |machine: &InGrub| {
        let problems = machine.backend().state().unwrap().problems;
        problems
            .iter()
            .map(|problem| problem.message.clone())
            .collect::<String>()
    };
    assert!(
        problem(&machine).contains("slot B is proven, but has no try left"),
        "{}",
        problem(&machine)
    );
    assert_eq!(machine.power_cycle(), Some(A));
    // It is not lost: the slot that came up is preferred, and brings it back as its fallback.
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    assert!(
        problem(&machine).contains("slot B is proven"),
        "{}",
        problem(&machine)
    );
    assert_eq!(machine.next(), boots(A, false));
    machine.backend().mark_good(A).unwrap();
    assert!(
        !problem(&machine).contains("slot B is proven"),
        "{}",
        problem(&machine)
    );
    let text = String::from_utf8(fs::read(machine.grubenv()).unwrap()).unwrap();
    assert!(
        text.contains("\nORDER=A B\nA_OK=1\nA_TRY=0\nB_OK=1\nB_TRY=0\n"),
        "{text}"
    );
}

/// Not kept: with no try left on either slot, the script starts its first menu entry and begins anew.
#[test]
fn two_proven_slots_that_are_cut_off_end_in_the_first_menu_entry() {
    let mut machine = InGrub::rauc(false);
    machine.stage_and_arm(B);
    machine.power_cycle();
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.power_cycle(), Some(A));
    assert_eq!(machine.power_cycle(), None);
    assert_eq!(machine.power_cycle(), Some(B));
}

#[test]
fn a_disk_of_rauc_is_taken_over_as_it_is() {
    let mut machine = machine();
    // As RAUC leaves it: B was installed and confirmed, A is the old one; and a variable of others.
    let variables = "ORDER=B A\nA_OK=1\nA_TRY=0\nB_OK=1\nB_TRY=0\nrauc=1\n";
    fs::write(
        machine.grubenv(),
        crate::scenarios::machines::grub::block(variables),
    )
    .unwrap();
    machine.reopen();
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    assert_eq!(
        machine.next(),
        NextBoot::Slot {
            slot: B,
            trial: false
        }
    );
    assert_eq!(machine.power_cycle(), Some(B));
    machine.stage_and_arm(A);
    assert_eq!(machine.states(), (trial(1, 0), SlotState::Good));
    assert_eq!(machine.power_cycle(), Some(A));
    machine.backend().mark_good(A).unwrap();
    let text = String::from_utf8(fs::read(machine.grubenv()).unwrap()).unwrap();
    // What RAUC's own tools read as good, primary and untouched.
    for line in [
        "\nORDER=A B\n",
        "\nA_OK=1\n",
        "\nA_TRY=0\n",
        "\nB_OK=1\n",
        "\nB_TRY=0\n",
        "\nrauc=1\n",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}
