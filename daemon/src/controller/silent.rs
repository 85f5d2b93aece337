//! Progress objects of which no agent has said anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slotd_crds::api::OSUpgradeProgress;

/// An agent that lives has taken an object up by then; its first status makes ours needless.
const PATIENCE: Duration = Duration::from_secs(2);

/// Since when objects were seen without a phase.
#[derive(Default)]
pub(super) struct Silent(BTreeMap<String, Instant>);

impl Silent {
    /// Those that are to be given their first status now, and when the next may be. Only what the controller made is its to
    /// speak of.
    pub(super) fn due(
        &mut self,
        objects: &[Arc<OSUpgradeProgress>],
        now: Instant,
    ) -> (Vec<Arc<OSUpgradeProgress>>, Option<Duration>) {
        let mut since = BTreeMap::new();
        let mut due = Vec::new();
        let mut next = None;
        for object in objects {
            let status = object.status.as_ref();
            let speaks = status.is_some_and(|status| status.phase.is_some());
            let ours = object.spec.source_ref.is_some();
            if speaks || !ours || object.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let Some(uid) = object.metadata.uid.clone() else {
                continue;
            };
            let first = self.0.get(&uid).copied().unwrap_or(now);
            match PATIENCE.checked_sub(now.saturating_duration_since(first)) {
                Some(left) if !left.is_zero() => next = next.into_iter().chain([left]).min(),
                _ => due.push(object.clone()),
            }
            since.insert(uid, first);
        }
        self.0 = since;
        (due, next)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use serde_json::json;
    use slotd_crds::api::OSUpgradeProgress;

    use super::Silent;
    use crate::controller::snapshot::tests::{progress, read};

    #[test]
    fn who_says_nothing_for_long_is_spoken_for_once() {
        let mut silent = Silent::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let without: Arc<OSUpgradeProgress> = read(progress("n1", json!(null)));
        let objects = [without.clone()];
        let (due, next) = silent.due(&objects, at(0));
        assert!(due.is_empty() && next == Some(Duration::from_secs(2)));
        let (due, next) = silent.due(&objects, at(500));
        assert!(due.is_empty() && next == Some(Duration::from_millis(1500)));
        // A condition of ours is no word of the agent's.
        let waits = read(progress("n1", json!({ "conditions": [] })));
        assert_eq!(silent.due(&[waits], at(2000)).0.len(), 1);
        let spoken = read(progress("n1", json!({ "phase": "Pending" })));
        assert_eq!(silent.due(&[spoken], at(2100)), (Vec::new(), None));
        // What is not ours, or goes, is left alone.
        let mut by_hand = OSUpgradeProgress::clone(&without);
        by_hand.spec.source_ref = None;
        let by_hand = [Arc::new(by_hand)];
        silent.due(&by_hand, at(2200));
        assert_eq!(silent.due(&by_hand, at(9000)), (Vec::new(), None));
    }
}
