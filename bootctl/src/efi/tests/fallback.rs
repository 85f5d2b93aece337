//! What a trial would fall back to: an option that has started this machine, whose files are there, on the partition that
//! it names, with room for the option that proves the trial.

use std::fs;
use std::path::Path;

use super::super::firmware::{DISK, InFirmware, unhex};
use super::super::variables::tests::{used, with_flash};
use super::refusals::{refusals, refused};
use super::{Empty, Good, confirmed};
use crate::backend::{PreflightRequest, RefusalCode};
use crate::error::ErrorKind;
use crate::fixture::usual_partitions;
use crate::scenarios::machines::{Machine, options};
use crate::slot::SlotName::{A, B};
use crate::slot::{SlotLocator, SlotSettings};
use crate::systemd_boot::EspSetting;
use crate::table::SlotTable;

#[test]
fn an_option_that_did_not_start_this_system_is_no_fallback() {
    let machine = InFirmware::new();
    let firmware = machine.firmware();
    // Slot A runs, and slotd's option of it is in front: but the disk's own option started it.
    firmware.put("BootCurrent", Some(&[1, 0]));
    assert_eq!(machine.states(), (Good, Empty));
    refused(
        &machine,
        RefusalCode::LoaderDataMissing,
        "option of slot A but by Boot0001 (UEFI QEMU HARDDISK QM00001 )",
    );
    refused(
        &machine,
        RefusalCode::LoaderDataMissing,
        "reboot through Boot0004 (slotd A) first (`efibootmgr -n 0004`)",
    );
    // One that makes no sense is nobody's, either.
    firmware.put("Boot0001", Some(&[1, 0, 0]));
    refused(&machine, RefusalCode::LoaderDataMissing, "but by Boot0001,");
    // Another slot's is a contradiction.
    let other = firmware.option("slotd B", "\\EFI\\slotd\\b\\linux.efi", "");
    firmware.put("Boot0001", Some(&other));
    refused(
        &machine,
        RefusalCode::Unreadable,
        "Boot0001 (slotd B), the option of slot B, but slot A is booted",
    );
    // After the advised reboot nothing is said any more.
    firmware.put("Boot0001", Some(&unhex(DISK)));
    let mut machine = machine;
    machine.firmware().put("BootNext", Some(&[4, 0]));
    assert_eq!(machine.power_cycle(), Some(A));
    assert_eq!(refusals(&machine), []);
}

#[test]
fn a_trials_option_that_is_gone_after_its_confirmation_says_nothing() {
    let mut machine = InFirmware::new();
    confirmed(&mut machine);
    assert_eq!(machine.firmware().get("BootCurrent").unwrap(), [2, 0]);
    assert_eq!(machine.firmware().get("Boot0002"), None);
    let request = PreflightRequest {
        slot: A,
        boot_files: Some(1024),
        extra: String::new(),
    };
    assert_eq!(machine.backend().preflight(&request), []);
}

#[test]
fn a_fallback_whose_files_are_gone_is_none() {
    let mut machine = InFirmware::new();
    let kernel = machine.node.esp().join("EFI/slotd/a/linux.efi");
    let aside = machine.node.esp().join("aside");
    fs::rename(&kernel, &aside).unwrap();
    // Good by the variables alone.
    assert_eq!(machine.states(), (Good, Empty));
    refused(
        &machine,
        RefusalCode::NoFallback,
        "Boot0004 (slotd A) starts slot A, but \\EFI\\slotd\\a\\linux.efi is not on /efi",
    );
    fs::rename(&aside, &kernel).unwrap();
    assert_eq!(refusals(&machine), []);
    // An initrd counts where the option names one.
    let option = machine.firmware().option(
        "slotd A",
        "\\EFI\\slotd\\a\\linux.efi",
        &format!(
            "root=PARTUUID={} ro slotd.slot=a initrd=\\EFI\\slotd\\a\\initrd",
            machine.node.slot_uuid(A)
        ),
    );
    machine.firmware().put("Boot0004", Some(&option));
    refused(
        &machine,
        RefusalCode::NoFallback,
        "\\EFI\\slotd\\a\\initrd is not on /efi",
    );
    fs::write(machine.node.esp().join("EFI/slotd/a/initrd"), "initrd").unwrap();
    assert_eq!(refusals(&machine), []);
    assert_eq!(machine.power_cycle(), Some(A));
}

