//! Two boot partitions: which one has the slots' files, and what the other one can do to them.

use std::fs;

use super::machines::extended::{OnExtended, mount_extended, retype_data};
use super::{A, B, Machine, OnDisk, boots, open, options};
use crate::backend::{Backend, PreflightRequest, ProblemCode, RefusalCode, SlotState};
use crate::error::ErrorKind;
use crate::slot::SlotSettings;
use crate::systemd_boot::{EspSetting, SystemdBoot};
use crate::table::SlotTable;

fn request() -> PreflightRequest {
    PreflightRequest {
        slot: B,
        boot_files: Some(1024),
        extra: String::new(),
    }
}

fn refusals(backend: &dyn Backend) -> (Vec<RefusalCode>, String) {
    let found = backend.preflight(&request());
    let messages: Vec<_> = found.iter().map(|found| found.message.clone()).collect();
    let codes = found.into_iter().map(|found| found.code).collect();
    (codes, messages.join("\n"))
}

#[test]
fn files_lie_where_the_slots_entries_are() {
    let machine = OnExtended::new();
    assert_eq!(machine.backend().location(), "/boot");
    assert_eq!(refusals(machine.backend()), (vec![], String::new()));
    machine.stage_and_arm(B);
    let boot = machine.boot();
    let text = fs::read_to_string(boot.join("loader/entries/slotd-b+3.conf")).unwrap();
    assert!(text.contains("\nlinux /slotd/b/linux\n"), "{text}");
    assert!(boot.join("slotd/b/linux").is_file());
    let left: Vec<_> = fs::read_dir(machine.node.esp()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(!machine.node.esp().join("loader/entries").exists());
}

#[test]
fn entries_of_slots_on_the_efi_system_partition_stay_there() {
    let machine = OnDisk::new();
    retype_data(&machine.node);
    fs::create_dir_all(machine.node.system().path("/boot/loader/entries")).unwrap();
    mount_extended(&machine.node, "/boot", "vfat");
    let backend = open(&machine.node);
    assert_eq!(backend.location(), "/efi");
    assert_eq!(refusals(&backend).0, []);
}

#[test]
fn the_loaders_configuration_is_that_of_its_own_partition() {
    let machine = OnExtended::new();
    let line = "default slotd-a.conf\n";
    fs::write(machine.boot().join("loader/loader.conf"), line).unwrap();
    assert_eq!(refusals(machine.backend()).0, []);
    fs::write(machine.node.esp().join("loader/loader.conf"), line).unwrap();
    assert_eq!(refusals(machine.backend()).0, [RefusalCode::DefaultSet]);
}

#[test]
fn a_foreign_entry_on_the_other_partition_is_named() {
    let machine = OnExtended::new();
    let esp = machine.node.esp();
    fs::create_dir_all(esp.join("loader/entries")).unwrap();
    fs::write(esp.join("vmlinuz"), "kernel").unwrap();
    let entry = esp.join("loader/entries/debian.conf");
    fs::write(&entry, "sort-key debian\nlinux /vmlinuz\n").unwrap();
    let (codes, message) = refusals(machine.backend());
    assert_eq!(codes, [RefusalCode::ForeignEntryFirst]);
    assert!(message.contains("debian.conf"), "{message}");
    // Its kernel would have to be on its own partition.
    fs::rename(esp.join("vmlinuz"), machine.boot().join("vmlinuz")).unwrap();
    assert_eq!(refusals(machine.backend()).0, []);
}

#[test]
fn an_entry_of_a_slot_on_both_partitions_is_refused_by_name() {
    let machine = OnDisk::new();
    retype_data(&machine.node);
    let boot = machine.node.system().path("/boot");
    fs::create_dir_all(boot.join("loader/entries")).unwrap();
    fs::write(boot.join("vmlinuz"), "kernel").unwrap();
    let twin = "sort-key slotd\nversion 9\nlinux /vmlinuz\noptions x\n";
    fs::write(boot.join("loader/entries/slotd-a.conf"), twin).unwrap();
    mount_extended(&machine.node, "/boot", "vfat");
    let backend = open(&machine.node);
    let (codes, message) = refusals(&backend);
    assert!(codes.contains(&RefusalCode::ForeignEntryFirst), "{codes:?}");
    assert!(message.contains("slotd-a.conf at"), "{message}");
    let problems = backend.state().unwrap().problems;
    let codes: Vec<_> = problems.iter().map(|found| found.code).collect();
    assert_eq!(codes, [ProblemCode::Leftovers], "{problems:?}");
}

#[test]
fn one_that_is_not_mounted_is_refused_wherever_it_would_be() {
    let machine = OnDisk::new();
    retype_data(&machine.node);
    let backend = open(&machine.node);
    let before = machine.bytes();
    let (codes, message) = refusals(&backend);
    assert_eq!(codes, [RefusalCode::LoaderDataMissing]);
    assert!(
        message.contains("vda4") && message.contains("mount it at /boot"),
        "{message}"
    );
    assert_eq!(backend.state().unwrap().problems.len(), 1);
    assert_eq!(machine.bytes(), before);
    mount_extended(&machine.node, "/mnt/elsewhere", "vfat");
    assert_eq!(refusals(&open(&machine.node)).0, []);
}

#[test]
fn entries_that_are_out_of_sight_are_an_error_and_not_empty_slots() {
    let machine = OnExtended::new();
    machine.node.run_slot(A, "slotd-a.conf").unwrap();
    let mounts = fs::read_to_string(machine.node.system().proc("self/mountinfo")).unwrap();
    let without: Vec<&str> = mounts
        .lines()
        .filter(|line| !line.contains(" /boot "))
        .collect();
    machine
        .node
        .set_mounts(&(without.join("\n") + "\n"))
        .unwrap();
    let backend = open(&machine.node);
    let error = backend.state().unwrap_err().to_string();
    assert!(error.contains("mount it at /boot"), "{error}");
    assert!(backend.mark_good(A).is_err());
}

#[test]
fn a_file_system_that_firmware_cannot_read_is_refused() {
    let machine = OnExtended::new();
    machine.node.run_slot(A, "slotd-a.conf").unwrap();
    mount_extended(&machine.node, "/boot", "ext4");
    let backend = open(&machine.node);
    let (codes, message) = refusals(&backend);
    assert_eq!(codes, [RefusalCode::UnsupportedLayout]);
    assert!(message.contains("/boot is ext4"), "{message}");
}

#[test]
fn room_is_that_of_the_partition_with_the_boot_files() {
    let machine = OnExtended::new();
    let request = PreflightRequest {
        boot_files: Some(1 << 60),
        ..request()
    };
    let found = machine.backend().preflight(&request);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].code, RefusalCode::NoSpace);
    let place = machine.boot().display().to_string();
    assert!(found[0].message.starts_with(&place), "{}", found[0].message);
    // Unknown, it is estimated from what the other slot has there.
    let kernel = machine.boot().join("slotd/a/linux");
    fs::File::create(kernel).unwrap().set_len(1 << 42).unwrap();
    let request = PreflightRequest {
        boot_files: None,
        ..request
    };
    assert_eq!(machine.backend().preflight(&request).len(), 1);
}

