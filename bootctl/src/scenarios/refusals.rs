//! Preflight: every reason, all at once, and a partition that is as before.

use std::fs;

use super::machines::bytes;
use super::{A, B, Machine, OnDisk, open};
use crate::backend::{Backend, PreflightRequest, Refusal, RefusalCode};
use crate::fixture::{FixtureNode, usual_partitions};

fn request() -> PreflightRequest {
    PreflightRequest {
        slot: B,
        boot_files: Some(1024),
        extra: String::new(),
    }
}

/// What is refused, with every byte of the node as it was.
fn refusals(node: &FixtureNode, backend: &dyn Backend, request: &PreflightRequest) -> Vec<Refusal> {
    let before = bytes(node);
    let refusals = backend.preflight(request);
    assert_eq!(bytes(node), before, "{refusals:?}");
    refusals
}

fn codes(machine: &OnDisk, request: &PreflightRequest) -> Vec<RefusalCode> {
    let refusals = refusals(&machine.node, machine.backend(), request);
    refusals.into_iter().map(|refusal| refusal.code).collect()
}

fn message(machine: &OnDisk) -> String {
    let refusals = refusals(&machine.node, machine.backend(), &request());
    refusals
        .into_iter()
        .map(|refusal| refusal.message)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_usual_disk_has_nothing_to_refuse_and_the_write_test_leaves_nothing() {
    let machine = OnDisk::new();
    assert_eq!(codes(&machine, &request()), []);
    let estimated = PreflightRequest {
        boot_files: None,
        ..request()
    };
    assert_eq!(codes(&machine, &estimated), []);
    assert_eq!(machine.node.entries().unwrap(), ["slotd-a.conf"]);
}

#[test]
fn more_boot_files_than_there_is_room_for_are_refused_with_both_numbers() {
    let machine = OnDisk::new();
    let request = PreflightRequest {
        boot_files: Some(1 << 60),
        ..request()
    };
    assert_eq!(codes(&machine, &request), [RefusalCode::NoSpace]);
    let refusal = machine.backend().preflight(&request).remove(0).message;
    assert!(refusal.contains("need 1125899906842880 KiB"), "{refusal}");
}

#[test]
fn a_default_that_hides_the_trial_is_refused_wherever_it_is_set() {
    let machine = OnDisk::new();
    for pattern in ["slotd-a.conf", "SLOTD-A*", "*-a.conf", "@saved"] {
        machine
            .node
            .set_string("LoaderEntryDefault", Some(pattern))
            .unwrap();
        assert_eq!(
            codes(&machine, &request()),
            [RefusalCode::DefaultSet],
            "{pattern}"
        );
    }
    machine.node.set_string("LoaderEntryDefault", None).unwrap();
    let conf = machine.node.esp().join("loader/loader.conf");
    fs::write(&conf, "timeout 3\ndefault slotd-a.conf\n").unwrap();
    assert_eq!(codes(&machine, &request()), [RefusalCode::DefaultSet]);
    assert!(
        message(&machine).contains("`default slotd-a.conf`"),
        "{}",
        message(&machine)
    );
}

#[test]
fn a_default_that_would_outlive_a_failed_trial_is_refused() {
    let machine = OnDisk::new();
    // Starts the trial, but goes on starting it when it is spent.
    machine
        .node
        .set_string("LoaderEntryDefault", Some("slotd-b*"))
        .unwrap();
    assert_eq!(codes(&machine, &request()), [RefusalCode::DefaultSet]);
    assert!(
        message(&machine).contains("the fallback of slot A"),
        "{}",
        message(&machine)
    );
}

#[test]
fn a_default_that_matches_nothing_or_follows_the_order_is_no_hindrance() {
    let machine = OnDisk::new();
    for pattern in ["windows*", "slotd-*"] {
        machine
            .node
            .set_string("LoaderEntryDefault", Some(pattern))
            .unwrap();
        assert_eq!(codes(&machine, &request()), [], "{pattern}");
    }
}

#[test]
fn a_one_shot_entry_is_refused() {
    let machine = OnDisk::new();
    machine
        .node
        .set_string("LoaderEntryOneShot", Some("memtest.conf"))
        .unwrap();
    assert_eq!(codes(&machine, &request()), [RefusalCode::OneShotSet]);
}

#[test]
fn a_foreign_entry_that_sorts_first_is_named() {
    let machine = OnDisk::new();
    let esp = machine.node.esp();
    fs::create_dir_all(esp.join("debian")).unwrap();
    fs::write(esp.join("debian/vmlinuz"), "kernel").unwrap();
    let entry = esp.join("loader/entries/debian-6.1.conf");
    fs::write(
        &entry,
        "title Debian\nsort-key debian\nlinux /Debian/VMLINUZ\n",
    )
    .unwrap();
    assert_eq!(
        codes(&machine, &request()),
        [RefusalCode::ForeignEntryFirst]
    );
    assert!(message(&machine).contains("debian-6.1.conf"));
    // Sorting behind ours, or without its kernel, it is harmless.
    fs::write(
        &entry,
        "title Debian\nsort-key zzz\nlinux /debian/vmlinuz\n",
    )
    .unwrap();
    assert_eq!(codes(&machine, &request()), []);
    fs::write(&entry, "title Debian\nsort-key debian\nlinux /nowhere\n").unwrap();
    assert_eq!(codes(&machine, &request()), []);
}

#[test]
fn a_loader_that_does_not_count_is_refused() {
    let machine = OnDisk::new();
    machine
        .node
        .set_variable("LoaderFeatures", Some(&[0x0f, 0, 0, 0, 0, 0, 0, 0]))
        .unwrap();
    assert_eq!(
        codes(&machine, &request()),
        [RefusalCode::CountingUnsupported]
    );
    machine.node.set_variable("LoaderFeatures", None).unwrap();
    assert_eq!(codes(&machine, &request()), []);
}

#[test]
fn options_that_are_slotds_to_set_are_refused() {
    let machine = OnDisk::new();
    let request = PreflightRequest {
        extra: "quiet root=/dev/sda1".to_owned(),
        ..request()
    };
    assert_eq!(codes(&machine, &request), [RefusalCode::ReservedOption]);
}

#[test]
fn without_a_good_fallback_nothing_is_overwritten() {
    let machine = OnDisk::new();
    let entries = machine.node.esp().join("loader/entries");
    fs::rename(
        entries.join("slotd-a.conf"),
        entries.join("slotd-a+0-3.conf"),
    )
    .unwrap();
    assert_eq!(codes(&machine, &request()), [RefusalCode::NoFallback]);
}

#[test]
fn the_only_good_slot_is_not_overwritten_from_a_rescue_system() {
    let machine = OnDisk::new();
    let request = PreflightRequest {
        slot: A,
        ..request()
    };
    assert_eq!(codes(&machine, &request), [RefusalCode::LastGoodSlot]);
}

#[test]
fn a_system_that_another_loader_started_is_refused() {
    let machine = OnDisk::new();
    for info in [None, Some("GRUB 2.06")] {
        machine.node.set_string("LoaderInfo", info).unwrap();
        assert_eq!(
            codes(&machine, &request()),
            [RefusalCode::LoaderDataMissing]
        );
    }
}

#[test]
fn slots_of_usr_are_not_what_an_entry_can_start() {
    let machine = OnDisk::new();
    let parts = usual_partitions("USR-A", "USR-B", 0xb000);
    machine.node.add_disk("vdb", 254, 16, 512, &parts).unwrap();
    machine
        .node
        .set_mounts(
            "22 1 254:20 / / rw - ext4 /dev/vdb4 rw\n23 22 254:18 / /usr ro - ext4 /dev/vdb2 ro\n\
             30 22 254:1 / /efi rw - vfat /dev/vda1 rw\n",
        )
        .unwrap();
    machine.node.set_command_line("quiet").unwrap();
    let found = refusals(&machine.node, &open(&machine.node), &request());
    let codes: Vec<_> = found.into_iter().map(|refusal| refusal.code).collect();
    assert_eq!(codes, [RefusalCode::UnsupportedLayout]);
}

#[test]
fn all_reasons_come_at_once() {
    let machine = OnDisk::new();
    machine
        .node
        .set_string("LoaderEntryDefault", Some("slotd-a.conf"))
        .unwrap();
    machine
        .node
        .set_string("LoaderEntryOneShot", Some("x.conf"))
        .unwrap();
    let request = PreflightRequest {
        slot: B,
        boot_files: Some(1 << 60),
        extra: "panic=0".to_owned(),
    };
    assert_eq!(
        codes(&machine, &request),
        [
            RefusalCode::NoSpace,
            RefusalCode::DefaultSet,
            RefusalCode::OneShotSet,
            RefusalCode::ReservedOption
        ]
    );
}

#[test]
fn a_partition_that_is_gone_is_refused_as_missing() {
    let machine = OnDisk::new();
    let backend = open(&machine.node);
    fs::rename(machine.node.esp(), machine.dir.path().join("elsewhere")).unwrap();
    let found = refusals(&machine.node, &backend, &request());
    let codes: Vec<_> = found.into_iter().map(|refusal| refusal.code).collect();
    assert!(codes.contains(&RefusalCode::LoaderDataMissing), "{codes:?}");
    let again = FixtureNode::create(&machine.dir.path().join("again")).unwrap();
    assert!(open(&again).preflight(&request()).is_empty());
}
