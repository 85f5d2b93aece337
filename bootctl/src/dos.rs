//! Reads DOS partition tables (MBR), logical partitions included. Read-only: nothing here writes to a disk.
//!
//! There is no specification. What counts is what the kernel makes of a table (`block/partitions/msdos.c`), since a partition
//! is used through the kernel only: addresses in logical sectors, logical partitions numbered from 5 in the chain's order.
//! What is read is compared with sysfs by the caller.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The sector's part that holds a table, whatever the size of the sectors.
const TABLE_SIZE: usize = 512;
const SIGNATURE_AT: usize = 440;
const ENTRIES_AT: usize = 446;
const ENTRY_SIZE: usize = 16;
/// Type of the entry that tells old tools to keep off a GUID table.
const TYPE_PROTECTIVE: u8 = 0xee;
/// Types of partitions that hold a chain of others.
const TYPES_EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// Number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;
/// Links of a chain that are followed; the kernel stops after as many.
const CHAIN_LIMIT: u32 = 100;

/// A used entry of the table or of its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DosEntry {
    /// The partition's number: 1 to 4 in the table, from 5 in the chain.
    pub(crate) index: u32,
    /// First byte on the disk.
    pub(crate) start: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Whether it holds others and nothing of its own.
    pub(crate) extended: bool,
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DosTable {
    /// The disk's signature; `None` where it has none, and its partitions no `PARTUUID`.
    pub(crate) signature: Option<u32>,
    /// Used entries, by number.
    pub(crate) entries: Vec<DosEntry>,
}

/// Reads the table of a disk of `size` bytes with sectors of `sector` bytes; `name` is for errors. `None` where the first sector
/// holds none: no signature, no entry, or the entry that protects a GUID table, which is the one that counts then.
pub(crate) fn read(
    disk: &mut (impl Read + Seek),
    size: u64,
    sector: u32,
    name: &Path,
) -> Result<Option<DosTable>> {
    let mut reader = Reader {
        disk,
        size,
        sector: u64::from(sector),
        name,
    };
    let Some(first) = reader.table(0)? else {
        return Ok(None);
    };
    let entries = Raw::all(&first);
    let used = |entry: &&(u32, Raw)| entry.1.sectors != 0;
    // A file system's boot sector ends with the same signature, but has other bytes where the flags are.
    let no_table = entries.iter().any(|(_, entry)| entry.flag & 0x7f != 0)
        || entries
            .iter()
            .any(|(_, entry)| entry.kind == TYPE_PROTECTIVE)
        || !entries.iter().any(|entry| used(&entry));
    if no_table {
        return Ok(None);
    }
    let mut found = Vec::new();
    let mut logical = Vec::new();
    for (index, raw) in entries.iter().filter(used) {
        let entry = reader.entry(*index, u64::from(raw.first), *raw, 0)?;
        if entry.extended {
            reader.chain(&entry, &mut logical)?;
        }
        found.push(entry);
    }
    found.extend(logical);
    let signature = u32_at(&first, SIGNATURE_AT);
    Ok(Some(DosTable {
        signature: (signature != 0).then_some(signature),
        entries: found,
    }))
}

/// An entry as it stands there.
#[derive(Debug, Clone, Copy)]
struct Raw {
    flag: u8,
    kind: u8,
    first: u32,
    sectors: u32,
}

impl Raw {
    /// The four entries of a table, numbered from 1.
    fn all(table: &[u8]) -> Vec<(u32, Self)> {
        let entries = table.get(ENTRIES_AT..).unwrap_or_default();
        (1..=4)
            .zip(entries.chunks_exact(ENTRY_SIZE))
            .map(|(index, bytes)| {
                let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
                let entry = Self {
                    flag: byte(0),
                    kind: byte(4),
                    first: u32_at(bytes, 8),
                    sectors: u32_at(bytes, 12),
                };
                (index, entry)
            })
            .collect()
    }

