//! Reads GUID partition tables. Read-only: nothing here writes to a disk.
//!
//! Field offsets are those of the UEFI specification, chapter 5.3. Sector size, number of entries
//! and entry size come from the disk. A damaged primary is answered with the backup.
//!
//! Our own: the `gpt` crate assumes 512-byte sectors and panics on entry sizes other than 128, and reading tables is at the
//! heart of which partition gets written.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::error::{Error, Result};

const SIGNATURE: &[u8; 8] = b"EFI PART";
const HEADER_MIN: usize = 92;
const ENTRY_MIN: u32 = 128;
/// Largest entry array that is read: 8 times what any tool makes by default at 4096-byte entries.
const ARRAY_LIMIT: u64 = 4 * 1024 * 1024;

/// Partition type of an EFI system partition.
pub(crate) const TYPE_ESP: Uuid = Uuid::from_u128(0xc12a7328_f81f_11d2_ba4b_00a0c93ec93b);
/// Partition type of an extended boot loader partition.
pub(crate) const TYPE_XBOOTLDR: Uuid = Uuid::from_u128(0xbc13c2ff_59e6_4262_a352_b275fd6f7172);

/// A used entry of a partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GptEntry {
    /// Number in the table, from 1.
    pub(crate) index: u32,
    pub(crate) type_uuid: Uuid,
    pub(crate) uuid: Uuid,
    /// First byte on the disk.
    pub(crate) start: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    pub(crate) name: String,
}

/// Which copy was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copy {
    Primary,
    Backup,
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpt {
    pub(crate) copy: Copy,
    /// Used entries, by number.
    pub(crate) entries: Vec<GptEntry>,
}

/// Reads the table of a disk of `size` bytes with sectors of `sector` bytes; `name` is for errors.
pub(crate) fn read(
    disk: &mut (impl Read + Seek),
    size: u64,
    sector: u32,
    name: &Path,
) -> Result<Gpt> {
    let mut reader = Reader {
        disk,
        size,
        sector: u64::from(sector),
        name,
    };
    let primary = match reader.copy(1, Copy::Primary) {
        Ok(table) => return Ok(table),
        Err(failure) => failure,
    };
    // Where the primary header is whole, it says where the backup is; a disk cloned to a larger
    // one has it elsewhere than at its end.
    let last = (size / reader.sector.max(1)).saturating_sub(1);
    let mut places = vec![last];
    if let Some(alternate) = primary.alternate.filter(|lba| *lba != last && *lba > 1) {
        places.insert(0, alternate);
    }
    for lba in places {
        if let Ok(table) = reader.copy(lba, Copy::Backup) {
            return Ok(table);
        }
    }
    Err(primary.error)
}

struct Reader<'a, D> {
    disk: &'a mut D,
    size: u64,
    sector: u64,
    name: &'a Path,
}

/// Why a copy cannot be used, and where its header says that the other one is.
struct Failure {
    error: Error,
    alternate: Option<u64>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            alternate: None,
        }
    }
}

