//! Tables that are damaged, moved, or lie: each is stated, and used or refused. Nothing is repaired that was not asked for.

use std::path::Path;
use std::process::Command;

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::crash_tests::{Recorded, disk};
use super::disk::DiskNode;
use super::store::Gptprio;
use crate::backend::SlotState::{Empty, Good, Trial};
use crate::backend::{PreflightRequest, ProblemCode, RefusalCode};
use crate::error::{Error, ErrorKind};
use crate::record::{Record, RecordStore};
use crate::slot::SlotName::{A, B};
use crate::table::Booted;

const SECTOR: usize = 512;
const NUMBERS: [u32; 2] = [2, 3];
const ON_A: Booted = Booted::Slot(A);
const GOOD_A: Record = Record {
    a: Good,
    b: Empty,
    first: A,
};
const ARMED_B: Record = Record {
    a: Good,
    b: Trial { left: 3, done: 0 },
    first: B,
};

/// A disk with slot A good, as bytes, and where it lies in a file.
struct Node {
    dir: tempfile::TempDir,
    store: Gptprio,
}

impl Node {
    fn new(change: impl Fn(&mut Vec<u8>)) -> Self {
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

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    fn problems(&self) -> Vec<(ProblemCode, String)> {
        let problems = self.store.load(ON_A).unwrap().problems;
        problems.into_iter().map(|p| (p.code, p.message)).collect()
    }

    fn refusals(&self) -> Vec<(RefusalCode, String)> {
        let request = PreflightRequest {
            slot: B,
            boot_files: None,
            extra: String::new(),
        };
        let found = self.store.refusals(&request);
        found.into_iter().map(|r| (r.code, r.message)).collect()
    }

    /// States the problem, refuses to change anything, and has changed nothing.
    fn refused(&self, what: &str, expected: &str) {
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
fn set(disk: &mut [u8], header: usize, at: usize, value: &[u8]) {
    disk[header + at..][..value.len()].copy_from_slice(value);
    seal(disk, header);
}

fn seal(disk: &mut [u8], header: usize) {
    disk[header + 16..header + 20].fill(0);
    let crc = crc32fast::hash(&disk[header..header + 92]);
    disk[header + 16..header + 20].copy_from_slice(&crc.to_le_bytes());
}

/// Changes an entry in both copies, with checksums that are right.
fn set_entry(disk: &mut [u8], number: u32, at: usize, value: &[u8]) {
    let last = disk.len() - SECTOR;
    for (header, array) in [(SECTOR, 2 * SECTOR), (last, last - 128 * 128)] {
        let entry = array + (number as usize - 1) * 128 + at;
        disk[entry..][..value.len()].copy_from_slice(value);
        let crc = crc32fast::hash(&disk[array..array + 128 * 128]);
        set(disk, header, 88, &crc.to_le_bytes());
    }
}

fn set_backup(disk: &mut [u8], at: usize, value: &[u8]) {
    let header = backup(disk);
    set(disk, header, at, value);
}

fn backup(disk: &[u8]) -> usize {
    disk.len() - SECTOR
}

#[test]
fn with_one_copy_damaged_nothing_is_written_until_it_is_repaired() {
    let cases: [(&str, fn(&[u8]) -> usize, &str); 6] = [
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
    let cases: [(&str, fn(&[u8]) -> usize); 4] = [
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
fn a_header_that_lies_is_not_believed() {
    let cases: [(&str, usize, Vec<u8>); 20] = [
        ("revision", 8, 0x0002_0000_u32.to_le_bytes().to_vec()),
        ("header size 0", 12, 0_u32.to_le_bytes().to_vec()),
        ("header size 91", 12, 91_u32.to_le_bytes().to_vec()),
        ("header size 513", 12, 513_u32.to_le_bytes().to_vec()),
        ("header size 4 GiB", 12, u32::MAX.to_le_bytes().to_vec()),
        ("own place", 24, 7_u64.to_le_bytes().to_vec()),
        (
            "first usable behind the last",
            40,
            250_u64.to_le_bytes().to_vec(),
        ),
        (
            "first usable in the array",
            40,
            10_u64.to_le_bytes().to_vec(),
        ),
        (
            "last usable behind the disk",
            48,
            u64::MAX.to_le_bytes().to_vec(),
        ),
        (
            "array in the first sector",
            72,
            0_u64.to_le_bytes().to_vec(),
        ),
        ("array on the header", 72, 1_u64.to_le_bytes().to_vec()),
        ("array in a partition", 72, 50_u64.to_le_bytes().to_vec()),
        (
            "array across the backup header",
            72,
            240_u64.to_le_bytes().to_vec(),
        ),
        ("array behind the disk", 72, u64::MAX.to_le_bytes().to_vec()),
        ("no entries", 80, 0_u32.to_le_bytes().to_vec()),
        (
            "more entries than memory",
            80,
            u32::MAX.to_le_bytes().to_vec(),
        ),
        (
            "entries that reach into a partition",
            80,
            200_u32.to_le_bytes().to_vec(),
        ),
        ("entries of 0 bytes", 84, 0_u32.to_le_bytes().to_vec()),
        ("entries of 120 bytes", 84, 120_u32.to_le_bytes().to_vec()),
        ("entries of 132 bytes", 84, 132_u32.to_le_bytes().to_vec()),
    ];
    for (what, at, value) in cases {
        // In one copy: the other is used, and nothing is written.
        let node = Node::new(|disk| set(disk, SECTOR, at, &value));
        node.refused(what, "only the backup table is whole");
        let node = Node::new(|disk| set_backup(disk, at, &value));
        node.refused(what, "only the primary table is whole");
        if what == "first usable in the array" {
            // Which is the primary array alone.
            continue;
        }
        // In both there is no table.
        let node = Node::new(|disk| {
            set(disk, SECTOR, at, &value);
            set_backup(disk, at, &value);
        });
        let before = node.bytes();
        let error = node.store.load(ON_A).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsafe, "{what}");
        node.store.commit(ON_A, &ARMED_B, None).unwrap_err();
        assert!(node.bytes() == before, "{what}");
    }
    // Where the other copy is.
    for alternate in [0, 1, 2, 100, 254, 256, u64::MAX] {
        let node = Node::new(|disk| set(disk, SECTOR, 32, &u64::to_le_bytes(alternate)));
        node.refused("alternate", "only the primary table is whole");
    }
    let node = Node::new(|disk| set_backup(disk, 32, &2_u64.to_le_bytes()));
    node.refused("alternate of the backup", "describes something else");
}

#[test]
fn entries_that_lie_are_refused() {
    let overlapping = Node::new(|disk| set_entry(disk, 4, 32, &90_u64.to_le_bytes()));
    overlapping.refused("overlap", "partitions 3 and 4 overlap");
    let on_table = Node::new(|disk| set_entry(disk, 1, 32, &5_u64.to_le_bytes()));
    on_table.refused("on the table", "partition 1 spans sectors 5 to 59");
    let behind = Node::new(|disk| set_entry(disk, 4, 40, &u64::MAX.to_le_bytes()));
    behind.refused("behind the disk", "partition 4 spans");
    let reversed = Node::new(|disk| set_entry(disk, 4, 40, &1_u64.to_le_bytes()));
    reversed.refused("reversed", "partition 4 spans sectors 100 to 1");

    // A slot's entry that is another partition now.
    for (at, value) in [(32, 61_u64), (40, 78), (16, 1), (0, 0)] {
        let node = Node::new(|disk| {
            set_entry(disk, 2, at, &value.to_le_bytes());
            if at == 0 {
                set_entry(disk, 2, 8, &[0; 8]);
            }
        });
        let before = node.bytes();
        let error = node.store.load(ON_A).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsafe);
        assert!(
            error.to_string().contains("partition 2 in the table"),
            "{error}"
        );
        node.store.commit(ON_A, &ARMED_B, None).unwrap_err();
        assert!(!node.refusals().is_empty());
        assert!(node.bytes() == before);
    }
}

#[test]
fn a_third_partition_that_the_loader_would_start_first_is_named() {
    let attributes = |priority: u64| (priority << 48 | 1 << 56).to_le_bytes();
    // Slot A has priority 15 and a lower number than partition 4, but not than partition 1.
    for (number, priority, named) in [(1, 15, true), (4, 15, false), (1, 14, false), (4, 0, false)]
    {
        let node = Node::new(|disk| set_entry(disk, number, 48, &attributes(priority)));
        let refusals = node.refusals();
        assert_eq!(!refusals.is_empty(), named, "{refusals:?}");
        assert_eq!(
            node.problems()
                .iter()
                .any(|(code, _)| *code == ProblemCode::ForeignDefault),
            named
        );
        if named {
            assert_eq!(refusals[0].0, RefusalCode::ForeignEntryFirst);
            assert!(refusals[0].1.contains("partition 1"), "{refusals:?}");
        }
    }
    // Of another type it is none of the loader's.
    let node = Node::new(|disk| {
        set_entry(disk, 1, 48, &attributes(15));
        set_entry(disk, 1, 0, &[9; 16]);
    });
    assert_eq!(node.refusals(), []);
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

proptest! {
    #[test]
    fn any_header_with_a_right_checksum_is_refused_or_changed_within_the_tables(
        at in 24_usize..92, value in any::<u64>(), small in any::<bool>(), both in any::<bool>(),
    ) {
        let value = if small { value % 300 } else { value }.to_le_bytes();
        let (image, store) = disk(SECTOR, NUMBERS);
        let setup = Recorded::new(&image, SECTOR);
        store.write(&setup, ON_A, &GOOD_A).unwrap();
        let mut bytes = setup.bytes();
        let length = value.len().min(92 - at);
        set(&mut bytes, SECTOR, at, &value[..length]);
        if both {
            let header = backup(&bytes);
            set(&mut bytes, header, at, &value[..length]);
        }
        let disk = Recorded::new(&bytes, SECTOR);
        let result = store.write(&disk, ON_A, &ARMED_B);
        let after = disk.bytes();
        if result.is_err() {
            prop_assert_eq!(&after, &bytes);
        }
        // The first sector and the partitions, whatever the header says.
        prop_assert_eq!(&after[..SECTOR], &bytes[..SECTOR]);
        prop_assert_eq!(&after[34 * SECTOR..223 * SECTOR], &bytes[34 * SECTOR..223 * SECTOR]);
    }

    #[test]
    fn any_damage_to_one_copy_is_read_as_the_other_and_never_spreads(
        offset in 0_usize..33 * SECTOR, bit in 0_u8..8, in_backup in any::<bool>(),
    ) {
        let (image, store) = disk(SECTOR, NUMBERS);
        let setup = Recorded::new(&image, SECTOR);
        store.write(&setup, ON_A, &GOOD_A).unwrap();
        let mut bytes = setup.bytes();
        let at = if in_backup { 223 * SECTOR + offset } else { SECTOR + offset };
        bytes[at] ^= 1 << bit;
        let disk = Recorded::new(&bytes, SECTOR);
        match store.write(&disk, ON_A, &ARMED_B) {
            Ok(()) => {
                let end = Recorded::new(&setup.bytes(), SECTOR);
                store.write(&end, ON_A, &ARMED_B).unwrap();
                // Finished, or the flipped bit is in no field.
                let mut end = end.bytes();
                if disk.bytes() != end {
                    end[at] ^= 1 << bit;
                }
                prop_assert!(disk.bytes() == end);
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Unsafe);
                prop_assert!(disk.bytes() == bytes);
            }
        }
    }
}
