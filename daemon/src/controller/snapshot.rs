//! What the watches hold, as the planner is told it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt;
use kube::core::SelectorExt;
use slotd_crds::api::{Action, Limit, OSUpgrade, OSUpgradeProgress, ProgressPhase, Rollout};
use slotd_crds::image::Image;
use slotd_crds::names::{
    ACTIVATED_ANNOTATION, AGENT_LABEL, CORDONED_BY_ANNOTATION, FINALIZER, HOLD_ANNOTATION,
    UPGRADE_ATTEMPT_ANNOTATION, VERSION_ANNOTATION,
};
use slotd_crds::place::Place;
use slotd_crds::resolve::{Step, may_follow};
use slotd_engine::rollout;
use slotd_engine::rollout::{NodeUid, ProgressUid, UpgradeUid};

use super::resolution::{Meaning, Settled};
use super::watches::Watches;

/// Labels of nodes of the control plane.
const CONTROL_PLANE_LABELS: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// All objects as they were seen at one moment.
#[derive(Clone, Default)]
pub(super) struct Snapshot {
    pub(super) upgrades: Vec<Arc<OSUpgrade>>,
    pub(super) progress: Vec<Arc<OSUpgradeProgress>>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) places: Option<Arc<ConfigMap>>,
}

impl Snapshot {
    pub(super) fn of(watches: &Watches) -> Self {
        Self {
            upgrades: watches.upgrades.all(),
            progress: watches.progress.all(),
            nodes: watches.nodes.all(),
            places: watches.places.all().into_iter().next(),
        }
    }

    pub(super) fn upgrade(&self, uid: &UpgradeUid) -> Option<&Arc<OSUpgrade>> {
        self.upgrades
            .iter()
            .find(|upgrade| upgrade.metadata.uid.as_ref() == Some(&uid.0))
    }

    pub(super) fn object(&self, uid: &ProgressUid) -> Option<&Arc<OSUpgradeProgress>> {
        self.progress
            .iter()
            .find(|progress| progress.metadata.uid.as_ref() == Some(&uid.0))
    }

    pub(super) fn node(&self, uid: &NodeUid) -> Option<&Arc<Node>> {
        self.nodes
            .iter()
            .find(|node| node.metadata.uid.as_ref() == Some(&uid.0))
    }

    /// What the planner is told. `settled` is by the upgrades' uids.
    pub(super) fn fleet(&self, settled: &BTreeMap<String, Settled>) -> rollout::Fleet {
        rollout::Fleet {
            nodes: self.nodes.iter().map(|node| map_node(node)).collect(),
            upgrades: self
                .upgrades
                .iter()
                .filter_map(|upgrade| {
                    Some(map_upgrade(
                        upgrade,
                        settled.get(upgrade.metadata.uid.as_ref()?)?,
                        &self.nodes,
                    ))
                })
                .collect(),
            progress: self
                .progress
                .iter()
                .filter_map(|progress| self.map_progress(progress))
                .collect(),
            places: self
                .places
                .iter()
                .flat_map(|places| map_places(places))
                .collect(),
        }
    }

    fn map_progress(&self, progress: &OSUpgradeProgress) -> Option<rollout::Progress> {
        let spec = &progress.spec;
        let named = self
            .nodes
            .iter()
            .find(|node| node.name_any() == spec.node_name);
        // One made by hand may name its node alone; of one whose node is not known nothing is to be planned.
        let uid = spec
            .node_uid
            .clone()
            .or_else(|| named?.metadata.uid.clone())?;
        let node = named.filter(|node| node.metadata.uid.as_ref() == Some(&uid));
        let running = node.and_then(|node| node.annotations().get(VERSION_ANNOTATION));
        let attempt = spec.attempt.unwrap_or(0);
        let number = |name: &str| {
            progress
                .annotations()
                .get(name)
                .and_then(|text| text.parse().ok())
        };
        let bound = progress
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == FINALIZER);
        Some(rollout::Progress {
            uid: ProgressUid(progress.metadata.uid.clone()?),
            name: progress.name_any(),
            upgrade: spec
                .source_ref
                .as_ref()
                .map(|source| UpgradeUid(source.uid.clone())),
            node: NodeUid(uid),
            image: image_id(&spec.image),
            action: match spec.action {
                Action::Activate => rollout::Action::Activate,
                // What a later release may say there is not known to let a node go.
                Action::Stage | Action::Other(_) => rollout::Action::Stage,
            },
            attempt,
            upgrade_attempt: number(UPGRADE_ATTEMPT_ANNOTATION).unwrap_or(attempt),
            suspended: spec.suspend.unwrap_or(false),
            activated: bound.then(|| number(ACTIVATED_ANNOTATION).unwrap_or(attempt)),
            deleting: progress.metadata.deletion_timestamp.is_some(),
            runs_target: Step::between(running.map(String::as_str), &spec.image.version)
                == Step::Same,
            status: progress.status.as_ref().and_then(map_status),
        })
    }
}

