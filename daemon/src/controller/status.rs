//! The status of an OSUpgrade.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};
use slotd_crds::api::{OSUpgrade, OSUpgradeStatus, Phase};
use slotd_crds::names::url_digest;
use slotd_engine::rollout::{self, Halted, Outlook};

use super::conditions::{Holds, find};
use super::resolution::{self, Meaning, Settled};
use super::snapshot::{Snapshot, not_ready_since};
use super::waiting;

/// A node that is on its way and not Ready for longer is told of.
const LATE: SignedDuration = SignedDuration::from_mins(5);
/// How many nodes a message names.
const NAMED: usize = 3;

/// The status that an upgrade is to have.
pub(super) fn wanted(
    upgrade: &OSUpgrade,
    settled: &Settled,
    outlook: &Outlook,
    snapshot: &Snapshot,
) -> OSUpgradeStatus {
    let before = upgrade.status.clone().unwrap_or_default();
    let generation = upgrade.metadata.generation;
    let digest = upgrade.spec.resolution_digest();
    let (resolved, digest, url_digest) = match &settled.meaning {
        Meaning::Frozen(image) | Meaning::Blocked(image) | Meaning::Found(image) => {
            let shown = image.shown();
            let hidden = shown.url != image.url;
            let url = hidden.then(|| url_digest(&image.url));
            (
                Some(shown),
                Some(resolution::resolved_from(digest, hidden)),
                url,
            )
        }
        // Of what is frozen only a part is not known at present.
        Meaning::Pending(_) if resolution::is_frozen(upgrade) => (
            before.resolved.clone(),
            before.resolved_from.clone(),
            before.resolved_url_digest.clone(),
        ),
        Meaning::Pending(_) | Meaning::Rejected { .. } => (None, None, None),
    };
    let phase = match (&settled.meaning, outlook.phase) {
        (Meaning::Found(_), _) | (_, rollout::Phase::Accepted) => Phase::Accepted,
        (_, rollout::Phase::Pending) => Phase::Pending,
        (_, rollout::Phase::RollingOut) => Phase::RollingOut,
        (_, rollout::Phase::Completed) => Phase::Completed,
        (_, rollout::Phase::Rejected) => Phase::Rejected,
        (_, rollout::Phase::Halted) => Phase::Halted,
    };
    let conditions = holds(upgrade, settled, outlook, snapshot)
        .into_iter()
        .map(|holds| {
            let before = find(before.conditions.as_ref(), holds.kind);
            holds.condition(before, generation)
        })
        .collect();
    // Once all of its nodes follow a younger upgrade, what it came to stays.
    let completed = Some(Phase::Completed);
    let over = outlook.targets == 0
        && before.phase == completed
        && outlook.phase == rollout::Phase::Completed;
    let count = |now: u32, then: Option<u32>| then.filter(|_| over).or(Some(now));
    OSUpgradeStatus {
        observed_generation: generation,
        phase: Some(phase),
        resolved,
        resolved_from: digest,
        resolved_url_digest: url_digest,
        targets: count(outlook.targets, before.targets),
        ok: count(outlook.ok, before.ok),
        fail: count(outlook.fail, before.fail),
        conditions: Some(conditions),
    }
}

fn holds(
    upgrade: &OSUpgrade,
    settled: &Settled,
    outlook: &Outlook,
    snapshot: &Snapshot,
) -> Vec<Holds> {
    let mut holds = vec![resolution::condition(&settled.meaning)];
    // Of a catalog in the document itself nobody asks whether it can be reached.
    let inline = upgrade
        .spec
        .catalog
        .as_ref()
        .is_some_and(|catalog| catalog.inline.is_some());
    holds.extend(
        settled
            .catalog
            .iter()
            .filter(|holds| !(inline && holds.kind == "CatalogReachable"))
            .cloned(),
    );
    if upgrade.spec.suspend == Some(true) {
        holds.push(Holds::new(
            "Suspended",
            true,
            "Suspended",
            "suspend is set: no further node is started",
        ));
    }
    holds.extend(outlook.halted.map(|halted| halted_by(halted, outlook)));
    if let Some(first) = &outlook.first_failure {
        let reason = if first.failure.reason.is_empty() {
            "Failed"
        } else {
            first.failure.reason.as_str()
        };
        holds.push(Holds::new(
            "NodesFailed",
            true,
            reason,
            format!("{}: {}", first.node, first.failure.message),
        ));
    }
    holds.extend(waits(outlook));
    holds.extend(away(outlook, snapshot, Timestamp::now()));
    if outlook.without_agent > 0 {
        let message = format!(
            "nodes that match and have no agent, and are no targets: {}",
            outlook.without_agent
        );
        holds.push(Holds::new("NodesWithoutAgent", true, "NoAgent", message));
    }
    holds
}

