//! A snapshot with its parts found by what they belong to.

use std::collections::BTreeMap;

use super::fleet::{
    Fleet, Holder, Node, NodeUid, Place, Progress, ProgressUid, Upgrade, UpgradeUid,
};

/// A snapshot, indexed.
pub(super) struct View<'a> {
    pub(super) fleet: &'a Fleet,
    nodes: BTreeMap<&'a NodeUid, &'a Node>,
    upgrades: BTreeMap<&'a UpgradeUid, &'a Upgrade>,
    progress: BTreeMap<&'a ProgressUid, &'a Progress>,
    on_node: BTreeMap<&'a NodeUid, Vec<&'a Progress>>,
    places: BTreeMap<&'a NodeUid, &'a Place>,
}

impl<'a> View<'a> {
    pub(super) fn of(fleet: &'a Fleet) -> Self {
        let mut on_node: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for progress in &fleet.progress {
            on_node.entry(&progress.node).or_default().push(progress);
        }
        Self {
            fleet,
            nodes: fleet.nodes.iter().map(|node| (&node.uid, node)).collect(),
            upgrades: fleet
                .upgrades
                .iter()
                .map(|upgrade| (&upgrade.uid, upgrade))
                .collect(),
            progress: fleet
                .progress
                .iter()
                .map(|progress| (&progress.uid, progress))
                .collect(),
            on_node,
            places: fleet
                .places
                .iter()
                .map(|place| (&place.node, place))
                .collect(),
        }
    }

    pub(super) fn node(&self, uid: &NodeUid) -> Option<&'a Node> {
        self.nodes.get(uid).copied()
    }

    pub(super) fn upgrade(&self, uid: &UpgradeUid) -> Option<&'a Upgrade> {
        self.upgrades.get(uid).copied()
    }

    pub(super) fn progress(&self, uid: &ProgressUid) -> Option<&'a Progress> {
        self.progress.get(uid).copied()
    }

    /// The progress object of one upgrade on one node.
    pub(super) fn part(&self, upgrade: &UpgradeUid, node: &NodeUid) -> Option<&'a Progress> {
        self.on_node(node)
            .find(|progress| progress.upgrade.as_ref() == Some(upgrade))
    }

    /// All progress objects of one node.
    pub(super) fn on_node(&self, node: &NodeUid) -> impl Iterator<Item = &'a Progress> {
        self.on_node.get(node).into_iter().flatten().copied()
    }

    /// All progress objects of one upgrade.
    pub(super) fn parts(&self, upgrade: &UpgradeUid) -> impl Iterator<Item = &'a Progress> {
        self.fleet
            .progress
            .iter()
            .filter(move |progress| progress.upgrade.as_ref() == Some(upgrade))
    }

    pub(super) fn place(&self, node: &NodeUid) -> Option<&'a Place> {
        self.places.get(node).copied()
    }

    /// The place that is held for a progress object, whatever the attempt.
    pub(super) fn holder(&self, progress: &Progress) -> Option<&'a Holder> {
        self.place(&progress.node)?
            .holder
            .as_ref()
            .filter(|holder| holder.progress == progress.uid)
    }
}
