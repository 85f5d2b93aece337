//! Which controller leads: the holder of a Lease.
//!
//! Clocks of two machines are never compared. A Lease has run out when it was not seen to change for as long as it says, by the
//! watcher's own clock; whoever cannot renew stops leading before others may see it run out. Two that lead at once for a moment
//! write in vain, no more.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use slotd_crds::names::LEADER_LEASE;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::backoff::jittered;
use crate::said;

/// How long a Lease holds without being renewed.
const DURATION: Duration = Duration::from_secs(15);
/// Who could not renew for so long leads no more.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often the holder renews.
const RENEW: Duration = Duration::from_secs(5);
/// How often the others look.
const LOOK: Duration = Duration::from_secs(3);
/// The longest pause that the API server may ask for between two requests about the Lease: one that it puts off is made
/// again while the holder leads still.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// One candidate.
pub(super) struct Candidate {
    leases: Api<Lease>,
    identity: String,
    seen: Seen,
}

/// When the Lease was seen to change last, by our own clock.
#[derive(Debug, Default)]
struct Seen {
    version: Option<String>,
    since: Option<Instant>,
}

impl Seen {
    /// Whether a Lease of that version and length has run out for who has seen it so long.
    fn expired(&mut self, version: Option<&str>, length: Duration, now: Instant) -> bool {
        if self.since.is_none() || self.version.as_deref() != version {
            self.version = version.map(str::to_owned);
            self.since = Some(now);
        }
        self.since
            .is_some_and(|since| now.saturating_duration_since(since) > length)
    }
}

impl Candidate {
    pub(super) fn new(client: Client, namespace: &str, identity: String) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            identity,
            seen: Seen::default(),
        }
    }

    /// Tells who listens whether this one leads, until it is stopped.
    pub(super) async fn run(mut self, leads: watch::Sender<bool>) {
        let mut renewed: Option<Instant> = None;
        let mut failing = false;
        loop {
            let began = Instant::now();
            let answer = tokio::time::timeout(DEADLINE / 2, self.turn(began)).await;
            match &answer {
                Ok(Ok(true)) => renewed = Some(began),
                Ok(Ok(false)) => renewed = None,
                // Once, not with every attempt.
                Ok(Err(error)) if !failing => {
                    warn!(
                        error = said::error(error),
                        "the Lease cannot be read or written"
                    )
                }
                Err(_) if !failing => {
                    warn!("the API server does not answer in time about the Lease")
                }
                Ok(Err(_)) | Err(_) => {}
            }
            failing = !matches!(answer, Ok(Ok(_)));
            let leading = renewed.is_some_and(|renewed| renewed.elapsed() < DEADLINE);
            let changed = leads.send_if_modified(|current| {
                let changed = *current != leading;
                *current = leading;
                changed
            });
            if changed {
                info!(
                    identity = self.identity,
                    "{}",
                    if leading {
                        "leading"
                    } else {
                        "not leading any more"
                    }
                );
            }
            let pause = if renewed.is_some() && !failing {
                RENEW
            } else {
                LOOK
            };
            tokio::time::sleep(jittered(pause).min(DEADLINE / 2)).await;
        }
    }

    /// Looks at the Lease, takes or renews it where it may, and says whether it is held now.
    async fn turn(&mut self, now: Instant) -> Result<bool, kube::Error> {
        let Some(lease) = self.leases.get_opt(LEADER_LEASE).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(LEADER_LEASE.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.held(None)),
            };
            return won(self.leases.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let length = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(DURATION, Duration::from_secs);
        let expired = self
            .seen
            .expired(lease.metadata.resource_version.as_deref(), length, now);
        if holder != self.identity && !holder.is_empty() && !expired {
            return Ok(false);
        }
        let mut taken = lease;
        taken.spec = Some(self.held(Some(&spec)));
        // With the resource version that was read: of two that take it one fails.
        won(self
            .leases
            .replace(LEADER_LEASE, &PostParams::default(), &taken)
            .await)
    }

    /// Gives the Lease back, so that the next one need not wait.
    pub(super) async fn release(client: Client, namespace: &str, identity: &str) {
        let leases: Api<Lease> = Api::namespaced(client, namespace);
        let Ok(Some(mut lease)) = leases.get_opt(LEADER_LEASE).await else {
            return;
        };
        let Some(spec) = lease
            .spec
            .as_mut()
            .filter(|spec| spec.holder_identity.as_deref() == Some(identity))
        else {
            return;
        };
        spec.holder_identity = None;
        if let Err(error) = leases
            .replace(LEADER_LEASE, &PostParams::default(), &lease)
            .await
        {
            warn!(
                error = said::error(&error),
                "the Lease cannot be given back"
            );
        }
    }

    fn held(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let same = before
            .is_some_and(|spec| spec.holder_identity.as_deref() == Some(self.identity.as_str()));
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: match before {
                Some(spec) if same => spec.acquire_time.clone(),
                _ => Some(now.clone()),
            },
            renew_time: Some(now),
            lease_transitions: Some(match before {
                Some(_) if !same => transitions.saturating_add(1),
                _ => transitions,
            }),
            ..LeaseSpec::default()
        }
    }
}

/// Whether a write of the Lease was ours; another's in between is no failure.
fn won(answer: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{DEADLINE, DURATION, LONGEST_PAUSE, LOOK, RENEW, Seen};
    use std::time::{Duration, Instant};

    #[test]
    fn a_lease_runs_out_when_it_was_not_seen_to_change() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut seen = Seen::default();
        assert!(!seen.expired(Some("1"), DURATION, at(0)));
        assert!(!seen.expired(Some("1"), DURATION, at(15)));
        assert!(seen.expired(Some("1"), DURATION, at(16)));
        assert!(!seen.expired(Some("2"), DURATION, at(17)));
        assert!(!seen.expired(Some("2"), DURATION, at(30)));
        assert!(seen.expired(Some("2"), DURATION, at(33)));
    }

    #[test]
    fn who_cannot_renew_stops_before_others_may_begin() {
        // A renewal that began at the deadline may take half of it.
        assert!(DEADLINE + DEADLINE / 2 <= DURATION);
    }

    #[test]
    fn a_renewal_that_is_put_off_once_comes_in_time() {
        assert!(RENEW + LONGEST_PAUSE.max(LOOK) < DEADLINE);
    }
}
