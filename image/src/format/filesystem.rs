//! Recognises the filesystem at the start of an expanded image, and how long it says it is.
//!
//! An error page with status 200 decodes as "raw" as well as anything; the superblock is what
//! tells an image from it before the first byte is written. The length it names catches a raw
//! image that was cut off where no other length is known.

use std::fmt;

use serde::Serialize;

/// Bytes of the expanded image that are looked at: the btrfs superblock lies at 64 KiB.
pub(crate) const PROBE_LENGTH: usize = 128 << 10;

/// Which filesystem an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FilesystemKind {
    /// ext2, ext3 or ext4.
    Ext,
    /// EROFS.
    Erofs,
    /// SquashFS 4.
    Squashfs,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// F2FS.
    F2fs,
}

impl fmt::Display for FilesystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext => "ext2/3/4",
            Self::Erofs => "erofs",
            Self::Squashfs => "squashfs",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::F2fs => "f2fs",
        })
    }
}

/// A filesystem found in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Filesystem {
    /// Which one.
    pub kind: FilesystemKind,
    /// How many bytes its superblock says it takes; `None` where it does not say.
    pub size: Option<u64>,
}

impl Filesystem {
    /// Looks for a superblock in the first [`PROBE_LENGTH`] bytes of an image.
    #[must_use]
    pub fn probe(head: &[u8]) -> Option<Self> {
        let view = View(head);
        let (kind, size) = if view.holds(0, b"hsqs") {
            (FilesystemKind::Squashfs, view.le64(40))
        } else if view.holds(0, b"XFSB") {
            (FilesystemKind::Xfs, product(view.be64(8), view.be32(4)))
        } else if view.holds(1024, &0xE0F5_E1E2u32.to_le_bytes()) {
            let block = view
                .byte(1024 + 12)
                .and_then(|bits| 1u64.checked_shl(u32::from(bits)));
            (FilesystemKind::Erofs, product(view.le32(1024 + 36), block))
        } else if view.holds(1024, &0xF2F5_2010u32.to_le_bytes()) {
            (
                FilesystemKind::F2fs,
                product(view.le64(1024 + 36), Some(4096)),
            )
        } else if view.holds(1024 + 56, &0xEF53u16.to_le_bytes()) {
            (FilesystemKind::Ext, ext_size(&view))
        } else if view.holds(65536 + 64, b"_BHRfS_M") {
            let alone = view.le64(65536 + 0x88) == Some(1);
            (
                FilesystemKind::Btrfs,
                view.le64(65536 + 0x70).filter(|_| alone),
            )
        } else {
            return None;
        };
        Some(Self {
            kind,
            size: size.filter(|size| *size > 0),
        })
    }
}

/// `s_blocks_count` times the block size; the high half counts with the 64bit feature only.
fn ext_size(view: &View<'_>) -> Option<u64> {
    const INCOMPAT_64BIT: u64 = 0x80;
    let low = view.le32(1024 + 4)?;
    let wide = view.le32(1024 + 0x60)? & INCOMPAT_64BIT != 0;
    let high = if wide { view.le32(1024 + 0x150)? } else { 0 };
    let shift = u32::try_from(view.le32(1024 + 24)?).ok()?;
    product(Some((high << 32) | low), 1024u64.checked_shl(shift))
}

fn product(count: Option<u64>, unit: Option<u64>) -> Option<u64> {
    count?.checked_mul(unit?)
}

/// Little- and big-endian fields by offset; `None` beyond the end.
struct View<'a>(&'a [u8]);

impl View<'_> {
    fn array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..)?.first_chunk().copied()
    }

    fn holds(&self, offset: usize, magic: &[u8]) -> bool {
        self.0
            .get(offset..)
            .is_some_and(|rest| rest.starts_with(magic))
    }

    fn byte(&self, offset: usize) -> Option<u8> {
        self.0.get(offset).copied()
    }

    fn le32(&self, offset: usize) -> Option<u64> {
        self.array(offset)
            .map(|bytes| u64::from(u32::from_le_bytes(bytes)))
    }

    fn le64(&self, offset: usize) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    fn be32(&self, offset: usize) -> Option<u64> {
        self.array(offset)
            .map(|bytes| u64::from(u32::from_be_bytes(bytes)))
    }

    fn be64(&self, offset: usize) -> Option<u64> {
        self.array(offset).map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0u8; PROBE_LENGTH];
        for (offset, bytes) in fields {
            head[*offset..*offset + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    fn found(fields: &[(usize, &[u8])]) -> Filesystem {
        Filesystem::probe(&with(fields)).unwrap()
    }

    // Offsets by hand from ext4.h, squashfs_fs.h, erofs_fs.h, xfs_format.h, btrfs_tree.h.
    #[test]
    fn each_filesystem_is_told_by_its_superblock_with_its_length() {
        let ext = found(&[
            (1080, b"\x53\xef"),
            (1028, &262_144u32.to_le_bytes()),
            (1048, &2u32.to_le_bytes()),
        ]);
        assert_eq!(
            ext,
            Filesystem {
                kind: FilesystemKind::Ext,
                size: Some(1 << 30)
            }
        );

        let squashfs = found(&[(0, b"hsqs"), (40, &5_000_000u64.to_le_bytes())]);
        assert_eq!(squashfs.size, Some(5_000_000));

        let erofs = found(&[
            (1024, b"\xe2\xe1\xf5\xe0"),
            (1036, &[12]),
            (1060, &1000u32.to_le_bytes()),
        ]);
        assert_eq!(
            erofs,
            Filesystem {
                kind: FilesystemKind::Erofs,
                size: Some(4_096_000)
            }
        );

        let xfs = found(&[
            (0, b"XFSB"),
            (4, &4096u32.to_be_bytes()),
            (8, &76_800u64.to_be_bytes()),
        ]);
        assert_eq!(
            xfs,
            Filesystem {
                kind: FilesystemKind::Xfs,
                size: Some(314_572_800)
            }
        );

        let btrfs = found(&[
            (65600, b"_BHRfS_M"),
            (65536 + 0x70, &(1u64 << 30).to_le_bytes()),
            (65536 + 0x88, &1u64.to_le_bytes()),
        ]);
        assert_eq!(
            btrfs,
            Filesystem {
                kind: FilesystemKind::Btrfs,
                size: Some(1 << 30)
            }
        );
    }

    #[test]
    fn the_high_half_of_the_block_count_needs_the_64bit_feature() {
        let fields: [(usize, &[u8]); 4] = [
            (1080, b"\x53\xef"),
            (1028, &[1, 0, 0, 0]),
            (1024 + 0x150, &[1, 0, 0, 0]),
            (1024 + 0x60, &[0x80, 0, 0, 0]),
        ];
        assert_eq!(found(&fields).size, Some(((1 << 32) + 1) * 1024));
        assert_eq!(found(&fields[..3]).size, Some(1024));
    }

    #[test]
    fn an_unset_or_absurd_length_is_not_believed() {
        assert_eq!(found(&[(1080, b"\x53\xef")]).size, None);
        let absurd = found(&[(1080, b"\x53\xef"), (1028, &[255; 4]), (1048, &[255; 4])]);
        assert_eq!(absurd.size, None);
    }

    #[test]
    fn short_and_other_content_is_no_filesystem() {
        assert_eq!(Filesystem::probe(b"<!DOCTYPE html>"), None);
        assert_eq!(Filesystem::probe(&with(&[])), None);
        assert_eq!(Filesystem::probe(&[]), None);
    }
}
