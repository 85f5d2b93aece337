//! Transitions cut off after every variable, what stands in the way, and other tools as oracles.

pub(super) mod cuts;
mod fallback;
mod refusals;
mod restore;

use std::fs;

use super::firmware::{ESP, InFirmware};
use super::load_option::tests::efibootmgr;
use crate::backend::{ProblemCode, SlotState, Transition};
use crate::error::{Error, Result};
use crate::facts::InspectSettings;
use crate::fixture::FixtureNode;
use crate::inspect::SlotView;
use crate::proof::ReadBack;
use crate::scenarios::machines::{Machine, image, image_tree, options};
use crate::slot::{SlotName, SlotSettings};
use crate::table::{Booted, SlotTable};

use SlotName::{A, B};
use SlotState::{Bad, Empty, Good, Trial};

const ARMED: SlotState = Trial { left: 1, done: 0 };
const RUNNING: SlotState = Trial { left: 0, done: 1 };

fn armed(machine: &mut InFirmware) {
    machine.stage_and_arm(B);
}

fn on_trial(machine: &mut InFirmware) {
    armed(machine);
    assert_eq!(machine.power_cycle(), Some(B));
}

fn spent(machine: &mut InFirmware) {
    on_trial(machine);
    assert_eq!(machine.power_cycle(), Some(A));
}

fn confirmed(machine: &mut InFirmware) {
    on_trial(machine);
    machine.backend().mark_good(B).unwrap();
}

fn arm(machine: &InFirmware) -> Result<()> {
    let staged = machine.backend().staged(&machine.table())?.unwrap();
    machine.backend().arm(&staged, 3, &options())
}

#[test]
fn each_transition_commits_by_one_variable_and_touches_no_option_of_others() {
    let mut machine = InFirmware::new();
    let foreign = ["Boot0000", "Boot0001"];
    let before = foreign.map(|name| machine.firmware().get(name));
    let verified = machine.stage(B);
    assert_eq!(
        machine.firmware().get("BootOrder").unwrap(),
        [4, 0, 0, 0, 1, 0]
    );
    machine.backend().arm(&verified, 3, &options()).unwrap();
    // Number 2 is the lowest free one. The order is not touched.
    assert_eq!(machine.firmware().get("BootNext").unwrap(), [2, 0]);
    assert_eq!(
        machine.firmware().get("BootOrder").unwrap(),
        [4, 0, 0, 0, 1, 0]
    );
    machine.power_cycle();
    machine.backend().mark_good(B).unwrap();
    // The trial's number is BootCurrent's, so the good option is another one; it comes first, others keep their order.
    assert_eq!(
        machine.firmware().get("BootOrder").unwrap(),
        [3, 0, 4, 0, 0, 0, 1, 0]
    );
    assert_eq!(machine.firmware().get("Boot0002"), None);
    machine.backend().select(A).unwrap();
    assert_eq!(
        machine.firmware().get("BootOrder").unwrap(),
        [4, 0, 3, 0, 0, 0, 1, 0]
    );
    assert_eq!(foreign.map(|name| machine.firmware().get(name)), before);
}

#[test]
fn what_slotd_wrote_is_listed_by_efibootmgr_and_what_that_makes_is_used() {
    let mut machine = InFirmware::new();
    machine.stage_and_arm(B);
    let variables = machine.node.system().efivars();
    let listed = efibootmgr(&variables, &["-v"]);
    let path = format!("HD(1,GPT,{ESP},0x800,0x4000)");
    for line in [
        "BootNext: 0002",
        "BootCurrent: 0004",
        "BootOrder: 0004,0000,0001",
        &format!("Boot0002* slotd B trial\t{path}/File(\\EFI\\slotd\\b\\linux.efi)"),
        &format!("Boot0004* slotd A\t{path}/File(\\EFI\\slotd\\a\\linux.efi)"),
        "Boot0001* UEFI QEMU HARDDISK QM00001 ",
    ] {
        assert!(listed.contains(line), "{line}: {listed}");
    }
    // What it changes is understood.
    efibootmgr(&variables, &["-N"]);
    assert_eq!(machine.states(), (Good, Bad));
    efibootmgr(&variables, &["-n", "2"]);
    assert_eq!(machine.states(), (Good, ARMED));
    efibootmgr(&variables, &["-b", "2", "-B"]);
    efibootmgr(&variables, &["-N"]);
    assert_eq!(machine.states(), (Good, Empty));
    efibootmgr(&variables, &["-b", "4", "-A"]);
    assert_eq!(machine.states(), (Bad, Empty));
    efibootmgr(&variables, &["-b", "4", "-a"]);
    assert_eq!(machine.states(), (Good, Empty));
    machine.power_cycle();
}

#[test]
fn a_trials_command_line_announces_it_and_a_proven_slots_does_not() {
    let mut machine = InFirmware::new();
    on_trial(&mut machine);
    let line = fs::read_to_string(machine.node.system().proc("cmdline")).unwrap();
    let uuid = machine.node.slot_uuid(B);
    let id = FixtureNode::MACHINE_ID;
    assert_eq!(
        line,
        format!(
            "root=PARTUUID={uuid} ro systemd.machine_id={id} slotd.slot=b \
             initrd=\\EFI\\slotd\\b\\initrd slotd.trial slotd.tries=1 slotd.trial_deadline=600 \
             panic=10 console=ttyS0 quiet\n"
        )
    );
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    let line = fs::read_to_string(machine.node.system().proc("cmdline")).unwrap();
    assert_eq!(
        line,
        format!(
            "root=PARTUUID={uuid} ro systemd.machine_id={id} slotd.slot=b \
             initrd=\\EFI\\slotd\\b\\initrd console=ttyS0 quiet\n"
        )
    );
}

