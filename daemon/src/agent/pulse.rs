//! When the driver began what should be over soon: by this alone a thread that hangs is told from one that waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A clock and the moment on it.
#[derive(Debug)]
pub(super) struct Pulse {
    start: Instant,
    /// Milliseconds from the start, plus one; 0 while what is done may take any time.
    since: AtomicU64,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            since: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Something begins that should be over soon.
    pub(super) fn begin(&self) {
        self.since
            .store(self.now().saturating_add(1), Ordering::Relaxed);
    }

    /// Something begins that takes as long as it takes.
    pub(super) fn rest(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Whether something that should be over soon has gone on for this long.
    pub(super) fn hangs(&self, patience: Duration) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        since != 0 && self.now().saturating_add(1).saturating_sub(since) >= patience
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Pulse;

    #[test]
    fn only_what_should_be_over_soon_hangs() {
        let pulse = Pulse::new();
        assert!(!pulse.hangs(Duration::ZERO));
        pulse.begin();
        assert!(pulse.hangs(Duration::ZERO));
        assert!(!pulse.hangs(Duration::from_secs(600)));
        pulse.rest();
        assert!(!pulse.hangs(Duration::ZERO));
    }
}
