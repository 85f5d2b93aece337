//! An API server of four kinds that keeps every version, so that a cache can be as old as it likes.

use std::collections::BTreeMap;

use slotd_engine::rollout::{
    Action, At, End, Fit, Fleet, ImageId, Limit, Node, NodeUid, Place, Progress, ProgressUid,
    Resolution, Status, Upgrade, UpgradeUid,
};

/// A Node and the version that its agent says runs there.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredNode {
    pub node: Node,
    pub version: u32,
    pub group: u32,
}

/// An upgrade with what a planner is not told.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredUpgrade {
    pub name: String,
    pub created: i64,
    pub attempt: u32,
    pub image: u32,
    pub suspended: bool,
    pub deleting: bool,
    pub bound: bool,
    /// The groups of nodes that it is for, bit by bit.
    pub groups: u32,
    pub max_unavailable: Limit,
    pub max_staging: Option<Limit>,
    pub max_failures: u32,
}

/// A progress object with its resource version.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredProgress {
    pub revision: u64,
    pub upgrade: UpgradeUid,
    pub node: NodeUid,
    pub image: u32,
    pub action: Action,
    pub attempt: u32,
    pub upgrade_attempt: u32,
    pub suspended: bool,
    pub activated: Option<u32>,
    pub deleting: bool,
    pub status: Option<(u32, At)>,
}

/// Every version of one kind.
#[derive(Clone, Debug)]
pub struct History<T>(Vec<T>);

impl<T: Clone + Default + PartialEq> History<T> {
    pub fn new() -> Self {
        Self(vec![T::default()])
    }

    pub fn now(&self) -> &T {
        self.0.last().unwrap()
    }

    pub fn latest(&self) -> usize {
        self.0.len() - 1
    }

    pub fn at(&self, version: usize) -> &T {
        &self.0[version]
    }

    pub fn change(&mut self, change: impl FnOnce(&mut T)) {
        let mut next = self.now().clone();
        change(&mut next);
        if next != *self.now() {
            self.0.push(next);
        }
    }
}

pub type Nodes = BTreeMap<NodeUid, StoredNode>;
pub type Upgrades = BTreeMap<UpgradeUid, StoredUpgrade>;
pub type Objects = BTreeMap<ProgressUid, StoredProgress>;
pub type Places = BTreeMap<NodeUid, Place>;

/// The API server.
#[derive(Clone, Debug)]
pub struct Store {
    pub nodes: History<Nodes>,
    pub upgrades: History<Upgrades>,
    pub progress: History<Objects>,
    pub places: History<Places>,
    pub uids: u64,
}

/// How old each part of a cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    pub nodes: usize,
    pub upgrades: usize,
    pub progress: usize,
    pub places: usize,
}

impl Store {
    pub fn new() -> Self {
        Self {
            nodes: History::new(),
            upgrades: History::new(),
            progress: History::new(),
            places: History::new(),
            uids: 0,
        }
    }

    /// The newest version of everything.
    pub fn latest(&self) -> Seen {
        Seen {
            nodes: self.nodes.latest(),
            upgrades: self.upgrades.latest(),
            progress: self.progress.latest(),
            places: self.places.latest(),
        }
    }

    pub fn uid(&mut self) -> u64 {
        self.uids += 1;
        self.uids
    }

    /// Changes a progress object; its revision rises.
    pub fn edit(&mut self, uid: &ProgressUid, change: impl FnOnce(&mut StoredProgress)) {
        let revision = self.uid();
        self.progress.change(|objects| {
            if let Some(object) = objects.get_mut(uid) {
                let before = object.clone();
                change(object);
                if *object != before {
                    object.revision = revision;
                }
            }
        });
    }

    /// Deletes a progress object, or marks it where a finalizer holds it.
    pub fn delete(&mut self, uid: &ProgressUid) {
        let bound = self
            .progress
            .now()
            .get(uid)
            .is_some_and(|object| object.activated.is_some());
        if bound {
            self.edit(uid, |object| object.deleting = true);
        } else {
            self.progress.change(|objects| {
                objects.remove(uid);
            });
        }
    }

