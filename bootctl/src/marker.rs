//! The marker `image.json` beside a slot's boot files: which verified image the slot holds. Its
//! presence is the proof, so it is written last and removed before anything else of the image.

use serde::{Deserialize, Serialize};

use crate::backend::StagedImage;

/// Version of the format that is written.
const VERSION: u32 = 1;
/// Oldest reader that understands what is written.
const MIN_READER: u32 = 1;

/// The marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) image: StagedImage,
    /// What the boot entry is made of; the builder of a disk leaves it out.
    pub(crate) boot: Option<BootRecord>,
}

/// The image's part of its boot entry, kept so that a trial can be armed after a restart, and what
/// proves the boot files whole.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BootRecord {
    /// Name of the image for the menu.
    #[serde(default)]
    pub(crate) title: Option<String>,
    /// Kernel options of the image.
    #[serde(default)]
    pub(crate) cmdline: Option<String>,
    /// Kernel options of the configuration when the image was staged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) options: Option<String>,
    /// Whether the kernel is a unified image, which a reader that does not know this starts as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unified: bool,
    /// The kernel.
    pub(crate) kernel: FileRecord,
    /// The initrd, if the image has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) initrd: Option<FileRecord>,
}

/// A boot file as it was written and read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    /// Size in bytes.
    pub(crate) size: u64,
    /// CRC-32 of its content.
    pub(crate) crc32: u32,
}

/// How it stands in the file. Fields that an older reader does not know are passed over.
#[derive(Serialize, Deserialize)]
struct Envelope {
    version: u32,
    min_reader: u32,
    image: StagedImage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<BootRecord>,
}

/// Only what decides whether the rest can be read.
#[derive(Deserialize)]
struct Head {
    min_reader: u32,
}

impl Marker {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let head: Head = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if head.min_reader > VERSION {
            return Err(format!(
                "needs a reader of version {}, this one is {VERSION}",
                head.min_reader
            ));
        }
        let envelope: Envelope =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        Ok(Self {
            image: envelope.image,
            boot: envelope.boot,
        })
    }

    pub(crate) fn render(&self) -> Vec<u8> {
        let envelope = Envelope {
            version: VERSION,
            min_reader: MIN_READER,
            image: self.image.clone(),
            boot: self.boot.clone(),
        };
        // Strings and numbers only: serialisation cannot fail.
        let mut text = serde_json::to_vec_pretty(&envelope).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{BootRecord, FileRecord, Marker};
    use crate::backend::StagedImage;

    fn marker() -> Marker {
        Marker {
            image: StagedImage {
                expanded_sha256: "ab".repeat(32),
                expanded_size: 536_870_912,
                checksum: Some(format!("sha256:{}", "cd".repeat(32))),
                version: Some("1.2.3".to_owned()),
                staged_at: Some("2026-11-30T12:00:00Z".to_owned()),
            },
            boot: Some(BootRecord {
                title: Some("Debian GNU/Linux 12".to_owned()),
                cmdline: Some("console=ttyS0 quiet".to_owned()),
                options: None,
                unified: false,
                kernel: FileRecord {
                    size: 7_000_000,
                    crc32: 1,
                },
                initrd: None,
            }),
        }
    }

    #[test]
    fn the_written_format_is_the_golden_one() {
        insta::assert_snapshot!(String::from_utf8(marker().render()).unwrap());
        assert_eq!(Marker::parse(&marker().render()).unwrap(), marker());
    }

    #[test]
    fn a_newer_writers_unknown_fields_are_passed_over() {
        let text = r#"{"version": 7, "min_reader": 1, "new": [1],
            "image": {"expandedSha256": "00", "expandedSize": 1, "colour": "red"}}"#;
        let marker = Marker::parse(text.as_bytes()).unwrap();
        assert_eq!(marker.image.expanded_size, 1);
        assert_eq!(marker.boot, None);
    }

    #[test]
    fn a_format_for_newer_readers_is_refused_and_garbage_is_named() {
        let newer = br#"{"version": 9, "min_reader": 2, "all": "different"}"#;
        assert!(
            Marker::parse(newer)
                .unwrap_err()
                .contains("reader of version 2")
        );
        assert!(Marker::parse(b"{").unwrap_err().contains("line 1"));
        assert!(Marker::parse(b"").is_err());
    }
}
