//! Which partitions are the slots, and which one is booted: on trees that look like machines.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use slotd_bootctl::fixture::{FixtureNode, usual_partitions};
use slotd_bootctl::{
    Backend, Booted, Error, ErrorKind, EspSetting, SlotLocator, SlotName, SlotSettings, SlotTable,
    SystemdBoot, Witness,
};

use self::common::Machine;

impl Machine {
    fn discover(&self) -> Result<SlotTable, Error> {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None)
    }

    fn explicit(&self, a: &str, b: &str) -> Result<SlotTable, Error> {
        let parse = |text: &str| text.parse::<SlotLocator>().unwrap();
        let settings = SlotSettings::Explicit {
            a: parse(a),
            b: parse(b),
        };
        SlotTable::discover(&self.node.system(), &settings, None)
    }

    /// Takes everything away that speaks of a slot besides the root's device.
    fn silence(&self) {
        self.node.set_string("LoaderEntrySelected", None).unwrap();
        self.node.set_command_line("quiet").unwrap();
    }
}

fn booted(table: Result<SlotTable, Error>) -> Booted {
    table.unwrap().booted
}

#[test]
fn a_usual_disk_needs_no_configuration() {
    let machine = Machine::new();
    let table = machine.discover().unwrap();
    assert_eq!(table.booted, Booted::Slot(SlotName::A));
    assert_eq!(
        (table.a.kernel_name.as_str(), table.b.kernel_name.as_str()),
        ("vda2", "vda3")
    );
    assert_eq!(table.b.number.to_string(), "254:3");
    assert_eq!((table.b.start, table.b.size), (25 << 20, 16 << 20));
    assert_eq!(table.b.label, "root-b");
    assert_eq!(table.b.uuid.unwrap().as_u128(), 0xa003);
    assert!(
        table
            .evidence
            .0
            .iter()
            .all(|w| w.says == Some(Booted::Slot(SlotName::A)))
    );
    assert_eq!(table.evidence.0.len(), 4);
}

#[test]
fn partitions_are_found_whatever_their_names_and_sectors() {
    for (disk, first, sector) in [
        ("nvme1n1", "nvme1n1p2", 4096),
        ("mmcblk0", "mmcblk0p2", 512),
        ("loop7", "loop7p2", 4096),
    ] {
        let machine = Machine::new();
        let parts = usual_partitions("system_a", "system_b", 0xb000);
        machine
            .node
            .add_disk(disk, 259, 16, sector, &parts)
            .unwrap();
        machine
            .node
            .set_mounts("22 1 259:19 / / ro - ext4 /dev/root ro\n")
            .unwrap();
        machine.silence();
        let table = machine.discover().unwrap();
        assert_eq!(table.a.kernel_name, first);
        assert_eq!(table.a.logical_block, sector);
        assert_eq!(table.booted, Booted::Slot(SlotName::B));
    }
}

#[test]
fn of_two_disks_with_the_same_labels_the_running_roots_one_counts() {
    let machine = Machine::new();
    let parts = usual_partitions("root-a", "root-b", 0xc000);
    machine.node.add_disk("sda", 8, 0, 512, &parts).unwrap();
    assert_eq!(machine.discover().unwrap().b.kernel_name, "vda3");
    let table = machine
        .explicit("PARTLABEL=root-a", "PARTLABEL=root-b")
        .unwrap();
    assert_eq!(table.b.kernel_name, "vda3");
}

#[test]
fn a_slot_that_is_gone_from_the_roots_disk_is_not_looked_for_on_another() {
    for by_uuid in [false, true] {
        let machine = Machine::new();
        let gone = machine.discover().unwrap();
        // Another disk carries the name that the root's own disk lacks.
        let parts = usual_partitions("root-a", "other-b", 0xc000);
        machine.node.add_disk("sda", 8, 0, 512, &parts).unwrap();
        let there = machine.explicit("PARTLABEL=root-a", "/dev/sda3").unwrap();
        let b = if by_uuid {
            format!("PARTUUID={}", there.b.uuid.unwrap())
        } else {
            "PARTLABEL=other-b".to_owned()
        };
        let error = machine.explicit("PARTLABEL=root-a", &b).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains("sda3"), "{error}");
        assert_eq!(gone.a.kernel_name, there.a.kernel_name);
    }
}

