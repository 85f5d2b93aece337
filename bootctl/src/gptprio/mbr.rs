//! What the first sector says. It is read, never written.

/// Offset of the four records, each of 16 bytes with its type in byte 4.
const RECORDS: usize = 446;
const RECORD: usize = 16;
const TYPE: usize = 4;
const PROTECTIVE: u8 = 0xee;

/// The kinds of first sector on a disk with a GUID partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mbr {
    /// As it should be: one record, which covers the disk.
    Protective,
    /// That record and others, of partitions that are also in the GUID table.
    Hybrid,
    /// None.
    Missing,
}

/// What the first sector is.
pub(super) fn kind(sector: &[u8]) -> Mbr {
    let types: Vec<u8> = sector
        .get(RECORDS..RECORDS + 4 * RECORD)
        .unwrap_or_default()
        .chunks_exact(RECORD)
        .filter_map(|record| record.get(TYPE).copied())
        .filter(|kind| *kind != 0)
        .collect();
    let signed = sector.get(510..512) == Some(&[0x55, 0xaa]);
    match types.as_slice() {
        [PROTECTIVE] if signed => Mbr::Protective,
        types if signed && types.contains(&PROTECTIVE) => Mbr::Hybrid,
        _ => Mbr::Missing,
    }
}

impl Mbr {
    pub(super) fn oddity(self) -> Option<String> {
        (self == Self::Hybrid).then(|| {
            "the disk has a hybrid MBR beside its GUID partition table; it is left alone".to_owned()
        })
    }

    /// GRUB and the kernel (unless told `gpt`) find no table without the record, so that a machine that has lost it will
    /// not start again.
    pub(super) fn warning(self) -> Option<String> {
        (self == Self::Missing).then(|| {
            "the protective MBR is missing, without which most loaders and the kernel find no partition; `sgdisk -e` on the \
             disk writes it anew (`fdisk` would make an empty DOS table)"
                .to_owned()
        })
    }
}
