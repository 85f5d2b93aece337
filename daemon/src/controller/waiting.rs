//! What a node waits for, in words, and the condition on its progress object.

use std::collections::{BTreeMap, BTreeSet};

use slotd_crds::api::OSUpgradeProgress;
use slotd_engine::rollout::{Outlook, Plan, ProgressUid, Wait};

use super::conditions::{Holds, find};
use super::resolution::{Meaning, Settled, nothing_known};
use super::snapshot::Snapshot;

/// The condition's type.
const WAITING: &str = "Waiting";

/// A wait as a word and a sentence. The sentence says nothing that changes while the node waits for the same.
pub(super) fn words(wait: &Wait, outlook: &Outlook) -> (&'static str, String) {
    match wait {
        Wait::StagingTurn => (
            "NoPlace",
            "as many nodes stage as maxStaging allows, or are on their way as maxUnavailable allows"
                .to_owned(),
        ),
        Wait::Place => (
            "NoPlace",
            format!("as many nodes are unavailable or on their way as maxUnavailable allows ({})", outlook.max_unavailable),
        ),
        Wait::ControlPlane(other) => (
            "ControlPlaneBusy",
            format!("one node of the control plane at a time: {other} is on its way or not Ready"),
        ),
        Wait::Suspended => ("Suspended", "suspend is set".to_owned()),
        Wait::Held(reason) => ("Held", format!("the Node is held by its annotation: {reason}")),
        Wait::NotReady => ("NotReady", "the Node is not Ready".to_owned()),
        Wait::Halted => ("Halted", "the upgrade is Halted".to_owned()),
        Wait::Unresolved => ("NotResolved", "it is not known yet which image the upgrade means".to_owned()),
        Wait::Superseded(other) => ("Superseded", format!("the younger OSUpgrade {other} has the node")),
        Wait::OtherFirst(other) if other.is_empty() => {
            ("OtherFirst", "the node holds a place whose use cannot be read".to_owned())
        }
        Wait::OtherFirst(other) => ("OtherFirst", format!("the OSUpgradeProgress {other} of the node has to end first")),
        Wait::Drifted => (
            "Drifted",
            "the node completed this upgrade and runs another version since; raise attempt to bring it back".to_owned(),
        ),
    }
}

/// The conditions to write: of each object that waits for something new, or waits no more. What is over with this very pass,
/// since the image is known and only to be stored, is not told to every object and taken back by the next.
pub(super) fn changes(
    snapshot: &Snapshot,
    settled: &BTreeMap<String, Settled>,
    plan: &Plan,
) -> Vec<(ProgressUid, Holds)> {
    // What was said of its nodes stays until it is known what is to be said.
    let unknown = |upgrade: &str| nothing_known(settled, upgrade);
    let mut changes = Vec::new();
    let mut waiting = BTreeSet::new();
    for outlook in &plan.upgrades {
        if unknown(&outlook.upgrade.0) {
            continue;
        }
        let meaning = settled.get(&outlook.upgrade.0).map(|one| &one.meaning);
        let found = matches!(meaning, Some(Meaning::Found(_)));
        for wait in &outlook.waiting {
            let Some(uid) = &wait.progress else { continue };
            waiting.insert(uid.clone());
            if found && wait.wait == Wait::Unresolved {
                continue;
            }
            let (reason, message) = words(&wait.wait, outlook);
            changes.push((uid.clone(), Holds::new(WAITING, true, reason, message)));
        }
    }
    for object in &snapshot.progress {
        let Some(uid) = object.metadata.uid.clone().map(ProgressUid) else {
            continue;
        };
        if object
            .spec
            .source_ref
            .as_ref()
            .is_some_and(|source| unknown(&source.uid))
        {
            continue;
        }
        let waited = said(object).is_some_and(|condition| condition.status == "True");
        if waited && !waiting.contains(&uid) {
            changes.push((
                uid,
                Holds::new(WAITING, false, "NotWaiting", "it waits for nothing"),
            ));
        }
    }
    changes.retain(|(uid, holds)| {
        let object = snapshot.object(uid);
        object.is_some_and(|object| {
            object.metadata.deletion_timestamp.is_none()
                && !said(object).is_some_and(|condition| holds.said_by(condition))
        })
    });
    changes
}

/// What the object says of it now.
pub(super) fn said(
    object: &OSUpgradeProgress,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
    find(object.status.as_ref()?.conditions.as_ref(), WAITING)
}
