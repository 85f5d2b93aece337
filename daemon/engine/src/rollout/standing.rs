//! How one upgrade stands on each of its targets.

use super::answer::{Halted, Wait};
use super::fleet::{At, End, Failure, Fit, Node, NodeUid, Progress, Resolution, Upgrade};
use super::ownership::Ownership;
use super::view::View;

/// One upgrade's way through its targets.
pub(super) struct Course<'a> {
    pub(super) upgrade: &'a Upgrade,
    /// The targets, by name.
    pub(super) targets: Vec<&'a Node>,
    /// Where each of them stands.
    pub(super) standings: Vec<(&'a Node, Standing<'a>)>,
    /// Why no further node is started.
    pub(super) halted: Option<Halted>,
    /// What every target that was not started waits for, if the upgrade itself holds them.
    pub(super) gate: Option<Wait>,
}

/// Where a target stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing<'a> {
    /// It runs the image and is Ready.
    Done,
    /// It failed or rolled back in this round.
    Failed(&'a Progress),
    /// It refused, or a rule refuses for it.
    Refused(Failure),
    /// It holds a place, or may be away without one.
    UnderWay,
    /// It stages what is wanted, or will in a moment.
    Staging(&'a Progress),
    /// It has what is wanted in its other slot, and needs a place.
    Staged(&'a Progress),
    /// It has not begun, or begins anew on this object.
    ToStage(Option<&'a Progress>),
    /// It stages something else than is wanted.
    Astray(&'a Progress),
    /// It waits for what only others can change.
    Stuck(Wait),
}

impl<'a> Course<'a> {
    pub(super) fn of(view: &View<'a>, ownership: &Ownership<'a>, upgrade: &'a Upgrade) -> Self {
        let mut targets: Vec<_> = ownership
            .targets(&upgrade.uid)
            .into_iter()
            .filter_map(|uid| view.node(uid))
            .collect();
        targets.sort_by_key(|node| (&node.name, &node.uid));
        let standings = targets
            .iter()
            .map(|node| (*node, standing(view, upgrade, node)))
            .collect();
        let halted = halted(view, upgrade);
        let gate = match (&upgrade.resolution, halted) {
            (Resolution::Pending, _) => Some(Wait::Unresolved),
            (_, Some(_)) | (Resolution::Rejected, _) => Some(Wait::Halted),
            _ if upgrade.suspended || upgrade.deleting => Some(Wait::Suspended),
            _ => None,
        };
        Self {
            upgrade,
            targets,
            standings,
            halted,
            gate,
        }
    }

    /// What keeps a node from being started, apart from its turn.
    pub(super) fn gate(&self, node: &Node, progress: Option<&Progress>) -> Option<Wait> {
        if let Some(gate) = &self.gate {
            return Some(gate.clone());
        }
        if progress.is_some_and(|progress| progress.suspended) {
            return Some(Wait::Suspended);
        }
        if let Some(reason) = &node.hold {
            return Some(Wait::Held(reason.clone()));
        }
        (!node.ready).then_some(Wait::NotReady)
    }

    /// The name of an image that a progress object is to ask for.
    pub(super) fn wants(&self, progress: &Progress) -> bool {
        self.upgrade.resolution.image() == Some(&progress.image)
    }
}

/// Whether a progress object belongs to what its upgrade asks for now: failures of an earlier round count no more.
fn of_this_round(upgrade: &Upgrade, progress: &Progress) -> bool {
    upgrade.resolution.image() == Some(&progress.image)
        && progress.upgrade_attempt >= upgrade.attempt
}

/// Whether a node failed in this round. What runs outranks what was recorded.
pub(super) fn failed(upgrade: &Upgrade, progress: &Progress) -> bool {
    of_this_round(upgrade, progress)
        && !progress.runs_target
        && matches!(progress.end(), Some(End::Failed | End::RolledBack))
}

fn halted(view: &View<'_>, upgrade: &Upgrade) -> Option<Halted> {
    if matches!(upgrade.resolution, Resolution::Blocked(_)) {
        return Some(Halted::Blocked);
    }
    // Also those that are no targets any more: deleting the Node of a failure is no way on.
    let failed = view
        .parts(&upgrade.uid)
        .filter(|progress| failed(upgrade, progress))
        .count();
    let failed = u32::try_from(failed).unwrap_or(u32::MAX);
    (failed >= upgrade.max_failures.max(1)).then_some(Halted::Failures { failed })
}

fn standing<'a>(view: &View<'a>, upgrade: &'a Upgrade, node: &'a Node) -> Standing<'a> {
    let part = view.part(&upgrade.uid, &node.uid);
    let fit = upgrade.matches.get(&node.uid);
    if let Some(held) = under_way(view, upgrade, &node.uid) {
        return held;
    }
    if fit == Some(&Fit::Runs) && part.is_none_or(|part| part.end().is_some()) {
        return match node.ready {
            true if !node.cordoned_by_us => Standing::Done,
            _ => Standing::Stuck(Wait::NotReady),
        };
    }
    let other = view
        .on_node(&node.uid)
        .find(|other| other.end().is_none() && part.is_none_or(|part| part.uid != other.uid));
    if let Some(other) = other {
        return Standing::Stuck(Wait::OtherFirst(other.name.clone()));
    }
    match part {
        Some(part) if part.deleting => Standing::Stuck(Wait::OtherFirst(part.name.clone())),
        Some(part) if of_this_round(upgrade, part) && part.end().is_some() => match part.end() {
            Some(End::Refused) => Standing::Refused(failure(part)),
            Some(End::Failed | End::RolledBack) => Standing::Failed(part),
            _ => Standing::Stuck(Wait::Drifted),
        },
        // Asked anew of a node that cannot tell where it stands gives the same answer: the rule comes first.
        _ if matches!(fit, Some(Fit::Refused(_))) => match fit {
            Some(Fit::Refused(failure)) => Standing::Refused(failure.clone()),
            _ => Standing::ToStage(part),
        },
        Some(part) if part.end().is_some() => Standing::ToStage(Some(part)),
        Some(part) if upgrade.resolution.image() != Some(&part.image) => Standing::Astray(part),
        Some(part) if part.at() == At::Staged && fit != Some(&Fit::Runs) => Standing::Staged(part),
        Some(part) => Standing::Staging(part),
        None => Standing::ToStage(None),
    }
}

/// Whether a node is away or may be, and on whose account.
fn under_way<'a>(view: &View<'a>, upgrade: &Upgrade, node: &NodeUid) -> Option<Standing<'a>> {
    let moving = view.on_node(node).find(|progress| progress.under_way());
    if let Some(moving) = moving
        && moving.upgrade.as_ref() != Some(&upgrade.uid)
    {
        return Some(Standing::Stuck(Wait::OtherFirst(moving.name.clone())));
    }
    let Some(place) = view.place(node) else {
        return moving.map(|_| Standing::UnderWay);
    };
    let holder = place.holder.as_ref();
    if holder.is_some_and(|holder| holder.upgrade == upgrade.uid) {
        return Some(Standing::UnderWay);
    }
    let name = holder
        .and_then(|holder| view.progress(&holder.progress))
        .map_or_else(String::new, |progress| progress.name.clone());
    Some(Standing::Stuck(Wait::OtherFirst(name)))
}

/// What an object says of its end.
pub(super) fn failure(progress: &Progress) -> Failure {
    progress
        .status
        .as_ref()
        .map(|status| status.failure.clone())
        .unwrap_or_default()
}
