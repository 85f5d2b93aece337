//! Names that the configuration gives the slots, and what two of them may not mean.

use slotd_bootctl::{ErrorKind, SlotLocator, SlotName};

use super::common::Machine;
use super::{assert_booted, assert_refused, names};

fn machine() -> Machine {
    let machine = Machine::new();
    for (name, device) in [("a", "vda2"), ("b", "vda3")] {
        machine.link(&format!("by-partlabel/root-{name}"), device);
        machine.link(&format!("by-path/pci-0000:00:04.0-part-{name}"), device);
    }
    machine
}

/// Every spelling of a slot's partition.
fn spellings(slot: SlotName) -> [String; 6] {
    let (letter, minor) = match slot {
        SlotName::A => ("a", 2),
        SlotName::B => ("b", 3),
    };
    [
        format!("PARTLABEL=root-{letter}"),
        format!("PARTUUID=00000000-0000-0000-0000-00000000a00{minor}"),
        format!("PARTUUID=00000000-0000-0000-0000-00000000A00{minor}"),
        format!("/dev/vda{minor}"),
        format!("/dev/disk/by-partlabel/root-{letter}"),
        format!("/dev/disk/by-path/pci-0000:00:04.0-part-{letter}"),
    ]
}

#[test]
fn every_pair_of_spellings_finds_the_slots() {
    let machine = machine();
    for a in spellings(SlotName::A) {
        for b in spellings(SlotName::B) {
            let table = machine.explicit(&a, &b).unwrap();
            assert_eq!(names(&table), ("vda2", "vda3"), "{a} and {b}");
            let text = table.found_by.to_lowercase();
            let names = [a.to_lowercase(), b.to_lowercase()];
            assert!(names.iter().all(|name| text.contains(name)), "{text}");
            // The other way round the loader and the command line name the other slot.
            assert_refused(
                &b,
                machine.explicit(&b, &a),
                ErrorKind::Unsafe,
                &["says slot B"],
            );
        }
    }
}

#[test]
fn one_partition_in_any_two_spellings_is_refused() {
    let machine = machine();
    let before = machine.bytes();
    for slot in SlotName::BOTH {
        for a in spellings(slot) {
            for b in spellings(slot) {
                assert_refused(
                    &format!("{a} and {b}"),
                    machine.explicit(&a, &b),
                    ErrorKind::Configuration,
                    &["both slots are the same device"],
                );
            }
        }
    }
    assert!(machine.bytes() == before);
}

#[test]
fn names_of_file_systems_are_refused_as_such() {
    for text in [
        "LABEL=root-a",
        "UUID=7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111",
        "/dev/disk/by-label/root-a",
        "/dev/disk/by-uuid/7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111",
    ] {
        let error = text.parse::<SlotLocator>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reject);
        for word in [
            text,
            "names a file system",
            "come with the image",
            "PARTLABEL=",
        ] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let machine = machine();
    machine.link("by-partlabel/gone", "vda9");
    for b in [
        "PARTLABEL=gone",
        "PARTUUID=00000000-0000-0000-0000-00000000a009",
        "PARTUUID=0badcafe-03",
        "/dev/vda9",
        "/dev/disk/by-partlabel/gone",
        "/dev/disk/by-id/none",
    ] {
        let table = machine.explicit("PARTLABEL=root-a", b);
        assert_refused(b, table, ErrorKind::Configuration, &["slot B is set to", b]);
    }
}

#[test]
fn slots_that_are_not_apart_are_refused() {
    type Build = fn(&Machine);
    type Case = (
        &'static str,
        Build,
        &'static str,
        &'static str,
        ErrorKind,
        &'static [&'static str],
    );
    let cases: [Case; 7] = [
        (
            "a whole disk and its partition",
            |_| {},
            "/dev/vda2",
            "/dev/vda",
            ErrorKind::Configuration,
            &["vda2 and vda overlap"],
        ),
        (
            "a mapping of the other slot",
            |machine| machine.node.add_mapped("dm-0", 0, &["vda2"]).unwrap(),
            "/dev/vda2",
            "/dev/dm-0",
            ErrorKind::Configuration,
            &["slot B, dm-0, stands on the other slot, vda2"],
        ),
        (
            "the other slot through two mappings",
            |machine| {
                machine.node.add_mapped("dm-0", 0, &["vda3"]).unwrap();
                machine.node.add_mapped("dm-1", 1, &["dm-0"]).unwrap();
            },
            "/dev/dm-1",
            "/dev/vda3",
            ErrorKind::Configuration,
            &["slot A, dm-1, stands on the other slot, vda3"],
        ),
        (
            "a loop device over the other slot",
            |machine| machine.node.add_loop(0, "/dev/vda2").unwrap(),
            "/dev/vda2",
            "/dev/loop0",
            ErrorKind::Configuration,
            &["loop0", "vda2"],
        ),
        (
            "a mapping of the running root, which is neither slot by name",
            |machine| {
                machine.silence();
                machine.mounts("22 1 254:4 / / rw - ext4 /dev/vda4 rw\n");
                machine.node.add_mapped("dm-0", 0, &["vda4"]).unwrap();
            },
            "/dev/vda2",
            "/dev/dm-0",
            ErrorKind::Unsafe,
            &["slot B, dm-0, stands on vda4, which the running root is mounted from"],
        ),
        (
            "a mapping of the running root's whole disk",
            |machine| {
                machine.silence();
                machine.mounts("22 1 254:0 / / rw - ext4 /dev/vda rw\n");
            },
            "/dev/vda2",
            "/dev/vda3",
            ErrorKind::Unsafe,
            &["stands on vda, which the running root is mounted from"],
        ),
        (
            "a loop device over a device that is not there twice",
            |machine| {
                machine
                    .node
                    .add_loop(0, "/dev/disk/by-partlabel/root-b")
                    .unwrap()
            },
            "/dev/loop0",
            "/dev/vda3",
            ErrorKind::Configuration,
            &["loop0", "vda3"],
        ),
    ];
    for (case, build, a, b, kind, words) in cases {
        let machine = machine();
        build(&machine);
        let before = machine.bytes();
        assert_refused(case, machine.explicit(a, b), kind, words);
        assert!(machine.bytes() == before, "{case}");
    }
}

#[test]
fn a_whole_disk_that_holds_the_running_root_is_a_booted_slot() {
    let machine = machine();
    machine.silence();
    let partitions = slotd_bootctl::fixture::usual_partitions("x", "y", 0xc000);
    for (disk, minor) in [("sda", 0), ("sdb", 16)] {
        machine
            .node
            .add_disk(disk, 8, minor, 512, &partitions)
            .unwrap();
    }
    machine.mounts("22 1 8:18 / / rw - ext4 /dev/sdb2 rw\n");
    let table = machine.explicit("/dev/sda", "/dev/sdb");
    assert_booted("disks as slots", table, SlotName::B);
}
