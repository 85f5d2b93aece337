//! The processors that images are made for.

use clap::ValueEnum;

/// A processor architecture, by Debian's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    /// 64-bit x86
    Amd64,
    /// 64-bit ARM
    Arm64,
}

impl Architecture {
    /// Debian's name of it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Type of a root partition (Discoverable Partitions Specification).
    pub(crate) const fn root_partition(self) -> &'static str {
        match self {
            Self::Amd64 => "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
            Self::Arm64 => "B921B045-1DF0-41C3-AF44-4C6F280D3FAE",
        }
    }
}
