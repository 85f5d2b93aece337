//! What a node went through: its story, for a test that fails, and the states that it was in.

use std::hash::{DefaultHasher, Hash, Hasher};

use slotd_engine::{Command, Point, Slot, SlotState};

use super::{Content, Fault, Node};

/// What happened, put into words only where a test fails.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Turn(Point, Command),
    Boot(Slot, [SlotState; 2]),
    Fault(Fault),
}

impl Node {
    /// The faults that are planned and all that happened, for a test that fails.
    pub(crate) fn story(&self) -> String {
        let lines = self.log.iter().map(|told| match told {
            Told::Turn(at, command) => format!("{at:?} {command:?}"),
            Told::Boot(slot, loader) => format!("boot {slot} {loader:?}"),
            Told::Fault(fault) => format!("FAULT {fault:?}"),
        });
        let plan = format!("{:?}", self.plan);
        std::iter::once(plan)
            .chain(lines)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// What tells one state from another: where the record stands, and what disk, loader and power are like. No times.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let upgrade = self.record.upgrade.as_ref();
        self.record.at.hash(&mut hasher);
        upgrade
            .map(|upgrade| {
                (
                    upgrade.attempt,
                    upgrade.tries,
                    upgrade.restarts,
                    upgrade.trials,
                )
            })
            .hash(&mut hasher);
        self.loader
            .map(|state| match state {
                SlotState::Good => (0, 0, 0),
                SlotState::Trial { left, done } => (1, left, done),
                SlotState::Bad => (2, 0, 0),
                SlotState::Empty => (3, 0, 0),
            })
            .hash(&mut hasher);
        self.disk
            .map(|content| match content {
                Content::Image(number, _) => Some(number),
                Content::Partial => None,
            })
            .hash(&mut hasher);
        self.marker.hash(&mut hasher);
        (self.order(), self.booted).hash(&mut hasher);
        (self.bench, self.stored.is_some()).hash(&mut hasher);
        (self.going_down, self.boot_complete, self.settled).hash(&mut hasher);
        hasher.finish()
    }

    /// How often a point's command was begun.
    pub(crate) fn turns_at(&self, point: Point) -> usize {
        let here = |told: &&Told| matches!(told, Told::Turn(at, _) if *at == point);
        self.log.iter().filter(here).count()
    }
}
