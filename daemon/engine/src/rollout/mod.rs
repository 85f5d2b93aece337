//! The roll-out planner: which node of a fleet does what next, as a pure function of one snapshot.
//!
//! [`plan()`] takes a [`Fleet`] and answers with a [`Plan`]: the writes that bring the fleet one step on, and how each upgrade
//! stands. It keeps nothing, so whoever is interrupted calls it again on a new snapshot; where all is as it should be it
//! writes nothing.
//!
//! What it holds to:
//!
//! - One upgrade for a node: the youngest that matches it and is not Rejected, also while that one is suspended or halted.
//!   What is under way ends first.
//! - A node goes on to its trial boot only with a place, and only once that place was seen stored. A claim has to fit its
//!   upgrade's `max_unavailable`, counting every place in the cluster and every unavailable target, none twice. One
//!   control-plane node at a time.
//! - A place is given back only when the node runs the target and is Ready, when its attempt ended otherwise with our cordon
//!   taken back, or when the Node is gone. Time frees nothing.
//! - A claim that was not used and does not fit any more is taken back by raising the attempt: from then on nobody can
//!   activate the one that the place was claimed for.

mod answer;
mod fleet;
mod ledger;
mod limit;
mod objects;
mod outlook;
mod ownership;
mod standing;
mod steps;
mod view;

#[cfg(test)]
mod tests;

pub use answer::{
    FirstFailure, Freed, Halted, Outlook, Phase, Plan, Raised, Unwanted, Wait, Waiting, Write,
};
pub use fleet::{
    Action, At, End, Failure, Fit, Fleet, Holder, ImageId, Node, NodeUid, Place, Progress,
    ProgressUid, Resolution, Status, Upgrade, UpgradeUid,
};
pub use limit::Limit;

use ledger::Ledger;
use ownership::Ownership;
use standing::Course;
use view::View;

/// The places that are to be given back, and why: to be asked once more, with what the server itself says of their Nodes and
/// progress objects, before that is written. A cache may hold a Node as it was before we touched it.
#[must_use]
pub fn frees(fleet: &Fleet) -> Vec<(NodeUid, Freed)> {
    let view = View::of(fleet);
    let freed = Ledger::of(&view).freed().into_iter();
    freed
        .map(|(node, because)| (node.clone(), because))
        .collect()
}

/// What is to be written now, and how each upgrade stands.
#[must_use]
pub fn plan(fleet: &Fleet) -> Plan {
    let view = View::of(fleet);
    let ownership = Ownership::of(&view);
    let ledger = Ledger::of(&view);
    let mut next = ledger.after_frees();
    let freed = ledger.freed().into_iter();
    let mut writes: Vec<_> = freed
        .map(|(node, because)| Write::Free {
            node: node.clone(),
            because,
        })
        .collect();
    writes.extend(ledger.adopted());
    writes.extend(objects::unwanted(&view, &ownership));
    // The oldest first: what was begun is brought to its end before a younger one takes the places.
    let mut upgrades: Vec<_> = fleet.upgrades.iter().collect();
    upgrades.sort_by_key(|upgrade| ownership::age(upgrade));
    let mut outlooks = Vec::new();
    for upgrade in upgrades {
        let course = Course::of(&view, &ownership, upgrade);
        let waits = steps::take(&view, &course, &ledger, &mut next, &mut writes);
        outlooks.push(outlook::of(
            &view, &ownership, &course, &ledger, &writes, waits,
        ));
    }
    let bindings = objects::bindings(&view, &writes);
    writes.extend(bindings);
    outlooks.sort_by_key(|outlook| {
        fleet
            .upgrades
            .iter()
            .position(|upgrade| upgrade.uid == outlook.upgrade)
    });
    Plan {
        writes,
        upgrades: outlooks,
    }
}
