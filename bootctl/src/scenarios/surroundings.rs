//! What is around the slots' files: file system, EFI variables, other loaders. Whatever is refused, no byte of the
//! node changes.

use std::fs;

use super::{A, B, Machine, OnDisk, open, options};
use crate::backend::{Backend, NextBoot, PreflightRequest, ProblemCode, RefusalCode, Transition};
use crate::efivar::{LoaderVariables, VariableStore};
use crate::slot::SlotSettings;
use crate::systemd_boot::{EspSetting, SystemdBoot};
use crate::table::SlotTable;

const ROOT: &str = "22 1 254:2 / / ro - ext4 /dev/root ro\n";
const EFI: &str = "30 22 254:1 / /efi rw - vfat /dev/vda1 rw\n";

/// Codes and messages of what is refused; the node's bytes are compared.
fn refused(machine: &OnDisk, backend: &dyn Backend) -> (Vec<RefusalCode>, String) {
    let request = PreflightRequest {
        slot: B,
        boot_files: Some(1024),
        extra: String::new(),
    };
    let before = machine.bytes();
    let found = backend.preflight(&request);
    assert_eq!(machine.bytes(), before);
    let messages: Vec<_> = found.iter().map(|found| found.message.clone()).collect();
    let codes = found.into_iter().map(|found| found.code).collect();
    (codes, messages.join("\n"))
}

#[test]
fn a_partition_that_is_not_fat_is_refused_and_so_is_one_that_is_not_mounted() {
    let machine = OnDisk::new();
    let backend = open(&machine.node);
    let not_fat = [RefusalCode::UnsupportedLayout];
    let mounts = format!("{ROOT}{}", EFI.replace("vfat", "ext4"));
    machine.node.set_mounts(&mounts).unwrap();
    let (codes, message) = refused(&machine, &backend);
    assert_eq!(codes, not_fat, "{message}");
    assert!(
        message.contains("/efi is ext4") && message.contains("mount the right partition"),
        "{message}"
    );
    // The files may still be seen, on the root file system.
    machine.node.set_mounts(ROOT).unwrap();
    let (codes, message) = refused(&machine, &backend);
    assert_eq!(codes, not_fat, "{message}");
    assert!(
        message.contains("nothing is mounted at /efi, it is a directory of / (ext4)"),
        "{message}"
    );
    let codes: Vec<_> = backend.state().unwrap().problems;
    let codes: Vec<_> = codes.iter().map(|problem| problem.code).collect();
    // The root that such a directory lies on is read-only, too.
    assert_eq!(codes, [ProblemCode::NotWritable, ProblemCode::Unreadable]);
}

#[test]
fn a_partition_that_cannot_be_written_is_refused_with_the_place() {
    let machine = OnDisk::new();
    // Whatever keeps a file from being made there, also from root.
    let obstacle = machine
        .node
        .esp()
        .join("loader/entries/.slotd-write-test.tmp");
    fs::create_dir(&obstacle).unwrap();
    let (codes, message) = refused(&machine, machine.backend());
    assert_eq!(codes, [RefusalCode::ReadOnly]);
    let place = obstacle.display().to_string();
    assert!(message.contains(&place), "{message}");
}

#[test]
fn variables_that_are_not_mounted_are_refused_with_how_to_mount_them() {
    let machine = OnDisk::new();
    let efivars = machine.node.system().efivars();
    fs::remove_dir_all(&efivars).unwrap();
    for _ in 0..2 {
        let backend = open(&machine.node);
        let (codes, message) = refused(&machine, &backend);
        assert_eq!(codes, [RefusalCode::LoaderDataMissing], "{message}");
        assert!(message.contains("mount -t efivarfs"), "{message}");
        let problems = backend.state().unwrap().problems;
        let unreadable = |problem: &crate::backend::Problem| {
            problem.code == ProblemCode::Unreadable && problem.message.contains("efivarfs")
        };
        assert!(problems.iter().any(unreadable), "{problems:?}");
        // The kernel makes the directory, empty.
        fs::create_dir_all(&efivars).unwrap();
    }
}

#[test]
fn a_machine_without_efi_firmware_is_refused_as_one_that_another_loader_started() {
    let machine = OnDisk::new();
    let firmware = machine.node.system().sys("firmware/efi");
    fs::remove_dir_all(firmware).unwrap();
    let (codes, message) = refused(&machine, &open(&machine.node));
    assert_eq!(codes, [RefusalCode::LoaderDataMissing], "{message}");
    assert!(message.contains("not started by EFI firmware"), "{message}");
}

