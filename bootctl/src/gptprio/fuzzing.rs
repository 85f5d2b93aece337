//! See [`crate::fuzzing`].

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use std::cell::RefCell;
use std::path::Path;

use super::attributes::Boot;
use super::disk::Disk;
use super::table::Entry;
use super::tables::{Other, Tables};
use crate::error::Result;
use crate::fuzzing::disks::{disk, seal_gpt};

const SECTOR: usize = 512;
/// The slots' entries.
const SLOTS: [u32; 2] = [1, 2];

/// A disk in memory.
struct Memory(RefCell<Vec<u8>>);

impl Memory {
    fn sectors(lba: u64, bytes: usize) -> std::ops::Range<usize> {
        let start = usize::try_from(lba).expect("a sector of the disk") * SECTOR;
        start..start + bytes
    }
}

impl Disk for Memory {
    fn path(&self) -> &Path {
        Path::new("disk")
    }

    fn sector(&self) -> u64 {
        SECTOR as u64
    }

    fn count(&self) -> u64 {
        (self.0.borrow().len() / SECTOR) as u64
    }

    fn read(&self, lba: u64, count: u64) -> Result<Vec<u8>> {
        let length = usize::try_from(count).expect("sectors of the disk") * SECTOR;
        Ok(self.0.borrow()[Self::sectors(lba, length)].to_vec())
    }

    fn write(&self, lba: u64, bytes: &[u8]) -> Result<()> {
        self.0.borrow_mut()[Self::sectors(lba, bytes.len())].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn tables(input: &[u8]) -> bool {
    let mut disk = disk(input);
    if disk.is_empty() {
        return false;
    }
    let accepted = judge(&disk);
    seal_gpt(&mut disk);
    judge(&disk) || accepted
}

fn judge(bytes: &[u8]) -> bool {
    let disk = Memory(RefCell::new(bytes.to_vec()));
    let Ok(tables) = Tables::read(&disk, &SLOTS) else {
        return false;
    };
    let before = tables.entries();
    let boot = Boot {
        priority: 15,
        tries: 3,
        successful: false,
    };
    let boots: Vec<(u32, Boot)> = SLOTS
        .into_iter()
        .filter(|number| before.iter().any(|entry| entry.number == *number))
        .map(|number| (number, boot))
        .collect();
    let Ok(stages) = tables.change(&boots) else {
        assert!(!tables.obstacles.is_empty() || matches!(tables.other, Other::Unusable(_)));
        return false;
    };
    for stage in stages {
        for (lba, sector) in stage.0 {
            assert!(lba > 0, "the first sector is never written");
            disk.write(lba, &sector).expect("memory");
        }
        // At every flush some copy is whole, and it says the old or the new.
        let between = Tables::read(&disk, &SLOTS)
            .expect("a copy that is whole")
            .entries();
        assert!(
            between == before || between == changed(&before, &boots),
            "{between:?}"
        );
    }
    let after = Tables::read(&disk, &SLOTS).expect("what was written");
    assert_eq!(after.entries(), changed(&before, &boots));
    assert!(matches!(after.other, Other::Same(_)), "{:?}", after.other);
    true
}

fn changed(entries: &[Entry], boots: &[(u32, Boot)]) -> Vec<Entry> {
    let new = |entry: &Entry| boots.iter().find(|(number, _)| *number == entry.number);
    entries
        .iter()
        .map(|entry| Entry {
            boot: new(entry).map_or(entry.boot, |(_, boot)| *boot),
            ..entry.clone()
        })
        .collect()
}