#[test]
fn boot_files_that_are_not_what_was_copied_are_not_armed() {
    for (file, content) in [
        ("linux.efi", None),
        ("linux.efi", Some("MZ")),
        ("initrd", Some("x")),
    ] {
        let machine = InFirmware::new();
        let verified = machine.stage(B);
        let path = machine.node.esp().join("EFI/slotd/b").join(file);
        let whole = fs::read(&path).unwrap();
        match content {
            Some(content) => fs::write(&path, content).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let before = machine.bytes();
        let error = machine.backend().arm(&verified, 1, &options()).unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
        assert_eq!(machine.bytes(), before, "{file}");
        fs::write(&path, whole).unwrap();
        machine.backend().arm(&verified, 1, &options()).unwrap();
    }
}

#[test]
fn room_for_the_longest_trial_and_its_confirmation_is_tested_first() {
    let mut machine = InFirmware::new();
    let verified = machine.stage(B);
    let directory = machine.node.system().efivars();
    // 2047 characters of two bytes each, and below 256 bytes besides: 4350. One of two has room.
    let one = used(&directory) + 4350;
    let found = with_flash(one, || refusals(&machine));
    assert!(
        found
            .iter()
            .any(|(code, message)| *code == RefusalCode::NoSpace
                && message.contains("SlotdWriteTest2")),
        "{found:?}"
    );
    // Where nothing is refused, the longest one can be armed, and what ran confirmed.
    let both = one + 4350;
    assert_eq!(with_flash(both, || refusals(&machine)), []);
    let mut longest = options();
    let uuid = machine.node.slot_uuid(B);
    let own = format!(
        "root=PARTUUID={uuid} ro systemd.machine_id={} slotd.slot=b initrd=\\EFI\\slotd\\b\\initrd slotd.trial \
         slotd.tries=1 slotd.trial_deadline=600 panic=10 console=ttyS0 quiet ",
        longest.machine_id
    );
    longest.extra = "x".repeat(2047 - own.len());
    with_flash(both, || machine.backend().arm(&verified, 1, &longest)).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    with_flash(both, || machine.backend().mark_good(B)).unwrap();
    assert_eq!(machine.states(), (Good, Good));
}

const ROOT: &str = "22 1 254:2 / / ro - ext4 /dev/root ro\n\
                    31 22 0:30 / /sys/firmware/efi/efivars rw - efivarfs efivarfs rw\n";

fn place(
    machine: &InFirmware,
    slots: &SlotSettings,
    mounts: &[(&str, &str)],
) -> crate::error::Result<String> {
    let line =
        |(place, number): &(&str, &str)| format!("30 22 {number} / {place} rw - vfat /dev/x rw\n");
    let mounts: String = mounts.iter().map(line).collect();
    machine.node.set_mounts(&format!("{ROOT}{mounts}")).unwrap();
    let system = machine.node.system();
    let table = SlotTable::discover(&system, slots, None).unwrap();
    let store = crate::efi::open_store(&system, &table, &EspSetting::Auto)?;
    Ok(store.esp.shown.display().to_string())
}

#[test]
fn of_a_disk_and_its_clone_the_slots_own_partition_counts() {
    let machine = InFirmware::new();
    let clone = usual_partitions("other-a", "other-b", 0xa000);
    machine.node.add_disk("vdb", 254, 16, 512, &clone).unwrap();
    machine
        .node
        .set_command_line("root=/dev/vda2 slotd.slot=a")
        .unwrap();
    let both = [("/efi", "254:17"), ("/boot", "254:1")];
    assert_eq!(
        place(&machine, &SlotSettings::Auto, &both).unwrap(),
        "/boot"
    );
    let error = place(&machine, &SlotSettings::Auto, &both[..1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("more than once"), "{error}");
}

#[test]
fn two_partitions_that_nothing_tells_apart_are_both_named() {
    let machine = InFirmware::new();
    let other = usual_partitions("other-a", "other-b", 0xb000);
    machine.node.add_disk("vdb", 254, 16, 512, &other).unwrap();
    // The slots are on both disks.
    let device = |name: &str| SlotLocator::Device(Path::new("/dev").join(name));
    let slots = SlotSettings::Explicit {
        a: device("vda2"),
        b: device("vdb3"),
    };
    let both = [("/efi", "254:17"), ("/boot", "254:1")];
    assert_eq!(place(&machine, &slots, &both).unwrap(), "/boot");
    // Nothing says which.
    machine.firmware().put("BootCurrent", None);
    let error = place(&machine, &slots, &both).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    let text = error.to_string();
    assert!(text.contains("/efi (vdb1), /boot (vda1)"), "{text}");
    // One at two places is one.
    let twice = [("/efi", "254:1"), ("/boot", "254:1")];
    assert_eq!(place(&machine, &slots, &twice).unwrap(), "/efi");
}

/// A firmware that puts every option in front of its order, at the latest when it starts.
fn put_first(machine: &InFirmware, number: u8) {
    let order = machine.firmware().get("BootOrder").unwrap();
    let order = [&[number, 0], order.as_slice()].concat();
    machine.firmware().put("BootOrder", Some(&order));
}

#[test]
fn a_trial_that_the_firmware_put_into_the_order_is_taken_out_by_what_ends_it() {
    let mut machine = InFirmware::new();
    machine.stage_and_arm(B);
    put_first(&machine, 2);
    assert_eq!(machine.power_cycle(), Some(B));
    machine.backend().mark_good(B).unwrap();
    // By the write that confirms: there is no moment at which the trial is in front of what is proven.
    assert_eq!(
        machine.firmware().get("BootOrder").unwrap(),
        [3, 0, 4, 0, 0, 0, 1, 0]
    );

    let mut machine = InFirmware::new();
    machine.stage_and_arm(B);
    put_first(&machine, 2);
    assert_eq!(machine.power_cycle(), Some(B));
    refused(
        &machine,
        RefusalCode::ForeignEntryFirst,
        "Boot0002 (slotd B trial) stands in BootOrder",
    );
    machine.backend().mark_bad(B).unwrap();
    assert_eq!(
        machine.firmware().get("BootOrder").unwrap(),
        [4, 0, 0, 0, 1, 0]
    );
    assert_eq!(machine.power_cycle(), Some(A));
}
