//! Counting what moved, and how fast.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::event::{Event, Opened, Progress};

/// Counters that the threads of a transfer add to.
#[derive(Debug, Default)]
pub(super) struct Meter {
    published: AtomicU64,
    written: AtomicU64,
    verified: AtomicU64,
}

impl Meter {
    pub(super) fn set_published(&self, bytes: u64) {
        self.published.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_verified(&self, bytes: u64) {
        self.verified.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// How far back the rate looks.
const WINDOW: Duration = Duration::from_secs(5);

/// Turns the counters into progress.
#[derive(Debug)]
pub(super) struct Pace {
    expanded_total: Option<u64>,
    published_total: Option<u64>,
    /// When how many bytes had been written and read back together.
    samples: VecDeque<(Instant, u64)>,
    last: Option<Progress>,
}

impl Pace {
    pub(super) fn new(info: &Opened) -> Self {
        Self {
            expanded_total: info.expanded_total,
            published_total: info.published_total,
            samples: VecDeque::from([(Instant::now(), 0)]),
            last: None,
        }
    }

    /// Tells the progress if anything moved since the last time.
    pub(super) fn tell(&mut self, meter: &Meter, events: &dyn Fn(Event)) {
        let progress = self.progress(
            meter.published.load(Ordering::Relaxed),
            meter.written.load(Ordering::Relaxed),
            meter.verified.load(Ordering::Relaxed),
            Instant::now(),
        );
        let counts =
            |progress: &Progress| (progress.published, progress.written, progress.verified);
        if self.last.as_ref().map(counts) != Some(counts(&progress)) {
            events(Event::Progress(progress));
            self.last = Some(progress);
        }
    }

    fn progress(&mut self, published: u64, written: u64, verified: u64, now: Instant) -> Progress {
        // Zeros that fill up the last block are written and read, but not of the image.
        let clip = |bytes: u64| self.expanded_total.map_or(bytes, |total| bytes.min(total));
        let (written, verified) = (clip(written), clip(verified));
        let done = written.saturating_add(verified);
        self.samples.push_back((now, done));
        while self.samples.len() > 2
            && self
                .samples
                .get(1)
                .is_some_and(|(time, _)| now.duration_since(*time) >= WINDOW)
        {
            self.samples.pop_front();
        }
        let (since, before) = self.samples.front().copied().unwrap_or((now, 0));
        let milliseconds = now.duration_since(since).as_millis().max(1);
        // Both directions were counted; the rate is of the image.
        let both = u128::from(done.saturating_sub(before)) * 1000 / milliseconds;
        let rate = u64::try_from(both / 2).unwrap_or(u64::MAX);
        let remaining = self.expanded_total.filter(|_| rate > 0).map(|total| {
            let left = total.saturating_mul(2).saturating_sub(done) / 2;
            Duration::from_secs(left / rate)
        });
        Progress {
            written,
            expanded_total: self.expanded_total,
            published,
            published_total: self.published_total,
            verified,
            rate,
            remaining,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Filesystem, FilesystemKind, Format};

    fn pace(total: Option<u64>) -> Pace {
        Pace::new(&Opened {
            location: "test".to_owned(),
            format: Format::Raw,
            filesystem: Filesystem {
                kind: FilesystemKind::Ext,
                size: None,
            },
            published_total: None,
            expanded_total: total,
        })
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let mut pace = pace(Some(100_000));
        let start = Instant::now();
        pace.samples = VecDeque::from([(start, 0)]);
        for second in 1..=20u64 {
            // 1000 bytes a second for ten seconds, then 500.
            let moved = if second <= 10 {
                second * 1000
            } else {
                10_000 + (second - 10) * 500
            };
            let now = start + Duration::from_secs(second);
            let progress = pace.progress(0, moved, moved, now);
            match second {
                5 => assert_eq!(progress.rate, 1000),
                20 => {
                    assert_eq!(progress.rate, 500);
                    assert_eq!(progress.remaining, Some(Duration::from_secs(85_000 / 500)));
                }
                _ => {}
            }
        }
        assert!(pace.samples.len() < 10);
    }

    #[test]
    fn nothing_is_told_when_nothing_moved() {
        let told = std::cell::Cell::new(0);
        let count = |_: Event| told.set(told.get() + 1);
        let (mut pace, meter) = (pace(None), Meter::default());
        pace.tell(&meter, &count);
        pace.tell(&meter, &count);
        assert_eq!(told.get(), 1);
        meter.add_written(5);
        pace.tell(&meter, &count);
        assert_eq!(told.get(), 2);
    }
}