#[test]
fn variables_that_are_read_only_hinder_nothing_but_their_own_repair() {
    let machine = OnDisk::new();
    let variables = "28 20 0:25 / /sys/firmware/efi/efivars ro,nosuid - efivarfs efivarfs rw\n";
    let mounts = format!("{ROOT}{EFI}{variables}");
    machine.node.set_mounts(&mounts).unwrap();
    let read = LoaderVariables::read(&machine.node.system()).unwrap();
    assert_eq!(read.store, VariableStore::Mounted { read_only: true });
    assert_eq!(refused(&machine, machine.backend()).0, []);
    for name in ["LoaderEntryOneShot", "LoaderEntryDefault"] {
        machine.node.set_string(name, Some("slotd-a.conf")).unwrap();
        let (codes, message) = refused(&machine, machine.backend());
        assert_eq!(codes.len(), 1, "{message}");
        assert!(message.contains("remount,rw"), "{message}");
        machine.node.set_string(name, None).unwrap();
    }
}

#[test]
fn another_loaders_files_beside_it_hinder_nothing_unless_it_started_the_system() {
    let machine = OnDisk::new();
    let grub = machine.node.esp().join("EFI/debian");
    fs::create_dir_all(&grub).unwrap();
    fs::write(grub.join("grubx64.efi"), "MZ").unwrap();
    fs::write(grub.join("grubenv"), "# GRUB Environment Block\n").unwrap();
    assert_eq!(refused(&machine, machine.backend()).0, []);
    for info in [None, Some("GRUB 2.12")] {
        machine.node.set_string("LoaderInfo", info).unwrap();
        let (codes, message) = refused(&machine, machine.backend());
        assert_eq!(codes, [RefusalCode::LoaderDataMissing]);
        assert!(
            message.contains("set the loader that starts it"),
            "{message}"
        );
    }
}

#[test]
fn whatever_is_set_for_one_boot_is_named_until_it_is_gone() {
    let machine = OnDisk::new();
    let verified = machine.stage(B);
    let foreign = |id: &str| NextBoot::Foreign { id: id.to_owned() };
    for (one_shot, next) in [
        // The firmware's setup is in no file.
        (
            "auto-reboot-to-firmware-setup",
            foreign("auto-reboot-to-firmware-setup"),
        ),
        ("slotd-a.conf", super::boots(A, false)),
        ("SLOTD-A*", super::boots(A, false)),
    ] {
        let set = |value| machine.node.set_string("LoaderEntryOneShot", value);
        set(Some(one_shot)).unwrap();
        let state = machine.backend().state().unwrap();
        assert_eq!(state.next, next);
        let named = state.problems.iter().any(|problem| {
            problem.code == ProblemCode::ForeignDefault && problem.message.contains(one_shot)
        });
        assert!(named, "{:?}", state.problems);
        assert_eq!(
            refused(&machine, machine.backend()).0,
            [RefusalCode::OneShotSet]
        );
        let before = machine.bytes();
        assert!(machine.backend().arm(&verified, 3, &options()).is_err());
        assert_eq!(machine.bytes(), before);
        set(None).unwrap();
        assert_eq!(machine.backend().state().unwrap().problems, []);
    }
    machine.backend().arm(&verified, 3, &options()).unwrap();
    assert_eq!(machine.next(), super::boots(B, true));
}

#[test]
fn a_one_shot_set_during_a_trial_hinders_no_verdict() {
    for good in [true, false] {
        let mut machine = OnDisk::new();
        machine.stage_and_arm(B);
        machine.power_cycle();
        machine
            .node
            .set_string("LoaderEntryOneShot", Some("slotd-a.conf"))
            .unwrap();
        let verdict = match good {
            true => machine.backend().mark_good(B),
            false => machine.backend().mark_bad(B),
        };
        verdict.unwrap();
        machine.node.set_string("LoaderEntryOneShot", None).unwrap();
        let expected = if good { B } else { A };
        assert_eq!(machine.next(), super::boots(expected, false));
    }
}

#[test]
fn a_partition_without_the_loaders_folder_is_an_error_that_names_it() {
    let machine = OnDisk::new();
    fs::remove_dir_all(machine.node.esp().join("loader")).unwrap();
    let before = machine.bytes();
    let system = machine.node.system();
    let table = SlotTable::discover(&system, &SlotSettings::Auto, None).unwrap();
    let error = SystemdBoot::open(&system, &table, &EspSetting::Auto).unwrap_err();
    assert!(error.to_string().contains("no folder `loader`"), "{error}");
    assert_eq!(machine.bytes(), before);
    // A transition that is under way notices, too.
    let backend = machine.backend();
    let arm = Transition::Arm {
        slot: B,
        options: options(),
    };
    assert!(backend.plan(&arm).is_err());
    assert_eq!(machine.bytes(), before);
}
