//! Kinds of disks, sectors and partition tables.

use slotd_bootctl::fixture::{FixturePartition, FixtureTable, usual_partitions};
use slotd_bootctl::{ErrorKind, SlotName};

use super::common::Machine;
use super::{assert_booted, assert_refused, names};

const SIGNATURE: u32 = 0x0bad_cafe;

/// Disk, major number, and its partitions 2 and 3 by the kernel's rules.
const DISKS: [(&str, u32, &str, &str); 10] = [
    ("nvme0n1", 259, "nvme0n1p2", "nvme0n1p3"),
    ("nvme10n2", 259, "nvme10n2p2", "nvme10n2p3"),
    ("mmcblk0", 179, "mmcblk0p2", "mmcblk0p3"),
    ("sda", 8, "sda2", "sda3"),
    ("sdaa", 65, "sdaa2", "sdaa3"),
    ("vdb", 254, "vdb2", "vdb3"),
    ("xvda", 202, "xvda2", "xvda3"),
    ("loop7", 7, "loop7p2", "loop7p3"),
    ("md127", 9, "md127p2", "md127p3"),
    ("cciss!c0d0", 104, "cciss!c0d0p2", "cciss!c0d0p3"),
];

fn root_on(machine: &Machine, major: u32, minor: u32) {
    machine.mounts(&format!(
        "22 1 {major}:{minor} / / ro - ext4 /dev/root ro\n"
    ));
}

#[test]
fn every_kind_of_disk_with_a_guid_table_needs_no_configuration() {
    for (disk, major, a, b) in DISKS {
        for sector in [512, 4096] {
            for (minor, slot) in [(18, SlotName::A), (19, SlotName::B)] {
                let case = format!("{disk}, sectors of {sector}, slot {slot}");
                let machine = Machine::bare();
                let partitions = usual_partitions("rootfs-a", "rootfs-b", 0xb000);
                machine
                    .node
                    .add_disk(disk, major, 16, sector, &partitions)
                    .unwrap();
                root_on(&machine, major, minor);
                let table = machine.auto().unwrap();
                assert_eq!(names(&table), (a, b), "{case}");
                assert_eq!(table.a.logical_block, sector, "{case}");
                assert_eq!((table.a.start, table.a.size), (9 << 20, 16 << 20), "{case}");
                assert!(table.found_by.contains("GPT"), "{}", table.found_by);
                assert!(table.b.node.exists(), "{case}");
                assert_booted(&case, machine.auto(), slot);
            }
        }
    }
}

#[test]
fn every_kind_of_disk_with_a_dos_table_takes_ids_and_devices() {
    for (disk, major, a, b) in DISKS {
        for sector in [512, 4096] {
            let machine = Machine::bare();
            add_dos(&machine, disk, (major, 16), sector, SIGNATURE, [1, 2, 3, 4]);
            root_on(&machine, major, 19);
            let path = |name: &str| format!("/dev/{}", name.replace('!', "/"));
            for (name_a, name_b) in [
                ("PARTUUID=0badcafe-02".to_owned(), path(b)),
                (path(a), "PARTUUID=0BADCAFE-03".to_owned()),
                (path(a), path(b)),
            ] {
                let case = format!("{disk}, sectors of {sector}, {name_a} and {name_b}");
                let table = machine.explicit(&name_a, &name_b).unwrap();
                assert_eq!(names(&table), (a, b), "{case}");
                let id = table.a.part_uuid().unwrap().to_string();
                assert_eq!(id, "0badcafe-02", "{case}");
                assert_eq!((table.a.start, table.a.size), (9 << 20, 16 << 20), "{case}");
                assert_booted(&case, machine.explicit(&name_a, &name_b), SlotName::B);
            }
        }
    }
}

fn add_dos(
    machine: &Machine,
    disk: &str,
    number: (u32, u32),
    sector: u32,
    signature: u32,
    indices: [u32; 4],
) {
    let table = FixtureTable::Dos(signature);
    machine
        .node
        .add_disk_with(table, disk, number, sector, &numbered(indices))
        .unwrap();
}

