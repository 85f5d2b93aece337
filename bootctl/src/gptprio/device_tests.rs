//! Real block devices, where they can be had: direct writes, either sector size, the lock, a read-only disk. A plain file
//! goes the same way everywhere.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::crash_tests::disk;
use super::disk::DiskNode;
use super::input_tests::run;
use super::store::Gptprio;
use crate::backend::SlotState::{Empty, Good, Trial};
use crate::backend::{PreflightRequest, RefusalCode};
use crate::error::ErrorKind;
use crate::record::{Record, RecordStore};
use crate::slot::SlotName::{A, B};
use crate::table::Booted;

/// A loop device, detached when it is closed.
struct Loop {
    _open: File,
    device: PathBuf,
}

impl Loop {
    /// `None` where this user or machine has none.
    fn attach(file: &Path, sector: usize) -> Option<Self> {
        let control = File::options().write(true).open("/dev/loop-control");
        if control.is_err() {
            return None;
        }
        let size = sector.to_string();
        let device = run(
            "losetup",
            &["--find", "--show", "--sector-size", &size],
            file,
        );
        let device = PathBuf::from(device.trim());
        assert!(device.starts_with("/dev"), "{}", device.display());
        let open = File::open(&device).unwrap();
        run("losetup", &["--detach"], &device);
        Some(Self {
            _open: open,
            device,
        })
    }
}

fn slots(path: &Path, image: &[u8], sector: usize, fixture: bool) -> Gptprio {
    let (_, store) = disk(sector, [32, 33]);
    store.moved_to(DiskNode {
        path: path.to_owned(),
        sector: u32::try_from(sector).unwrap(),
        size: image.len() as u64,
        fixture,
    })
}

fn change(store: &Gptprio, path: &Path, whole_sectors: bool) {
    let on_a = Booted::Slot(A);
    let armed = Record {
        a: Good,
        b: Trial { left: 3, done: 0 },
        first: B,
    };
    store.commit(on_a, &armed, None).unwrap();
    assert_eq!(store.load(on_a).unwrap().record, armed);
    // Good behind three tries: priority 12, one try, successful. Trial: priority 15, three tries.
    if whole_sectors {
        for (number, attributes, priority) in [
            ("32", "011C000000000000", "12"),
            ("33", "003F000000000000", "15"),
        ] {
            let text = run("sgdisk", &["-i", number], path);
            assert!(
                text.contains(&format!("Attribute flags: {attributes}")),
                "{text}"
            );
            assert_eq!(
                run("cgpt", &["show", "-i", number, "-P"], path).trim(),
                priority
            );
        }
        let text = run("sgdisk", &["-v"], path);
        assert!(text.contains("No problems found"), "{text}");
        let text = run("sfdisk", &["--verify"], path);
        assert!(text.contains("No errors detected"), "{text}");
        let text = run(
            "sfdisk",
            &["--part-attrs", path.to_str().unwrap()],
            Path::new("33"),
        );
        assert_eq!(text.trim(), "GUID:48,49,50,51,52,53");
    }
    let disarmed = Record {
        b: Empty,
        first: A,
        ..armed
    };
    let planned = store.plan(on_a, &armed, &disarmed, None).unwrap();
    let [planned] = planned.as_slice() else {
        panic!("{planned:?}")
    };
    assert_eq!(
        planned.change,
        "set attributes in both tables: partition 32 (slot A): priority 12, tries 1, successful 1 → priority 15, tries 1, \
         successful 1; partition 33 (slot B): priority 15, tries 3, successful 0 → priority 0, tries 0, successful 0"
    );
    store.commit(on_a, &disarmed, None).unwrap();
    assert_eq!(store.load(on_a).unwrap().record, disarmed);
    assert_eq!(store.plan(on_a, &disarmed, &disarmed, None).unwrap(), []);
}

fn refusals(store: &Gptprio) -> Vec<RefusalCode> {
    let request = PreflightRequest {
        slot: B,
        boot_files: None,
        extra: String::new(),
    };
    let found = store.refusals(&request);
    found.into_iter().map(|refusal| refusal.code).collect()
}

#[test]
fn the_slots_are_changed_on_whatever_disk_there_is() {
    let dir = tempfile::tempdir().unwrap();
    for sector in [512, 4096] {
        let (image, _) = disk(sector, [32, 33]);
        let file = dir.path().join(format!("disk-{sector}"));
        std::fs::write(&file, &image).unwrap();
        // The tools take a plain file for one with sectors of 512 bytes.
        change(&slots(&file, &image, sector, true), &file, sector == 512);
        let Some(device) = Loop::attach(&file, sector) else {
            println!(
                "not tested here: devices of {sector}-byte sectors, no loop device can be had here"
            );
            continue;
        };
        let path = device.device.as_path();
        let store = slots(path, &image, sector, false);
        change(&store, path, true);
        assert_eq!(refusals(&store), []);

        let held = |path: &Path| {
            let mut command = Command::new("flock");
            let status = command.arg("--nonblock").arg(path).arg("true").status();
            !status.unwrap().success()
        };
        let lock = store.lock().unwrap();
        assert!(held(path));
        drop(lock);
        assert!(!held(path));

        let before = std::fs::read(path).unwrap();
        run("blockdev", &["--setro"], path);
        assert_eq!(refusals(&store), [RefusalCode::ReadOnly]);
        let wanted = Record {
            a: Good,
            b: Good,
            first: B,
        };
        let error = store.commit(Booted::Slot(B), &wanted, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        run("blockdev", &["--setrw"], path);
        assert!(std::fs::read(path).unwrap() == before);
    }
}
