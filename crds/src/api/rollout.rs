//! How an upgrade goes through the fleet.

use std::time::Duration;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::limit::{Limit, UnreadableLimit};
use super::rules;
use super::words::words;

/// How many nodes at a time, and when to stop.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// How many of the targets may be unavailable at one time: a number, or a percentage such as "25%", rounded down and at least 1.
    /// Nodes that are unavailable for other reasons count too. At most one control-plane node is upgraded at a time, whatever
    /// this says. 1 where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::limit("maxUnavailable"))]
    pub max_unavailable: Option<Limit>,

    /// After how many nodes that failed or rolled back no further node is started, and the phase is Halted. Raise attempt, or ask
    /// for another version, to go on. 1 where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_failures: Option<u32>,

    /// How many nodes may download the image, or hold it ready, before it is their turn: a number, or a percentage of the targets
    /// such as "25%", rounded down and at least 1. Where it is not given, none does: no more nodes than maxUnavailable are on
    /// their way at one time, so that an image that fails has replaced what is in the inactive slot of no others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::limit("maxStaging"))]
    pub max_staging: Option<Limit>,

    /// How a node is drained before it restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
}

impl Rollout {
    /// How many of `targets` may be unavailable at one time.
    ///
    /// # Errors
    /// `maxUnavailable` is no limit.
    pub fn max_unavailable(&self, targets: u32) -> Result<u32, UnreadableLimit> {
        self.max_unavailable
            .as_ref()
            .map_or(Ok(1), |limit| limit.of(targets))
    }

    /// How many of `targets` may stage before it is their turn; nothing where none does.
    ///
    /// # Errors
    /// `maxStaging` is no limit.
    pub fn max_staging(&self, targets: u32) -> Result<Option<u32>, UnreadableLimit> {
        self.max_staging
            .as_ref()
            .map(|limit| limit.of(targets))
            .transpose()
    }

    /// With so many failures the roll-out halts; never 0.
    #[must_use]
    pub fn max_failures(&self) -> u32 {
        self.max_failures.unwrap_or(1).max(1)
    }
}

words! {
    /// What happens when a node cannot be drained in time.
    pub enum OnTimeout {
        /// Uncordon what we cordoned, restart nothing, give the place back.
        Abort,
        /// Restart the node with what still runs on it.
        Force,
    }
}

/// How a node is drained.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// How long to wait for the pods to go, such as 10m, 90s or 1h30m. PodDisruptionBudgets are obeyed all that time. 10m where it
    /// is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 18))]
    #[x_kube(validation = rules::duration())]
    pub timeout: Option<String>,

    /// What happens then: Abort uncordons the node and counts a failure, Force restarts it with what still runs on it. Abort where
    /// it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
}

/// A length of time that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a length of time above zero in hours, minutes and seconds, such as 10m, 90s or 1h30m"
)]
pub struct UnreadableDuration(String);

impl Drain {
    /// Used where nothing else is said.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

    /// How long to wait for the pods to go.
    ///
    /// # Errors
    /// `timeout` is no length of time.
    pub fn timeout(&self) -> Result<Duration, UnreadableDuration> {
        match &self.timeout {
            None => Ok(Self::DEFAULT_TIMEOUT),
            Some(text) => read_duration(text).ok_or_else(|| UnreadableDuration(text.clone())),
        }
    }

    /// What happens when that time is over. A word of a later release is taken for the one that restarts nothing.
    #[must_use]
    pub fn on_timeout(&self) -> OnTimeout {
        match self.on_timeout {
            Some(OnTimeout::Force) => OnTimeout::Force,
            _ => OnTimeout::Abort,
        }
    }
}

/// Hours, minutes and seconds in that order, each a number of at most five digits and its unit.
fn read_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut seconds: u64 = 0;
    for (unit, length) in [('h', 3600), ('m', 60), ('s', 1)] {
        if let Some((number, after)) = rest.split_once(unit) {
            if number.is_empty()
                || number.len() > 5
                || !number.bytes().all(|byte| byte.is_ascii_digit())
            {
                return None;
            }
            seconds = number
                .parse::<u64>()
                .ok()?
                .checked_mul(length)?
                .checked_add(seconds)?;
            rest = after;
        }
    }
    (rest.is_empty() && seconds > 0).then(|| Duration::from_secs(seconds))
}

/// What is allowed beyond an ordinary upgrade.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Allows a version older than the one that a node runs. Without it, such a node is Rejected and counted in FAIL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_downgrade: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::{Drain, OnTimeout, Rollout};
    use std::time::Duration;

    fn timeout(text: &str) -> Option<u64> {
        let drain = Drain {
            timeout: Some(text.to_owned()),
            on_timeout: None,
        };
        drain.timeout().ok().map(|timeout| timeout.as_secs())
    }

    #[test]
    fn a_timeout_is_hours_minutes_and_seconds() {
        assert_eq!(timeout("10m"), Some(600));
        assert_eq!(timeout("90s"), Some(90));
        assert_eq!(timeout("1h30m"), Some(5400));
        assert_eq!(timeout("1h0m5s"), Some(3605));
        assert_eq!(timeout("99999h99999m99999s"), Some(99_999 * 3661));
        for bad in [
            "", "0s", "0h0m", "10", "m", "10m5", "5s10m", "-5m", "1.5h", "100000s", "10 m", "1d",
            "10ms", "5m5m",
        ] {
            assert_eq!(timeout(bad), None, "{bad}");
        }
        assert_eq!(Drain::default().timeout(), Ok(Duration::from_secs(600)));
    }

    #[test]
    fn what_is_not_said_is_the_careful_choice() {
        let rollout = Rollout::default();
        assert_eq!(rollout.max_unavailable(50), Ok(1));
        assert_eq!(rollout.max_staging(50), Ok(None));
        assert_eq!(rollout.max_failures(), 1);
        let half: Rollout =
            serde_json::from_str(r#"{"maxUnavailable": "50%", "maxFailures": 0}"#).unwrap();
        assert_eq!(
            (
                half.max_unavailable(5),
                half.max_staging(5),
                half.max_failures()
            ),
            (Ok(2), Ok(None), 1)
        );
        assert_eq!(Drain::default().on_timeout(), OnTimeout::Abort);
        let later: Drain = serde_json::from_str(r#"{"onTimeout": "Ask"}"#).unwrap();
        assert_eq!(later.on_timeout(), OnTimeout::Abort);
        let force: Drain = serde_json::from_str(r#"{"onTimeout": "Force"}"#).unwrap();
        assert_eq!(force.on_timeout(), OnTimeout::Force);
    }
}