fn numbered(indices: [u32; 4]) -> Vec<FixturePartition> {
    let mut partitions = usual_partitions("", "", 0);
    // Room for the table in front of the first logical one.
    partitions[0].size = 4 << 20;
    for (partition, index) in partitions.iter_mut().zip(indices) {
        partition.index = index;
    }
    partitions
}

#[test]
fn slots_can_be_logical_partitions() {
    for sector in [512, 4096] {
        let machine = Machine::bare();
        add_dos(&machine, "sda", (8, 0), sector, SIGNATURE, [1, 5, 6, 7]);
        root_on(&machine, 8, 5);
        machine.options("root=PARTUUID=0badcafe-05");
        let table = machine
            .explicit("/dev/sda5", "PARTUUID=0badcafe-06")
            .unwrap();
        assert_eq!(names(&table), ("sda5", "sda6"));
        assert_eq!(table.evidence.0.len(), 2);
        assert_booted(
            "logical",
            machine.explicit("/dev/sda5", "PARTUUID=0badcafe-06"),
            SlotName::A,
        );
        // The partition around them is none that a slot could be.
        assert_refused(
            "extended",
            machine.explicit("/dev/sda1", "/dev/sda4"),
            ErrorKind::Configuration,
            &["slot B is sda4", "extended"],
        );
    }
}

#[test]
fn a_dos_disk_without_a_configuration_is_refused_with_its_partitions() {
    let machine = Machine::bare();
    add_dos(&machine, "sda", (8, 0), 512, SIGNATURE, [1, 2, 3, 4]);
    root_on(&machine, 8, 2);
    assert_refused(
        "no labels",
        machine.auto(),
        ErrorKind::Configuration,
        &[
            "DOS table, which has no labels",
            "sda2 (PARTUUID 0badcafe-02)",
        ],
    );
}

#[test]
fn a_dos_disk_without_a_signature_has_no_ids() {
    let machine = Machine::bare();
    add_dos(&machine, "sda", (8, 0), 512, 0, [1, 2, 3, 4]);
    root_on(&machine, 8, 2);
    let table = machine.explicit("/dev/sda2", "/dev/sda3").unwrap();
    assert_eq!(table.a.part_uuid(), None);
    assert_refused(
        "another disk's id",
        machine.explicit("PARTUUID=0badcafe-02", "/dev/sda3"),
        ErrorKind::Configuration,
        &["no such partition"],
    );
}

#[test]
fn of_two_disks_with_one_signature_the_running_roots_counts() {
    let machine = Machine::bare();
    add_dos(&machine, "sda", (8, 0), 512, SIGNATURE, [1, 2, 3, 4]);
    add_dos(&machine, "sdb", (8, 16), 512, SIGNATURE, [1, 2, 3, 4]);
    let slots = ("PARTUUID=0badcafe-02", "PARTUUID=0badcafe-03");
    root_on(&machine, 8, 19);
    let table = machine.explicit(slots.0, slots.1).unwrap();
    assert_eq!(names(&table), ("sdb2", "sdb3"));
    machine.mounts("22 1 0:2 / / rw - tmpfs tmpfs rw\n");
    assert_refused(
        "neither disk has the root",
        machine.explicit(slots.0, slots.1),
        ErrorKind::Configuration,
        &["sda2", "sdb2"],
    );
}

#[test]
fn a_dos_table_that_the_kernel_has_otherwise_is_not_used() {
    let machine = Machine::bare();
    add_dos(&machine, "sda", (8, 0), 512, SIGNATURE, [1, 2, 3, 4]);
    root_on(&machine, 8, 2);
    let size = machine.dir.path().join("sys/class/block/sda3/size");
    std::fs::write(size, "64\n").unwrap();
    assert_refused(
        "stale",
        machine.explicit("PARTUUID=0badcafe-02", "PARTUUID=0badcafe-03"),
        ErrorKind::Configuration,
        &["sda3", "the table at byte"],
    );
}
