//! The option of the slot that runs, removed and made again.

use std::fs;

use super::super::firmware::{DISK, InFirmware, unhex};
use super::super::load_option::tests::efibootmgr;
use super::cuts::{cut, every_prefix};
use super::refusals::{refusals, refused};
use super::{ARMED, Bad, Empty, Good, Trial, arm, armed, confirmed, on_trial};
use crate::backend::{NextBoot, ProblemCode, RefusalCode, Transition};
use crate::error::ErrorKind;
use crate::fixture::FixtureNode;
use crate::scenarios::machines::{Machine, options};
use crate::slot::SlotName::{A, B};

/// Removes an option as a person does; `BootOrder` names it no more.
fn remove(machine: &InFirmware, number: u8) {
    let variables = machine.node.system().efivars();
    let order = machine.firmware().get("BootOrder").unwrap();
    efibootmgr(&variables, &["-q", "-b", &number.to_string(), "-B"]);
    // A plain file keeps the tail that a variable loses.
    let others = order.chunks(2).filter(|entry| **entry != [number, 0]);
    let others: Vec<u8> = others.flatten().copied().collect();
    let found = machine.firmware().get("BootOrder").unwrap();
    assert!(found.starts_with(&others), "{found:?}");
    machine.firmware().put("BootOrder", Some(&others));
}

/// Slot B was confirmed and has been started by its own option, number 3, which is gone.
fn without_its_option(machine: &mut InFirmware) {
    confirmed(machine);
    assert_eq!(machine.power_cycle(), Some(B));
    remove(machine, 3);
}

/// As a firmware whose variables were reset starts a machine: by the disk, of which it makes an option itself.
fn reset(machine: &InFirmware, line: &str) {
    for entry in fs::read_dir(machine.node.system().efivars()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let firmware = machine.firmware();
    firmware.put("Boot0000", Some(&unhex(DISK)));
    firmware.put("BootOrder", Some(&[0, 0]));
    firmware.put("BootCurrent", Some(&[0, 0]));
    machine.node.set_command_line(line).unwrap();
}

fn lost(machine: &InFirmware) -> String {
    let problems = machine.backend().state().unwrap().problems;
    let lost = problems
        .into_iter()
        .find(|problem| problem.code == ProblemCode::EntryLost);
    lost.map(|problem| problem.message).unwrap_or_default()
}

#[test]
fn marking_the_running_slot_good_makes_the_option_that_its_confirmation_had_made() {
    let mut machine = InFirmware::new();
    // With options of the configuration, too.
    let inactive = machine.table().inactive(B).unwrap();
    let proof = *machine.stage(B).proof();
    let verified = machine
        .backend()
        .invalidate(inactive)
        .unwrap()
        .attest(proof);
    let mut extra = options();
    extra.extra = "net.ifnames=0 \"dyndbg=file a.c +p\"".to_owned();
    let image = crate::scenarios::machines::image();
    let view = machine.view();
    let backend = machine.backend();
    backend
        .install_boot_files(&verified, &view, &image, &extra)
        .unwrap();
    backend.arm(&verified, 1, &extra).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    let line = fs::read_to_string(machine.node.system().proc("cmdline")).unwrap();
    let confirmed = machine.firmware().get("Boot0003").unwrap();

    remove(&machine, 3);
    assert_eq!(machine.states(), (Good, Empty));
    assert!(
        lost(&machine).contains("slot B runs, but the firmware has no option of it"),
        "{}",
        lost(&machine)
    );
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.states(), (Good, Good));
    assert_eq!(lost(&machine), "");
    // Number 3 started this boot, and is no other option's.
    let listed = efibootmgr(&machine.node.system().efivars(), &["-v"]);
    for words in [
        "BootOrder: 0002,0004,0000,0001\n",
        "Boot0002* slotd B\t",
        "\\EFI\\slotd\\b\\linux.efi",
    ] {
        assert!(listed.contains(words), "{words}: {listed}");
    }
    assert_eq!(machine.firmware().get("Boot0002").unwrap(), confirmed);
    let before = machine.bytes();
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.bytes(), before);
    assert_eq!(machine.power_cycle(), Some(B));
    let again = fs::read_to_string(machine.node.system().proc("cmdline")).unwrap();
    assert_eq!(again, line);
}

