//! A simulated fleet: machines, an API server that keeps every version, and two controllers at once.

pub mod controller;
pub mod machine;
pub mod observer;
pub mod random;
mod settling;
pub mod store;
mod trouble;

use std::collections::BTreeMap;

use slotd_engine::rollout::{Limit, Node, NodeUid, UpgradeUid};

use controller::{Controller, arrive};
use machine::Machine;
use observer::Observer;
use random::Random;
use store::{Store, StoredNode, StoredUpgrade};

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node is activated before its claim was seen stored.
    ActivateUnseen,
    /// The places are overwritten whatever they are by now.
    PlacesUnguarded,
    /// An object is activated whatever it is by now.
    ActivateUnguarded,
    /// A cache that does not hold a thing is believed that it is gone.
    CacheBelieved,
}

pub struct World {
    pub store: Store,
    pub machines: BTreeMap<NodeUid, Machine>,
    pub controllers: [Controller; 2],
    pub observer: Observer,
    pub fault: Option<Fault>,
    /// What happened, the last behind.
    pub story: Vec<String>,
    random: Random,
    names: usize,
    /// How much of a thousand things that happen is trouble.
    trouble: usize,
}

impl World {
    pub fn new(seed: u64, fault: Option<Fault>) -> Self {
        let mut world = Self {
            store: Store::new(),
            machines: BTreeMap::new(),
            controllers: [Controller::default(), Controller::default()],
            observer: Observer::default(),
            fault,
            story: Vec::new(),
            random: Random::new(seed),
            names: 0,
            trouble: 0,
        };
        world.trouble = [3, 10, 40][world.random.below(3)];
        for _ in 0..world.random.between(1, 7) {
            world.join();
        }
        world.ask();
        world
    }

    fn join(&mut self) {
        self.names += 1;
        let uid = NodeUid(format!("n{}", self.names));
        let node = Node {
            uid: uid.clone(),
            name: uid.0.clone(),
            agent: self.random.chance(90),
            ready: true,
            unschedulable: false,
            cordoned_by_us: false,
            control_plane: self.random.chance(30),
            hold: None,
        };
        let group = self.random.small(2);
        self.store.nodes.change(|nodes| {
            nodes.insert(
                uid.clone(),
                StoredNode {
                    node,
                    version: 1,
                    group,
                },
            );
        });
        self.machines.insert(uid.clone(), Machine::new(uid, 1));
    }

    fn ask(&mut self) {
        let number = self.store.uid();
        let limit = |random: &mut Random| match random.below(4) {
            0 => Limit::Percent(50),
            1 => Limit::Nodes(2),
            2 => Limit::Percent(100),
            _ => Limit::Nodes(1),
        };
        let upgrade = StoredUpgrade {
            name: format!("u{number}"),
            created: i64::try_from(number / 7).unwrap(),
            attempt: 0,
            image: 2 + self.random.small(3),
            suspended: false,
            deleting: false,
            bound: false,
            groups: 1 + self.random.small(3),
            max_unavailable: limit(&mut self.random),
            max_staging: (self.random.below(2) == 0).then(|| limit(&mut self.random)),
            max_failures: 1 + self.random.small(3),
        };
        self.store.upgrades.change(|upgrades| {
            upgrades.insert(UpgradeUid(upgrade.name.clone()), upgrade);
        });
    }

    /// One thing happens.
    pub fn step(&mut self) -> Result<(), String> {
        if self.random.below(1000) < self.trouble {
            self.trouble_comes();
            return self.observer.judge(self);
        }
        match self.random.below(100) {
            0..20 => {
                let which = self.random.below(2);
                self.controllers[which].look(&self.store, &mut self.random, false);
            }
            20..32 => {
                let which = self.random.below(2);
                self.controllers[which].plan(&self.store, self.fault);
            }
            32..60 => self.deliver(),
            _ => self.machine(),
        }
        self.observer.judge(self)
    }

    fn deliver(&mut self) {
        let which = self.random.below(2);
        let count = self.controllers[which].sent.len();
        if count == 0 {
            return;
        }
        let index = self.random.below(count);
        let sent = self.controllers[which].sent.remove(index);
        // What waits for very long was lost.
        let late = count.saturating_sub(12);
        self.controllers[which].sent.drain(..late.min(count - 1));
        if self.random.chance(15) {
            return;
        }
        self.arrives(&sent);
    }

    fn arrives(&mut self, sent: &controller::Sent) {
        let before: Vec<_> = self.store.places.now().keys().cloned().collect();
        let was = self.store.latest();
        let activated = arrive(&mut self.store, sent, self.fault);
        for node in self.store.places.now().keys() {
            if !before.contains(node) {
                self.observer.claimed(node.clone());
            }
        }
        if self.store.latest() != was {
            self.story.push(format!("{sent:?}"));
        }
        if let Some(activated) = activated {
            let mut observer = std::mem::take(&mut self.observer);
            observer.activated(self, &activated);
            self.observer = observer;
        }
    }

    fn machine(&mut self) {
        let index = self.random.below(self.machines.len());
        let Some(machine) = self.machines.values_mut().nth(index) else {
            return;
        };
        let stage = machine.work.as_ref().map(|work| work.stage);
        match self.random.below(4) {
            0 => machine.look(&self.store, &mut self.random, false),
            1 => machine.act(&mut self.store, &mut self.random, false),
            2 => machine.report(&mut self.store),
            _ => machine.started(&mut self.store),
        }
        if machine.work.as_ref().map(|work| work.stage) != stage {
            self.story
                .push(format!("{}: {:?}", machine.uid.0, machine.work));
        }
    }

    /// The end of what happened.
    pub fn told(&self) -> String {
        let start = self.story.len().saturating_sub(40);
        self.story[start..].join("\n")
    }
}