#[test]
fn a_trial_that_cannot_be_loaded_falls_through_to_the_good_slot() {
    let mut machine = InFirmware::new();
    machine.stage_and_arm(B);
    fs::remove_file(machine.node.esp().join("EFI/slotd/b/linux.efi")).unwrap();
    let problems = machine.backend().state().unwrap().problems;
    assert!(
        problems[0]
            .message
            .contains("\\EFI\\slotd\\b\\linux.efi is not on /efi")
    );
    assert_eq!(machine.power_cycle(), Some(A));
    assert_eq!(machine.states(), (Good, Bad));
    // A torn kernel, too: and where nothing of slotd's can be started, others in the order are.
    machine.stage_and_arm(B);
    for slot in ["a", "b"] {
        fs::write(
            machine
                .node
                .esp()
                .join(format!("EFI/slotd/{slot}/linux.efi")),
            "torn",
        )
        .unwrap();
    }
    assert_eq!(machine.power_cycle(), None);
    assert_eq!(machine.started, Some(1));
}

#[test]
fn the_option_of_this_boot_is_a_witness() {
    let mut machine = InFirmware::new();
    on_trial(&mut machine);
    let evidence = machine.table().evidence.to_string();
    assert!(
        evidence.contains("BootCurrent says slot B (Boot0002 (slotd B trial))"),
        "{evidence}"
    );
    // The firmware says B, root and command line say A.
    machine.node.run_slot(A, "auto-efi").unwrap();
    let error = SlotTable::discover(&machine.node.system(), &SlotSettings::Auto, None).unwrap_err();
    assert!(matches!(error, Error::EvidenceDisagrees { .. }), "{error}");
    assert!(
        error.to_string().contains("BootCurrent says slot B"),
        "{error}"
    );
}

#[test]
fn a_plan_names_the_variables_in_order() {
    let machine = InFirmware::new();
    machine.stage(B);
    let plan = machine
        .backend()
        .plan_sequence(&[
            Transition::Arm {
                slot: B,
                options: options(),
            },
            Transition::MarkGood { slot: B },
        ])
        .unwrap();
    let plan: Vec<String> = plan
        .iter()
        .map(|change| format!("{}: {}", change.target, change.change))
        .collect();
    assert_eq!(
        plan,
        [
            "EFI variable Boot0002: write active option \"slotd B trial\"",
            "EFI variable BootNext: set to 0002",
            "EFI variable BootNext: remove",
            "EFI variable Boot0003: write active option \"slotd B\"",
            "EFI variable BootOrder: set to 0003,0004,0000,0001",
            "EFI variable Boot0002: remove",
        ]
    );
    assert_eq!(machine.states(), (Good, Empty));
}

#[test]
fn a_half_removed_slot_of_several_options_is_cleared() {
    let machine = InFirmware::new();
    // A firmware that copied an option.
    let copy = machine.firmware().get("Boot0004").unwrap();
    machine.firmware().put("Boot0009", Some(&copy));
    machine
        .firmware()
        .put("BootOrder", Some(&[4, 0, 9, 0, 1, 0]));
    let state = machine.backend().state().unwrap();
    assert_eq!(state.problems[0].code, ProblemCode::Leftovers);
    machine.stage_and_arm(B);
    assert_eq!(machine.firmware().get("Boot0009"), None);
    assert_eq!(machine.firmware().get("BootOrder").unwrap(), [4, 0, 1, 0]);
}

#[test]
fn the_number_that_started_this_boot_is_not_given_to_another_option() {
    let mut machine = InFirmware::new();
    confirmed(&mut machine);
    // BootCurrent is 2 still, and no option has that number any more.
    machine.stage_and_arm(A);
    assert_eq!(machine.firmware().get("BootCurrent").unwrap(), [2, 0]);
    assert_eq!(machine.firmware().get("Boot0002"), None);
    assert_eq!(machine.states(), (ARMED, Good));
    assert_eq!(machine.table().booted, Booted::Slot(B));
    assert_eq!(machine.power_cycle(), Some(A));
    assert_eq!(machine.states(), (RUNNING, Good));
}

#[test]
fn a_unified_image_is_started_without_an_initrd_of_its_own() {
    let mut machine = InFirmware::new();
    on_trial(&mut machine);
    machine.power_cycle();
    // The image that was tried left an initrd.
    let dir = tempfile::tempdir().unwrap();
    drop(image_tree(dir.path()));
    let modules = dir.path().join("usr/lib/modules/6.1.0-1");
    fs::remove_file(modules.join("initrd")).unwrap();
    fs::write(
        modules.join("debian.efi"),
        crate::pe::tests::image(0x8664, &[(".linux", b"kernel")]),
    )
    .unwrap();
    let view = SlotView::of_tree(dir.path(), &InspectSettings::default()).unwrap();
    let inactive = machine.table().inactive(B).unwrap();
    let invalidated = machine.backend().invalidate(inactive).unwrap();
    let verified = invalidated.attest(ReadBack {
        expanded_sha256: [7; 32],
        expanded_size: 1,
    });
    machine
        .backend()
        .install_boot_files(&verified, &view, &image(), &options())
        .unwrap();
    let place = machine.node.esp().join("EFI/slotd/b");
    let copied = fs::read(place.join("linux.efi")).unwrap();
    assert_eq!(copied, fs::read(modules.join("debian.efi")).unwrap());
    assert!(!place.join("initrd").exists());
    machine.backend().arm(&verified, 1, &options()).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    let line = fs::read_to_string(machine.node.system().proc("cmdline")).unwrap();
    assert!(!line.contains("initrd="), "{line}");
}
