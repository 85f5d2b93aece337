//! Which upgrade has a node.

use std::collections::{BTreeMap, BTreeSet};

use super::fleet::{Fit, NodeUid, Resolution, Upgrade, UpgradeUid};
use super::view::View;

/// The order of upgrades from the oldest to the youngest; of one age, the greater name is the younger.
pub(super) fn age(upgrade: &Upgrade) -> (i64, &str, &UpgradeUid) {
    (upgrade.created, &upgrade.name, &upgrade.uid)
}

/// Which upgrade has which node.
pub(super) struct Ownership<'a> {
    owners: BTreeMap<&'a NodeUid, &'a Upgrade>,
    refused: BTreeMap<&'a UpgradeUid, Vec<&'a NodeUid>>,
}

impl<'a> Ownership<'a> {
    /// Each node with an agent goes to the youngest upgrade that matches it and is not Rejected. One that all its targets
    /// refuse is Rejected too, and leaves them to the next.
    pub(super) fn of(view: &View<'a>) -> Self {
        let mut owners: BTreeMap<&NodeUid, &Upgrade> = BTreeMap::new();
        let mut refused = BTreeMap::new();
        let mut upgrades: Vec<_> = view
            .fleet
            .upgrades
            .iter()
            .filter(|upgrade| !upgrade.deleting && upgrade.resolution != Resolution::Rejected)
            .collect();
        upgrades.sort_by_key(|upgrade| age(upgrade));
        for upgrade in upgrades.into_iter().rev() {
            let left: Vec<_> = upgrade
                .matches
                .iter()
                .filter(|(uid, _)| view.node(uid).is_some_and(|node| node.agent))
                .filter(|(uid, _)| !owners.contains_key(uid))
                .collect();
            let all_refused = left.iter().all(|(uid, fit)| {
                // A node that goes back to what it had is no reason to give up the upgrade that it goes through.
                matches!(fit, Fit::Refused(_)) && view.part(&upgrade.uid, uid).is_none()
            });
            if all_refused && !left.is_empty() && upgrade.resolution.image().is_some() {
                refused.insert(&upgrade.uid, left.into_iter().map(|(uid, _)| uid).collect());
            } else {
                owners.extend(left.into_iter().map(|(uid, _)| (uid, upgrade)));
            }
        }
        Self { owners, refused }
    }

    /// The upgrade that has a node.
    pub(super) fn owner(&self, node: &NodeUid) -> Option<&'a Upgrade> {
        self.owners.get(node).copied()
    }

    /// The targets of an upgrade.
    pub(super) fn targets(&self, upgrade: &UpgradeUid) -> Vec<&'a NodeUid> {
        if let Some(all) = self.refused.get(upgrade) {
            return all.clone();
        }
        self.owners
            .iter()
            .filter(|(_, owner)| owner.uid == *upgrade)
            .map(|(node, _)| *node)
            .collect()
    }

    /// Whether every target of an upgrade refuses it.
    pub(super) fn refused_by_all(&self, upgrade: &UpgradeUid) -> bool {
        self.refused.contains_key(upgrade)
    }

    /// The nodes with an agent that match an upgrade and follow another one, with that one.
    pub(super) fn superseded(
        &self,
        upgrade: &'a Upgrade,
    ) -> impl Iterator<Item = (&'a NodeUid, &'a Upgrade)> {
        let targets: BTreeSet<_> = self.targets(&upgrade.uid).into_iter().collect();
        upgrade
            .matches
            .keys()
            .filter(move |node| !targets.contains(node))
            .filter_map(|node| Some((node, self.owner(node)?)))
            .filter(|(_, owner)| owner.uid != upgrade.uid)
    }
}
