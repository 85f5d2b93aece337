//! The two slots of a node, and the ways to name their partitions.

use std::fmt;
use std::ops::Not;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::part_uuid::PartUuid;

/// One of the two bootable root partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SlotName {
    /// Slot A.
    A,
    /// Slot B.
    B,
}

impl SlotName {
    /// Both, in order.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// `a` or `b`: the spelling in file names and on the kernel's command line.
    #[must_use]
    pub fn lower(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::A => "A",
            Self::B => "B",
        })
    }
}

impl FromStr for SlotName {
    type Err = Error;

    /// Accepts `a`, `A`, `b`, `B`.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "a" | "A" => Ok(Self::A),
            "b" | "B" => Ok(Self::B),
            other => Err(Error::Rejected {
                reason: format!("{other:?} is no slot; say A or B"),
            }),
        }
    }
}

impl Not for SlotName {
    type Output = Self;

    /// The other slot.
    fn not(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// A block device's number, the kernel's own identity of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceNumber {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl DeviceNumber {
    /// From a `st_rdev` or `st_dev` value.
    #[must_use]
    pub fn from_rdev(rdev: u64) -> Self {
        // Linux numbers have 12 bits of major and 20 of minor; both fit.
        Self {
            major: u32::try_from(nix::sys::stat::major(rdev)).unwrap_or(u32::MAX),
            minor: u32::try_from(nix::sys::stat::minor(rdev)).unwrap_or(u32::MAX),
        }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = Error;

    /// `major:minor` in decimal, as in sysfs and mountinfo.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = text.trim().split_once(':').and_then(|(major, minor)| {
            Some(Self {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        });
        parsed.ok_or_else(|| Error::Rejected {
            reason: format!("{text:?} is no device number"),
        })
    }
}

/// How the configuration names a slot's partition. File-system labels and UUIDs are left out on
/// purpose: those bytes belong to the image, and both slots may carry the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SlotLocator {
    /// The partition's name in the partition table.
    PartLabel(String),
    /// The partition's own id in the partition table.
    PartUuid(PartUuid),
    /// A device node, or a stable symlink to one.
    Device(PathBuf),
}

/// Whether a symlink is one that udev names after a file system's label or UUID. Of two slots with the same image it leads to
/// whichever was seen last.
pub(crate) fn names_file_system(path: &Path) -> bool {
    ["/dev/disk/by-label", "/dev/disk/by-uuid"]
        .iter()
        .any(|directory| path.starts_with(directory))
}

impl fmt::Display for SlotLocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PartLabel(label) => write!(f, "PARTLABEL={label}"),
            Self::PartUuid(uuid) => write!(f, "PARTUUID={uuid}"),
            Self::Device(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for SlotLocator {
    type Err = Error;

    /// `PARTLABEL=root-a`, `PARTUUID=…` or `/dev/…`.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(label) = text.strip_prefix("PARTLABEL=") {
            if label.is_empty() {
                return Err(Error::Rejected {
                    reason: "PARTLABEL= without a label".to_owned(),
                });
            }
            return Ok(Self::PartLabel(label.to_owned()));
        }
        if let Some(uuid) = text.strip_prefix("PARTUUID=") {
            return uuid.parse().map(Self::PartUuid);
        }
        let path = Path::new(text);
        let of_file_system = names_file_system(path);
        if path.is_absolute() && !of_file_system {
            return Ok(Self::Device(path.to_owned()));
        }
        let of_file_system =
            of_file_system || text.starts_with("LABEL=") || text.starts_with("UUID=");
        let reason = if of_file_system {
            format!(
                "{text:?} names a file system, whose label and UUID come with the image; use \
                 PARTLABEL=, PARTUUID= or a device path"
            )
        } else {
            format!("{text:?} is no slot locator; use PARTLABEL=, PARTUUID= or a device path")
        };
        Err(Error::Rejected { reason })
    }
}

impl Serialize for SlotLocator {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SlotLocator {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Where the slots are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SlotSettings {
    /// A known label pair on the disk that holds the running root.
    #[default]
    Auto,
    /// As the configuration says.
    Explicit {
        /// Slot A.
        a: SlotLocator,
        /// Slot B.
        b: SlotLocator,
    },
}

#[cfg(test)]
mod tests {
    use super::{DeviceNumber, SlotLocator, SlotName};

    #[test]
    fn the_other_slot_is_not_this_one() {
        assert_eq!(!SlotName::A, SlotName::B);
        assert_eq!(!!SlotName::B, SlotName::B);
        assert_eq!("b".parse::<SlotName>().unwrap().to_string(), "B");
        assert!("C".parse::<SlotName>().is_err());
    }

    #[test]
    fn file_system_labels_and_uuids_are_refused_by_name() {
        for text in [
            "LABEL=root",
            "UUID=7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111",
            "/dev/disk/by-label/root",
            "/dev/disk/by-uuid/7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111",
            "/dev//disk/by-label/root",
        ] {
            let error = text.parse::<SlotLocator>().unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains("come with the image"),
                "{error}"
            );
        }
        assert!("PARTUUID=1234".parse::<SlotLocator>().is_err());
        assert!("nvme0n1p3".parse::<SlotLocator>().is_err());
    }

    #[test]
    fn locators_print_as_they_parse() {
        for text in [
            "PARTLABEL=root-a",
            "PARTUUID=4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
            "PARTUUID=0badcafe-0a",
            "/dev/disk/by-partlabel/x",
        ] {
            assert_eq!(text.parse::<SlotLocator>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn device_numbers_parse_as_sysfs_prints_them() {
        let number: DeviceNumber = "259:3\n".parse().unwrap();
        assert_eq!(
            number,
            DeviceNumber {
                major: 259,
                minor: 3
            }
        );
        assert!("259".parse::<DeviceNumber>().is_err());
    }
}
