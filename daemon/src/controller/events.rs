//! Events: what `kubectl describe` shows of an upgrade's way.

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use slotd_crds::api::{OSUpgrade, OSUpgradeStatus, Phase};
use tracing::warn;

use super::conditions::find;
use crate::said;

/// Most characters of an event's note.
const LONGEST: usize = 1000;

/// Writes events.
pub(super) struct Events(Recorder);

impl Events {
    pub(super) fn new(client: Client, identity: &str) -> Self {
        let reporter = Reporter {
            controller: "slotd-controller".to_owned(),
            instance: Some(identity.to_owned()),
        };
        Self(Recorder::new(client, reporter))
    }

    /// Tells that the phase of an upgrade changed. An event that cannot be written is no reason to stop.
    pub(super) async fn phase(&self, upgrade: &OSUpgrade, status: &OSUpgradeStatus) {
        let before = upgrade
            .status
            .as_ref()
            .and_then(|status| status.phase.as_ref());
        let Some(phase) = status.phase.as_ref().filter(|phase| before != Some(*phase)) else {
            return;
        };
        let (severity, kinds): (_, &[&str]) = match phase {
            Phase::Rejected => (EventType::Warning, &["Resolved", "NodesFailed"]),
            Phase::Halted => (EventType::Warning, &["NodesFailed", "Halted"]),
            _ => (EventType::Normal, &["Resolved"]),
        };
        let told = kinds
            .iter()
            .filter_map(|kind| find(status.conditions.as_ref(), kind))
            .map(|condition| condition.message.as_str());
        let note: String = told
            .collect::<Vec<_>>()
            .join("; ")
            .chars()
            .take(LONGEST)
            .collect();
        let event = Event {
            type_: severity,
            reason: phase.as_str().to_owned(),
            note: Some(note),
            action: "RollOut".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.0.publish(&event, &upgrade.object_ref(&())).await {
            warn!(error = said::error(&error), "an event could not be written");
        }
    }
}
