//! Several disks with an EFI system partition each: the one that the loader was started from is meant, or none.

use std::path::Path;

use super::{Machine, OnDisk};
use crate::error::{Error, ErrorKind};
use crate::fixture::usual_partitions;
use crate::slot::{SlotLocator, SlotSettings};
use crate::systemd_boot::{EspSetting, SystemdBoot};
use crate::table::{Booted, SlotTable};

const ROOT: &str = "22 1 254:2 / / ro - ext4 /dev/root ro\n";
const FIRST: &str = "254:1";
const SECOND: &str = "254:17";

fn vfat(place: &str, number: &str) -> String {
    format!("30 22 {number} / {place} rw - vfat /dev/x rw\n")
}

/// A second disk, whose partitions have ids from `seed` on.
fn with_second(seed: u128) -> OnDisk {
    let machine = OnDisk::new();
    let other = usual_partitions("other-a", "other-b", seed);
    machine.node.add_disk("vdb", 254, 16, 512, &other).unwrap();
    for place in ["boot", "boot/efi"] {
        let place = machine.node.system().path("/").join(place);
        std::fs::create_dir_all(place.join("loader/entries")).unwrap();
    }
    machine
}

fn found(machine: &OnDisk, settings: &SlotSettings, mounts: &[String]) -> Result<String, Error> {
    let mounts = format!("{ROOT}{}", mounts.concat());
    machine.node.set_mounts(&mounts).unwrap();
    let system = machine.node.system();
    let table = SlotTable::discover(&system, settings, None).unwrap();
    let backend = SystemdBoot::open(&system, &table, &EspSetting::Auto)?;
    Ok(crate::backend::Backend::location(&backend))
}

fn set_device(machine: &OnDisk, uuid: Option<u128>) {
    let text = uuid.map(|uuid| uuid::Uuid::from_u128(uuid).to_string().to_uppercase());
    machine
        .node
        .set_string("LoaderDevicePartUUID", text.as_deref())
        .unwrap();
}

#[test]
fn the_loaders_word_decides_wherever_its_partition_is() {
    let machine = with_second(0xb000);
    let auto = SlotSettings::Auto;
    let both = [vfat("/efi", SECOND), vfat("/boot", FIRST)];
    assert_eq!(found(&machine, &auto, &both).unwrap(), "/boot");
    set_device(&machine, Some(0xb001));
    assert_eq!(found(&machine, &auto, &both).unwrap(), "/efi");
    // Not mounted, it is not replaced by the one that is.
    let one = [vfat("/efi", FIRST)];
    let error = found(&machine, &auto, &one).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("00b001"), "{error}");
    // Without its word the slots' disk has it.
    set_device(&machine, None);
    assert_eq!(found(&machine, &auto, &both).unwrap(), "/boot");
    // One partition at two places is one.
    let twice = [vfat("/boot", FIRST), vfat("/boot/efi", FIRST)];
    assert_eq!(found(&machine, &auto, &twice).unwrap(), "/boot/efi");
}

#[test]
fn slots_on_two_disks_need_the_loaders_word() {
    let machine = with_second(0xb000);
    let device = |name: &str| SlotLocator::Device(Path::new("/dev").join(name));
    let settings = SlotSettings::Explicit {
        a: device("vda2"),
        b: device("vdb3"),
    };
    let both = [vfat("/efi", SECOND), vfat("/boot", FIRST)];
    assert_eq!(found(&machine, &settings, &both).unwrap(), "/boot");
    set_device(&machine, None);
    let before = machine.bytes();
    let error = found(&machine, &settings, &both).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    let text = error.to_string();
    assert!(text.contains("vda1") && text.contains("vdb1"), "{text}");
    let changed = machine.bytes().len().abs_diff(before.len());
    assert_eq!(changed, 0);
}

#[test]
fn of_a_disk_and_its_clone_the_slots_own_counts() {
    let machine = with_second(0xa000);
    machine
        .node
        .set_command_line("root=/dev/vda2 slotd.slot=a")
        .unwrap();
    let auto = SlotSettings::Auto;
    let both = [vfat("/efi", SECOND), vfat("/boot", FIRST)];
    assert_eq!(found(&machine, &auto, &both).unwrap(), "/boot");
    let error = found(&machine, &auto, &both[..1]).unwrap_err();
    assert!(error.to_string().contains("more than once"), "{error}");
}

#[test]
fn a_rescue_systems_own_loader_is_not_the_slots() {
    let machine = with_second(0xb000);
    set_device(&machine, Some(0xb001));
    machine.node.set_command_line("quiet").unwrap();
    machine
        .node
        .set_string("LoaderEntrySelected", None)
        .unwrap();
    let rescue = "22 1 254:20 / / rw - ext4 /dev/vdb4 rw\n";
    let system = machine.node.system();
    let open = |mounts: &[String]| {
        let mounts = format!("{rescue}{}", mounts.concat());
        machine.node.set_mounts(&mounts).unwrap();
        let table = SlotTable::discover(&system, &SlotSettings::Auto, None).unwrap();
        assert_eq!(table.booted, Booted::Neither);
        SystemdBoot::open(&system, &table, &EspSetting::Auto)
            .map(|backend| crate::backend::Backend::location(&backend))
    };
    let both = [vfat("/boot", SECOND), vfat("/boot/efi", FIRST)];
    assert_eq!(open(&both).unwrap(), "/boot/efi");
    let error = open(&both[..1]).unwrap_err();
    assert!(error.to_string().contains("not mounted"), "{error}");
    assert!(machine.table().booted == Booted::Neither);
}
