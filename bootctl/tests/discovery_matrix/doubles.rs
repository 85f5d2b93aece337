//! Labels, ids and file systems that are there twice.

use std::fs;

use slotd_bootctl::fixture::usual_partitions;
use slotd_bootctl::{ErrorKind, SlotName};

use super::common::Machine;
use super::{assert_booted, assert_refused, names};

const LABELS: (&str, &str) = ("PARTLABEL=root-a", "PARTLABEL=root-b");

/// Two disks with the same labels, vda and sda; with `clone` also with the same ids.
fn twins(clone: bool) -> Machine {
    let machine = Machine::new();
    machine.silence();
    let seed = if clone { 0xa000 } else { 0xc000 };
    let partitions = usual_partitions("root-a", "root-b", seed);
    machine
        .node
        .add_disk("sda", 8, 0, 512, &partitions)
        .unwrap();
    machine
}

#[test]
fn of_two_disks_only_the_running_roots_own_counts() {
    for clone in [false, true] {
        for (number, disk) in [("254:3", ("vda2", "vda3")), ("8:3", ("sda2", "sda3"))] {
            let machine = twins(clone);
            machine.mounts(&format!("22 1 {number} / / ro - ext4 /dev/root ro\n"));
            // Links lead to whichever was seen last: here to the other disk, there to the own one.
            machine.link("by-partlabel/root-a", "sda2");
            machine.link("by-partlabel/root-b", "vda3");
            let links = (
                "/dev/disk/by-partlabel/root-a",
                "/dev/disk/by-partlabel/root-b",
            );
            for options in [
                "root=PARTLABEL=root-b",
                "root=/dev/disk/by-partlabel/root-b",
            ] {
                machine.options(options);
                assert_eq!(names(&machine.auto().unwrap()), disk);
                assert_eq!(names(&machine.explicit(LABELS.0, LABELS.1).unwrap()), disk);
                assert_eq!(names(&machine.explicit(links.0, links.1).unwrap()), disk);
                assert_booted(options, machine.auto(), SlotName::B);
            }
            if clone {
                let table = machine.explicit(
                    "PARTUUID=00000000-0000-0000-0000-00000000a002",
                    "PARTUUID=00000000-0000-0000-0000-00000000a003",
                );
                assert_eq!(names(&table.unwrap()), disk);
                machine.options("root=PARTUUID=00000000-0000-0000-0000-00000000a003");
                assert_booted("cloned id", machine.auto(), SlotName::B);
            }
        }
    }
}

#[test]
fn of_two_disks_without_the_root_none_is_guessed() {
    let machine = twins(true);
    machine.mounts("1 1 0:2 / / rw - tmpfs tmpfs rw\n");
    let all = ["vda2", "vda3", "sda2", "sda3"];
    assert_refused("labels", machine.auto(), ErrorKind::Configuration, &all);
    for (a, b) in [
        LABELS,
        (
            "PARTUUID=00000000-0000-0000-0000-00000000a002",
            "PARTUUID=00000000-0000-0000-0000-00000000a003",
        ),
    ] {
        assert_refused(
            a,
            machine.explicit(a, b),
            ErrorKind::Configuration,
            &["vda2", "sda2", a],
        );
    }
    machine.options("root=PARTLABEL=root-b");
    assert_refused("named", machine.auto(), ErrorKind::Configuration, &all);
    // Devices are meant as they are named, across disks too.
    let table = machine.explicit("/dev/vda2", "/dev/sda3").unwrap();
    assert_eq!(names(&table), ("vda2", "sda3"));
}

#[test]
fn a_root_disk_that_cannot_be_read_sends_nobody_to_another_one() {
    let machine = twins(false);
    // Both copies of the table on vda are gone.
    fs::write(machine.dir.path().join("dev/vda"), vec![0; 64 << 20]).unwrap();
    for (case, table) in [
        ("known labels", machine.auto()),
        ("labels", machine.explicit(LABELS.0, LABELS.1)),
    ] {
        let words = ["cannot be searched", "no GPT header", "sda2"];
        assert_refused(case, table, ErrorKind::Configuration, &words);
    }
    let table = machine.explicit("/dev/vda2", "/dev/vda3");
    assert_booted("named devices", table, SlotName::A);
}

