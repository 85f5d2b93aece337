//! Progress objects that nobody wants any more, and finalizers that hold nothing any more.

use super::answer::{Unwanted, Write};
use super::fleet::{Progress, Resolution, Upgrade};
use super::ownership::Ownership;
use super::standing;
use super::view::View;

/// Progress objects to delete. One whose upgrade is not in the snapshot is left to the garbage collector: the upgrade may only
/// be younger than the snapshot.
pub(super) fn unwanted(view: &View<'_>, ownership: &Ownership<'_>) -> Vec<Write> {
    view.fleet
        .progress
        .iter()
        .filter(|progress| !progress.deleting)
        .filter_map(|progress| {
            let upgrade = view.upgrade(progress.upgrade.as_ref()?)?;
            Some(Write::Delete {
                progress: progress.uid.clone(),
                because: why_unwanted(view, ownership, upgrade, progress)?,
            })
        })
        .collect()
}

fn why_unwanted(
    view: &View<'_>,
    ownership: &Ownership<'_>,
    upgrade: &Upgrade,
    progress: &Progress,
) -> Option<Unwanted> {
    let ended = progress.end().is_some();
    let remembered = standing::failed(upgrade, progress);
    let Some(node) = view.node(&progress.node) else {
        // A failure is remembered as long as it counts.
        return (!remembered).then_some(Unwanted::NodeGone);
    };
    if upgrade.deleting {
        // What ended goes with its upgrade. What is under way is told to stop.
        return (!ended).then_some(Unwanted::UpgradeDeleted);
    }
    // What is under way ends first.
    if progress.under_way() || (ended && view.holder(progress).is_some()) {
        return None;
    }
    if upgrade.resolution == Resolution::Rejected {
        return (!ended).then_some(Unwanted::UpgradeRejected);
    }
    if !node.agent || !upgrade.matches.contains_key(&node.uid) {
        return (!remembered).then_some(Unwanted::NoTarget);
    }
    // Nothing is left to do; one that its agent has not taken up, or has staged in vain.
    if !ended && progress.runs_target && view.holder(progress).is_none() {
        return Some(Unwanted::Runs);
    }
    let owner = ownership.owner(&node.uid)?;
    let replaced = view.part(&owner.uid, &node.uid).is_some();
    (owner.uid != upgrade.uid && (!ended || replaced)).then_some(Unwanted::Superseded)
}

/// Finalizers to take off: of a progress object, once its place is given back and nothing of it is under way; of an upgrade,
/// once none of its nodes is on its way, nor begins by what is planned already.
pub(super) fn bindings(view: &View<'_>, planned: &[Write]) -> Vec<Write> {
    let loose = |progress: &&Progress| {
        progress.activated.is_some_and(|attempt| {
            view.holder(progress).is_none()
                && (progress.over(attempt) || view.node(&progress.node).is_none())
        })
    };
    let progress = view.fleet.progress.iter().filter(loose);
    let mut writes: Vec<_> = progress
        .map(|progress| Write::Unbind {
            progress: progress.uid.clone(),
            node_gone: view.node(&progress.node).is_none(),
        })
        .collect();
    let upgrades = view.fleet.upgrades.iter().filter(|upgrade| {
        let held = view.fleet.places.iter().any(|place| {
            let holder = place.holder.as_ref();
            holder.is_some_and(|holder| holder.upgrade == upgrade.uid)
        });
        let busy = view.parts(&upgrade.uid).any(|progress| {
            progress.activated.is_some() || (!upgrade.deleting && progress.end().is_none())
        });
        let begins = planned
            .iter()
            .any(|write| write.begun(view.fleet) == Some(&upgrade.uid));
        upgrade.bound && !held && !busy && (!begins || upgrade.deleting)
    });
    writes.extend(upgrades.map(|upgrade| Write::UnbindUpgrade(upgrade.uid.clone())));
    writes
}
