//! SHA-256 digests as they are written in configuration, catalogs and reports.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

const PREFIX: &str = "sha256:";

/// A SHA-256 digest, written `sha256:` and 64 hexadecimal digits.
///
/// Reading accepts either case and a missing prefix; anything else is refused with what is wrong
/// with it, so that a placeholder such as `sha256:...` never passes for a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Checksum([u8; 32]);

impl Checksum {
    /// The digest as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 lower-case hexadecimal digits, without a prefix.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl From<[u8; 32]> for Checksum {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.to_hex())
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Checksum {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |problem: String| Error::InvalidChecksum {
            text: shortened(text),
            problem,
        };
        let lower = text.trim().to_ascii_lowercase();
        let digits = match lower.split_once(':') {
            Some(("sha256", digits)) => digits,
            Some((other, _)) => {
                return Err(refuse(format!(
                    "`{}` is not an algorithm known here",
                    shortened(other)
                )));
            }
            None => lower.as_str(),
        };
        if let Some(wrong) = digits.chars().find(|digit| !digit.is_ascii_hexdigit()) {
            return Err(refuse(format!("{wrong:?} is not a hexadecimal digit")));
        }
        if digits.len() != 64 {
            return Err(refuse(format!(
                "it has {} digits instead of 64",
                digits.len()
            )));
        }
        let mut bytes = [0u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|error| refuse(error.to_string()))?;
            *byte = u8::from_str_radix(pair, 16).map_err(|error| refuse(error.to_string()))?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The text as far as an error message should repeat it.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain("…".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    // SHA-256 of the empty string, FIPS 180-4 example vectors.
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn a_prefixed_digest_is_read_and_written_back_the_same() {
        let text = format!("sha256:{EMPTY}");
        let checksum: Checksum = text.parse().unwrap();
        assert_eq!(checksum.to_string(), text);
        assert_eq!(checksum.as_bytes()[..4], [0xe3, 0xb0, 0xc4, 0x42]);
    }

    #[test]
    fn case_and_a_missing_prefix_do_not_matter() {
        let plain: Checksum = EMPTY.parse().unwrap();
        assert_eq!(plain, EMPTY.to_uppercase().parse().unwrap());
        assert_eq!(plain, format!("SHA256:{EMPTY}").parse().unwrap());
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        let long = format!("{EMPTY}00");
        for (text, says) in [
            ("sha256:...", "'.' is not a hexadecimal digit"),
            ("sha256:abc", "3 digits instead of 64"),
            ("", "0 digits instead of 64"),
            ("sha512:abc", "`sha512` is not an algorithm"),
            (long.as_str(), "66 digits instead of 64"),
            ("sha256:sha256:abc", "'s' is not a hexadecimal digit"),
        ] {
            let error = text.parse::<Checksum>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Reject, "{text}");
            let message = error.to_string();
            assert!(message.contains(says), "{text}: {message}");
            assert!(message.contains(text), "{text}: {message}");
        }
    }
}
