//! What can go wrong between a published image and a slot, and what to do about each.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::checksum::Checksum;

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A cause from another library, kept for whoever prints the whole chain.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What a caller should do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// It may pass: the same request can be made again later, from the start.
    Retry,
    /// The image or the request is wrong; the same request will fail again.
    Reject,
    /// Refused to protect what is on the target.
    Unsafe,
    /// The settings of this machine are wrong.
    Configuration,
    /// A mistake in this program.
    Bug,
}

/// An error of this crate. Every variant names the place: source, device, offset or field.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A checksum that is none.
    #[error("checksum `{text}` is not `sha256:` and 64 hexadecimal digits: {problem}")]
    InvalidChecksum {
        /// As it was given, shortened.
        text: String,
        /// What is wrong with it.
        problem: String,
    },

    /// A source that cannot be understood.
    #[error("`{text}` is not a source for an image: {problem}")]
    InvalidSource {
        /// As it was given, without user and query.
        text: String,
        /// What is wrong with it.
        problem: String,
    },

    /// What is no origin, or one that no credentials may go to.
    #[error("not an origin for credentials such as https://updates.example.com:8443: {problem}")]
    InvalidOrigin {
        /// What is wrong with it, without its text, which may hold a password.
        problem: String,
    },

    /// A setting for fetching that cannot be used.
    #[error("fetch setting {field}: {problem}")]
    Settings {
        /// Name of the setting.
        field: &'static str,
        /// What is wrong with it, without its value where that is secret.
        problem: String,
        /// What was said about it.
        #[source]
        source: Option<Cause>,
    },

    /// The server answered with a status other than 200.
    #[error("{url}: the server answered {status}{}", .withheld.map(|why| format!(" ({why})")).unwrap_or_default())]
    Status {
        /// Without user and query.
        url: String,
        /// Code and its usual name.
        status: String,
        /// Whether the answer may change by itself.
        temporary: bool,
        /// How long the server asked to wait.
        retry_after: Option<Duration>,
        /// Why it got no credentials, where that may be why it refuses.
        withheld: Option<&'static str>,
    },

    /// A redirect that is not followed.
    #[error("{url}: {problem}")]
    Redirect {
        /// The address that redirected, without user and query.
        url: String,
        /// Where it pointed to and why that is refused.
        problem: String,
    },

    /// The connection could not be made, broke, or went silent.
    #[error("{url}: {problem}")]
    Connection {
        /// Without user and query.
        url: String,
        /// What happened, with the received bytes where some were.
        problem: String,
        /// What the network said.
        #[source]
        source: Option<Cause>,
    },

    /// The server's certificate is not accepted.
    #[error("{url}: the server's certificate is not accepted: {problem}")]
    Certificate {
        /// Without user and query.
        url: String,
        /// What is wrong with it.
        problem: String,
    },

    /// This machine's clock is plainly wrong, so no certificate can be judged yet.
    #[error(
        "{url}: the clock of this machine is not set (it says {clock} seconds since 1970), so the \
         server's certificate looks as if it were not valid yet"
    )]
    ClockNotSet {
        /// Without user and query.
        url: String,
        /// What the clock says, in seconds since 1970.
        clock: u64,
    },

    /// Plain http without anything to check the content against.
    #[error("{url}: plain http is only allowed where a checksum is given")]
    Unprotected {
        /// Without user and query.
        url: String,
    },

    /// A file or descriptor could not be opened or read.
    #[error("{location}: cannot be {action} at byte {offset}: {source}")]
    Read {
        /// Path or label.
        location: String,
        /// `opened` or `read`.
        action: &'static str,
        /// Offset in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },

    /// The content is neither zstd nor a filesystem image.
    #[error("{location}: not an image: {seen}")]
    NotAnImage {
        /// URL, path or label.
        location: String,
        /// What it looks like instead.
        seen: String,
    },

    /// The zstd frame needs more memory than is allowed.
    #[error(
        "{location}: the zstd frame needs a window of {window} bytes, more than the allowed {limit} \
         (compress without --ultra and with --long=27 at most, or raise windowLimit)"
    )]
    WindowTooLarge {
        /// URL, path or label.
        location: String,
        /// What the frame asks for, in bytes.
        window: u64,
        /// What is allowed, in bytes.
        limit: u64,
    },

    /// The published file is damaged.
    #[error("{location}: {problem} (at published byte {published}, expanded byte {expanded})")]
    Corrupt {
        /// URL, path or label.
        location: String,
        /// What is wrong.
        problem: String,
        /// Offset in the published file.
        published: u64,
        /// Offset in the expanded image.
        expanded: u64,
    },

    /// The published file ends too early.
    #[error(
        "{location}: ends too early: {problem} (at published byte {published}, expanded byte {expanded})"
    )]
    Truncated {
        /// URL, path or label.
        location: String,
        /// What is missing.
        problem: String,
        /// Offset in the published file.
        published: u64,
        /// Offset in the expanded image.
        expanded: u64,
    },

    /// What came is no image, but may be a part of one: the server marked no end, so a broken connection looks like it.
    #[error("{source} (the server named no length, so this may be a broken connection)")]
    EndedEarly {
        /// What it is if it is all.
        source: Box<Error>,
    },

    /// The image does not fit into the target.
    #[error("{location}: {what} of {size} bytes is more than the {capacity} bytes of the slot")]
    TooLarge {
        /// URL, path or label.
        location: String,
        /// Which figure: what was declared, a header, or the content itself.
        what: &'static str,
        /// In bytes.
        size: u64,
        /// In bytes.
        capacity: u64,
    },

    /// The image is not as long as it was said to be.
    #[error("{location}: {what} of {actual} bytes instead of the expected {expected}")]
    SizeMismatch {
        /// URL, path or label.
        location: String,
        /// Which figure was compared.
        what: &'static str,
        /// In bytes.
        expected: u64,
        /// In bytes.
        actual: u64,
    },

    /// Neither the published file nor the expanded image has the wanted digest.
    #[error(
        "{location}: wrong checksum: expected {expected}, the published file has {published}, the \
         expanded image {expanded}"
    )]
    ChecksumMismatch {
        /// URL, path or label.
        location: String,
        /// What was wanted.
        expected: Checksum,
        /// Of the published file.
        published: Checksum,
        /// Of the expanded image.
        expanded: Checksum,
    },

    /// The expanded image has another digest than the wanted one.
    #[error("{location}: wrong checksum of the expanded image: expected {expected}, got {actual}")]
    ExpandedMismatch {
        /// URL, path or label.
        location: String,
        /// What was wanted.
        expected: Checksum,
        /// What came out.
        actual: Checksum,
    },

    /// The target cannot be used at all; nothing was written.
    #[error("{path}: cannot be written as a slot: {problem}")]
    Target {
        /// Device or file.
        path: PathBuf,
        /// Why not.
        problem: String,
        /// What the system said.
        #[source]
        source: Option<io::Error>,
    },

    /// The device failed. Final for the attempt: what it holds now is unknown.
    #[error("{device}: {action} at byte {offset} failed: {source}")]
    Device {
        /// Device or file.
        device: PathBuf,
        /// `write`, `zeroing`, `flush` or `read-back`.
        action: &'static str,
        /// Offset in bytes; for a flush, the first byte it was to cover.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },

    /// The medium does not hold what was written to it.
    #[error("{device}: read back at byte {offset}: {problem}")]
    ReadBack {
        /// Device or file.
        device: PathBuf,
        /// Start of the piece that differs, in bytes.
        offset: u64,
        /// How it differs.
        problem: &'static str,
    },

    /// The attempt failed or was stopped behind the last write, and what it wrote could not be cleared.
    #[error(
        "{source}; the first MiB could not be cleared after that, so the target may hold a complete image: {clearing}"
    )]
    NotTakenBack {
        /// Why the attempt ended.
        source: Box<Error>,
        /// Why the clearing failed.
        clearing: Box<Error>,
    },

    /// Stopped because it was asked for.
    #[error("stopped before it was complete")]
    Cancelled,

    /// The source kept failing until the attempts or the time were used up.
    #[error("gave up after {attempts} attempts in {seconds} seconds: {source}")]
    GaveUp {
        /// How often it was tried.
        attempts: u32,
        /// How long, in seconds.
        seconds: u64,
        /// Why the last attempt failed.
        source: Box<Error>,
    },

    /// Something that cannot be, or a resource of this process that is used up.
    #[error("internal error: {what}")]
    Internal {
        /// What happened.
        what: String,
    },
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidChecksum { .. }
            | Self::InvalidSource { .. }
            | Self::Redirect { .. }
            | Self::Unprotected { .. }
            | Self::NotAnImage { .. }
            | Self::WindowTooLarge { .. }
            | Self::Corrupt { .. }
            | Self::Truncated { .. }
            | Self::TooLarge { .. }
            | Self::SizeMismatch { .. }
            | Self::ChecksumMismatch { .. }
            | Self::ExpandedMismatch { .. } => ErrorKind::Reject,
            Self::Status { temporary, .. } if !temporary => ErrorKind::Reject,
            Self::Read { source, .. }
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::PermissionDenied
                        | io::ErrorKind::IsADirectory
                        | io::ErrorKind::NotADirectory
                ) =>
            {
                ErrorKind::Reject
            }
            Self::InvalidOrigin { .. }
            | Self::Settings { .. }
            | Self::Certificate { .. }
            | Self::Target { .. } => ErrorKind::Configuration,
            Self::Status { .. }
            | Self::EndedEarly { .. }
            | Self::Read { .. }
            | Self::Connection { .. }
            | Self::ClockNotSet { .. }
            | Self::Device { .. }
            | Self::ReadBack { .. }
            | Self::Cancelled => ErrorKind::Retry,
            Self::GaveUp { source, .. } | Self::NotTakenBack { source, .. } => source.kind(),
            Self::Internal { .. } => ErrorKind::Bug,
        }
    }

    /// Whether the transfer was stopped from outside.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled)
    }

    /// Whether fetching again from the beginning can help: the network or the server failed, not
    /// the image, the device or the settings.
    pub(crate) fn is_transient_fetch(&self) -> bool {
        matches!(
            self,
            Self::Status {
                temporary: true,
                ..
            } | Self::EndedEarly { .. }
                | Self::Connection { .. }
                | Self::ClockNotSet { .. }
        )
    }
}
