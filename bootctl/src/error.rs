//! What can go wrong with slots and boot loader data, and what a caller should make of it.

use std::io;
use std::path::{Path, PathBuf};

use crate::slot::SlotName;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller should make of an error; programs turn it into their exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The same call may succeed later.
    Retry,
    /// The request or the input is wrong; asking again changes nothing.
    Reject,
    /// Refused to protect the node.
    Unsafe,
    /// The configuration or the machine's layout has to be changed.
    Configuration,
    /// A fault in this program.
    Bug,
}

impl ErrorKind {
    /// The kind's name as it stands in the error documents of every program of the project.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "Retry",
            Self::Reject => "Reject",
            Self::Unsafe => "Unsafe",
            Self::Configuration => "Configuration",
            Self::Bug => "Bug",
        }
    }

    /// The exit code that every program of the project ends with for this kind.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Bug => 1,
            Self::Configuration => 3,
            Self::Reject => 4,
            Self::Unsafe => 5,
            Self::Retry => 6,
        }
    }
}

/// An error that names the device, file, offset or field it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or device operation failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried, as it reads after "cannot".
        action: &'static str,
        /// What it was tried on.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A kernel file (sysfs, proc, an EFI variable) does not say what it has to say.
    #[error("{}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong in it, with the field or line.
        problem: String,
    },
    /// A partition table cannot be used.
    #[error("partition table of {}, byte {offset}: {problem}", disk.display())]
    PartitionTable {
        /// The disk or image.
        disk: PathBuf,
        /// Where the problem is, in bytes from the start of the disk.
        offset: u64,
        /// What is wrong there.
        problem: String,
    },
    /// The two slots could not be told.
    #[error("no usable slot pair: {problem}")]
    Slots {
        /// What was looked for and what was found instead.
        problem: String,
    },
    /// The configuration names a slot that does not exist or is ambiguous.
    #[error("slot {slot} is set to {locator}: {problem}")]
    SlotSetting {
        /// Which slot.
        slot: SlotName,
        /// The setting.
        locator: String,
        /// Why it cannot be used.
        problem: String,
    },
    /// Device, boot loader and command line name different slots as the booted one.
    #[error("it is not certain which slot is booted: {evidence}")]
    EvidenceDisagrees {
        /// Every witness and what it said.
        evidence: String,
    },
    /// Doing this would endanger the running system or the last good slot.
    #[error("refused: {reason}")]
    Refused {
        /// What would have been endangered.
        reason: String,
    },
    /// The request cannot be met in the state that the slots are in.
    #[error("{reason}")]
    Rejected {
        /// Why.
        reason: String,
    },
    /// A device is mounted or otherwise held.
    #[error("{} is in use (mounted, or held by another program)", path.display())]
    InUse {
        /// The device.
        path: PathBuf,
    },
    /// No boot loader that could be driven was found.
    #[error("no boot loader found that slotd can drive: {problem}")]
    NoLoader {
        /// What was looked for, where.
        problem: String,
    },
    /// After a change the boot loader's data does not say what was written.
    #[error("{} does not read back as written: {problem}", path.display())]
    ReadBack {
        /// The file.
        path: PathBuf,
        /// The difference.
        problem: String,
    },
    /// An image cannot be started as it is.
    #[error("image in {}: {problem}", device.display())]
    Image {
        /// The device or tree that holds it.
        device: PathBuf,
        /// What is missing or wrong, with its path inside the image.
        problem: String,
    },
    /// Something that cannot happen did.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Names `action` and `path` around an I/O error; made for `map_err`.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    /// The same for errors of the nix crate.
    pub(crate) fn sys(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(nix::errno::Errno) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source: source.into(),
        }
    }

    pub(crate) fn malformed(path: &Path, problem: impl Into<String>) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }

    /// What a caller should make of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::ResourceBusy => ErrorKind::Retry,
                io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::StorageFull
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::Unsupported
                | io::ErrorKind::NotFound => ErrorKind::Configuration,
                _ => ErrorKind::Retry,
            },
            Self::Malformed { .. }
            | Self::PartitionTable { .. }
            | Self::EvidenceDisagrees { .. }
            | Self::Refused { .. }
            | Self::ReadBack { .. }
            | Self::InUse { .. } => ErrorKind::Unsafe,
            Self::Slots { .. } | Self::SlotSetting { .. } | Self::NoLoader { .. } => {
                ErrorKind::Configuration
            }
            Self::Rejected { .. } | Self::Image { .. } => ErrorKind::Reject,
            Self::Internal(_) => ErrorKind::Bug,
        }
    }

    /// The error and all its sources in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut line = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            line.push_str(": ");
            line.push_str(&source.to_string());
            next = source.source();
        }
        line
    }
}