impl<D: Read + Seek> Reader<'_, D> {
    fn copy(&mut self, lba: u64, copy: Copy) -> Result<Gpt, Failure> {
        let (header, at) = self.header(lba)?;
        let fail = |error: Error| Failure {
            error,
            alternate: Some(header.alternate),
        };
        let entries = self.entries(&header, at).map_err(fail)?;
        Ok(Gpt { copy, entries })
    }

    fn header(&mut self, lba: u64) -> Result<(Header, u64)> {
        let at = lba.saturating_mul(self.sector);
        let sector = self.read(at, self.sector)?;
        let header = Header::parse(&sector, lba).map_err(|problem| self.problem(at, problem))?;
        Ok((header, at))
    }

    fn entries(&mut self, header: &Header, header_at: u64) -> Result<Vec<GptEntry>> {
        let length = u64::from(header.entry_count) * u64::from(header.entry_size);
        if length == 0 || length > ARRAY_LIMIT {
            let problem = format!("an entry array of {length} bytes");
            return Err(self.problem(header_at + 80, problem));
        }
        let at = header.entries_lba.saturating_mul(self.sector);
        let array = self.read(at, length)?;
        let found = crc32fast::hash(&array);
        if found != header.array_crc {
            let problem = format!(
                "checksum of the entry array is {found:#010x}, the header says {:#010x}",
                header.array_crc
            );
            return Err(self.problem(at, problem));
        }
        let stride = usize::try_from(header.entry_size).unwrap_or(usize::MAX);
        let mut entries = Vec::new();
        for (number, bytes) in (1_u32..).zip(array.chunks_exact(stride)) {
            let offset = at + u64::from(number - 1) * u64::from(header.entry_size);
            match self.entry(number, bytes) {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) => {}
                Err(problem) => return Err(self.problem(offset, problem)),
            }
        }
        Ok(entries)
    }

    fn entry(&self, index: u32, bytes: &[u8]) -> Result<Option<GptEntry>, String> {
        let type_uuid = guid(bytes, 0);
        if type_uuid.is_nil() {
            return Ok(None);
        }
        let (first, last) = (u64_at(bytes, 32), u64_at(bytes, 40));
        let sectors = last.checked_sub(first).and_then(|n| n.checked_add(1));
        let extent = sectors.and_then(|n| {
            let start = first.checked_mul(self.sector)?;
            let size = n.checked_mul(self.sector)?;
            (start.checked_add(size)? <= self.size).then_some((start, size))
        });
        let Some((start, size)) = extent else {
            return Err(format!("partition {index} spans sectors {first} to {last}"));
        };
        let units: Vec<u16> = bytes
            .get(56..128)
            .unwrap_or_default()
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .take_while(|unit| *unit != 0)
            .collect();
        let name = String::from_utf16_lossy(&units);
        Ok(Some(GptEntry {
            index,
            type_uuid,
            uuid: guid(bytes, 16),
            start,
            size,
            name,
        }))
    }

    fn read(&mut self, at: u64, length: u64) -> Result<Vec<u8>> {
        if at.checked_add(length).is_none_or(|end| end > self.size) {
            return Err(self.problem(at, format!("{length} bytes here are beyond the end")));
        }
        let length = usize::try_from(length)
            .map_err(|_| self.problem(at, format!("{length} bytes do not fit in memory")))?;
        let mut bytes = vec![0; length];
        self.disk
            .seek(SeekFrom::Start(at))
            .map_err(Error::io("seek in", self.name))?;
        self.disk
            .read_exact(&mut bytes)
            .map_err(Error::io("read", self.name))?;
        Ok(bytes)
    }

    fn problem(&self, offset: u64, problem: impl Into<String>) -> Error {
        Error::PartitionTable {
            disk: PathBuf::from(self.name),
            offset,
            problem: problem.into(),
        }
    }
}

struct Header {
    alternate: u64,
    entries_lba: u64,
    entry_count: u32,
    entry_size: u32,
    array_crc: u32,
}

impl Header {
    fn parse(sector: &[u8], lba: u64) -> Result<Self, String> {
        if sector.len() < HEADER_MIN || !sector.starts_with(SIGNATURE) {
            return Err("no GPT header".to_owned());
        }
        let size = usize::try_from(u32_at(sector, 12)).unwrap_or(usize::MAX);
        if size < HEADER_MIN {
            return Err(format!("header size of {size} bytes"));
        }
        let Some(header) = sector.get(..size) else {
            return Err(format!(
                "header size of {size} bytes in a sector of {}",
                sector.len()
            ));
        };
        let mut summed = header.to_vec();
        if let Some(field) = summed.get_mut(16..20) {
            field.fill(0);
        }
        let (found, expected) = (crc32fast::hash(&summed), u32_at(header, 16));
        if found != expected {
            return Err(format!(
                "header checksum is {found:#010x}, it says {expected:#010x}"
            ));
        }
        let own = u64_at(header, 24);
        if own != lba {
            return Err(format!("header says that it is at sector {own}"));
        }
        let entry_size = u32_at(header, 84);
        if entry_size < ENTRY_MIN || !entry_size.is_multiple_of(8) {
            return Err(format!("entry size of {entry_size} bytes"));
        }
        Ok(Self {
            alternate: u64_at(header, 32),
            entries_lba: u64_at(header, 72),
            entry_count: u32_at(header, 80),
            entry_size,
            array_crc: u32_at(header, 88),
        })
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|tail| tail.first_chunk())
        .map_or(0, |raw| u32::from_le_bytes(*raw))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..)
        .and_then(|tail| tail.first_chunk())
        .map_or(0, |raw| u64::from_le_bytes(*raw))
}

/// GUIDs on disk have their first three fields in little-endian order.
pub(crate) fn guid(bytes: &[u8], at: usize) -> Uuid {
    bytes
        .get(at..)
        .and_then(|tail| tail.first_chunk())
        .map_or(Uuid::nil(), |raw| Uuid::from_bytes_le(*raw))
}

#[cfg(test)]
mod tests;