#[test]
fn a_machine_whose_variables_were_reset_is_its_slots_again() {
    let mut machine = InFirmware::new();
    reset(&machine, "root=/dev/vda2 slotd.slot=a");
    // Nothing was ever staged into this slot: its options are those of the image, which runs.
    let root = machine.node.system().path("/");
    fs::create_dir_all(root.join("usr/lib/kernel")).unwrap();
    let line = "console=ttyS0 root=/dev/evil quiet\n";
    fs::write(root.join("usr/lib/kernel/cmdline"), line).unwrap();
    fs::create_dir_all(root.join("etc")).unwrap();
    let id = FixtureNode::MACHINE_ID;
    fs::write(root.join("etc/machine-id"), format!("{id}\n")).unwrap();
    assert_eq!(machine.states(), (Empty, Empty));
    let state = machine.backend().state().unwrap();
    assert!(matches!(state.next, NextBoot::Foreign { id } if id.starts_with("Boot0000")));
    assert!(
        refusals(&machine)
            .iter()
            .any(|(code, _)| *code == RefusalCode::NoFallback)
    );
    machine.backend().mark_good(A).unwrap();
    assert_eq!(machine.states(), (Good, Empty));
    assert_eq!(machine.firmware().get("BootOrder").unwrap(), [1, 0, 0, 0]);
    assert_eq!(machine.firmware().get("Boot0000").unwrap(), unhex(DISK));
    assert_eq!(machine.power_cycle(), Some(A));
    let found = fs::read_to_string(machine.node.system().proc("cmdline")).unwrap();
    let uuid = machine.node.slot_uuid(A);
    assert_eq!(
        found,
        format!(
            "root=PARTUUID={uuid} ro systemd.machine_id={id} slotd.slot=a console=ttyS0 quiet\n"
        )
    );
    assert_eq!(refusals(&machine), []);
    machine.stage_and_arm(B);
    assert_eq!(machine.power_cycle(), Some(B));
}

#[test]
fn making_it_again_can_be_cut_off_anywhere() {
    let good = |machine: &InFirmware| machine.backend().mark_good(B);
    every_prefix(
        "made again",
        without_its_option,
        good,
        ((Good, Empty), (Good, Good)),
        // The option is there, and nothing leads to it.
        &[(Good, Bad)],
    );
}

#[test]
fn it_is_made_by_marking_it_good_and_by_nothing_else() {
    let options = |machine: &InFirmware| -> Vec<String> {
        let files = fs::read_dir(machine.node.system().efivars()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names
            .filter(|name| {
                let digits = name
                    .strip_prefix("Boot")
                    .and_then(|rest| rest.split('-').next());
                digits.is_some_and(|digits| u16::from_str_radix(digits, 16).is_ok())
            })
            .collect();
        names.sort();
        names
    };
    let selected: fn(&InFirmware) = |machine| machine.backend().select(A).unwrap();
    let given_up: fn(&InFirmware) = |machine| machine.backend().mark_bad(B).unwrap();
    for (name, transition) in [("select A", selected), ("mark B bad", given_up)] {
        let mut machine = InFirmware::new();
        without_its_option(&mut machine);
        let before = options(&machine);
        assert_eq!(before.len(), 3, "{name}: {before:?}");
        // What could not be made does not stand in the way either.
        fs::remove_file(machine.node.esp().join("EFI/slotd/b/linux.efi")).unwrap();
        transition(&machine);
        assert_eq!(options(&machine), before, "{name}");
        assert_eq!(machine.power_cycle(), Some(A), "{name}");
    }
}

#[test]
fn a_plan_says_that_it_is_made_and_comes_first() {
    let mut machine = InFirmware::new();
    without_its_option(&mut machine);
    let before = machine.bytes();
    let plan = machine
        .backend()
        .plan_sequence(&[Transition::MarkGood { slot: B }])
        .unwrap();
    let plan: Vec<String> = plan
        .iter()
        .map(|change| format!("{}: {}", change.target, change.change))
        .collect();
    assert_eq!(
        plan,
        [
            "EFI variable Boot0002: write active option \"slotd B\"",
            "EFI variable BootOrder: set to 0002,0004,0000,0001",
        ]
    );
    assert_eq!(machine.bytes(), before);
}

/// What is refused or rejected leaves every byte as it was.
fn not_made(machine: &InFirmware, slot: crate::slot::SlotName, kind: ErrorKind, words: &str) {
    let before = machine.bytes();
    let error = machine.backend().mark_good(slot).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.chain().contains(words), "{}", error.chain());
    assert_eq!(machine.bytes(), before, "{words}");
}

