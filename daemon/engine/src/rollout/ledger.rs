//! The places: which are held, which are given back, and whether one more fits.

use std::collections::BTreeSet;

use super::answer::{Freed, Wait, Write};
use super::fleet::{Action, End, Holder, Node, NodeUid, Place, Progress, Upgrade};
use super::view::View;

/// Every node that is away on our account, or may be at any moment.
#[derive(Clone)]
pub(super) struct Ledger<'v, 'a> {
    view: &'v View<'a>,
    held: BTreeSet<&'a NodeUid>,
}

impl<'v, 'a> Ledger<'v, 'a> {
    /// A node counts whose place is stored. So does one that is under way without a place, such as one that somebody activated
    /// by hand.
    pub(super) fn of(view: &'v View<'a>) -> Self {
        let places = view.fleet.places.iter().map(|place| &place.node);
        let under_way = view
            .fleet
            .progress
            .iter()
            .filter(|progress| progress.under_way() && view.node(&progress.node).is_some())
            .map(|progress| &progress.node);
        Self {
            view,
            held: places.chain(under_way).collect(),
        }
    }

    /// The ledger as it will be once what is given back now is free: to judge what has to be taken back, and what may be taken
    /// by the same write, never what is used.
    pub(super) fn after_frees(&self) -> Self {
        let mut after = self.clone();
        for place in &self.view.fleet.places {
            // One may be away on another account than its place's.
            let away = self.view.on_node(&place.node).any(Progress::under_way);
            if self.freed_by(place).is_some() && !away {
                after.held.remove(&place.node);
            }
        }
        after
    }

    /// Which places are given back.
    pub(super) fn freed(&self) -> Vec<(&'a NodeUid, Freed)> {
        self.view
            .fleet
            .places
            .iter()
            .filter_map(|place| Some((&place.node, self.freed_by(place)?)))
            .collect()
    }

    fn freed_by(&self, place: &Place) -> Option<Freed> {
        let Some(node) = self.view.node(&place.node) else {
            return Some(Freed::NodeGone);
        };
        let holder = place.holder.as_ref()?;
        let Some(progress) = self.view.progress(&holder.progress) else {
            return node.back().then_some(Freed::ProgressGone);
        };
        if progress.attempt == holder.attempt {
            return match progress.end()? {
                End::Completed => (progress.runs_target && node.back()).then_some(Freed::Completed),
                End::RolledBack => node.back().then_some(Freed::RolledBack),
                // Before its reboot: who is not Ready is so without us.
                End::Failed | End::Refused => (!node.cordoned_by_us).then_some(Freed::Ended),
            };
        }
        // One that was never activated can be no more, and of one that was the agent has seen the end.
        let raised = progress.attempt > holder.attempt
            && (progress.activated.is_none() || progress.over(holder.attempt));
        (raised && node.back()).then_some(Freed::Raised)
    }

    /// Places for nodes that are under way and hold none: somebody removed it. Whether it fits is no question any more.
    pub(super) fn adopted(&self) -> Vec<Write> {
        let mut nodes = BTreeSet::new();
        self.view
            .fleet
            .progress
            .iter()
            .filter(|progress| progress.under_way())
            .filter(|progress| self.view.place(&progress.node).is_none())
            .filter_map(|progress| {
                let node = self.view.node(&progress.node)?;
                let place = place(node, progress, progress.activated?)?;
                nodes.insert(&progress.node).then_some(Write::Claim(place))
            })
            .collect()
    }

    /// Takes a place in this plan.
    pub(super) fn claim(&mut self, node: &'a Node, progress: &Progress) -> Option<Write> {
        let place = place(node, progress, progress.attempt)?;
        self.held.insert(&node.uid);
        Some(Write::Claim(place))
    }

    /// Leaves a node out of account.
    pub(super) fn forget(&mut self, node: &NodeUid) {
        self.held.remove(node);
    }

    /// Whether a node may be taken away too, or has to wait for what. Its own place is not counted against it.
    pub(super) fn fits(
        &self,
        upgrade: &Upgrade,
        targets: &[&'a Node],
        node: &'a Node,
    ) -> Result<(), Wait> {
        if node.control_plane {
            let others = self.view.fleet.nodes.iter();
            let other = others
                .filter(|other| other.control_plane && other.uid != node.uid)
                .find(|other| !other.ready || self.held.contains(&other.uid));
            if let Some(other) = other {
                return Err(Wait::ControlPlane(other.name.clone()));
            }
        }
        let mut away = self.held.clone();
        away.extend(
            targets
                .iter()
                .filter(|target| target.unavailable())
                .map(|target| &target.uid),
        );
        away.insert(&node.uid);
        if away.len() > upgrade.max_unavailable.of(targets.len()) {
            return Err(Wait::Place);
        }
        Ok(())
    }
}

fn place(node: &Node, progress: &Progress, attempt: u32) -> Option<Place> {
    Some(Place {
        node: node.uid.clone(),
        node_name: node.name.clone(),
        holder: Some(Holder {
            upgrade: progress.upgrade.clone()?,
            progress: progress.uid.clone(),
            attempt,
        }),
    })
}

/// Whether a progress object holds a place that it has not used: claimed for this attempt, which says Stage yet.
pub(super) fn unused(view: &View<'_>, progress: &Progress) -> bool {
    progress.action == Action::Stage
        && progress.end().is_none()
        && view
            .holder(progress)
            .is_some_and(|holder| holder.attempt == progress.attempt)
}
