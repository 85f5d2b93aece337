//! Every single fault at every effect of an upgrade: the promises hold after each effect (the model checks them), and the
//! node ends where it has to.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use node::{FAULTS, Fault, Nature, Node};
use slotd_engine::{ErrorKind, Point, Request, Result as Ending, Slot, SlotState};

/// How many effects the life has without a fault.
fn effects(mut node: Node, live: fn(&mut Node)) -> usize {
    live(&mut node);
    node.effects
}

fn staged_then_activated(node: &mut Node) {
    node.install(true);
    node.settle();
    if node.record.at == Point::Staged {
        node.ask(Request::Activate { drain: None });
        node.settle();
    }
}

fn every_fault(nature: Nature, live: fn(&mut Node), judge: fn(&Node, usize, Fault)) {
    let count = effects(Node::new(nature), live);
    assert!(count > 3);
    for at in 0..count {
        for fault in FAULTS {
            let mut node = Node::new(nature);
            node.plan = vec![(at, fault)];
            live(&mut node);
            judge(&node, at, fault);
        }
    }
}

fn story(node: &Node, at: usize, fault: Fault) -> String {
    format!("{fault:?} at effect {at}\n{}", node.story())
}

/// A node that is all right: it rests on a good slot, and five more power cycles change nothing.
fn steady(node: &Node, at: usize, fault: Fault) {
    assert_eq!(
        node.state(node.booted),
        SlotState::Good,
        "{}",
        story(node, at, fault)
    );
    let mut later = node.clone();
    later.plan.clear();
    for _ in 0..5 {
        later.power_cycle();
        later.settle();
        assert_eq!(later.booted, node.booted, "{}", story(&later, at, fault));
        assert_eq!(later.last(), node.last(), "{}", story(&later, at, fault));
    }
}

#[test]
fn a_healthy_image_survives_every_crash_and_power_cut() {
    for live in [Node::upgrade as fn(&mut Node), staged_then_activated] {
        every_fault(Nature::Healthy, live, |node, at, fault| {
            steady(node, at, fault);
            match fault {
                // The loader lost the entry, so the old slot runs, and that is what is said.
                Fault::PowerWithin if node.struck.contains(&(fault, "MarkGood")) => {
                    assert_eq!(node.last(), Some(Ending::RolledBack));
                    assert_eq!(node.booted, Slot::A);
                }
                Fault::DaemonBefore
                | Fault::DaemonAfter
                | Fault::PowerBefore
                | Fault::PowerWithin
                | Fault::PowerAfter => {
                    assert_eq!(
                        node.last(),
                        Some(Ending::Completed),
                        "{}",
                        story(node, at, fault)
                    );
                    assert_eq!(node.booted, Slot::B);
                }
                _ => {}
            }
        });
    }
}

#[test]
fn failing_to_record_success_is_never_ill_health() {
    let mut node = Node::new(Nature::Healthy);
    node.install(false);
    node.run_to(Point::Bless);
    let at = node.effects;
    node.plan = (0..12)
        .map(|more| (at + more, Fault::Error(ErrorKind::Configuration)))
        .collect();
    node.settle();
    assert_eq!(node.last(), Some(Ending::Completed));
    assert_eq!(node.booted, Slot::B);
    assert_eq!(node.boots, 1, "it did not reboot over it");
}

#[test]
fn an_unhealthy_image_always_ends_on_the_old_slot() {
    for nature in [Nature::Unhealthy, Nature::Panics, Nature::Hangs] {
        every_fault(nature, Node::upgrade, |node, at, fault| {
            steady(node, at, fault);
            assert_eq!(node.booted, Slot::A, "{}", story(node, at, fault));
            assert_ne!(
                node.last(),
                Some(Ending::Completed),
                "{}",
                story(node, at, fault)
            );
            let started = node
                .ended
                .last()
                .is_some_and(|ended| ended.result == Ending::RolledBack);
            if started {
                let state = node.state(Slot::B);
                assert_eq!(state, SlotState::Bad, "{}", story(node, at, fault));
            }
        });
    }
}

#[test]
fn a_power_cut_loses_no_verdict() {
    let count = effects(Node::new(Nature::Unhealthy), Node::upgrade);
    for at in 0..count {
        for fault in [
            Fault::PowerBefore,
            Fault::PowerAfter,
            Fault::DaemonBefore,
            Fault::DaemonAfter,
        ] {
            let mut node = Node::new(Nature::Unhealthy);
            node.plan = vec![(at, fault)];
            node.upgrade();
            let ended = node.ended.last().unwrap();
            assert_eq!(
                ended.result,
                Ending::RolledBack,
                "{}",
                story(&node, at, fault)
            );
            let failure = ended.failure.as_ref().unwrap();
            assert_eq!(
                failure.check.as_deref(),
                Some("web"),
                "{}",
                story(&node, at, fault)
            );
            assert_eq!(failure.output.as_deref(), Some("connection refused"));
        }
    }
}

#[test]
fn a_refused_image_leaves_the_slot_empty() {
    every_fault(Nature::Unfit, Node::upgrade, |node, at, fault| {
        steady(node, at, fault);
        assert_eq!(node.booted, Slot::A);
        assert_eq!(
            node.boots,
            u32::from(is_power(fault)),
            "{}",
            story(node, at, fault)
        );
        let never_armed = matches!(node.state(Slot::B), SlotState::Empty | SlotState::Good);
        assert!(never_armed, "{}", story(node, at, fault));
    });
}

fn is_power(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::PowerBefore | Fault::PowerWithin | Fault::PowerAfter | Fault::RecordLost
    )
}

#[test]
fn a_deliberate_rollback_survives_every_fault() {
    fn live(node: &mut Node) {
        node.ask(Request::Rollback { version: None });
        node.settle();
    }
    every_fault(Nature::Healthy, live, |node, at, fault| {
        steady(node, at, fault);
        if matches!(
            fault,
            Fault::DaemonBefore | Fault::DaemonAfter | Fault::PowerBefore
        ) {
            assert_eq!(node.booted, Slot::B, "{}", story(node, at, fault));
            assert_eq!(
                node.last(),
                Some(Ending::RolledBack),
                "{}",
                story(node, at, fault)
            );
        }
    });
}

#[test]
fn cancelling_at_any_moment_before_the_trial_goes_back_to_nothing() {
    let points = [
        Point::Preflight,
        Point::Invalidate,
        Point::Write,
        Point::PrepareBoot,
        Point::Staged,
        Point::Arm,
        Point::Restart,
    ];
    for at in points {
        for fault in std::iter::once(None).chain(FAULTS.map(Some)) {
            let mut node = Node::new(Nature::Healthy);
            node.install(at == Point::Staged);
            node.run_to(at);
            if let Some(fault) = fault {
                node.plan = vec![(node.effects, fault)];
            }
            node.ask(Request::Cancel(1));
            node.settle();
            let text = node.story();
            assert_eq!(
                node.state(node.booted),
                SlotState::Good,
                "{at:?} {fault:?}\n{text}"
            );
            if fault.is_none() {
                assert_eq!(node.last(), Some(Ending::Cancelled), "{at:?}\n{text}");
                assert_eq!(node.record.at, Point::Idle);
                let expected = if at == Point::Preflight {
                    SlotState::Good
                } else {
                    SlotState::Empty
                };
                assert_eq!(node.state(Slot::B), expected, "{at:?}\n{text}");
                assert_eq!(node.boots, 0);
            }
        }
    }
}