#[test]
fn a_rescue_system_gets_the_only_pair_and_is_refused_among_several() {
    let machine = Machine::new();
    machine.silence();
    machine
        .node
        .set_mounts("1 1 0:2 / / rw - tmpfs tmpfs rw\n")
        .unwrap();
    let table = machine.discover().unwrap();
    assert_eq!(table.booted, Booted::Neither);
    assert!(table.inactive(SlotName::A).is_ok());
    let parts = usual_partitions("root-a", "root-b", 0xc000);
    machine.node.add_disk("sda", 8, 0, 512, &parts).unwrap();
    let error = machine.discover().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    for name in ["vda2", "vda3", "sda2", "sda3"] {
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = machine
        .explicit("PARTLABEL=root-a", "PARTLABEL=root-b")
        .unwrap_err();
    assert!(
        error.to_string().contains("several partitions match"),
        "{error}"
    );
}

#[test]
fn a_rescue_stick_that_is_no_slot_says_neither() {
    let machine = Machine::new();
    machine.silence();
    let parts = usual_partitions("rescue", "spare", 0xc000);
    machine.node.add_disk("sda", 8, 0, 512, &parts).unwrap();
    machine
        .node
        .set_mounts("22 1 8:2 / / ro - ext4 /dev/sda2 ro\n")
        .unwrap();
    let table = machine.discover().unwrap();
    assert_eq!(
        (table.booted, table.a.disk.as_str()),
        (Booted::Neither, "vda")
    );
}

#[test]
fn labels_that_occur_twice_on_a_disk_are_refused_with_the_candidates() {
    let machine = Machine::new();
    let mut parts = usual_partitions("root-a", "root-b", 0xb000);
    parts[3].label = "root-b".to_owned();
    machine.node.add_disk("vdb", 254, 16, 512, &parts).unwrap();
    machine
        .node
        .set_mounts("22 1 254:18 / / ro - ext4 /dev/vdb2 ro\n")
        .unwrap();
    machine.silence();
    let error = machine.discover().unwrap_err().to_string();
    assert!(error.contains("vdb3") && error.contains("vdb4"), "{error}");
}

#[test]
fn a_disk_without_a_known_pair_is_described() {
    let machine = Machine::new();
    let error = machine
        .explicit("PARTLABEL=root-a", "PARTLABEL=slot-z")
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("slot B is set to PARTLABEL=slot-z"),
        "{error}"
    );
    let dir = tempfile::tempdir().unwrap();
    let bare = FixtureNode::create(dir.path()).unwrap();
    fs::remove_file(dir.path().join("sys/class/block/vda3")).unwrap();
    let error = SlotTable::discover(&bare.system(), &SlotSettings::Auto, None).unwrap_err();
    assert!(error.to_string().contains("\"root-a\""), "{error}");
}

#[test]
fn both_slots_the_same_device_is_refused() {
    let machine = Machine::new();
    let error = machine
        .explicit("PARTLABEL=root-a", "/dev/vda2")
        .unwrap_err();
    assert!(error.to_string().contains("same device"), "{error}");
}

#[test]
fn slots_that_overlap_are_refused() {
    let machine = Machine::new();
    let mut parts = usual_partitions("root-a", "root-b", 0xb000);
    parts[2].start = parts[1].start + (1 << 20);
    machine.node.add_disk("vdb", 254, 16, 512, &parts).unwrap();
    machine
        .node
        .set_mounts("22 1 254:18 / / ro - ext4 /dev/vdb2 ro\n")
        .unwrap();
    machine.silence();
    let error = machine.discover().unwrap_err();
    assert!(error.to_string().contains("overlap"), "{error}");
}

#[test]
fn slots_are_named_by_uuid_device_or_symlink() {
    let machine = Machine::new();
    fs::create_dir_all(machine.dir.path().join("dev/disk/by-partlabel")).unwrap();
    symlink(
        "../../vda3",
        machine.dir.path().join("dev/disk/by-partlabel/root-b"),
    )
    .unwrap();
    let uuid = machine.node.slot_uuid(SlotName::A);
    let table = machine
        .explicit(&format!("PARTUUID={uuid}"), "/dev/disk/by-partlabel/root-b")
        .unwrap();
    assert_eq!(
        (table.a.kernel_name.as_str(), table.b.kernel_name.as_str()),
        ("vda2", "vda3")
    );
    let error = machine.explicit("/dev/vda2", "/dev/vda9").unwrap_err();
    assert!(
        error.to_string().contains("no block device is there"),
        "{error}"
    );
}

