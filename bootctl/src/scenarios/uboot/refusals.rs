//! Bad input: refused at preflight with the reason, and no byte changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use super::{B, CONFIG, Machine, Medium, SIZE, Uboot, store};
use crate::backend::{PreflightRequest, Refusal, RefusalCode};
use crate::record::RecordStore;
use crate::uboot::UbootConvention;

fn refusals(machine: &Uboot) -> Vec<Refusal> {
    machine.backend().preflight(&PreflightRequest {
        slot: B,
        boot_files: None,
        extra: String::new(),
    })
}

/// That the machine as `spoil` leaves it is refused with a code and words, by preflight and by a transition, and that
/// nothing is changed by that.
fn refused(
    medium: Medium,
    what: &str,
    code: RefusalCode,
    words: &[&str],
    spoil: impl Fn(&Uboot, &dyn Fn(&str)),
) {
    let machine = Uboot::new(medium, UbootConvention::Slotd);
    let config = |text: &str| fs::write(machine.node.system().path(CONFIG), text).unwrap();
    spoil(&machine, &config);
    let before = machine.bytes();
    let found = refusals(&machine);
    assert_eq!(found.len(), 1, "{what}: {found:?}");
    assert_eq!(found[0].code, code, "{what}: {found:?}");
    for word in words {
        assert!(found[0].message.contains(word), "{what}: {found:?}");
    }
    let table = machine.table();
    let error = machine
        .backend()
        .invalidate(table.inactive(B).unwrap())
        .unwrap_err();
    assert!(error.chain().contains(words[0]), "{what}: {error:?}");
    assert!(machine.bytes() == before, "{what} changed something");
}

#[test]
fn a_usual_place_has_nothing_to_refuse_and_the_write_test_changes_nothing() {
    for machine in Uboot::every_kind() {
        let before = machine.bytes();
        assert_eq!(refusals(&machine), []);
        assert!(machine.bytes() == before);
        let left = fs::read_dir(machine.node.system().path("/boot")).unwrap();
        assert!(left.count() <= 2);
    }
}

#[test]
fn what_the_configuration_gets_wrong_is_named() {
    use RefusalCode::{LoaderDataMissing, UnsupportedLayout};

    refused(
        Medium::Raw,
        "no configuration",
        LoaderDataMissing,
        &["/etc/fw_env.config"],
        |machine, _| fs::remove_file(machine.node.system().path(CONFIG)).unwrap(),
    );
    for (text, code, words) in [
        ("", UnsupportedLayout, ["names no environment", CONFIG]),
        (
            "/dev/mmcblk0boot0 0x0\n",
            UnsupportedLayout,
            ["line 1", "too few"],
        ),
        (
            "/dev/mmcblk1boot0 0x0 0x800\n",
            LoaderDataMissing,
            ["/dev/mmcblk1boot0", "find"],
        ),
        (
            "/dev/mmcblk0boot0 0x400000 0x800\n",
            UnsupportedLayout,
            ["0x400000 bytes", "offset 0x400000"],
        ),
        (
            "/dev/mmcblk0boot0 0x3ff801 0x800\n",
            UnsupportedLayout,
            ["0x400000 bytes", "line 1"],
        ),
        (
            "/dev/mmcblk0boot0 -0x400001 0x800\n",
            UnsupportedLayout,
            ["0x400000 bytes", "line 1"],
        ),
        (
            "/etc 0 0x800\n",
            UnsupportedLayout,
            ["no device and no file", "/etc"],
        ),
        (
            "/dev/mmcblk0boot0 0x0 0x800\n/dev/mmcblk0boot0 0x7ff 0x800\n",
            UnsupportedLayout,
            ["both copies are written in one place", "0x7ff"],
        ),
        (
            "/dev/vda3 0x0 0x800\n",
            UnsupportedLayout,
            ["lies on slot B", "/dev/vda3"],
        ),
        // Slot A begins at 9 MiB.
        (
            "/dev/vda 0x8ffc00 0x800\n",
            UnsupportedLayout,
            ["lies on slot A", "/dev/vda"],
        ),
    ] {
        refused(Medium::Raw, text, code, &words, |_, config| config(text));
    }
}

#[test]
fn a_link_to_a_slot_is_no_way_around() {
    refused(
        Medium::Raw,
        "link",
        RefusalCode::UnsupportedLayout,
        &["lies on slot B"],
        |machine, config| {
            let links = machine.node.system().path("/dev/disk/by-partlabel");
            fs::create_dir_all(&links).unwrap();
            symlink("../../vda3", links.join("ubootenv")).unwrap();
            config("/dev/disk/by-partlabel/ubootenv 0 800\n");
        },
    );
}

