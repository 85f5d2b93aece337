//! Time as the cluster side needs it.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// The longest pause between two tries.
const LONGEST: Duration = Duration::from_secs(60);

/// Now, to the second, as objects carry it.
pub(super) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Seconds since 1970 as objects carry them.
pub(super) fn at(seconds: u64) -> Option<Time> {
    let seconds = i64::try_from(seconds).ok()?;
    Timestamp::from_second(seconds).ok().map(Time)
}

/// Pauses that double from one second to a minute, each of them drawn from its upper half, so that nodes that failed
/// together do not come back together.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// It worked.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }

    /// It failed: how long to wait.
    pub(super) fn next(&mut self) -> Duration {
        let whole = Duration::from_secs(1)
            .saturating_mul(1_u32.checked_shl(self.tries.min(6)).unwrap_or(64))
            .min(LONGEST);
        self.tries = self.tries.saturating_add(1);
        whole.mul_f64(0.5 + 0.5 * fraction())
    }
}

/// A number from 0 to 1 that differs between processes and calls.
fn fraction() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let draw = RandomState::new().hash_one(std::time::Instant::now());
    f64::from(u32::try_from(draw >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Backoff, at};

    #[test]
    fn pauses_grow_to_a_minute_and_begin_again_after_a_success() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.next()).collect();
        for (index, pause) in pauses.iter().enumerate() {
            let whole = 2_u64.pow(u32::try_from(index.min(6)).unwrap()).min(60);
            let whole = Duration::from_secs(whole);
            assert!(*pause >= whole / 2 && *pause <= whole, "{index}: {pause:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_secs(1));
    }

    #[test]
    fn seconds_are_times_where_they_can_be() {
        let time = at(1_796_000_000).unwrap();
        assert_eq!(time.0.to_string(), "2026-11-30T00:53:20Z".to_owned());
        assert_eq!(at(u64::MAX), None);
    }
}
