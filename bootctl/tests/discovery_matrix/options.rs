//! The forms of `root=` on the kernel's command line.

use slotd_bootctl::{Booted, ErrorKind, SlotName};

use super::common::Machine;
use super::{assert_booted, assert_refused};

/// The usual node with links as udev makes them. Those by file system lead to B, where they led last.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.silence();
    for (name, device) in [("a", "vda2"), ("b", "vda3")] {
        machine.link(&format!("by-partlabel/root-{name}"), device);
        machine.link(&format!("by-path/pci-0000:00:04.0-{name}"), device);
    }
    for (minor, device) in [(2, "vda2"), (3, "vda3")] {
        machine.link(
            &format!("by-partuuid/00000000-0000-0000-0000-00000000a00{minor}"),
            device,
        );
    }
    machine.link("by-uuid/7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111", "vda3");
    machine.link("by-label/root", "vda3");
    machine
}

#[test]
fn whatever_names_a_partition_has_to_agree_with_the_device() {
    for [of_a, of_b] in [
        [
            "PARTUUID=00000000-0000-0000-0000-00000000a002",
            "PARTUUID=00000000-0000-0000-0000-00000000a003",
        ],
        [
            "PARTUUID=00000000-0000-0000-0000-00000000A002",
            "PARTUUID=00000000-0000-0000-0000-00000000A003",
        ],
        [
            "PARTUUID=00000000-0000-0000-0000-00000000a001/PARTNROFF=1",
            "PARTUUID=00000000-0000-0000-0000-00000000a004/PARTNROFF=-1",
        ],
        ["PARTLABEL=root-a", "PARTLABEL=root-b"],
        ["/dev/vda2", "/dev/vda3"],
        ["254:2", "254:3"],
        [
            "/dev/disk/by-partlabel/root-a",
            "/dev/disk/by-partlabel/root-b",
        ],
        [
            "/dev/disk/by-partuuid/00000000-0000-0000-0000-00000000a002",
            "/dev/disk/by-partuuid/00000000-0000-0000-0000-00000000a003",
        ],
        [
            "/dev/disk/by-path/pci-0000:00:04.0-a",
            "/dev/disk/by-path/pci-0000:00:04.0-b",
        ],
        // The last one counts.
        ["/dev/vda3 root=/dev/vda2", "/dev/vda2 ro root=/dev/vda3"],
    ] {
        for (slot, minor, right, wrong) in
            [(SlotName::A, 2, of_a, of_b), (SlotName::B, 3, of_b, of_a)]
        {
            let machine = machine();
            machine.mounts(&format!("22 1 254:{minor} / / ro - ext4 /dev/root ro\n"));
            machine.options(&format!("ro root={right} quiet"));
            let table = machine
                .auto()
                .unwrap_or_else(|error| panic!("{right}: {error}"));
            let said: Vec<_> = table
                .evidence
                .0
                .iter()
                .map(|witness| witness.says)
                .collect();
            assert_eq!(said, [Some(Booted::Slot(slot)); 2], "{right}");
            assert_booted(right, machine.auto(), slot);
            machine.options(&format!("ro root={wrong} quiet"));
            assert_refused(
                wrong,
                machine.auto(),
                ErrorKind::Unsafe,
                &["root=", "mountinfo"],
            );
        }
    }
}

#[test]
fn what_names_a_file_system_or_nothing_says_nothing() {
    for value in [
        "UUID=7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111",
        "LABEL=root",
        "LABEL=root-b",
        "/dev/disk/by-uuid/7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111",
        "/dev/disk/by-label/root",
        "/dev/root",
        "/dev/nfs",
        "/dev/ram0",
        "/dev/vda9",
        "254:99",
        "PARTLABEL=nothing",
        "PARTLABEL=",
        "PARTUUID=nonsense",
        "PARTUUID=00000000-0000-0000-0000-00000000a001/PARTNROFF=x",
        "PARTUUID=00000000-0000-0000-0000-00000000a001/PARTNROFF=9",
        "gpt-auto",
        "",
    ] {
        let machine = machine();
        machine.options(&format!("root={value}"));
        let table = machine
            .auto()
            .unwrap_or_else(|error| panic!("{value}: {error}"));
        let witness = table.evidence.0.last().unwrap();
        assert_eq!((witness.found.as_str(), witness.says), (value, None));
        assert_booted(value, machine.auto(), SlotName::A);
    }
}

#[test]
fn a_partition_that_is_neither_slot_contradicts() {
    for value in ["/dev/vda4", "PARTLABEL=data", "254:1", "/dev/vda"] {
        let machine = machine();
        machine.options(&format!("root={value}"));
        assert_refused(
            value,
            machine.auto(),
            ErrorKind::Unsafe,
            &["says neither slot"],
        );
    }
}
