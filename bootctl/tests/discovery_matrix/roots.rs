//! What lies between the running root and the slot below it.

use slotd_bootctl::fixture::{FixtureTable, usual_partitions};
use slotd_bootctl::{Booted, ErrorKind, SlotName};

use super::common::Machine;
use super::{assert_booted, assert_refused};

/// Sets a machine up whose root stands on the slot with that device name and number.
type Build = fn(&Machine, &str, &str);

const KINDS: [(&str, Build); 17] = [
    ("ext4, mounted by the kernel", |machine, _, number| {
        machine.mounts(&format!("22 1 {number} / / ro - ext4 /dev/root ro\n"));
    }),
    ("ext4 over an initrd's rootfs", |machine, name, number| {
        machine.mounts(&format!(
            "1 1 0:2 / / rw - rootfs rootfs rw\n22 1 {number} / / ro - ext4 /dev/{name} ro\n"
        ));
    }),
    ("btrfs", |machine, name, _| {
        machine.mounts(&format!(
            "22 1 0:33 /@ / rw - btrfs /dev/{name} rw,subvol=/@\n"
        ));
    }),
    ("overlayfs on the slot", |machine, name, number| {
        machine.mounts(&format!(
            "20 22 {number} / /run/lower ro - ext4 /dev/{name} ro\n\
             21 22 0:30 / /run/rw rw - tmpfs tmpfs rw\n\
             22 1 0:31 / / rw - overlay overlay rw,lowerdir=/run/lower,upperdir=/run/rw/u,workdir=/run/rw/w\n"
        ));
    }),
    (
        "overlayfs with separate lowerdir+ options",
        |machine, name, number| {
            machine.mounts(&format!(
                "20 22 {number} / /run/lower ro - ext4 /dev/{name} ro\n\
             21 22 0:30 / /run/rw rw - tmpfs tmpfs rw\n\
             22 1 0:31 / / rw - overlay overlay rw,lowerdir+=/run/rw/x,lowerdir+=/run/lower\n"
            ));
        },
    ),
    ("overlayfs on overlayfs", |machine, name, number| {
        machine.mounts(&format!(
            "20 22 {number} / /run/lower ro - erofs /dev/{name} ro\n\
             21 22 0:30 / /run/rw rw - tmpfs tmpfs rw\n\
             23 22 0:32 / /run/mid ro - overlay overlay ro,lowerdir=/run/rw/etc:/run/lower\n\
             22 1 0:31 / / rw - overlay overlay rw,lowerdir=/run/mid,upperdir=/run/rw/u,workdir=/run/rw/w\n"
        ));
    }),
    ("overlayfs on btrfs", |machine, name, _| {
        machine.mounts(&format!(
            "20 22 0:33 / /run/lower ro - btrfs /dev/{name} ro\n\
             22 1 0:31 / / rw - overlay overlay rw,lowerdir=/run/lower\n"
        ));
    }),
    (
        "dm-verity, hashes on another partition",
        |machine, name, _| {
            machine.node.add_mapped("dm-0", 0, &[name, "vda4"]).unwrap();
            machine.map("root", "dm-0");
            machine.mounts("22 1 253:0 / / ro - ext4 /dev/mapper/root ro\n");
            machine.options("root=/dev/mapper/root systemd.verity=1");
        },
    ),
    ("dm-verity by the kernel itself", |machine, name, _| {
        machine.node.add_mapped("dm-0", 0, &[name]).unwrap();
        machine.mounts("22 1 253:0 / / ro - ext4 /dev/root ro\n");
        machine.options("root=/dev/dm-0 dm-mod.create=\"vroot,,,ro,0 32768 verity 1\"");
    }),
    ("dm-crypt over the slot", |machine, name, _| {
        machine.node.add_mapped("dm-3", 3, &[name]).unwrap();
        machine.mounts("22 1 253:3 / / rw - ext4 /dev/mapper/luks-1 rw\n");
        machine.options("root=UUID=7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111 rd.luks.uuid=1");
    }),
    (
        "dm-verity over dm-crypt, btrfs on it",
        |machine, name, _| {
            machine.node.add_mapped("dm-3", 3, &[name]).unwrap();
            machine.node.add_mapped("dm-4", 4, &["dm-3"]).unwrap();
            machine.mounts("22 1 0:33 / / ro - btrfs /dev/dm-4 ro\n");
            machine.options("root=/dev/dm-4");
        },
    ),
    ("overlayfs on dm-verity", |machine, name, _| {
        machine.node.add_mapped("dm-0", 0, &[name]).unwrap();
        machine.mounts(
            "20 22 253:0 / /run/lower ro - ext4 /dev/mapper/root ro\n\
             22 1 0:31 / / rw - overlay overlay rw,lowerdir=/run/lower\n",
        );
    }),
    ("a loop device over the slot", |machine, name, _| {
        machine.node.add_loop(0, &format!("/dev/{name}")).unwrap();
        machine.mounts("22 1 7:0 / / ro - squashfs /dev/loop0 ro\n");
        machine.options("root=/dev/loop0");
    }),
    ("a loop file on the slot's ext4", |machine, name, number| {
        machine.add_loop("/run/slot/root.squashfs");
        machine.mounts(&format!(
            "20 22 {number} / /run/slot ro - ext4 /dev/{name} ro\n\
             22 1 7:0 / / ro - squashfs /dev/loop0 ro\n"
        ));
        machine.options("root=/dev/loop0");
    }),
    (
        "overlayfs on a loop file on the slot's btrfs",
        |machine, name, _| {
            machine.add_loop("/run/slot/root.erofs");
            machine.mounts(&format!(
                "20 22 0:33 / /run/slot ro - btrfs /dev/{name} ro\n\
             21 22 7:0 / /run/lower ro - erofs /dev/loop0 ro\n\
             22 1 0:31 / / rw - overlay overlay rw,lowerdir=/run/lower\n"
            ));
        },
    ),
    (
        "a partition of a loop file on the slot",
        |machine, name, number| {
            let partitions = usual_partitions("one", "two", 0xe000);
            machine
                .node
                .add_disk("loop9", 7, 90, 512, &partitions)
                .unwrap();
            machine
                .node
                .set_backing_file("loop9", "/run/slot/disk.img")
                .unwrap();
            machine.file("/run/slot/disk.img");
            machine.mounts(&format!(
                "20 22 {number} / /run/slot ro - ext4 /dev/{name} ro\n\
             22 1 7:92 / / ro - ext4 /dev/loop9p2 ro\n"
            ));
        },
    ),
    (
        "a partition of an MD device on the slot",
        |machine, name, _| {
            let partitions = usual_partitions("one", "two", 0xe000);
            machine
                .node
                .add_disk("md127", 259, 90, 512, &partitions)
                .unwrap();
            machine.node.set_below("md127", &[name]).unwrap();
            machine.mounts("22 1 259:92 / / ro - ext4 /dev/md127p2 ro\n");
            machine.options("root=/dev/md127p2");
        },
    ),
];

