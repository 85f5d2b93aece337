//! Sizes on the command line.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// A size in bytes, written as a number with an optional binary unit (`512MiB`, `1GiB`, `1048576`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(u64);

impl Size {
    /// This many MiB.
    pub(crate) const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }

    /// The size in bytes.
    pub(crate) const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .map_or(text, |end| &text[..end]);
        let number: u64 = digits
            .parse()
            .with_context(|| format!("{text:?} does not start with a number"))?;
        let shift = match text[digits.len()..].trim() {
            "" | "B" => 0,
            "K" | "KiB" => 10,
            "M" | "MiB" => 20,
            "G" | "GiB" => 30,
            unit => bail!("{unit:?} is no unit; KiB, MiB and GiB are"),
        };
        let bytes = number
            .checked_mul(1 << shift)
            .with_context(|| format!("{text:?} is too large"))?;
        if bytes == 0 || bytes % (1 << 20) != 0 {
            bail!("{text:?} is no multiple of 1 MiB, to which partitions are aligned");
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0 >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn a_size_takes_binary_units_and_bytes() {
        assert_eq!("512MiB".parse::<Size>().unwrap(), Size::mebibytes(512));
        assert_eq!("1G".parse::<Size>().unwrap(), Size::mebibytes(1024));
        assert_eq!("1048576".parse::<Size>().unwrap(), Size::mebibytes(1));
    }

    #[test]
    fn a_size_that_no_partition_can_have_is_refused() {
        for text in ["", "0", "1000", "12MB", "-1M", "20000000000GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
