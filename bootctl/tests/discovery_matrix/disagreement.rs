//! Device, boot loader and command line, two of which disagree. All three are shown.

use slotd_bootctl::{ErrorKind, SlotName};

use super::common::Machine;
use super::{assert_booted, assert_refused};

/// What a witness says, if anything.
type Word = Option<SlotName>;

const A: Word = Some(SlotName::A);
const B: Word = Some(SlotName::B);

fn machine(device: Word, loader: Word, line: Word) -> Machine {
    let machine = Machine::new();
    match device {
        Some(SlotName::A) => machine.mounts("22 1 254:2 / / ro - ext4 /dev/root ro\n"),
        Some(SlotName::B) => machine.mounts("22 1 254:3 / / ro - ext4 /dev/root ro\n"),
        None => machine.mounts("22 1 0:31 / / rw - overlay overlay rw,lowerdir=/old/lower\n"),
    }
    let entry = match loader {
        Some(slot) => format!("slotd-{}.conf", slot.lower()),
        None => "debian.conf".to_owned(),
    };
    machine
        .node
        .set_string("LoaderEntrySelected", Some(&entry))
        .unwrap();
    match line {
        Some(slot) => machine.options(&format!("root=PARTLABEL=root-{}", slot.lower())),
        None => machine.options("root=UUID=7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111"),
    }
    machine
}

fn said(source: &str, word: Word) -> String {
    match word {
        Some(slot) => format!("{source} says slot {slot} "),
        None => format!("{source} says nothing "),
    }
}

#[test]
fn every_combination_is_decided_by_whether_all_that_speak_agree() {
    let (mut agreed, mut refused) = (0, 0);
    for device in [A, B, None] {
        for loader in [A, B, None] {
            for line in [A, B, None] {
                let case = format!("device {device:?}, loader {loader:?}, command line {line:?}");
                let machine = machine(device, loader, line);
                let words = [device, loader, line];
                let speaks_of = |slot| words.contains(&Some(slot));
                match (speaks_of(SlotName::A), speaks_of(SlotName::B)) {
                    (true, false) => assert_booted(&case, machine.auto(), SlotName::A),
                    (false, true) => assert_booted(&case, machine.auto(), SlotName::B),
                    _ => {
                        let all = [
                            said("root device (/proc/self/mountinfo)", device),
                            said("EFI variable LoaderEntrySelected", loader),
                            said("command line root=", line),
                        ];
                        let all: Vec<&str> = all.iter().map(String::as_str).collect();
                        assert_refused(&case, machine.auto(), ErrorKind::Unsafe, &all);
                        refused += 1;
                        continue;
                    }
                }
                agreed += 1;
            }
        }
    }
    // By hand: of 27, all silent is one, both slots are named in 27 - 2·(8 - 1) - 1 = 12.
    assert_eq!((agreed, refused), (14, 13));
}

#[test]
fn a_loader_that_keeps_a_record_is_a_witness_too() {
    for (device, line) in [(A, A), (A, None), (None, A)] {
        let machine = machine(device, None, line);
        let case = format!("device {device:?}, command line {line:?}");
        assert_booted(&case, machine.with_loader(SlotName::A), SlotName::A);
        let all = [
            said("root device (/proc/self/mountinfo)", device),
            said("a loader's record", B),
            said("command line root=", line),
        ];
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_refused(
            &case,
            machine.with_loader(SlotName::B),
            ErrorKind::Unsafe,
            &all,
        );
    }
}

#[test]
fn the_options_of_our_own_entries_contradict_each_other() {
    let machine = machine(A, A, A);
    machine.options("root=PARTLABEL=root-a slotd.slot=b");
    assert_refused(
        "slotd.slot=",
        machine.auto(),
        ErrorKind::Unsafe,
        &[
            "command line slotd.slot= says slot B",
            "command line root= says slot A",
        ],
    );
}