#[test]
fn a_loader_that_counts_on_its_own_partition_only_is_refused() {
    let machine = OnExtended::new();
    for (info, expected) in [
        (
            "systemd-boot 251.4-1",
            vec![RefusalCode::CountingUnsupported],
        ),
        ("systemd-boot 252.39-1~deb12u1", vec![]),
        ("systemd-boot 257", vec![]),
    ] {
        machine.node.set_string("LoaderInfo", Some(info)).unwrap();
        assert_eq!(refusals(machine.backend()).0, expected, "{info}");
    }
    // Where the entries are beside the loader, it counts.
    let plain = OnDisk::new();
    let old = Some("systemd-boot 251.4-1");
    plain.node.set_string("LoaderInfo", old).unwrap();
    assert_eq!(refusals(plain.backend()).0, []);
    let older = Some("systemd-boot 249");
    plain.node.set_string("LoaderInfo", older).unwrap();
    assert_eq!(
        refusals(plain.backend()).0,
        [RefusalCode::UnsupportedLayout]
    );
}

#[test]
fn the_extended_partition_is_not_to_be_set_as_the_loaders() {
    let machine = OnExtended::new();
    let system = machine.node.system();
    let table = SlotTable::discover(&system, &SlotSettings::Auto, None).unwrap();
    let at = |place: &str| {
        let setting = EspSetting::Path(system.path(place));
        SystemdBoot::open(&system, &table, &setting)
    };
    let error = at("/boot").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("vda4"), "{error}");
    assert_eq!(at("/efi").unwrap().location(), "/boot");
}

#[test]
fn another_disks_extended_partition_is_none_of_the_loaders() {
    let machine = OnDisk::new();
    let mut partitions = crate::fixture::usual_partitions("x", "y", 0xb000);
    partitions[3].type_uuid = crate::gpt::TYPE_XBOOTLDR;
    machine
        .node
        .add_disk("vdb", 254, 16, 512, &partitions)
        .unwrap();
    assert_eq!(refusals(&open(&machine.node)).0, []);
}

#[test]
fn a_cut_in_any_transition_leaves_a_good_slot_there_too() {
    let machine = OnExtended::new();
    machine.stage(B);
    let backend = open(&machine.node);
    let arm = crate::backend::Transition::Arm {
        slot: B,
        options: options(),
    };
    for changes in 0..3 {
        backend.run_cut(&arm, changes).unwrap();
        let state = open(&machine.node).state().unwrap();
        assert_eq!(state.a, SlotState::Good);
    }
    assert_eq!(machine.next(), boots(B, true));
}
