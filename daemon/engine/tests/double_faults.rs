//! Every pair of faults at every two effects of each life of a node: whatever comes together, the node ends on a good slot
//! and says so. The model checks the promises after every effect.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use node::{FAULTS, Fault, NATURES, Nature, Node};
use slotd_engine::{Drain, Point, Request, Result as Ending, Slot, SlotState};

/// A life: an image is asked for, or the way back.
type Live = fn(&mut Node);

fn staged_then_drained(node: &mut Node) {
    node.install(true);
    node.settle();
    // As the cluster does: what was not taken, because it could not be recorded, is asked for again.
    for _ in 0..4 {
        if node.record.at != Point::Staged {
            break;
        }
        let drain = Drain {
            timeout: 300,
            force: false,
        };
        node.ask(Request::Activate { drain: Some(drain) });
        node.settle();
    }
}

fn rollback(node: &mut Node) {
    node.ask(Request::Rollback { version: None });
    node.settle();
}

fn cancelled_once_staged(node: &mut Node) {
    node.install(true);
    node.settle();
    node.ask(Request::Cancel(node.record.last_id));
    node.settle();
}

/// What was lived through.
#[derive(Default)]
struct Explored {
    lives: usize,
    effects: usize,
}

/// Two faults at any two effects of the life that has none, or of those that the first fault adds.
fn every_pair(nature: Nature, live: Live) -> Explored {
    let mut explored = Explored::default();
    let mut plain = Node::new(nature);
    live(&mut plain);
    assert!(plain.effects > 1);
    for first in 0..plain.effects {
        for one in FAULTS {
            let mut single = Node::new(nature);
            single.plan = vec![(first, one)];
            live(&mut single);
            for second in first + 1..single.effects {
                for two in FAULTS {
                    let mut node = Node::new(nature);
                    node.plan = vec![(first, one), (second, two)];
                    live(&mut node);
                    explored.lives += 1;
                    judge(&node, nature);
                    explored.effects += node.effects;
                }
            }
        }
    }
    explored
}

fn judge(node: &Node, nature: Nature) {
    let story = || node.story();
    assert_eq!(node.state(node.booted), SlotState::Good, "{}", story());
    let fit = node.booted == Slot::A || nature == Nature::Healthy;
    assert!(fit, "the image that is unfit runs\n{}", story());
    if node.last() == Some(Ending::Completed) {
        assert_eq!(nature, Nature::Healthy, "{}", story());
    }
    let lost = node
        .plan
        .iter()
        .any(|(_, fault)| *fault == Fault::RecordLost);
    assert!(
        lost || !node.ended.is_empty(),
        "nothing was reported\n{}",
        story()
    );
    let mut later = node.clone();
    later.plan.clear();
    later.power_cycle();
    later.settle();
    assert_eq!(later.booted, node.booted, "it does not rest\n{}", story());
}

fn explore(natures: &[Nature], live: Live) {
    for nature in natures {
        let explored = every_pair(*nature, live);
        println!(
            "counted: {nature:?}: {} lives with two faults each, {} effects",
            explored.lives, explored.effects
        );
        // What is refused at once has two effects.
        let least = if *nature == Nature::Refused {
            100
        } else {
            1000
        };
        assert!(explored.lives > least, "{}", explored.lives);
    }
}

#[test]
fn of_an_upgrade() {
    explore(&NATURES, Node::upgrade);
}

#[test]
fn of_an_image_that_is_staged_first_and_whose_node_is_drained() {
    explore(&NATURES, staged_then_drained);
}

#[test]
fn of_a_deliberate_rollback() {
    explore(&[Nature::Healthy], rollback);
}

#[test]
fn of_a_staged_image_that_is_taken_back() {
    explore(&[Nature::Healthy, Nature::Unfit], cancelled_once_staged);
}
