//! What stands in the way of a trial: each refused by name, with every byte as it was.

use std::fs;

use super::super::firmware::{DISK, ESP, InFirmware, unhex};
use super::{Empty, Good, RUNNING, on_trial, spent};
use crate::backend::{Counting, NextBoot, PreflightRequest, ProblemCode, RefusalCode};
use crate::error::ErrorKind;
use crate::proof::ReadBack;
use crate::scenarios::machines::{Machine, image, image_tree, options};
use crate::slot::SlotName::{A, B};
use crate::systemd_boot::EspSetting;

pub(super) fn refusals(machine: &InFirmware) -> Vec<(RefusalCode, String)> {
    let request = PreflightRequest {
        slot: B,
        boot_files: Some(1024),
        extra: String::new(),
    };
    let found = machine.backend().preflight(&request);
    found
        .into_iter()
        .map(|refusal| (refusal.code, refusal.message))
        .collect()
}

/// What is refused with `code` and words, and leaves every byte as it was.
pub(super) fn refused(machine: &InFirmware, code: RefusalCode, words: &str) {
    let before = machine.bytes();
    let found = refusals(machine);
    assert!(
        found
            .iter()
            .any(|(found, message)| *found == code && message.contains(words)),
        "{code:?} {words:?}: {found:?}"
    );
    assert_eq!(machine.bytes(), before, "{words}");
}

#[test]
fn a_healthy_machine_is_not_refused_and_left_as_it_was() {
    let machine = InFirmware::new();
    let before = machine.bytes();
    assert_eq!(refusals(&machine), []);
    assert_eq!(machine.bytes(), before);
    let state = machine.backend().state().unwrap();
    assert_eq!(
        (state.counting, state.problems),
        (Counting::Active, Vec::new())
    );
}

#[test]
fn what_the_firmware_would_start_instead_is_refused() {
    let machine = InFirmware::new();
    let firmware = machine.firmware();
    // The menu in front does not count, the disk does.
    firmware.put("BootOrder", Some(&[0, 0, 4, 0, 1, 0]));
    assert_eq!(refusals(&machine), []);
    firmware.put("BootOrder", Some(&[1, 0, 4, 0, 0, 0]));
    refused(
        &machine,
        RefusalCode::ForeignEntryFirst,
        "Boot0001 (UEFI QEMU HARDDISK",
    );
    let state = machine.backend().state().unwrap();
    assert_eq!(state.problems[0].code, ProblemCode::ForeignDefault);
    assert!(matches!(state.next, NextBoot::Foreign { id } if id.starts_with("Boot0001")));
    assert_eq!(state.a, Good);
    // An inactive one does not count.
    let mut inactive = unhex(DISK);
    inactive[0] = 0;
    firmware.put("Boot0001", Some(&inactive));
    assert_eq!(refusals(&machine), []);
    firmware.put("BootNext", Some(&[1, 0]));
    refused(&machine, RefusalCode::OneShotSet, "BootNext is Boot0001");
}

#[test]
fn a_firmware_that_does_not_count_is_refused() {
    let mut machine = InFirmware::new();
    on_trial(&mut machine);
    machine.firmware().put("BootNext", Some(&[2, 0]));
    let state = machine.backend().state().unwrap();
    assert_eq!((state.b, state.counting), (RUNNING, Counting::Inactive));
    assert_eq!(state.problems[0].code, ProblemCode::CountingInactive);
    refused(
        &machine,
        RefusalCode::CountingUnsupported,
        "did not remove BootNext",
    );
    // Giving up takes it off.
    machine.backend().mark_bad(B).unwrap();
    assert_eq!(machine.firmware().get("BootNext"), None);
    assert_eq!(machine.power_cycle(), Some(A));

    fs::remove_file(machine.firmware().file("BootCurrent")).unwrap();
    refused(
        &machine,
        RefusalCode::CountingUnsupported,
        "there is no BootCurrent",
    );
}

#[test]
fn a_trial_in_the_order_is_refused() {
    let mut machine = InFirmware::new();
    spent(&mut machine);
    machine.firmware().put("BootOrder", Some(&[4, 0, 2, 0]));
    refused(
        &machine,
        RefusalCode::ForeignEntryFirst,
        "Boot0002 (slotd B trial) stands in BootOrder",
    );
    assert_eq!(
        machine.backend().state().unwrap().problems[0].code,
        ProblemCode::Leftovers
    );
    // The next transition takes it out.
    machine.stage(B);
    assert_eq!(machine.firmware().get("BootOrder").unwrap(), [4, 0]);
}

#[test]
fn variables_that_cannot_be_changed_are_refused() {
    let machine = InFirmware::new();
    let vfat = "vfat /dev/vda1 rw";
    let mount = |variables: &str| machine.firmware().mount("254:2", variables, vfat);
    mount("efivarfs efivarfs ro");
    refused(&machine, RefusalCode::ReadOnly, "mount -o remount,rw");
    let problem = &machine.backend().state().unwrap().problems[0];
    assert_eq!(problem.code, ProblemCode::NotWritable);
    mount("tmpfs tmpfs rw");
    refused(
        &machine,
        RefusalCode::LoaderDataMissing,
        "mount -t efivarfs",
    );
    // Once, whoever says it.
    assert_eq!(refusals(&machine).len(), 1);
    let error = machine.backend().state().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    mount("efivarfs efivarfs rw");
    assert_eq!(refusals(&machine), []);
    // A directory in the place of the scratch variable: storing fails.
    let place = machine.node.system().efivars();
    let scratch = place.join("SlotdWriteTest-c41ccb52-1a4d-4fca-9f05-5ac1b8d2e3f6");
    fs::create_dir(&scratch).unwrap();
    refused(&machine, RefusalCode::ReadOnly, "SlotdWriteTest");
}

