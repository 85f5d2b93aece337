//! One copy of a GUID partition table, byte for byte.
//!
//! Field offsets are those of the UEFI specification, chapter 5.3. Sector size, header size, number and size of entries
//! come from the disk. What is read here is kept whole, so that what is written differs in nothing but attributes and
//! checksums.

use uuid::Uuid;

use super::attributes::Boot;
use super::disk::Disk;
use crate::error::{Error, Result};
use crate::gpt::{guid, u32_at, u64_at};

const SIGNATURE: &[u8; 8] = b"EFI PART";
const REVISION: u32 = 0x0001_0000;
const HEADER_MIN: u64 = 92;
const ENTRY_MIN: u32 = 128;
/// Largest entry array that is read, in bytes; 16 KiB are usual.
const ARRAY_LIMIT: u64 = 4 * 1024 * 1024;

const HEADER_CRC: usize = 16;
const ARRAY_CRC: usize = 88;
const ATTRIBUTES: usize = 48;
/// First sector of the primary header.
pub(super) const PRIMARY_LBA: u64 = 1;

/// Which copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// At the start of the disk. Every loader looks here first.
    Primary,
    /// Near the end.
    Backup,
}

impl Which {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
        }
    }
}

/// A used entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number, from 1.
    pub(super) number: u32,
    pub(super) type_uuid: Uuid,
    pub(super) uuid: Uuid,
    /// First sector.
    pub(super) first: u64,
    /// Last sector.
    pub(super) last: u64,
    pub(super) boot: Boot,
}

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Bytes of the header that its checksum covers.
    header_size: usize,
    /// Sector of the other copy's header.
    pub(super) alternate: u64,
    pub(super) first_usable: u64,
    pub(super) last_usable: u64,
    /// First sector of the entry array.
    pub(super) array_lba: u64,
    /// Bytes of the entry array that its checksum covers.
    array_length: usize,
    /// Sectors that the entry array takes up.
    pub(super) array_sectors: u64,
    entry_size: usize,
}

/// One copy of the table: its header's sector and its entry array's sectors as they are on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableCopy {
    pub(super) which: Which,
    /// Sector of the header.
    pub(super) lba: u64,
    pub(super) header: Vec<u8>,
    pub(super) array: Vec<u8>,
    pub(super) geometry: Geometry,
}

impl TableCopy {
    /// Reads a copy whose header is at `lba` and takes it for what it says it is, checksums aside.
    pub(super) fn read(disk: &impl Disk, which: Which, lba: u64) -> Result<Self> {
        if lba >= disk.count() {
            let problem = format!(
                "the {} header should be at sector {lba}, the disk has {}",
                which.name(),
                disk.count()
            );
            return Err(damaged(disk, lba, problem));
        }
        let header = disk.read(lba, 1)?;
        let geometry = geometry(disk, which, lba, &header)
            .map_err(|problem| damaged(disk, lba, format!("{}: {problem}", which.name())))?;
        let array = disk.read(geometry.array_lba, geometry.array_sectors)?;
        Ok(Self {
            which,
            lba,
            header,
            array,
            geometry,
        })
    }

    /// What the header's checksum is, and what it should be.
    fn header_crcs(&self) -> (u32, u32) {
        let says = u32_at(&self.header, HEADER_CRC);
        (says, header_crc(&self.header, self.geometry.header_size))
    }

    pub(super) fn header_is_whole(&self) -> bool {
        let (says, is) = self.header_crcs();
        says == is
    }

    /// Why the copy is not one that a loader would use; `None` where both checksums are right.
    pub(super) fn fault(&self) -> Option<String> {
        let (says, is) = self.header_crcs();
        if says != is {
            return Some(format!(
                "{} header checksum is {is:#010x}, it says {says:#010x}",
                self.which.name()
            ));
        }
        let (says, is) = (u32_at(&self.header, ARRAY_CRC), self.array_crc());
        (says != is).then(|| {
            format!(
                "checksum of the {} entry array is {is:#010x}, its header says {says:#010x}",
                self.which.name()
            )
        })
    }

