//! Why an installation or activation cannot go on, found before anything is changed.

use std::fmt;
use std::io::ErrorKind as IoKind;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::slot::SlotName;

/// What an installation is about to need of the boot loader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreflightRequest {
    /// The slot that will be overwritten.
    pub slot: SlotName,
    /// Bytes of kernel and initrd that will be installed; estimated from the other slot's where
    /// unknown.
    pub boot_files: Option<u64>,
    /// Extra kernel options from the configuration, checked for ones that slotd sets itself.
    pub extra: String,
}

/// One reason why an installation or activation cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// A word for programs.
    pub code: RefusalCode,
    /// The explanation for people: what, where, and what to do.
    pub message: String,
}

impl Refusal {
    /// That a place of the loader's data cannot be written, and whether for want of room, or because it is not there.
    pub(crate) fn not_writable(place: &str, error: &Error) -> Self {
        let code = match error {
            Error::Io { source, .. } => match source.kind() {
                IoKind::StorageFull | IoKind::QuotaExceeded => RefusalCode::NoSpace,
                IoKind::NotFound => RefusalCode::LoaderDataMissing,
                _ => RefusalCode::ReadOnly,
            },
            _ => RefusalCode::ReadOnly,
        };
        Self {
            code,
            message: format!("{place} cannot be written: {}", error.chain()),
        }
    }

    /// What a caller should make of it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.code {
            RefusalCode::NoSpace
            | RefusalCode::ReadOnly
            | RefusalCode::LoaderDataMissing
            | RefusalCode::ReservedOption
            | RefusalCode::UnsupportedLayout
            | RefusalCode::CountingUnsupported => ErrorKind::Configuration,
            RefusalCode::Unreadable
            | RefusalCode::DefaultSet
            | RefusalCode::OneShotSet
            | RefusalCode::ForeignEntryFirst
            | RefusalCode::NoFallback
            | RefusalCode::LastGoodSlot => ErrorKind::Unsafe,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Kinds of [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RefusalCode {
    /// The place of the loader's data is not there or not mounted.
    LoaderDataMissing,
    /// It cannot be written.
    ReadOnly,
    /// It has no room for the boot files.
    NoSpace,
    /// Something in it cannot be read.
    Unreadable,
    /// A default entry was set by someone else, which the loader starts before any trial.
    DefaultSet,
    /// A one-shot entry is set for the next boot.
    OneShotSet,
    /// An entry that is not slotd's sorts before its entries.
    ForeignEntryFirst,
    /// The loader says that it cannot count boots, or was seen not to.
    CountingUnsupported,
    /// There is no good slot that a failed trial could fall back to.
    NoFallback,
    /// The slot to be overwritten is the only good one.
    LastGoodSlot,
    /// The configuration sets a kernel option that is slotd's to set.
    ReservedOption,
    /// The slots are of a kind that this backend's entries cannot start.
    UnsupportedLayout,
}

/// Turns refusals into one error that lists them all; `Ok` without any.
///
/// # Errors
/// [`Error::Refused`] with every reason.
pub fn require_no_refusals(refusals: &[Refusal]) -> Result<()> {
    if refusals.is_empty() {
        return Ok(());
    }
    let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    Err(Error::Refused {
        reason: reasons.join("; "),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Error as IoError, ErrorKind};

    use super::{Refusal, RefusalCode};
    use crate::error::Error;

    #[test]
    fn why_the_partition_cannot_be_written_is_told_apart() {
        for (kind, code) in [
            (ErrorKind::ReadOnlyFilesystem, RefusalCode::ReadOnly),
            (ErrorKind::StorageFull, RefusalCode::NoSpace),
            (ErrorKind::NotFound, RefusalCode::LoaderDataMissing),
            (ErrorKind::Other, RefusalCode::ReadOnly),
        ] {
            let refusal = Refusal::not_writable(
                "the boot partition",
                &Error::io("create", "/efi/x")(IoError::from(kind)),
            );
            assert_eq!(refusal.code, code);
            assert!(refusal.message.contains("/efi/x"), "{}", refusal.message);
        }
    }
}
