//! Disks with partition tables. See [`crate::fuzzing`].

use std::io::Cursor;
use std::path::Path;

use crate::dos;
use crate::error::Error;
use crate::gpt::{self, Gpt};

/// Sectors of the disks that inputs are taken for.
const SECTOR: usize = 512;

/// The input as a disk of whole sectors.
pub(crate) fn disk(input: &[u8]) -> Vec<u8> {
    let mut disk = input.to_vec();
    disk.resize(input.len().next_multiple_of(SECTOR), 0);
    disk
}

/// Makes the checksums of a table's primary copy right, so that what lies behind them is reached.
pub(crate) fn seal_gpt(disk: &mut [u8]) {
    let array_at = gpt::u64_at(disk, SECTOR + 72).saturating_mul(SECTOR as u64);
    let length = u64::from(gpt::u32_at(disk, SECTOR + 80))
        .saturating_mul(u64::from(gpt::u32_at(disk, SECTOR + 84)));
    let range = || {
        let start = usize::try_from(array_at).ok()?;
        Some(start..start.checked_add(usize::try_from(length).ok()?)?)
    };
    let array = range()
        .and_then(|range| disk.get(range))
        .map(crc32fast::hash);
    if let (Some(crc), Some(place)) = (array, disk.get_mut(SECTOR + 88..SECTOR + 92)) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
    let size = usize::try_from(gpt::u32_at(disk, SECTOR + 12)).unwrap_or(usize::MAX);
    let end = size.saturating_add(SECTOR);
    let Some(header) = disk
        .get_mut(SECTOR..end)
        .filter(|header| header.len() >= 20)
    else {
        return;
    };
    header[16..20].fill(0);
    let crc = crc32fast::hash(header);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
}

fn read_gpt(disk: &[u8]) -> Option<Gpt> {
    let size = disk.len() as u64;
    let sector = u32::try_from(SECTOR).unwrap_or(u32::MAX);
    match gpt::read(&mut Cursor::new(disk), size, sector, Path::new("disk")) {
        Ok(table) => Some(table),
        Err(error) => {
            names_a_byte_of(&error, size);
            None
        }
    }
}

/// An error of a table says where: on the disk, or where a header leads that is beyond its end.
fn names_a_byte_of(error: &Error, size: u64) {
    let Error::PartitionTable {
        offset, problem, ..
    } = error
    else {
        panic!("another error than that of a table: {error}");
    };
    let beyond = problem.contains("beyond the end");
    assert!(
        *offset <= size || beyond,
        "{error} on a disk of {size} bytes"
    );
}

pub(super) fn gpt_table(input: &[u8]) -> bool {
    let mut disk = disk(input);
    let accepted = judge_gpt(&disk);
    seal_gpt(&mut disk);
    judge_gpt(&disk) || accepted
}

fn judge_gpt(disk: &[u8]) -> bool {
    let Some(table) = read_gpt(disk) else {
        return false;
    };
    let mut last = 0;
    for entry in &table.entries {
        assert!(entry.index > last, "{table:?}");
        last = entry.index;
        assert!(!entry.type_uuid.is_nil() && entry.size > 0, "{entry:?}");
        assert_eq!(
            (entry.start % SECTOR as u64, entry.size % SECTOR as u64),
            (0, 0)
        );
        let end = entry.start.checked_add(entry.size);
        assert!(end.is_some_and(|end| end <= disk.len() as u64), "{entry:?}");
        // 36 units of UTF-16, each of which is one character at most.
        assert!(entry.name.chars().count() <= 36, "{entry:?}");
    }
    // Each entry takes up 128 bytes of the disk at least.
    assert!(table.entries.len() <= disk.len() / 128, "{table:?}");
    true
}

pub(super) fn dos_table(input: &[u8]) -> bool {
    let disk = disk(input);
    let size = disk.len() as u64;
    let sector = u32::try_from(SECTOR).unwrap_or(u32::MAX);
    let table = match dos::read(&mut Cursor::new(&disk), size, sector, Path::new("disk")) {
        Ok(table) => table,
        Err(error) => {
            let Error::PartitionTable { problem, .. } = &error else {
                panic!("another error than that of a table: {error}");
            };
            assert!(!problem.is_empty());
            return false;
        }
    };
    let Some(table) = table else { return false };
    assert!(!table.entries.is_empty());
    let mut last = 0;
    for entry in &table.entries {
        assert!(entry.index > last, "{table:?}");
        last = entry.index;
        assert!(entry.size > 0, "{entry:?}");
        let end = entry.start.checked_add(entry.size);
        assert!(end.is_some_and(|end| end <= size), "{entry:?}");
    }
    // Four in the table, each of which may be a chain of a hundred links with at most four.
    assert!(table.entries.len() <= 4 + 4 * 100 * 4);
    assert!(table.signature != Some(0));
    true
}
