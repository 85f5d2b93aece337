//! One node: a machine with an agent that does what its progress objects say, and loses nothing of what it promises.

use std::collections::BTreeMap;

use slotd_engine::rollout::{Action, At, End, NodeUid, ProgressUid};

use super::random::Random;
use super::store::{Objects, Store};

/// Where a machine is in an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Staging,
    Staged,
    Draining,
    Restarting,
    Trial,
}

/// What it works on.
#[derive(Clone, Debug)]
pub struct Work {
    pub progress: ProgressUid,
    pub attempt: u32,
    pub image: u32,
    pub stage: Stage,
}

/// A machine. What it remembers survives everything but its own end.
#[derive(Clone, Debug)]
pub struct Machine {
    pub uid: NodeUid,
    pub version: u32,
    pub work: Option<Work>,
    ended: BTreeMap<(ProgressUid, u32), End>,
    /// The kubelet is not up again after our restart.
    pub starting: bool,
    pub cordoned: bool,
    /// Others: not Ready, cordoned.
    pub ill: bool,
    pub cordoned_by_others: bool,
    /// The version of the nodes since which it was unavailable without us.
    pub ill_since: Option<usize>,
    seen: usize,
}

impl Machine {
    pub fn new(uid: NodeUid, version: u32) -> Self {
        Self {
            uid,
            version,
            work: None,
            ended: BTreeMap::new(),
            starting: false,
            cordoned: false,
            ill: false,
            cordoned_by_others: false,
            ill_since: None,
            seen: 0,
        }
    }

    /// Whether it takes no work on our account.
    pub fn away(&self) -> bool {
        let stage = self.work.as_ref().map(|work| work.stage);
        self.starting
            || matches!(
                stage,
                Some(Stage::Draining | Stage::Restarting | Stage::Trial)
            )
    }

    /// Whether it is unavailable whatever we do.
    pub fn unavailable_by_others(&self) -> bool {
        self.ill || self.cordoned_by_others
    }

    /// Looks at its objects, as old as they may be.
    pub fn look(&mut self, store: &Store, random: &mut Random, whole: bool) {
        let latest = store.progress.latest();
        self.seen = if whole {
            latest
        } else {
            random.between(self.seen, latest)
        };
    }

    /// One step of its agent.
    pub fn act(&mut self, store: &mut Store, random: &mut Random, healthy: bool) {
        let objects = store.progress.at(self.seen).clone();
        let Some(work) = self.work.clone() else {
            self.begin(&objects);
            return;
        };
        let object = objects.get(&work.progress);
        let stopped = object.is_none_or(|object| object.deleting || object.attempt != work.attempt);
        if stopped && !matches!(work.stage, Stage::Restarting | Stage::Trial) {
            self.end(store, &work, End::Failed);
            return;
        }
        let fails = !healthy && random.chance(3);
        match work.stage {
            Stage::Staging if fails => self.end(
                store,
                &work,
                if random.chance(30) {
                    End::Refused
                } else {
                    End::Failed
                },
            ),
            Stage::Staging => self.go(Stage::Staged),
            Stage::Staged => {
                if object
                    .is_some_and(|object| object.action == Action::Activate && !object.suspended)
                {
                    self.cordoned = !self.cordoned_by_others;
                    self.go(Stage::Draining);
                }
            }
            Stage::Draining if fails => self.end(store, &work, End::Failed),
            Stage::Draining => {
                self.starting = true;
                self.go(Stage::Restarting);
            }
            Stage::Restarting => {
                if !fails {
                    self.version = work.image;
                }
                self.go(Stage::Trial);
            }
            Stage::Trial => {
                let end = if self.version == work.image {
                    End::Completed
                } else {
                    End::RolledBack
                };
                self.end(store, &work, end);
            }
        }
        self.write_node(store);
    }

    fn begin(&mut self, objects: &Objects) {
        let next = objects.iter().find(|(uid, object)| {
            object.node == self.uid
                && !object.deleting
                && !object.suspended
                && !self.ended.contains_key(&((*uid).clone(), object.attempt))
        });
        self.work = next.map(|(uid, object)| Work {
            progress: uid.clone(),
            attempt: object.attempt,
            image: object.image,
            stage: Stage::Staging,
        });
    }

    fn go(&mut self, stage: Stage) {
        if let Some(work) = &mut self.work {
            work.stage = stage;
        }
    }

    /// Its cordon is taken back before the end is told.
    fn end(&mut self, store: &mut Store, work: &Work, end: End) {
        self.cordoned = false;
        self.write_node(store);
        self.ended
            .insert((work.progress.clone(), work.attempt), end);
        self.work = None;
    }

    /// The kubelet is up again.
    pub fn started(&mut self, store: &mut Store) {
        if !matches!(
            self.work.as_ref().map(|work| work.stage),
            Some(Stage::Restarting)
        ) {
            self.starting = false;
            self.write_node(store);
        }
    }

    /// Brings its Node up to date.
    pub fn write_node(&self, store: &mut Store) {
        let (ready, unschedulable) = (
            !self.ill && !self.starting,
            self.cordoned || self.cordoned_by_others,
        );
        store.nodes.change(|nodes| {
            if let Some(stored) = nodes.get_mut(&self.uid) {
                stored.version = self.version;
                stored.node.ready = ready;
                stored.node.unschedulable = unschedulable;
                stored.node.cordoned_by_us = self.cordoned;
            }
        });
    }

    /// Brings the status of its objects up to date.
    pub fn report(&self, store: &mut Store) {
        let seen = store.progress.at(self.seen).clone();
        for (uid, object) in seen.iter().filter(|(_, object)| object.node == self.uid) {
            let working = self.work.as_ref().filter(|work| work.progress == *uid);
            let status = match working {
                Some(work) => Some((
                    work.attempt,
                    match work.stage {
                        Stage::Staging => At::Before,
                        Stage::Staged => At::Staged,
                        Stage::Draining | Stage::Restarting | Stage::Trial => At::Leaving,
                    },
                )),
                // Also of an earlier attempt: one that was raised while it went is never begun.
                None => self
                    .ended
                    .range((uid.clone(), 0)..=(uid.clone(), object.attempt))
                    .next_back()
                    .map(|((_, attempt), end)| (*attempt, At::Ended(*end))),
            };
            if let Some(status) = status {
                store.edit(uid, |object| object.status = Some(status));
            }
        }
    }
}
