//! Waiting times that differ between processes, and grow while something fails.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::{Backoff, jittered};
    use std::time::Duration;

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
    fn two_of_them_do_not_wait_alike() {
        let times: std::collections::BTreeSet<_> =
            (0..50).map(|_| jittered(Duration::from_secs(10))).collect();
        assert!(times.len() > 10);
    }
}
