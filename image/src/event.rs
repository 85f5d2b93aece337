//! What happens while an image is written: the one source of bar, log, status and metrics.

use std::time::Duration;

use serde::Serialize;

use crate::format::{Filesystem, Format};
use crate::write::WriteReport;

/// Something that happened, in order. Emitted from the thread that called
/// [`open`](crate::open()) or [`write`](crate::write()), never from another.
#[derive(Debug, Clone)]
pub enum Event {
    /// The source answered with something that is an image. Emitted again after a retry.
    Opened(Opened),
    /// How far it is. At most a few per second, only when something moved.
    Progress(Progress),
    /// The source failed in a way that may pass; the transfer starts again from the beginning.
    Retrying {
        /// Number of the attempt that failed, from 1.
        attempt: u32,
        /// Why it failed, without secrets.
        error: String,
        /// How long it waits before it tries again.
        delay: Duration,
    },
    /// Everything was written, flushed, and read back from the medium.
    Verified(WriteReport),
}

/// What is known of an image once its source answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Opened {
    /// The source as it may be shown: a URL without user and query, a path, or a label.
    pub location: String,
    /// How the published file is packed.
    pub format: Format,
    /// The filesystem found at the start of the expanded image.
    pub filesystem: Filesystem,
    /// Length of the published file in bytes, where the source says so.
    pub published_total: Option<u64>,
    /// Length of the expanded image in bytes, where it is known beforehand.
    pub expanded_total: Option<u64>,
}

/// How far a transfer is. All counts are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Progress {
    /// Bytes of the expanded image that are on their way to the medium: written or zeroed.
    pub written: u64,
    /// Length of the expanded image, where known.
    pub expanded_total: Option<u64>,
    /// Bytes of the published file received.
    pub published: u64,
    /// Length of the published file, where known.
    pub published_total: Option<u64>,
    /// Bytes read back from the medium and found right.
    pub verified: u64,
    /// Bytes of the expanded image per second, over the last few seconds.
    pub rate: u64,
    /// How long it will still take at that pace, where a total is known.
    #[serde(skip)]
    pub remaining: Option<Duration>,
}

impl Progress {
    /// The part that is done, from 0 to 1, counting writing and reading back alike; `None` where
    /// no total is known.
    #[must_use]
    pub fn fraction(&self) -> Option<f64> {
        if let Some(total) = self.expanded_total.filter(|total| *total > 0) {
            let done = ratio(self.written, total) + ratio(self.verified, total);
            return Some((done / 2.0).min(1.0));
        }
        let total = self.published_total.filter(|total| *total > 0)?;
        Some(ratio(self.published, total).min(1.0))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a share for display; bytes beyond 2^53 do not matter"
)]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_done_part_counts_writing_and_reading_back() {
        let progress = Progress {
            written: 100,
            verified: 50,
            expanded_total: Some(100),
            ..Default::default()
        };
        assert_eq!(progress.fraction(), Some(0.75));
    }

    #[test]
    fn without_an_expanded_length_the_published_one_counts() {
        let progress = Progress {
            published: 25,
            published_total: Some(100),
            written: 9,
            ..Default::default()
        };
        assert_eq!(progress.fraction(), Some(0.25));
        assert_eq!(Progress::default().fraction(), None);
    }
}
