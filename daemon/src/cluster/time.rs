//! Time as the cluster side needs it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

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

#[cfg(test)]
mod tests {
    use super::at;

    #[test]
    fn seconds_are_times_where_they_can_be() {
        let time = at(1_796_000_000).unwrap();
        assert_eq!(time.0.to_string(), "2026-11-30T00:53:20Z".to_owned());
        assert_eq!(at(u64::MAX), None);
    }
}