    /// Takes the finalizer off a progress object.
    pub fn unbind(&mut self, uid: &ProgressUid) {
        self.edit(uid, |object| object.activated = None);
        let going = self
            .progress
            .now()
            .get(uid)
            .is_some_and(|object| object.deleting);
        if going {
            self.delete(uid);
        }
    }

    /// Deletes an upgrade, or marks it where a finalizer holds it; what it owns goes after it.
    pub fn delete_upgrade(&mut self, uid: &UpgradeUid) {
        let bound = self
            .upgrades
            .now()
            .get(uid)
            .is_some_and(|upgrade| upgrade.bound);
        self.upgrades.change(|upgrades| {
            if bound {
                upgrades.get_mut(uid).unwrap().deleting = true;
            } else {
                upgrades.remove(uid);
            }
        });
        if !bound {
            let owned: Vec<_> = self
                .progress
                .now()
                .iter()
                .filter(|(_, object)| object.upgrade == *uid)
                .map(|(uid, _)| uid.clone())
                .collect();
            for object in owned {
                self.delete(&object);
            }
        }
    }

    /// What a cache holds.
    pub fn fleet(&self, seen: Seen) -> Fleet {
        let nodes = self.nodes.at(seen.nodes);
        let upgrades = self.upgrades.at(seen.upgrades);
        let progress = self.progress.at(seen.progress);
        Fleet {
            nodes: nodes.values().map(|stored| stored.node.clone()).collect(),
            upgrades: upgrades
                .iter()
                .map(|(uid, stored)| upgrade(uid, stored, nodes))
                .collect(),
            progress: progress
                .iter()
                .map(|(uid, stored)| object(uid, stored, nodes))
                .collect(),
            places: self.places.at(seen.places).values().cloned().collect(),
        }
    }
}

fn upgrade(uid: &UpgradeUid, stored: &StoredUpgrade, nodes: &Nodes) -> Upgrade {
    Upgrade {
        uid: uid.clone(),
        name: stored.name.clone(),
        created: stored.created,
        attempt: stored.attempt,
        suspended: stored.suspended,
        deleting: stored.deleting,
        bound: stored.bound,
        completed: false,
        resolution: Resolution::Image(image(stored.image)),
        matches: nodes
            .iter()
            .filter(|(_, node)| stored.groups & (1 << node.group) != 0)
            .map(|(uid, node)| {
                let fit = if node.version == stored.image {
                    Fit::Runs
                } else {
                    Fit::Follows
                };
                (uid.clone(), fit)
            })
            .collect(),
        max_unavailable: stored.max_unavailable,
        max_staging: stored.max_staging,
        max_failures: stored.max_failures,
    }
}

fn object(uid: &ProgressUid, stored: &StoredProgress, nodes: &Nodes) -> Progress {
    Progress {
        uid: uid.clone(),
        name: uid.0.clone(),
        upgrade: Some(stored.upgrade.clone()),
        node: stored.node.clone(),
        image: image(stored.image),
        action: stored.action,
        attempt: stored.attempt,
        upgrade_attempt: stored.upgrade_attempt,
        suspended: stored.suspended,
        activated: stored.activated,
        deleting: stored.deleting,
        runs_target: nodes
            .get(&stored.node)
            .is_some_and(|node| node.version == stored.image),
        status: stored.status.map(|(attempt, at)| Status {
            attempt,
            at,
            ended: None,
            failure: slotd_engine::rollout::Failure::default(),
        }),
    }
}

fn image(version: u32) -> ImageId {
    ImageId(version.to_string())
}

/// Whether an attempt is over in a stored object.
pub fn ended(object: &StoredProgress) -> Option<End> {
    match object.status {
        Some((attempt, At::Ended(end))) if attempt == object.attempt => Some(end),
        _ => None,
    }
}