fn halted_by(halted: Halted, outlook: &Outlook) -> Holds {
    let (reason, message) = match halted {
        Halted::Failures { failed } => (
            "Failures",
            format!(
                "as many nodes failed or rolled back as maxFailures allows ({failed}); raise attempt or ask for another version to go on"
            ),
        ),
        Halted::Blocked => (
            "Blocked",
            "the catalog blocks this version since: no further node is started".to_owned(),
        ),
        Halted::NothingLeft => (
            "NothingLeft",
            format!(
                "every other target runs it; {} failed or refused",
                outlook.fail
            ),
        ),
    };
    Holds::new("Halted", true, reason, message)
}

/// Which nodes wait for what, the most frequent reason first. Those that have no place are named as long as that is so, also
/// while they stage: a fleet would otherwise have its list written anew with each of a node's steps.
fn waits(outlook: &Outlook) -> Option<Holds> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for waiting in outlook.waiting.iter().chain(&outlook.ahead) {
        let (reason, _) = waiting::words(&waiting.wait, outlook);
        reasons.entry(reason).or_default().push(&waiting.node_name);
    }
    for nodes in reasons.values_mut() {
        nodes.sort_unstable();
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(reason, nodes)| (std::cmp::Reverse(nodes.len()), *reason));
    let (first, _) = reasons.first()?;
    let parts: Vec<_> = reasons
        .iter()
        .map(|(reason, nodes)| format!("{reason}: {}", named(nodes)))
        .collect();
    Some(Holds::new("Waiting", true, first, parts.join("; ")))
}

/// The first names of a list, and how many more there are.
fn named(nodes: &[&str]) -> String {
    let first: Vec<_> = nodes.iter().take(NAMED).copied().collect();
    match nodes.len().saturating_sub(NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Targets that take part of the limit without a place, and nodes that are on their way for longer than a restart takes.
fn away(outlook: &Outlook, snapshot: &Snapshot, now: Timestamp) -> Option<Holds> {
    let long = outlook.away.iter().filter_map(|uid| {
        let node = snapshot.node(uid)?;
        let since = not_ready_since(node)?;
        let late = now.duration_since(since) > LATE;
        late.then(|| format!("{} (on its way, not Ready since {since})", node.name_any()))
    });
    let long: Vec<_> = long.collect();
    let others = outlook
        .unavailable
        .iter()
        .filter_map(|uid| snapshot.node(uid));
    let reason = if long.is_empty() {
        "Unavailable"
    } else {
        "NotBack"
    };
    let names: Vec<_> = long
        .into_iter()
        .chain(others.map(|node| node.name_any()))
        .collect();
    if names.is_empty() {
        return None;
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let message = format!(
        "{}: counted towards maxUnavailable until Ready and schedulable; bring them back, take them out of nodeSelector, or \
         delete the Node of a machine that is gone",
        named(&names)
    );
    Some(Holds::new("NodesUnavailable", true, reason, message))
}

/// The patch that makes a status another one; none where it says the same already. A new generation alone is a change: the
/// status speaks of it then.
pub(super) fn patch(upgrade: &OSUpgrade, wanted: &OSUpgradeStatus) -> Option<Value> {
    if upgrade.status.as_ref() == Some(wanted) {
        return None;
    }
    // With nulls for what is to go, and only if nobody wrote since.
    Some(json!({
        "metadata": { "resourceVersion": upgrade.metadata.resource_version },
        "status": {
            "observedGeneration": wanted.observed_generation,
            "phase": wanted.phase,
            "resolved": wanted.resolved.as_ref().map(image),
            "resolvedFrom": wanted.resolved_from,
            "resolvedURLDigest": wanted.resolved_url_digest,
            "targets": wanted.targets,
            "ok": wanted.ok,
            "fail": wanted.fail,
            "conditions": wanted.conditions,
        },
    }))
}

/// An image for a merge patch: what it does not have is taken away.
pub(super) fn image(image: &slotd_crds::image::Image) -> Value {
    json!({
        "version": image.version,
        "url": image.url,
        "checksum": image.checksum,
        "expandedChecksum": image.expanded_checksum,
        "size": image.size,
    })
}

#[cfg(test)]
mod tests;