#[test]
fn the_booted_slot_is_seen_through_device_mapper() {
    let machine = Machine::new();
    machine.silence();
    machine.node.add_mapped("dm-0", 0, &["vda3"]).unwrap();
    machine.node.add_mapped("dm-1", 1, &["dm-0"]).unwrap();
    machine
        .node
        .set_mounts("22 1 253:1 / / ro - ext4 /dev/mapper/root ro\n")
        .unwrap();
    let table = machine.discover().unwrap();
    assert_eq!(table.booted, Booted::Slot(SlotName::B));
    assert_eq!(
        table.inactive(SlotName::B).unwrap_err().kind(),
        ErrorKind::Unsafe
    );
    assert_eq!(table.inactive(SlotName::A).unwrap().name(), SlotName::A);
}

#[test]
fn the_booted_slot_is_seen_under_an_overlay() {
    let machine = Machine::new();
    for layer in ["sysroot/lower/x/usr", "sysroot/rw/upper"] {
        fs::create_dir_all(machine.dir.path().join(layer)).unwrap();
    }
    machine.silence();
    machine
        .node
        .set_mounts(
            "20 22 254:3 / /sysroot/lower ro - ext4 /dev/vda3 ro\n\
             21 22 0:30 / /sysroot/rw rw - tmpfs tmpfs rw\n\
             22 1 0:31 / / rw - overlay overlay rw,lowerdir=/sysroot/lower:/sysroot/lower/x,\
             upperdir=/sysroot/rw/upper,workdir=/sysroot/rw/work\n",
        )
        .unwrap();
    assert_eq!(booted(machine.discover()), Booted::Slot(SlotName::B));
}

#[test]
fn an_overlay_whose_layers_are_out_of_sight_is_unknown_unless_another_witness_speaks() {
    let machine = Machine::new();
    machine.silence();
    machine
        .node
        .set_mounts("22 1 0:31 / / rw - overlay overlay rw,lowerdir=/old/lower,upperdir=/old/up\n")
        .unwrap();
    assert_eq!(machine.discover().unwrap_err().kind(), ErrorKind::Unsafe);
    machine
        .node
        .set_command_line("slotd.slot=b root=PARTLABEL=root-b")
        .unwrap();
    assert_eq!(booted(machine.discover()), Booted::Slot(SlotName::B));
}

#[test]
fn an_anonymous_device_number_is_resolved_by_the_mounts_source() {
    let machine = Machine::new();
    machine.silence();
    machine
        .node
        .set_mounts("22 1 0:33 / / rw - btrfs /dev/vda3 rw,subvol=/\n")
        .unwrap();
    assert_eq!(booted(machine.discover()), Booted::Slot(SlotName::B));
}

#[test]
fn a_usr_slot_is_booted_by_its_mount_at_usr() {
    let machine = Machine::new();
    machine.silence();
    let parts = usual_partitions("USR-A", "USR-B", 0xb000);
    machine.node.add_disk("vdb", 254, 16, 512, &parts).unwrap();
    machine
        .node
        .set_mounts(
            "22 1 254:20 / / rw - ext4 /dev/vdb4 rw\n23 22 254:19 / /usr ro - ext4 /dev/vdb3 ro\n",
        )
        .unwrap();
    assert_eq!(booted(machine.discover()), Booted::Slot(SlotName::B));
}

#[test]
fn every_witness_alone_can_spoil_the_evidence_and_all_are_listed() {
    type Spoil = fn(&FixtureNode);
    let spoil: [(&str, Spoil); 5] = [
        ("LoaderEntrySelected", |node| {
            node.set_string("LoaderEntrySelected", Some("slotd-b+3.conf"))
                .unwrap();
        }),
        ("LoaderBootCountPath", |node| {
            let path = "\\loader\\entries\\slotd-b+2-1.conf";
            node.set_string("LoaderBootCountPath", Some(path)).unwrap();
        }),
        ("slotd.slot=", |node| {
            node.set_command_line("root=PARTLABEL=root-a slotd.slot=b")
                .unwrap();
        }),
        ("root=", |node| {
            node.set_command_line("root=/dev/vda3").unwrap()
        }),
        ("root=", |node| {
            node.set_command_line("root=/dev/vda4").unwrap()
        }),
    ];
    for (source, change) in spoil {
        let machine = Machine::new();
        change(&machine.node);
        let error = machine.discover().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsafe, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(source) && text.contains("mountinfo"),
            "{source}: {text}"
        );
    }
}