#[test]
fn without_efi_or_its_partition_there_is_nothing_to_open() {
    let machine = InFirmware::new();
    let system = machine.node.system();
    let table = machine.table();
    let open = |setting: &EspSetting| {
        crate::efi::open(&system, &table, setting)
            .unwrap_err()
            .to_string()
    };
    machine
        .firmware()
        .mount("254:2", "efivarfs efivarfs rw", "vfat /dev/vda1 rw");
    let elsewhere = EspSetting::Path(system.path("/mnt"));
    assert!(open(&elsewhere).contains("/mnt is not a mount point"));
    machine
        .node
        .set_mounts("22 1 254:2 / / ro - ext4 /dev/root ro\n")
        .unwrap();
    assert!(open(&EspSetting::Auto).contains("/efi is not a mount point"));
    fs::remove_dir_all(system.sys("firmware/efi")).unwrap();
    assert!(open(&EspSetting::Auto).contains("was not started by EFI firmware"));
}

#[test]
fn a_partition_that_is_not_fat_or_full_is_refused() {
    let mut machine = InFirmware::new();
    machine
        .firmware()
        .mount("254:2", "efivarfs efivarfs rw", "ext4 /dev/vda1 rw");
    machine.reopen();
    refused(&machine, RefusalCode::UnsupportedLayout, "/efi is ext4");
    let request = PreflightRequest {
        slot: B,
        boot_files: Some(u64::MAX / 2),
        extra: String::new(),
    };
    let before = machine.bytes();
    let found = machine.backend().preflight(&request);
    assert!(
        found
            .iter()
            .any(|refusal| refusal.code == RefusalCode::NoSpace),
        "{found:?}"
    );
    assert_eq!(machine.bytes(), before);
}

#[test]
fn variables_that_make_no_sense_are_named_and_left_alone() {
    let machine = InFirmware::new();
    machine.firmware().put("Boot0007", Some(&[1, 0, 0]));
    let state = machine.backend().state().unwrap();
    assert_eq!(state.problems[0].code, ProblemCode::Unreadable);
    assert!(
        state.problems[0]
            .message
            .contains("Boot0007: the attributes (byte 0)")
    );
    machine.stage_and_arm(B);
    assert_eq!(machine.firmware().get("Boot0007").unwrap(), [1, 0, 0]);

    for (name, data, words) in [
        ("BootOrder", &[4, 0, 1][..], "3 bytes of data are no list"),
        (
            "BootNext",
            &[1, 0, 2, 0][..],
            "holds 2 numbers instead of one",
        ),
    ] {
        let machine = InFirmware::new();
        machine.firmware().put(name, Some(data));
        refused(&machine, RefusalCode::Unreadable, words);
        let before = machine.bytes();
        let error = machine.backend().mark_bad(A).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(machine.bytes(), before);
    }
}

#[test]
fn an_option_of_another_disk_is_not_taken_for_a_slots() {
    let machine = InFirmware::new();
    let mut cloned = machine.firmware().get("Boot0004").unwrap();
    // Its partition's UUID: behind attributes, length, "slotd A" and NUL, and 24 bytes of the node.
    let at = 6 + 16 + 24;
    assert_eq!(cloned[at..at + 16], ESP.to_bytes_le());
    cloned[at] ^= 1;
    machine.firmware().put("Boot0004", Some(&cloned));
    assert_eq!(machine.states(), (Empty, Empty));
    refused(
        &machine,
        RefusalCode::ForeignEntryFirst,
        "Boot0004 (slotd A)",
    );
    assert!(
        refusals(&machine)
            .iter()
            .any(|(code, _)| *code == RefusalCode::NoFallback)
    );
}

#[test]
fn a_kernel_that_the_firmware_cannot_start_is_not_installed() {
    let machine = InFirmware::new();
    let verified = machine.stage(B);
    let invalidated = machine
        .backend()
        .invalidate(machine.table().inactive(B).unwrap())
        .unwrap();
    let before = machine.bytes();
    drop((verified, invalidated));
    let dir = tempfile::tempdir().unwrap();
    let view = image_tree(dir.path());
    let proof = ReadBack {
        expanded_sha256: [7; 32],
        expanded_size: 1,
    };
    let invalidated = machine
        .backend()
        .invalidate(machine.table().inactive(B).unwrap())
        .unwrap();
    let verified = invalidated.attest(proof);
    let image = image();
    let error = machine
        .backend()
        .install_boot_files(&verified, &view, &image, &options())
        .unwrap_err();
    assert!(error.to_string().contains("no EFI program"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Reject);
    assert_eq!(machine.bytes(), before);
}

#[test]
fn options_that_the_kernel_would_not_get_whole_are_rejected() {
    let machine = InFirmware::new();
    let verified = machine.stage(B);
    let before = machine.bytes();
    for (extra, words) in [
        ("x".repeat(2048), "the kernel takes 2047"),
        ("\"a\nb\"".to_owned(), "'\\n'"),
    ] {
        let mut options = options();
        options.extra = extra;
        let error = machine.backend().arm(&verified, 1, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reject);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(machine.bytes(), before);
    }
}
