//! Waiting times that differ between processes, and grow while something fails.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// A time between 80 % and 120 % of `time`.
pub(crate) fn jittered(time: Duration) -> Duration {
    let part = RandomState::new().hash_one(time) % 401;
    let factor = 800 + u32::try_from(part).unwrap_or(200);
    time.saturating_mul(factor) / 1000
}

/// Doubles with each failure up to a bound, and begins anew after a success.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            failures: 0,
        }
    }

    /// How long to wait after one more failure.
    pub(crate) fn failed(&mut self) -> Duration {
        let factor = 2u32.saturating_pow(self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        jittered(self.first.saturating_mul(factor).min(self.most))
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }
}

/// How long a watch has to stand before its next failure counts as the first one.
const STEADY: Duration = Duration::from_secs(20);

/// The pauses of a watch between its failures. The client library's own wait up to a minute once the API server was away for half
/// of one, and begin anew only two minutes after the last failure: a roll-out would stand still for longer than the outage was.
#[derive(Debug, Clone)]
pub(crate) struct WatchBackoff {
    backoff: Backoff,
    /// When the last pause ends.
    until: Option<Instant>,
}

impl WatchBackoff {
    /// Pauses from about a second up to `most`.
    pub(crate) fn new(most: Duration) -> Self {
        Self {
            backoff: Backoff::new(Duration::from_secs(1), most),
            until: None,
        }
    }

    fn failed(&mut self, now: Instant) -> Duration {
        if (self.until).is_some_and(|until| now.saturating_duration_since(until) >= STEADY) {
            self.backoff.succeeded();
        }
        let pause = self.backoff.failed();
        self.until = now.checked_add(pause);
        pause
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.failed(Instant::now()))
    }
}

impl kube::runtime::utils::Backoff for WatchBackoff {
    // Called at each event, of which each attempt brings one before it fails: no sign of success.
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::{Backoff, STEADY, WatchBackoff, jittered};
    use std::time::{Duration, Instant};

    #[test]
    fn waiting_grows_to_its_bound_and_begins_anew() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        let near = |time: Duration, seconds: u64| {
            let expected = Duration::from_secs(seconds);
            assert!(
                time >= expected * 8 / 10 && time <= expected * 12 / 10,
                "{time:?}"
            );
        };
        near(backoff.failed(), 1);
        near(backoff.failed(), 2);
        for _ in 0..100 {
            backoff.failed();
        }
        near(backoff.failed(), 30);
        backoff.succeeded();
        near(backoff.failed(), 1);
    }

    #[test]
    fn a_watch_waits_longer_each_time_until_it_stood_for_a_while() {
        let mut backoff = WatchBackoff::new(Duration::from_secs(10));
        let mut now = Instant::now();
        let soon = Duration::from_millis(3);
        // The last but one stood, but not long enough.
        let stood = [soon, soon, soon, soon, soon, soon, STEADY / 2, STEADY];
        let expected = [1000, 2000, 4000, 8000, 10000, 10000, 10000, 1000];
        for (stood, expected) in stood.into_iter().zip(expected) {
            now += stood;
            let pause = backoff.failed(now);
            kube::runtime::utils::Backoff::reset(&mut backoff);
            now += pause;
            let allowed = expected * 8 / 10..=expected * 12 / 10;
            assert!(allowed.contains(&pause.as_millis()), "{pause:?} {expected}");
        }
    }

    #[test]
    fn two_of_them_do_not_wait_alike() {
        let times: std::collections::BTreeSet<_> =
            (0..50).map(|_| jittered(Duration::from_secs(10))).collect();
        assert!(times.len() > 10);
    }
}