#[test]
fn a_backends_own_witness_counts_too() {
    let machine = Machine::new();
    let witness = Witness {
        source: "grubenv".to_owned(),
        found: "ORDER=B A".to_owned(),
        says: Some(Booted::Slot(SlotName::B)),
    };
    let table = SlotTable::discover(&machine.node.system(), &SlotSettings::Auto, Some(witness));
    assert!(table.unwrap_err().to_string().contains("grubenv"));
}

#[test]
fn foreign_entries_and_file_system_labels_speak_of_no_slot() {
    let machine = Machine::new();
    machine
        .node
        .set_string("LoaderEntrySelected", Some("debian-6.1.conf"))
        .unwrap();
    machine
        .node
        .set_command_line("root=LABEL=root-b quiet")
        .unwrap();
    let table = machine.discover().unwrap();
    assert_eq!(table.booted, Booted::Slot(SlotName::A));
    assert_eq!(
        table
            .evidence
            .0
            .iter()
            .filter(|witness| witness.says.is_none())
            .count(),
        2
    );
}

#[test]
fn the_booted_slot_is_never_inactive_whatever_is_made_of_the_table() {
    let machine = Machine::new();
    let mut table = machine.discover().unwrap();
    table.booted = Booted::Neither;
    assert!(table.inactive(SlotName::A).is_err());
    table.booted = Booted::Slot(SlotName::B);
    assert!(table.inactive(SlotName::A).is_err());
    assert!(table.inactive(SlotName::B).is_err());
    let mut table = machine.discover().unwrap();
    table.b = table.a.clone();
    assert!(table.inactive(SlotName::B).is_err());
}

#[test]
fn a_stale_kernel_view_of_the_table_is_refused() {
    let machine = Machine::new();
    let size = machine
        .dir
        .path()
        .join("sys/devices/pci0/block/vda/vda3/size");
    fs::write(size, "1\n").unwrap();
    let error = machine
        .explicit("PARTLABEL=root-a", "PARTLABEL=root-b")
        .unwrap_err()
        .to_string();
    assert!(error.contains("vda3"), "{error}");
}

#[test]
fn the_loaders_partition_is_found_by_mount_and_type() {
    let machine = Machine::new();
    let system = machine.node.system();
    let table = machine.discover().unwrap();
    let esp = SystemdBoot::open(&system, &table, &EspSetting::Auto).unwrap();
    assert_eq!(
        machine.node.system().path(esp.location()),
        machine.node.esp()
    );
    // Something else at /efi, and nothing there at all.
    for mount in ["30 22 254:4 / /efi rw - vfat /dev/vda4 rw\n", ""] {
        let root = "22 1 254:2 / / ro - ext4 /dev/root ro\n";
        machine.node.set_mounts(&format!("{root}{mount}")).unwrap();
        let error = SystemdBoot::open(&system, &table, &EspSetting::Auto).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains("/efi"), "{error}");
    }
    // The right type, but the loader was started from another one.
    let root = "22 1 254:2 / / ro - ext4 /dev/root ro\n30 22 254:1 / /efi rw - vfat /dev/vda1 rw\n";
    machine.node.set_mounts(root).unwrap();
    let other = "00000000-0000-0000-0000-00000000dead";
    machine
        .node
        .set_string("LoaderDevicePartUUID", Some(other))
        .unwrap();
    let error = SystemdBoot::open(&system, &table, &EspSetting::Auto).unwrap_err();
    assert!(error.to_string().contains(other), "{error}");
    machine
        .node
        .set_string("LoaderDevicePartUUID", None)
        .unwrap();
    assert!(SystemdBoot::open(&system, &table, &EspSetting::Auto).is_ok());
    let setting = EspSetting::Path(machine.node.esp());
    assert!(SystemdBoot::open(&system, &table, &setting).is_ok());
    fs::remove_dir_all(machine.node.esp().join("loader")).unwrap();
    let error = SystemdBoot::open(&system, &table, &setting).unwrap_err();
    assert!(error.to_string().contains("no folder `loader`"), "{error}");
}
