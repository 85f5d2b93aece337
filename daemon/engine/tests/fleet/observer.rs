//! Watches the machines themselves, and knows nothing of how the planner counts.

use std::collections::BTreeMap;

use slotd_engine::rollout::{Limit, NodeUid};

use super::World;
use super::controller::Activated;

/// What was known when a node was let go.
#[derive(Clone, Debug)]
pub struct Permit {
    /// The version of the nodes that the controller saw.
    nodes: usize,
    /// How many may be unavailable at one time, by what the controller saw.
    limit: usize,
    /// The targets, by what the controller saw.
    targets: Vec<NodeUid>,
}

#[derive(Clone, Debug, Default)]
pub struct Observer {
    permits: BTreeMap<NodeUid, Permit>,
    /// In which order places were taken.
    pub claims: BTreeMap<NodeUid, usize>,
    claimed: usize,
}

impl Observer {
    pub fn claimed(&mut self, node: NodeUid) {
        self.claimed += 1;
        self.claims.insert(node, self.claimed);
    }

    /// Notes what the controller saw that let a node go.
    pub fn activated(&mut self, world: &World, activated: &Activated) {
        let seen = activated.seen;
        let nodes = world.store.nodes.at(seen.nodes);
        let upgrades = world.store.upgrades.at(seen.upgrades);
        let youngest = |node: &NodeUid| {
            let stored = nodes.get(node)?;
            let matching = upgrades.iter().filter(|(_, upgrade)| {
                stored.node.agent && !upgrade.deleting && upgrade.groups & (1 << stored.group) != 0
            });
            matching.max_by_key(|(_, upgrade)| (upgrade.created, upgrade.name.clone()))
        };
        let Some((uid, upgrade)) = youngest(&activated.node) else {
            return;
        };
        let targets: Vec<_> = nodes
            .keys()
            .filter(|node| youngest(node).is_some_and(|(other, _)| other == uid))
            .cloned()
            .collect();
        let limit = match upgrade.max_unavailable {
            Limit::Nodes(nodes) => usize::try_from(nodes).unwrap(),
            Limit::Percent(percent) => {
                (targets.len() * usize::try_from(percent).unwrap() / 100).max(1)
            }
        };
        self.permits.insert(
            activated.node.clone(),
            Permit {
                nodes: seen.nodes,
                limit,
                targets,
            },
        );
    }

    /// What must hold at every instant.
    pub fn judge(&self, world: &World) -> Result<(), String> {
        let away: Vec<_> = world
            .machines
            .values()
            .filter(|machine| machine.away())
            .collect();
        for machine in &away {
            if !world.store.places.now().contains_key(&machine.uid) {
                return Err(format!("{} is away without a place", machine.uid.0));
            }
        }
        let control_plane = away.iter().filter(|machine| {
            world
                .store
                .nodes
                .now()
                .get(&machine.uid)
                .is_some_and(|stored| stored.node.control_plane)
        });
        if control_plane.count() > 1 {
            return Err("two nodes of the control plane are away".to_owned());
        }
        let permits: Vec<_> = away
            .iter()
            .filter_map(|machine| self.permits.get(&machine.uid))
            .collect();
        if permits.len() < away.len() {
            return Err("a node is away that nobody let go".to_owned());
        }
        let last = away
            .iter()
            .max_by_key(|machine| self.claims.get(&machine.uid));
        let Some(last) = last.and_then(|machine| self.permits.get(&machine.uid)) else {
            return Ok(());
        };
        // Who was ill before any of them was let go was known to all who let one go.
        let known = permits.iter().map(|permit| permit.nodes).min().unwrap_or(0);
        let ill = world.machines.values().filter(|machine| {
            !machine.away()
                && machine.unavailable_by_others()
                && machine.ill_since.is_some_and(|since| since <= known)
                && last.targets.contains(&machine.uid)
        });
        let count = away.len() + ill.count();
        if count > last.limit {
            return Err(format!(
                "{count} are unavailable where {} may be",
                last.limit
            ));
        }
        Ok(())
    }
}
