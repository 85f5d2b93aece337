//! Tables that are damaged or moved: each is stated, and used or refused. Nothing is repaired that was not asked for.

use std::path::Path;
use std::process::Command;

use super::crash_tests::{Recorded, disk};
use super::disk::DiskNode;
use super::store::Gptprio;
use crate::backend::SlotState::{Empty, Good, Trial};
use crate::backend::{PreflightRequest, ProblemCode, RefusalCode};
use crate::error::{Error, ErrorKind};
use crate::record::{Record, RecordStore};
use crate::slot::SlotName::{A, B};
use crate::table::Booted;

pub(super) const SECTOR: usize = 512;
pub(super) const NUMBERS: [u32; 2] = [2, 3];
pub(super) const ON_A: Booted = Booted::Slot(A);
pub(super) const GOOD_A: Record = Record {
    a: Good,
    b: Empty,
    first: A,
};
pub(super) const ARMED_B: Record = Record {
    a: Good,
    b: Trial { left: 3, done: 0 },
    first: B,
};

/// Where in a disk's bytes.
type Place = fn(&[u8]) -> usize;

/// A disk with slot A good, as bytes, and where it lies in a file.
pub(super) struct Node {
    dir: tempfile::TempDir,
    pub(super) store: Gptprio,
}

impl Node {
    pub(super) fn new(change: impl Fn(&mut Vec<u8>)) -> Self {
        let (image, store) = disk(SECTOR, NUMBERS);
        let setup = Recorded::new(&image, SECTOR);
        store.write(&setup, ON_A, &GOOD_A).unwrap();
        let mut bytes = setup.bytes();
        change(&mut bytes);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, &bytes).unwrap();
        let store = store.moved_to(DiskNode {
            path,
            sector: 512,
            size: bytes.len() as u64,
            fixture: true,
        });
        Self { dir, store }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("disk")
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    pub(super) fn problems(&self) -> Vec<(ProblemCode, String)> {
        let problems = self.store.load(ON_A).unwrap().problems;
        problems.into_iter().map(|p| (p.code, p.message)).collect()
    }

    pub(super) fn refusals(&self) -> Vec<(RefusalCode, String)> {
        let request = PreflightRequest {
            slot: B,
            boot_files: None,
            extra: String::new(),
        };
        let found = self.store.refusals(&request);
        found.into_iter().map(|r| (r.code, r.message)).collect()
    }

    /// States the problem, refuses to change anything, and has changed nothing.
    pub(super) fn refused(&self, what: &str, expected: &str) {
        let before = self.bytes();
        let problems = self.problems();
        assert!(
            problems
                .iter()
                .any(|(code, text)| *code == ProblemCode::NotWritable && text.contains(expected)),
            "{what}: {problems:?}"
        );
        let record = self.store.load(ON_A).unwrap().record;
        assert_eq!(record, GOOD_A, "{what}");
        assert!(
            self.refusals()
                .iter()
                .any(|(code, text)| *code == RefusalCode::Unreadable && text.contains(expected)),
            "{what}"
        );
        let error = self.store.commit(ON_A, &ARMED_B, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsafe, "{what}");
        assert!(error.to_string().contains(expected), "{what}: {error}");
        let error = self.store.plan(ON_A, &GOOD_A, &ARMED_B, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsafe, "{what}");
        // What the table says already is not refused.
        self.store.commit(ON_A, &GOOD_A, None).unwrap();
        assert!(self.bytes() == before, "{what}: bytes changed");
    }

    /// States a problem with these words, and does what is asked.
    fn used(&self, what: &str, expected: &str) {
        let problems = self.problems();
        assert!(
            problems.iter().any(|(_, text)| text.contains(expected)),
            "{what}: {problems:?}"
        );
        self.store.commit(ON_A, &ARMED_B, None).unwrap();
        assert_eq!(self.store.load(ON_A).unwrap().record, ARMED_B, "{what}");
    }

    /// Does what the refusal says, after which the slots can be changed.
    fn repaired_as_told(&self, what: &str) {
        let output = run("sgdisk", &["-e"], &self.path());
        self.store
            .commit(ON_A, &ARMED_B, None)
            .unwrap_or_else(|error| panic!("{what}: {error}, after {output}"));
        let checked = run("sgdisk", &["-v"], &self.path());
        assert!(checked.contains("No problems found"), "{what}: {checked}");
    }
}