    /// The used entries, by number.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.raw_entries().filter_map(|(number, bytes)| {
            let type_uuid = guid(bytes, 0);
            (!type_uuid.is_nil()).then(|| Entry {
                number,
                type_uuid,
                uuid: guid(bytes, 16),
                first: u64_at(bytes, 32),
                last: u64_at(bytes, 40),
                boot: Boot::of(u64_at(bytes, ATTRIBUTES)),
            })
        })
    }

    /// The copy with other attributes in the entries with those numbers, and with checksums to match.
    pub(super) fn with(&self, boots: &[(u32, Boot)]) -> Self {
        let mut changed = self.clone();
        for (number, boot) in boots {
            let at = usize::try_from(number.saturating_sub(1))
                .unwrap_or(usize::MAX)
                .saturating_mul(self.geometry.entry_size)
                .saturating_add(ATTRIBUTES);
            let attributes = boot.in_attributes(u64_at(&self.array, at));
            put(&mut changed.array, at, &attributes.to_le_bytes());
        }
        changed.seal();
        changed
    }

    /// The copy with the entries of another one, and with checksums to match.
    pub(super) fn with_entries_of(&self, other: &Self) -> Self {
        let mut changed = self.clone();
        put(&mut changed.array, 0, other.described());
        changed.seal();
        changed
    }

    fn seal(&mut self) {
        let array_crc = self.array_crc();
        put(&mut self.header, ARRAY_CRC, &array_crc.to_le_bytes());
        let crc = header_crc(&self.header, self.geometry.header_size);
        put(&mut self.header, HEADER_CRC, &crc.to_le_bytes());
    }

    /// Whether both copies describe one table, and the entries with those numbers differ at most in the loader's bits.
    /// Checksums are not looked at.
    pub(super) fn mirrors(&self, other: &Self, numbers: &[u32]) -> bool {
        self.is_mirror_of(other)
            && self.array.len() == other.array.len()
            && self
                .raw_entries()
                .zip(other.raw_entries())
                .all(|((number, own), (_, theirs))| {
                    own == theirs || numbers.contains(&number) && same_but_boot(own, theirs)
                })
    }

    /// Whether both headers point at each other and say the same of the disk.
    fn is_mirror_of(&self, other: &Self) -> bool {
        let (own, theirs) = (self.geometry, other.geometry);
        // Without the checksums, the headers' own places and the arrays' places.
        let fields = |header: &[u8]| {
            [0..16, 20..24, 40..72, 80..88, 92..own.header_size]
                .map(|range| header.get(range).map_or_else(Vec::new, <[u8]>::to_vec))
        };
        own.alternate == other.lba
            && theirs.alternate == self.lba
            && fields(&self.header) == fields(&other.header)
    }

    fn raw_entries(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (1_u32..).zip(self.described().chunks_exact(self.geometry.entry_size))
    }

    /// The part of the array that the checksum covers.
    fn described(&self) -> &[u8] {
        self.array
            .get(..self.geometry.array_length)
            .unwrap_or_default()
    }

    fn array_crc(&self) -> u32 {
        crc32fast::hash(self.described())
    }
}

fn same_but_boot(one: &[u8], other: &[u8]) -> bool {
    let around = |bytes: &[u8]| {
        [0..ATTRIBUTES, ATTRIBUTES.saturating_add(8)..bytes.len()]
            .map(|range| bytes.get(range).map_or_else(Vec::new, <[u8]>::to_vec))
    };
    around(one) == around(other)
        && Boot::is_all_that_differs(u64_at(one, ATTRIBUTES), u64_at(other, ATTRIBUTES))
}

/// Reads a header's fields and refuses places that cannot be.
fn geometry(disk: &impl Disk, which: Which, lba: u64, header: &[u8]) -> Result<Geometry, String> {
    if !header.starts_with(SIGNATURE) {
        return Err("no GPT header".to_owned());
    }
    let revision = u32_at(header, 8);
    if revision != REVISION {
        return Err(format!("revision {revision:#010x}"));
    }
    let header_size = u32_at(header, 12);
    if !(HEADER_MIN..=disk.sector()).contains(&u64::from(header_size)) {
        return Err(format!(
            "header size of {header_size} bytes in a sector of {}",
            disk.sector()
        ));
    }
    let own = u64_at(header, 24);
    if own != lba {
        return Err(format!("header says that it is at sector {own}"));
    }
    let (count, entry_size) = (u32_at(header, 80), u32_at(header, 84));
    if entry_size < ENTRY_MIN || !entry_size.is_multiple_of(8) {
        return Err(format!("entry size of {entry_size} bytes"));
    }
    let length = u64::from(count).saturating_mul(u64::from(entry_size));
    if length == 0 || length > ARRAY_LIMIT {
        return Err(format!("an entry array of {length} bytes"));
    }
    let size = |value: u64| usize::try_from(value).map_err(|error| error.to_string());
    let geometry = Geometry {
        header_size: size(u64::from(header_size))?,
        alternate: u64_at(header, 32),
        first_usable: u64_at(header, 40),
        last_usable: u64_at(header, 48),
        array_lba: u64_at(header, 72),
        array_length: size(length)?,
        array_sectors: length.div_ceil(disk.sector()),
        entry_size: size(u64::from(entry_size))?,
    };
    let (first, last) = array_extent(&geometry);
    let (low, high) = (geometry.first_usable, geometry.last_usable);
    if low > high || high >= disk.count() {
        return Err(format!(
            "usable sectors {low} to {high} on a disk of {}",
            disk.count()
        ));
    }
    // Before the partitions or behind them, and on no header.
    let apart = match which {
        Which::Primary => first > PRIMARY_LBA && last < low,
        Which::Backup => first > high && last < lba,
    };
    if !apart || last >= disk.count() {
        return Err(format!(
            "entry array at sectors {first} to {last}, usable sectors {low} to {high}, header at {lba}"
        ));
    }
    Ok(geometry)
}

fn array_extent(geometry: &Geometry) -> (u64, u64) {
    let first = geometry.array_lba;
    (
        first,
        first.saturating_add(geometry.array_sectors.saturating_sub(1)),
    )
}

/// An error at a sector of the table.
pub(super) fn damaged(disk: &impl Disk, lba: u64, problem: String) -> Error {
    Error::PartitionTable {
        disk: disk.path().to_owned(),
        offset: lba.saturating_mul(disk.sector()),
        problem,
    }
}

fn header_crc(header: &[u8], size: usize) -> u32 {
    let mut summed = header.get(..size).unwrap_or_default().to_vec();
    put(&mut summed, HEADER_CRC, &[0; 4]);
    crc32fast::hash(&summed)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let places = bytes.get_mut(at..).unwrap_or_default();
    for (place, byte) in places.iter_mut().zip(value) {
        *place = *byte;
    }
}
