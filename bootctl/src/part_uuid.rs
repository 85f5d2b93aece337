//! The `PARTUUID` of a partition, as the kernel, udev and `blkid` spell it.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::error::Error;

/// What `PARTUUID=` names: an id of the partition table, never of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartUuid {
    /// The unique id of a partition in a GUID partition table.
    Gpt(Uuid),
    /// A DOS table has no ids of partitions: the disk's signature and the partition's number stand for one.
    Dos {
        /// The disk's signature, not 0.
        signature: u32,
        /// The partition's number, from 1; hexadecimal in print, as the kernel has it.
        index: u32,
    },
}

impl fmt::Display for PartUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpt(uuid) => write!(f, "{uuid}"),
            Self::Dos { signature, index } => write!(f, "{signature:08x}-{index:02x}"),
        }
    }
}

impl FromStr for PartUuid {
    type Err = Error;

    /// A UUID, or `SSSSSSSS-NN` of a DOS table; case does not matter.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(id) = dos(text) {
            return Ok(id);
        }
        text.parse().map(Self::Gpt).map_err(|_| Error::Rejected {
            reason: format!(
                "PARTUUID={text}: neither a UUID of a GPT partition nor SSSSSSSS-NN of a DOS table \
                 (disk signature and partition number, hexadecimal)"
            ),
        })
    }
}

fn dos(text: &str) -> Option<PartUuid> {
    let (signature, index) = text.split_once('-')?;
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if signature.len() != 8 || index.len() != 2 || !hex(signature) || !hex(index) {
        return None;
    }
    let signature = u32::from_str_radix(signature, 16).ok()?;
    let index = u32::from_str_radix(index, 16).ok()?;
    (signature != 0 && index != 0).then_some(PartUuid::Dos { signature, index })
}

impl Serialize for PartUuid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::PartUuid;

    #[test]
    fn both_forms_print_as_the_kernel_prints_them() {
        // The second as `lsblk -o PARTUUID` shows partition 10 of a disk with signature 0x0badcafe.
        for text in ["4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "0badcafe-0a"] {
            assert_eq!(text.parse::<PartUuid>().unwrap().to_string(), text);
            let upper = text.to_uppercase();
            assert_eq!(upper.parse::<PartUuid>().unwrap().to_string(), text);
        }
        let id = PartUuid::Dos {
            signature: 0x0bad_cafe,
            index: 10,
        };
        assert_eq!("0badcafe-0a".parse::<PartUuid>().unwrap(), id);
    }

    #[test]
    fn what_is_neither_is_refused_with_both_forms_named() {
        for text in [
            "",
            "1234",
            "badcafe-02",
            "0badcafe-2",
            "0badcafe-002",
            "0badcafe-00",
            "00000000-02",
            "0badcafe-+2",
            "+badcafe-02",
            "0badcafe",
        ] {
            let error = text.parse::<PartUuid>().unwrap_err().to_string();
            assert!(
                error.contains("GPT") && error.contains("SSSSSSSS-NN"),
                "{text}: {error}"
            );
        }
    }
}