#[test]
fn labels_twice_on_one_disk_are_refused_with_both() {
    let machine = Machine::new();
    machine.unplug();
    let mut partitions = usual_partitions("root-a", "root-b", 0xb000);
    partitions[3].label = "root-b".to_owned();
    machine
        .node
        .add_disk("vdb", 254, 16, 512, &partitions)
        .unwrap();
    machine.silence();
    machine.mounts("22 1 254:18 / / ro - ext4 /dev/root ro\n");
    for table in [machine.auto(), machine.explicit(LABELS.0, LABELS.1)] {
        assert_refused("labels", table, ErrorKind::Configuration, &["vdb3", "vdb4"]);
    }
}

#[test]
fn case_makes_another_label() {
    let on_disk = |labels: [&str; 4]| {
        let machine = Machine::bare();
        let mut partitions = usual_partitions("", "", 0xb000);
        for (partition, label) in partitions.iter_mut().zip(labels) {
            partition.label = label.to_owned();
        }
        machine
            .node
            .add_disk("vdb", 254, 16, 512, &partitions)
            .unwrap();
        machine.mounts("22 1 254:17 / / ro - ext4 /dev/root ro\n");
        machine
    };
    // Two known pairs on one disk, which differ in case only.
    let machine = on_disk(["root-a", "ROOT-A", "root-b", "ROOT-B"]);
    assert_refused(
        "two pairs",
        machine.auto(),
        ErrorKind::Configuration,
        &["vdb1", "vdb2", "vdb3", "vdb4", "more than one"],
    );
    let table = machine
        .explicit("PARTLABEL=ROOT-A", "PARTLABEL=ROOT-B")
        .unwrap();
    assert_eq!(names(&table), ("vdb2", "vdb4"));
    assert_booted(
        "lower case",
        machine.explicit("PARTLABEL=root-a", "PARTLABEL=root-b"),
        SlotName::A,
    );
    machine.options("root=PARTLABEL=ROOT-A");
    let table = machine.explicit("PARTLABEL=root-a", "PARTLABEL=root-b");
    assert_refused(
        "other case in root=",
        table,
        ErrorKind::Unsafe,
        &["says neither slot"],
    );
    // Half a pair in each case is no pair.
    let machine = on_disk(["root-a", "x", "ROOT-B", "y"]);
    assert_refused(
        "halves",
        machine.auto(),
        ErrorKind::Configuration,
        &["vdb1", "vdb3"],
    );
    assert_refused(
        "a label in another case",
        machine.explicit("PARTLABEL=root-a", "PARTLABEL=root-b"),
        ErrorKind::Configuration,
        &["slot B", "vdb3 (\"ROOT-B\") differs in case"],
    );
    let machine = on_disk(["Root-a", "x", "Root-b", "y"]);
    assert_refused(
        "unknown",
        machine.auto(),
        ErrorKind::Configuration,
        &["Root-a"],
    );
}

#[test]
fn file_systems_with_the_same_uuid_and_label_change_nothing() {
    // Both slots hold the same image. What udev links is the one that it saw last.
    for (last, slot, minor) in [
        ("vda2", SlotName::B, 3),
        ("vda3", SlotName::A, 2),
        ("vda3", SlotName::B, 3),
    ] {
        let machine = Machine::new();
        machine.silence();
        machine.link("by-uuid/7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111", last);
        machine.link("by-label/root", last);
        for kind in ["ext4", "btrfs"] {
            let number = if kind == "btrfs" {
                "0:33".to_owned()
            } else {
                format!("254:{minor}")
            };
            machine.mounts(&format!(
                "22 1 {number} / / ro - {kind} /dev/vda{minor} ro\n"
            ));
            for options in [
                "root=UUID=7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111",
                "root=/dev/disk/by-uuid/7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111",
                "root=LABEL=root",
                "root=/dev/disk/by-label/root",
            ] {
                machine.options(options);
                assert_booted(&format!("{kind}, {options}"), machine.auto(), slot);
            }
        }
    }
}