fn map_status(status: &slotd_crds::api::OSUpgradeProgressStatus) -> Option<rollout::Status> {
    Some(rollout::Status {
        // Only an agent writes it; the controller's first status has none.
        attempt: status.attempt?,
        at: match status.phase.as_ref()? {
            ProgressPhase::Pending | ProgressPhase::Downloading | ProgressPhase::Verifying => {
                rollout::At::Before
            }
            ProgressPhase::Staged => rollout::At::Staged,
            ProgressPhase::Draining
            | ProgressPhase::Rebooting
            | ProgressPhase::Confirming
            | ProgressPhase::Other(_) => rollout::At::Leaving,
            ProgressPhase::Completed => rollout::At::Ended(rollout::End::Completed),
            ProgressPhase::RolledBack => rollout::At::Ended(rollout::End::RolledBack),
            ProgressPhase::Failed => rollout::At::Ended(rollout::End::Failed),
            ProgressPhase::Rejected => rollout::At::Ended(rollout::End::Refused),
        },
        ended: status.completed_at.as_ref().map(|time| time.0.as_second()),
        failure: rollout::Failure {
            reason: status.failure_reason.clone().unwrap_or_default(),
            message: status.message.clone().unwrap_or_default(),
        },
    })
}

/// What tells one image from another.
pub(super) fn image_id(image: &Image) -> rollout::ImageId {
    // A plain struct of texts and numbers has no way to fail.
    rollout::ImageId(serde_json::to_string(image).unwrap_or_default())
}

fn map_node(node: &Node) -> rollout::Node {
    let labels = node.labels();
    let annotations = node.annotations();
    rollout::Node {
        uid: NodeUid(node.metadata.uid.clone().unwrap_or_default()),
        name: node.name_any(),
        agent: labels.get(AGENT_LABEL).is_some_and(|value| value == "true"),
        ready: ready(node),
        unschedulable: node
            .spec
            .as_ref()
            .and_then(|spec| spec.unschedulable)
            .unwrap_or(false),
        cordoned_by_us: annotations.contains_key(CORDONED_BY_ANNOTATION),
        control_plane: CONTROL_PLANE_LABELS
            .iter()
            .any(|label| labels.contains_key(*label)),
        hold: annotations.get(HOLD_ANNOTATION).cloned(),
    }
}

fn ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

/// Since when a node is not Ready, as its Node says.
pub(super) fn not_ready_since(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")?;
    Some(ready.last_transition_time.as_ref()?.0)
}

fn map_upgrade(upgrade: &OSUpgrade, settled: &Settled, nodes: &[Arc<Node>]) -> rollout::Upgrade {
    let spec = &upgrade.spec;
    let status = upgrade.status.as_ref();
    let default = Rollout::default();
    let rollout = spec.rollout.as_ref().unwrap_or(&default);
    let one = Limit::Number(1);
    let max_unavailable = rollout.max_unavailable.as_ref().unwrap_or(&one);
    let (resolution, image) = match &settled.meaning {
        Meaning::Frozen(image) => (rollout::Resolution::Image(image_id(image)), Some(image)),
        Meaning::Blocked(image) => (rollout::Resolution::Blocked(image_id(image)), Some(image)),
        Meaning::Found(_) | Meaning::Pending(_) => (rollout::Resolution::Pending, None),
        Meaning::Rejected { .. } => (rollout::Resolution::Rejected, None),
    };
    let selected = nodes.iter().filter(|node| {
        settled
            .selector
            .as_ref()
            .is_some_and(|selector| selector.matches(node.labels()))
    });
    rollout::Upgrade {
        uid: UpgradeUid(upgrade.metadata.uid.clone().unwrap_or_default()),
        name: upgrade.name_any(),
        created: upgrade
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(0, |time| time.0.as_second()),
        attempt: spec.attempt.unwrap_or(0),
        suspended: spec.suspend.unwrap_or(false),
        deleting: upgrade.metadata.deletion_timestamp.is_some(),
        bound: upgrade
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == FINALIZER),
        completed: image.is_some()
            && status.and_then(|status| status.phase.as_ref())
                == Some(&slotd_crds::api::Phase::Completed),
        resolution,
        matches: selected
            .filter_map(|node| {
                Some((
                    NodeUid(node.metadata.uid.clone()?),
                    fit(node, image, spec.allow_downgrade()),
                ))
            })
            .collect(),
        max_unavailable: limit(max_unavailable),
        max_staging: rollout.max_staging.as_ref().map(limit),
        max_failures: rollout.max_failures(),
    }
}

fn limit(limit: &Limit) -> rollout::Limit {
    match limit {
        Limit::Number(number) => rollout::Limit::Nodes(u32::try_from(*number).unwrap_or(1)),
        Limit::Text(text) => rollout::Limit::Percent(
            text.strip_suffix('%')
                .and_then(|percent| percent.parse().ok())
                .unwrap_or(1),
        ),
    }
}

fn fit(node: &Node, image: Option<&Image>, allow_downgrade: bool) -> rollout::Fit {
    let Some(image) = image else {
        return rollout::Fit::Follows;
    };
    let running = node
        .annotations()
        .get(VERSION_ANNOTATION)
        .map(String::as_str);
    match may_follow(running, &image.version, allow_downgrade) {
        Ok(Step::Same) => rollout::Fit::Runs,
        Ok(_) => rollout::Fit::Follows,
        Err(rejection) => rollout::Fit::Refused(rollout::Failure {
            reason: rejection.reason.to_string(),
            message: rejection.message,
        }),
    }
}

fn map_places(places: &ConfigMap) -> Vec<rollout::Place> {
    let entries = places.data.iter().flatten();
    entries
        .map(|(uid, text)| {
            let place = serde_json::from_str::<Place>(text).ok();
            rollout::Place {
                node: NodeUid(uid.clone()),
                node_name: place
                    .as_ref()
                    .map(|place| place.node.clone())
                    .unwrap_or_default(),
                holder: place.map(|place| rollout::Holder {
                    upgrade: UpgradeUid(place.upgrade_uid),
                    progress: ProgressUid(place.progress_uid),
                    attempt: place.attempt,
                }),
            }
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests;