#[test]
fn no_option_is_made_of_a_slot_that_does_not_run_or_whose_kernel_is_not_there() {
    // Not booted: nothing says that it starts.
    let mut machine = InFirmware::new();
    confirmed(&mut machine);
    remove(&machine, 4);
    assert_eq!(machine.states(), (Empty, Good));
    assert_eq!(lost(&machine), "");
    not_made(&machine, A, ErrorKind::Reject, "knows no image in slot A");

    let kernel = |machine: &InFirmware| machine.node.esp().join("EFI/slotd/b/linux.efi");
    let mut machine = InFirmware::new();
    without_its_option(&mut machine);
    let whole = fs::read(kernel(&machine)).unwrap();
    fs::remove_file(kernel(&machine)).unwrap();
    let missing = "\\EFI\\slotd\\b\\linux.efi on /efi";
    assert!(lost(&machine).contains(missing), "{}", lost(&machine));
    not_made(&machine, B, ErrorKind::Unsafe, missing);
    fs::write(kernel(&machine), "torn").unwrap();
    not_made(&machine, B, ErrorKind::Unsafe, "is no EFI program");
    // A program, and another one than was copied for the image.
    let mut other = whole.clone();
    other[0x100] ^= 1;
    fs::write(kernel(&machine), other).unwrap();
    not_made(&machine, B, ErrorKind::Unsafe, "CRC-32");
    fs::write(kernel(&machine), whole).unwrap();
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
}

#[test]
fn a_trial_whose_option_is_gone_has_proven_nothing() {
    let mut machine = InFirmware::new();
    on_trial(&mut machine);
    remove(&machine, 2);
    assert_eq!(machine.states(), (Good, Empty));
    assert_eq!(lost(&machine), "");
    not_made(&machine, B, ErrorKind::Reject, "knows no image in slot B");
    assert_eq!(machine.power_cycle(), Some(A));
}

#[test]
fn a_trial_whose_option_was_removed_can_be_armed_again() {
    let mut machine = InFirmware::new();
    armed(&mut machine);
    remove(&machine, 2);
    // BootNext still names it, and the firmware passes over what is not there.
    assert_eq!(machine.firmware().get("BootNext").unwrap(), [2, 0]);
    assert_eq!(machine.states(), (Good, Empty));
    assert_eq!(
        machine.next(),
        NextBoot::Slot {
            slot: A,
            trial: false
        }
    );
    assert_eq!(machine.backend().state().unwrap().problems, []);
    assert_eq!(refusals(&machine), []);
    arm(&machine).unwrap();
    assert_eq!(machine.states(), (Good, ARMED));
    assert_eq!(machine.firmware().get("BootNext").unwrap(), [3, 0]);
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.states(), (Good, Trial { left: 0, done: 1 }));
    // Cut off anywhere, too.
    let removed = |machine: &mut InFirmware| {
        armed(machine);
        remove(machine, 2);
    };
    every_prefix(
        "armed again",
        removed,
        arm,
        ((Good, Empty), (Good, ARMED)),
        &[(Good, Bad)],
    );
    // One that is there and cannot be read is started by some firmware.
    let machine = InFirmware::new();
    machine.firmware().put("Boot0007", Some(&[1, 0, 0]));
    machine.firmware().put("BootNext", Some(&[7, 0]));
    refused(&machine, RefusalCode::OneShotSet, "BootNext is Boot0007");
    assert!(cut(0, || machine.backend().mark_good(A)));
}