#[test]
fn contents_that_are_no_environment_are_said_as_they_are() {
    let unreadable = RefusalCode::Unreadable;
    refused(
        Medium::Raw,
        "both copies damaged",
        unreadable,
        &[
            "no good U-Boot environment",
            "0x100000",
            "0x300000",
            "its CRC is",
        ],
        |machine, _| {
            for which in 0..2 {
                let mut bytes = machine.copies.copy(which);
                bytes[SIZE - 1] ^= 1;
                machine.copies.put(which, &bytes);
            }
        },
    );
    refused(
        Medium::Files,
        "erased",
        unreadable,
        &["no good U-Boot environment", "ff ff ff ff", "saveenv"],
        |machine, _| {
            for which in 0..2 {
                machine.copies.put(which, &[0xff; SIZE]);
            }
        },
    );
    refused(
        Medium::File,
        "single copy damaged",
        unreadable,
        &[
            "no good U-Boot environment",
            "/boot/uboot.env at 0x0, 0x800 bytes",
        ],
        |machine, _| machine.copies.put(0, &[0; SIZE]),
    );
    for (text, words) in [
        // Both copies are there, with another size.
        (
            "/dev/mmcblk0boot0 0x100000 0x1000\n/dev/mmcblk0boot0 -0x100000 0x1000\n",
            "0x800 bytes would be a copy of a redundant pair",
        ),
        // One of a pair is no single copy.
        (
            "/dev/mmcblk0boot0 0x100000 0x800\n",
            "but 0x800 bytes would be a copy of a redundant pair",
        ),
    ] {
        refused(Medium::Raw, text, unreadable, &[words], |_, config| {
            config(text);
        });
    }
    refused(
        Medium::File,
        "a single copy of another size",
        unreadable,
        &["0x800 bytes would be a single copy"],
        |machine, config| {
            let mut bytes = machine.copies.copy(0);
            bytes.resize(0x2000, 0);
            machine.copies.put(0, &bytes);
            config("/boot/uboot.env 0 2000\n");
        },
    );
}

#[test]
fn the_write_test_spares_the_copy_that_counts() {
    let machine = Uboot::new(Medium::Files, UbootConvention::Slotd);
    let files = ["/boot/uboot.env", "/boot/uboot-redund.env"].map(|file| {
        let path = machine.node.system().path(file);
        fs::OpenOptions::new().write(true).open(path).unwrap()
    });
    for _ in 0..2 {
        let flags: Vec<u8> = (0..2).map(|which| machine.copies.copy(which)[4]).collect();
        // Of two with one number the first counts.
        let counts = usize::from(flags[1] > flags[0]);
        for file in &files {
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        assert_eq!(refusals(&machine), []);
        let written = |which: usize| {
            let modified = files[which].metadata().unwrap().modified().unwrap();
            modified != SystemTime::UNIX_EPOCH
        };
        assert!(!written(counts), "copy {counts}, which counts");
        assert!(written(1 - counts), "copy {}", 1 - counts);
        // From now on the other one does.
        machine.copies.set("somebody", &format!("{counts}"));
    }
}

#[test]
fn the_write_test_waits_for_the_lock_and_one_that_cannot_be_taken_is_refused() {
    let machine = Uboot::new(Medium::Raw, UbootConvention::Slotd);
    let held = store(&machine.node, &machine.convention).lock().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let preflight = scope.spawn(|| {
            let found = refusals(&machine);
            done.store(true, Ordering::SeqCst);
            found
        });
        thread::sleep(Duration::from_millis(500));
        assert!(!done.load(Ordering::SeqCst), "it did not wait");
        drop(held);
        assert_eq!(preflight.join().unwrap(), []);
    });
    let lock = machine.node.system().path("/var/lock/fw_printenv.lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    let before = machine.bytes();
    let found = refusals(&machine);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].code, RefusalCode::ReadOnly);
    assert!(found[0].message.contains("fw_printenv.lock"), "{found:?}");
    assert!(machine.bytes() == before);
}

#[test]
fn a_place_that_cannot_be_written_is_refused() {
    let machine = Uboot::new(Medium::Raw, UbootConvention::Slotd);
    let verified = machine.stage(B);
    let ro = machine.node.system().sys("class/block/mmcblk0boot0/ro");
    fs::write(ro, "1\n").unwrap();
    let before = machine.bytes();
    let found = refusals(&machine);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].code, RefusalCode::ReadOnly);
    for word in ["/dev/mmcblk0boot0", "set read-only"] {
        assert!(found[0].message.contains(word), "{found:?}");
    }
    let options = super::super::options();
    let error = machine.backend().arm(&verified, 3, &options).unwrap_err();
    assert!(error.chain().contains("set read-only"), "{}", error.chain());
    assert!(machine.bytes() == before);
}

#[test]
fn an_environment_without_room_is_refused_with_sizes() {
    let machine = Uboot::new(Medium::Raw, UbootConvention::Slotd);
    machine.copies.set("big", &"x".repeat(1900));
    let before = machine.bytes();
    let found = refusals(&machine);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].code, RefusalCode::NoSpace);
    assert!(
        found[0].message.contains("the environment holds 2043"),
        "{found:?}"
    );
    assert!(machine.bytes() == before);
}

#[test]
fn variables_that_say_nothing_are_refused_by_name() {
    for (name, value) in [
        ("slotd_a_ok", "yes"),
        ("slotd_b_tries", "many"),
        ("slotd_order", "C"),
    ] {
        let words = format!("{name}={value}");
        refused(
            Medium::Raw,
            &words,
            RefusalCode::Unreadable,
            &[&words],
            |machine, _| machine.copies.set(name, value),
        );
    }
}