pub(super) fn run(tool: &str, arguments: &[&str], disk: &Path) -> String {
    let output = Command::new(tool)
        .args(arguments)
        .arg(disk)
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap_or_else(|error| panic!("{tool}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Changes a field of one header and makes its checksum right again.
pub(super) fn set(disk: &mut [u8], header: usize, at: usize, value: &[u8]) {
    disk[header + at..][..value.len()].copy_from_slice(value);
    seal(disk, header);
}

fn seal(disk: &mut [u8], header: usize) {
    disk[header + 16..header + 20].fill(0);
    let crc = crc32fast::hash(&disk[header..header + 92]);
    disk[header + 16..header + 20].copy_from_slice(&crc.to_le_bytes());
}

/// Changes an entry in both copies, with checksums that are right.
pub(super) fn set_entry(disk: &mut [u8], number: u32, at: usize, value: &[u8]) {
    let last = disk.len() - SECTOR;
    for (header, array) in [(SECTOR, 2 * SECTOR), (last, last - 128 * 128)] {
        let entry = array + (number as usize - 1) * 128 + at;
        disk[entry..][..value.len()].copy_from_slice(value);
        let crc = crc32fast::hash(&disk[array..array + 128 * 128]);
        set(disk, header, 88, &crc.to_le_bytes());
    }
}

pub(super) fn set_backup(disk: &mut [u8], at: usize, value: &[u8]) {
    let header = backup(disk);
    set(disk, header, at, value);
}

pub(super) fn backup(disk: &[u8]) -> usize {
    disk.len() - SECTOR
}

#[test]
fn with_one_copy_damaged_nothing_is_written_until_it_is_repaired() {
    let cases: [(&str, Place, &str); 6] = [
        (
            "primary GUID",
            |_| SECTOR + 60,
            "only the backup table is whole",
        ),
        (
            "primary signature",
            |_| SECTOR,
            "only the backup table is whole",
        ),
        (
            "a name in the primary",
            |_| 2 * SECTOR + 128 + 60,
            "only the backup table is whole",
        ),
        (
            "an attribute of no slot",
            |_| 2 * SECTOR + 54,
            "only the backup table is whole",
        ),
        (
            "backup GUID",
            |disk| backup(disk) + 60,
            "only the primary table is whole",
        ),
        (
            "backup array",
            |disk| backup(disk) - 128 * 128 + 130,
            "only the primary table is whole",
        ),
    ];
    for (what, place, expected) in cases {
        let node = Node::new(|disk| {
            let at = place(disk);
            disk[at] ^= 0x11;
        });
        node.refused(what, expected);
        node.refused(what, "sgdisk -e");
        node.repaired_as_told(what);
    }
}

#[test]
fn a_change_that_was_cut_off_is_no_damage() {
    // The slots' own bits, or a checksum.
    let cases: [(&str, Place); 4] = [
        ("primary attributes", |_| 2 * SECTOR + 128 + 54),
        ("primary checksum", |_| SECTOR + 88),
        ("backup attributes", |disk| {
            backup(disk) - 128 * 128 + 256 + 55
        }),
        ("backup checksum", |disk| backup(disk) + 17),
    ];
    for (what, place) in cases {
        let node = Node::new(|disk| {
            let at = place(disk);
            disk[at] ^= 1;
        });
        assert_eq!(node.refusals(), [], "{what}");
        node.used(what, "was cut off");
        assert_eq!(node.problems(), [], "{what}");
    }
}

#[test]
fn two_whole_copies_that_differ_are_refused() {
    let node = Node::new(|disk| {
        let header = backup(disk);
        let array = header - 128 * 128;
        disk[array + 128 + 60] ^= 1;
        let crc = crc32fast::hash(&disk[array..header]);
        set(disk, header, 88, &crc.to_le_bytes());
    });
    node.refused("a name in the backup", "describes something else");
    node.repaired_as_told("a name in the backup");
    // Differing in the slots alone it is what a cut leaves.
    let node = Node::new(|disk| {
        let header = backup(disk);
        let array = header - 128 * 128;
        disk[array + 128 + 54] = 0x35;
        let crc = crc32fast::hash(&disk[array..header]);
        set(disk, header, 88, &crc.to_le_bytes());
    });
    node.used("attributes in the backup", "was cut off");
}

#[test]
fn without_a_whole_copy_there_is_no_record() {
    let node = Node::new(|disk| {
        disk[SECTOR + 60] ^= 1;
        let at = backup(disk) + 60;
        disk[at] ^= 1;
    });
    let before = node.bytes();
    let error = node.store.load(ON_A).unwrap_err();
    assert!(
        matches!(error, Error::PartitionTable { offset: 512, .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("primary header checksum") && text.contains("backup header checksum"),
        "{text}"
    );
    node.store.commit(ON_A, &ARMED_B, None).unwrap_err();
    let refusals = node.refusals();
    assert_eq!(refusals[0].0, RefusalCode::Unreadable);
    assert!(node.bytes() == before);
}

#[test]
fn a_disk_cloned_to_a_larger_one_is_used_as_it_is() {
    let node = Node::new(|disk| disk.resize(disk.len() + 100 * SECTOR, 0));
    assert_eq!(node.refusals(), []);
    let before = node.bytes();
    node.used(
        "grown",
        "the backup table is at sector 255, the disk ends at 355",
    );
    let after = node.bytes();
    assert!(before[256 * SECTOR..] == after[256 * SECTOR..]);
    node.repaired_as_told("grown");
    assert_eq!(node.problems(), []);

    // With its own old table at the end, a loader that has lost the primary would take that one.
    let node = Node::new(|disk| {
        disk.resize(disk.len() + 100 * SECTOR, 0);
        let last = backup(disk);
        let (array, header) = (
            disk[223 * SECTOR..255 * SECTOR].to_vec(),
            disk[255 * SECTOR..256 * SECTOR].to_vec(),
        );
        disk[last - array.len()..last].copy_from_slice(&array);
        disk[last..].copy_from_slice(&header);
        set(disk, last, 24, &355_u64.to_le_bytes());
        set(disk, last, 72, &323_u64.to_le_bytes());
    });
    node.refused("two backups", "another backup table lies at the end");
    node.repaired_as_told("two backups");

    let node = Node::new(|disk| disk.truncate(200 * SECTOR));
    let error = node.store.load(ON_A).unwrap_err().to_string();
    assert!(error.contains("on a disk of 200"), "{error}");
}

#[test]
fn the_first_sector_is_stated_and_never_written() {
    let node = Node::new(|disk| disk[440..512].fill(0));
    assert!(node.refusals()[0].1.contains("protective MBR is missing"));
    // The running trial can still be confirmed.
    node.used("no MBR", "protective MBR is missing");
    assert!(node.bytes()[440..512] == [0; 72]);
    node.repaired_as_told("no MBR");
    assert_eq!(node.refusals(), []);

    let hybrid = |disk: &mut Vec<u8>| {
        disk[462 + 4] = 0x83;
        disk[462 + 8] = 60;
        disk[462 + 12] = 20;
    };
    let node = Node::new(hybrid);
    assert_eq!(node.refusals(), []);
    let before = node.bytes();
    node.used("hybrid", "hybrid MBR");
    assert!(node.bytes()[..512] == before[..512]);
}

#[test]
fn the_write_test_leaves_nothing_and_a_node_that_is_no_disk_is_refused() {
    let node = Node::new(|_| {});
    let before = node.bytes();
    assert_eq!(node.refusals(), []);
    assert_eq!(node.problems(), []);
    assert!(node.bytes() == before);
    let (_, store) = disk(SECTOR, NUMBERS);
    for (path, fixture) in [
        (node.path(), false),
        (node.dir.path().to_owned(), true),
        ("/nowhere".into(), true),
    ] {
        let store = store.moved_to(DiskNode {
            path,
            sector: 512,
            size: 256 * 512,
            fixture,
        });
        store.load(ON_A).unwrap_err();
        store.commit(ON_A, &ARMED_B, None).unwrap_err();
    }
    assert!(node.bytes() == before);
}
