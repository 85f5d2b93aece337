//! Records that stand at a point, and the world that they meet.

use slotd_engine::{Command, Observation, Phase, Point, Record, Slot, SlotState, next};

use super::{Nature, Node, digest};

/// A record that stands at a point of an upgrade from A to B, its image staged.
pub(crate) fn record(at: Point) -> Record {
    let mut node = Node::new(Nature::Healthy);
    node.install(true);
    node.settle();
    assert_eq!(node.record.at, Point::Staged);
    let mut record = node.record;
    record.at = at;
    let upgrade = record.upgrade.as_mut().unwrap();
    upgrade.boot_id = Some("boot-1".to_owned());
    upgrade.granted = 3;
    upgrade.trials = u32::from(at.phase() == Phase::Confirming);
    record
}

pub(crate) fn world(booted: Slot, target: SlotState, boot: u32) -> Observation {
    let mut seen = Node::new(Nature::Healthy).observe();
    seen.world.booted = Some(booted);
    seen.world.loader = Some([SlotState::Good, target]);
    seen.world.boot_id = format!("boot-{boot}");
    seen.world.images[1] = (target != SlotState::Good).then(|| digest(2));
    seen
}

pub(crate) fn step(record: &Record, seen: &Observation) -> (Point, Command) {
    let step = next(record, seen, None);
    (step.record.at, step.command)
}

pub(crate) const TRIAL: SlotState = SlotState::Trial { left: 2, done: 1 };