#[test]
fn the_booted_slot_is_seen_through_whatever_lies_on_it() {
    for (kind, build) in KINDS {
        for (slot, name, number) in [
            (SlotName::A, "vda2", "254:2"),
            (SlotName::B, "vda3", "254:3"),
        ] {
            let machine = Machine::new();
            machine.silence();
            build(&machine, name, number);
            let case = format!("{kind}, slot {slot}");
            assert_booted(&case, machine.auto(), slot);
            assert_booted(&case, machine.explicit("/dev/vda2", "/dev/vda3"), slot);
        }
    }
}

#[test]
fn device_mapper_devices_can_be_the_slots() {
    let machine = Machine::new();
    machine.silence();
    // Two logical volumes on one physical one.
    machine.node.add_mapped("dm-0", 0, &["vda4"]).unwrap();
    machine.node.add_mapped("dm-1", 1, &["vda4"]).unwrap();
    machine.map("vg-a", "dm-0");
    machine.map("vg-b", "dm-1");
    machine.mounts("22 1 253:1 / / rw - ext4 /dev/mapper/vg-b rw\n");
    machine.options("root=/dev/mapper/vg-b");
    let table = machine.explicit("/dev/mapper/vg-a", "/dev/mapper/vg-b");
    assert_booted("volumes", table, SlotName::B);
}

