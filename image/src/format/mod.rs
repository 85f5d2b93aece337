//! What a published file is, told by its content and never by its name.

pub(crate) mod decoder;
mod filesystem;
mod frame;

use std::fmt;

use serde::Serialize;

pub(crate) use filesystem::PROBE_LENGTH;
pub use filesystem::{Filesystem, FilesystemKind};
pub(crate) use frame::FrameProbe;

/// How the published file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One or more zstd frames (RFC 8878).
    Zstd,
    /// The filesystem image as it is.
    Raw,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zstd => "zstd",
            Self::Raw => "raw",
        })
    }
}

impl Format {
    /// Tells by the first four bytes; fewer are raw.
    pub(crate) fn of(head: &[u8]) -> Self {
        match head
            .first_chunk::<4>()
            .map(|magic| u32::from_le_bytes(*magic))
        {
            Some(frame::MAGIC) => Self::Zstd,
            Some(magic) if frame::is_skippable(magic) => Self::Zstd,
            _ => Self::Raw,
        }
    }
}

/// What content looks like that is no filesystem image, for the message that refuses it.
pub(crate) fn describe(head: &[u8]) -> String {
    if let Some(what) = foreign(head) {
        return what;
    }
    if head.iter().all(|byte| *byte == 0) {
        return format!("its first {} bytes are all zero", head.len());
    }
    let bytes: Vec<String> = head
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(
        "no ext2/3/4, erofs, squashfs, xfs, btrfs or f2fs superblock, it starts with the bytes {}",
        bytes.join(" ")
    )
}

/// What content plainly is that is no filesystem image, whatever may follow.
pub(crate) fn foreign(head: &[u8]) -> Option<String> {
    let known: [(&[u8], &str); 9] = [
        (
            b"\x1f\x8b",
            "it is compressed with gzip; only zstd and raw images are understood",
        ),
        (
            b"\xfd7zXZ\0",
            "it is compressed with xz; only zstd and raw images are understood",
        ),
        (
            b"BZh",
            "it is compressed with bzip2; only zstd and raw images are understood",
        ),
        (
            b"\x04\x22\x4d\x18",
            "it is compressed with lz4; only zstd and raw images are understood",
        ),
        (b"PK\x03\x04", "it is a zip archive"),
        (
            b"QFI\xfb",
            "it is a qcow2 disk; a raw filesystem image is needed",
        ),
        (b"\x28\xb5\x2f\xfd", "it is compressed twice with zstd"),
        (b"\x7fELF", "it is a program"),
        (b"LUKS\xba\xbe", "it is an encrypted volume"),
    ];
    if let Some((_, what)) = known.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Some((*what).to_owned());
    }
    let at = |offset: usize, magic: &[u8]| {
        head.get(offset..)
            .is_some_and(|rest| rest.starts_with(magic))
    };
    if at(512, b"EFI PART") || at(4096, b"EFI PART") {
        return Some(
            "it is a whole disk with a partition table; a slot takes one filesystem".to_owned(),
        );
    }
    if at(257, b"ustar") {
        return Some("it is a tar archive".to_owned());
    }
    if at(32769, b"CD001") {
        return Some("it is a CD or DVD image".to_owned());
    }
    let start = head.get(..head.len().min(64)).unwrap_or(head);
    let text = String::from_utf8_lossy(start);
    let readable = text
        .chars()
        .take_while(|c| !c.is_control() || c.is_ascii_whitespace());
    let line: String = readable
        .collect::<String>()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    (line.len() >= 8).then(|| format!("it starts with the text {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zstd_is_told_by_its_magic_and_by_a_skippable_frame() {
        assert_eq!(Format::of(b"\x28\xb5\x2f\xfd rest"), Format::Zstd);
        assert_eq!(Format::of(b"\x5a\x2a\x4d\x18 rest"), Format::Zstd);
        assert_eq!(Format::of(b"<!DOCTYPE html>"), Format::Raw);
        assert_eq!(Format::of(b"\x28\xb5"), Format::Raw);
    }

    #[test]
    fn what_is_no_image_is_described() {
        assert!(describe(b"<!DOCTYPE html>\n<html>").contains("\"<!DOCTYPE html> <html>\""));
        assert!(describe(b"\x1f\x8b\x08\0\0").contains("gzip"));
        assert!(describe(&[0; 4096]).contains("all zero"));
        let mut disk = vec![0u8; 4096];
        disk[512..520].copy_from_slice(b"EFI PART");
        assert!(describe(&disk).contains("whole disk"));
        assert!(describe(&[0xff, 0xfe, 0x00]).contains("ff fe 00"));
    }

    proptest::proptest! {
        #[test]
        fn no_content_makes_the_probes_panic(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..3000),
            magic in proptest::sample::select(vec![
                &b"hsqs"[..], b"XFSB", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18", b"",
            ]),
            chunk in 1usize..100,
        ) {
            let mut head = [magic, &bytes].concat();
            if head.len() > 1082 {
                head[1080..1082].copy_from_slice(&[0x53, 0xef]);
            }
            let _ = Filesystem::probe(&head);
            proptest::prop_assert!(!describe(&head).is_empty());
            let mut probe = FrameProbe::default();
            for chunk in head.chunks(chunk) {
                probe.feed(chunk);
            }
        }
    }
}