    fn extended(self) -> bool {
        self.sectors != 0 && TYPES_EXTENDED.contains(&self.kind)
    }
}

struct Reader<'a, D> {
    disk: &'a mut D,
    size: u64,
    sector: u64,
    name: &'a Path,
}

impl<D: Read + Seek> Reader<'_, D> {
    /// The table in a sector; `None` where it lacks the signature.
    fn table(&mut self, lba: u64) -> Result<Option<Vec<u8>>> {
        let at = lba.saturating_mul(self.sector);
        let length = u64::try_from(TABLE_SIZE).unwrap_or(u64::MAX);
        if at.checked_add(length).is_none_or(|end| end > self.size) {
            return Err(self.problem(at, "a table beyond the end".to_owned()));
        }
        let mut table = vec![0; TABLE_SIZE];
        self.disk
            .seek(SeekFrom::Start(at))
            .map_err(Error::io("seek in", self.name))?;
        self.disk
            .read_exact(&mut table)
            .map_err(Error::io("read", self.name))?;
        Ok(table.ends_with(&[0x55, 0xaa]).then_some(table))
    }

    /// The entry in bytes; `table` is the sector that it stands in.
    fn entry(&self, index: u32, first: u64, raw: Raw, table: u64) -> Result<DosEntry> {
        let extent = first.checked_mul(self.sector).and_then(|start| {
            let size = u64::from(raw.sectors).checked_mul(self.sector)?;
            (start.checked_add(size)? <= self.size).then_some((start, size))
        });
        let Some((start, size)) = extent else {
            return Err(self.problem(
                table.saturating_mul(self.sector),
                format!(
                    "partition {index} spans {} sectors from sector {first}, beyond the end",
                    raw.sectors
                ),
            ));
        };
        Ok(DosEntry {
            index,
            start,
            size,
            extended: raw.extended(),
        })
    }

    /// Follows the chain in an extended partition: each link holds a partition, at an address from the link on, and the next
    /// link, at an address from the chain's start on.
    fn chain(&mut self, whole: &DosEntry, logical: &mut Vec<DosEntry>) -> Result<()> {
        let chain = whole.start.checked_div(self.sector).unwrap_or(0);
        let end = chain.saturating_add(whole.size.checked_div(self.sector).unwrap_or(0));
        let mut link = chain;
        for turn in 0..CHAIN_LIMIT {
            let at = link.saturating_mul(self.sector);
            let Some(table) = self.table(link)? else {
                // An extended partition that was never filled has no link at all.
                if turn == 0 {
                    return Ok(());
                }
                return Err(self.problem(at, "a link of logical partitions is none".to_owned()));
            };
            let entries = Raw::all(&table);
            for (place, raw) in &entries {
                let first = link.saturating_add(u64::from(raw.first));
                let past = first.saturating_add(u64::from(raw.sectors));
                let foreign = *place > 2 && (first < chain || past > end);
                if raw.sectors == 0 || raw.extended() || foreign {
                    continue;
                }
                let count = u32::try_from(logical.len()).unwrap_or(u32::MAX);
                let index = FIRST_LOGICAL.saturating_add(count);
                logical.push(self.entry(index, first, *raw, link)?);
            }
            let Some((_, next)) = entries.iter().find(|(_, raw)| raw.extended()) else {
                return Ok(());
            };
            link = chain.saturating_add(u64::from(next.first));
            if link >= end {
                return Err(self.problem(at, format!("the next link is at sector {link}")));
            }
        }
        let problem = format!("a chain of more than {CHAIN_LIMIT} logical partitions");
        Err(self.problem(whole.start, problem))
    }

    fn problem(&self, offset: u64, problem: String) -> Error {
        Error::PartitionTable {
            disk: PathBuf::from(self.name),
            offset,
            problem,
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|tail| tail.first_chunk())
        .map_or(0, |raw| u32::from_le_bytes(*raw))
}

#[cfg(test)]
mod tests;