#[test]
fn a_separate_usr_is_what_counts_for_usr_slots() {
    for (slot, minor) in [(SlotName::A, 18), (SlotName::B, 19)] {
        let machine = Machine::bare();
        let partitions = usual_partitions("USR-A", "USR-B", 0xb000);
        machine
            .node
            .add_disk("vdb", 254, 16, 512, &partitions)
            .unwrap();
        machine
            .node
            .add_mapped("dm-0", 0, &[&format!("vdb{}", minor - 16)])
            .unwrap();
        let id = format!("00000000-0000-0000-0000-00000000b00{}", minor - 16);
        for usr in [
            format!("254:{minor} / /usr ro - ext4 /dev/root ro"),
            "253:0 / /usr ro - btrfs /dev/mapper/usr ro".to_owned(),
        ] {
            machine.mounts(&format!(
                "22 1 254:20 / / rw - ext4 /dev/vdb4 rw\n23 22 {usr}\n"
            ));
            for options in [
                "root=LABEL=ROOT".to_owned(),
                "root=PARTLABEL=data".to_owned(),
                format!("root=/dev/vdb4 mount.usr=PARTUUID={id}"),
                format!("root=/dev/vdb4 mount.usr=/dev/dm-0 verity.usr=PARTUUID={id}"),
                format!("root=/dev/vdb4 systemd.verity_usr_data=PARTUUID={id}"),
            ] {
                machine.options(&options);
                assert_booted(&format!("{usr}, {options}"), machine.auto(), slot);
            }
        }
        let other = format!("00000000-0000-0000-0000-00000000b00{}", 21 - minor);
        for key in ["mount.usr", "verity.usr", "systemd.verity_usr_data"] {
            machine.options(&format!("root=/dev/vdb4 {key}=PARTUUID={other}"));
            assert_refused(key, machine.auto(), ErrorKind::Unsafe, &[key, "mountinfo"]);
        }
    }
    let machine = Machine::new();
    machine.silence();
    machine.mounts(
        "22 1 254:2 / / rw - ext4 /dev/vda2 rw\n23 22 254:3 / /usr ro - ext4 /dev/vda3 ro\n",
    );
    assert_refused(
        "both",
        machine.auto(),
        ErrorKind::Unsafe,
        &["stands on both slots"],
    );
}

#[test]
fn a_system_that_runs_from_neither_slot_may_write_both() {
    type Change = fn(&Machine);
    let cases: [(&str, Change); 6] = [
        ("a RAM disk", |machine| {
            machine.mounts("1 1 0:2 / / rw - tmpfs tmpfs rw\n")
        }),
        ("an initrd", |machine| {
            machine.mounts("1 1 0:2 / / rw - rootfs rootfs rw\n");
            machine.options("root=/dev/ram0");
        }),
        ("a network root", |machine| {
            machine.mounts("22 1 0:40 / / rw - nfs 10.0.0.1:/root rw\n");
            machine.options("root=/dev/nfs");
        }),
        ("a partition of the same disk", |machine| {
            machine.mounts("22 1 254:4 / / rw - ext4 /dev/vda4 rw\n");
            machine.options("root=PARTLABEL=data");
        }),
        ("a stick", |machine| {
            let partitions = usual_partitions("rescue", "spare", 0xc000);
            machine
                .node
                .add_disk("sda", 8, 0, 512, &partitions)
                .unwrap();
            machine.mounts("22 1 8:2 / / ro - ext4 /dev/sda2 ro\n");
            machine.options("root=PARTUUID=00000000-0000-0000-0000-00000000c002");
        }),
        ("a live medium with a DOS table", |machine| {
            let partitions = usual_partitions("", "", 0);
            let table = FixtureTable::Dos(0x1234_5678);
            machine
                .node
                .add_disk_with(table, "sda", (8, 0), 512, &partitions)
                .unwrap();
            machine.add_loop("/run/live/root.squashfs");
            machine.mounts(
                "20 22 8:1 / /run/live ro - vfat /dev/sda1 ro\n\
                 21 22 7:0 / /run/lower ro - squashfs /dev/loop0 ro\n\
                 22 1 0:31 / / rw - overlay overlay rw,lowerdir=/run/lower\n",
            );
        }),
    ];
    for (case, change) in cases {
        let machine = Machine::new();
        machine.silence();
        change(&machine);
        let table = machine
            .auto()
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(table.booted, Booted::Neither, "{case}");
        for slot in SlotName::BOTH {
            assert!(table.inactive(slot).is_ok(), "{case}");
        }
        // Somebody who says that a slot runs is not overheard.
        machine
            .node
            .set_string("LoaderEntrySelected", Some("slotd-a.conf"))
            .unwrap();
        let table = machine.auto();
        if case == "a RAM disk" || case == "an initrd" || case == "a network root" {
            assert_booted(case, table, SlotName::A);
        } else {
            assert_refused(
                case,
                table,
                ErrorKind::Unsafe,
                &["says neither slot", "says slot A"],
            );
        }
    }
}
