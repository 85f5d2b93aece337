//! Keeps a transfer below a number of bytes per second.

use std::time::{Duration, Instant};

/// When the next bytes may be asked for.
#[derive(Debug)]
pub(super) struct Throttle {
    rate: Option<u64>,
    next: Instant,
}

impl Throttle {
    /// `rate` in bytes per second; `None` or zero is no limit.
    pub(super) fn new(rate: Option<u64>, now: Instant) -> Self {
        Self {
            rate: rate.filter(|rate| *rate > 0),
            next: now,
        }
    }

    /// How long to wait at `now` before more is asked for.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Accounts for bytes that arrived. An idle time earns nothing: no burst follows it.
    pub(super) fn received(&mut self, bytes: usize, now: Instant) {
        if let Some(rate) = self.rate {
            let nanoseconds = (bytes as u128).saturating_mul(1_000_000_000) / u128::from(rate);
            let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
            let start = self.next.max(now);
            self.next = start.checked_add(cost).unwrap_or(start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_over_any_chunks() {
        let now = Instant::now();
        let mut throttle = Throttle::new(Some(1000), now);
        assert_eq!(throttle.wait(now), Duration::ZERO);
        throttle.received(500, now);
        throttle.received(250, now);
        assert_eq!(throttle.wait(now), Duration::from_millis(750));
        let later = now + Duration::from_secs(10);
        throttle.received(1000, later);
        assert_eq!(throttle.wait(later), Duration::from_secs(1));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let now = Instant::now();
        let mut throttle = Throttle::new(None, now);
        throttle.received(usize::MAX, now);
        assert_eq!(throttle.wait(now), Duration::ZERO);
    }
}
