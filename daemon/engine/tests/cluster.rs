//! The node under a wish of the cluster: every cell of the design's table of moments, and every fault on the way.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use node::{FAULTS, Fault, Nature, Node, digest, index, request};
use slotd_engine::{
    Assignment, Drain, ErrorKind, Kind, Point, Request, Result as Ending, Slot, SlotState, Task,
    admit, assign,
};

/// A wish for the image that the model supplies next.
fn wish(attempt: u32) -> Assignment {
    let mut image = request(true);
    image.asked_anew = attempt > 0;
    image.task = Some(Task {
        uid: "progress-1".to_owned(),
        attempt,
        version: "2.0.0".to_owned(),
    });
    Assignment {
        image,
        activate: true,
        suspended: false,
        drain: Drain {
            timeout: 600,
            force: false,
        },
    }
}

/// The same object with another image.
fn edited() -> Assignment {
    let mut wish = wish(0);
    wish.image.checksum = Some(digest(7));
    if let Some(task) = &mut wish.image.task {
        task.version = "3.0.0".to_owned();
    }
    wish
}

/// What the adapter does between two steps: the wish is told.
fn offer(node: &mut Node, wish: Option<&Assignment>) -> bool {
    let Some(request) = assign(&node.record, wish) else {
        return false;
    };
    if admit(&node.record, &request).is_err() {
        return false;
    }
    node.ask(request);
    true
}

/// Goes on until nothing is left to do.
fn live(node: &mut Node, wish: Option<&Assignment>) {
    for _ in 0..3000 {
        offer(node, wish);
        if !node.turn() && !offer(node, wish) {
            return;
        }
    }
    panic!("no end\n{}", node.story());
}

/// Goes on until the record stands there, before that point's command is carried out.
fn live_to(node: &mut Node, wish: &Assignment, at: Point) {
    for _ in 0..300 {
        offer(node, Some(wish));
        if node.record.at != at && node.stops_at(at) {
            return;
        }
        node.turn();
        if node.record.at == at {
            return;
        }
    }
    panic!("never at {at:?}\n{}", node.story());
}

fn results(node: &Node) -> Vec<Ending> {
    node.history.iter().map(|(_, result)| *result).collect()
}

const BEFORE_THE_REBOOT: [Point; 8] = [
    Point::Preflight,
    Point::Invalidate,
    Point::Write,
    Point::PrepareBoot,
    Point::Staged,
    Point::Drain,
    Point::Arm,
    Point::Restart,
];
const ON_TRIAL: [Point; 3] = [Point::Check, Point::AwaitBootComplete, Point::Bless];

#[test]
fn a_wish_is_staged_drained_and_confirmed_and_the_node_is_uncordoned() {
    let mut node = Node::new(Nature::Healthy);
    live_to(&mut node, &wish(0), Point::Restart);
    assert!(node.cordoned);
    live(&mut node, Some(&wish(0)));
    assert_eq!(results(&node), [Ending::Completed]);
    assert_eq!((node.booted, node.cordoned), (Slot::B, false));
    let task = wish(0).image.task.unwrap();
    assert_eq!(node.record.ended(&task).unwrap().result, Ending::Completed);
}

#[test]
fn a_wish_to_stage_waits_staged_and_a_held_one_is_uncordoned_and_goes_on_when_allowed() {
    let mut stage = wish(0);
    stage.activate = false;
    let mut suspended = wish(0);
    suspended.suspended = true;
    let mut node = Node::new(Nature::Healthy);
    live(&mut node, Some(&suspended));
    assert_eq!(node.record.at, Point::Idle, "it starts nothing");
    live(&mut node, Some(&stage));
    assert_eq!((node.record.at, node.cordoned), (Point::Staged, false));
    for held in [stage, suspended] {
        live_to(&mut node, &wish(0), Point::Drain);
        node.cordoned = true;
        live(&mut node, Some(&held));
        assert_eq!((node.record.at, node.cordoned), (Point::Staged, false));
    }
    live(&mut node, Some(&wish(0)));
    assert_eq!(results(&node), [Ending::Completed]);
}

#[test]
fn an_edit_before_the_reboot_is_staged_anew_and_the_first_image_never_runs() {
    for at in BEFORE_THE_REBOOT {
        let mut node = Node::new(Nature::Healthy);
        live_to(&mut node, &wish(0), at);
        node.supply = (7, Nature::Healthy);
        // Approval is revoked: the new image waits.
        let mut stage = edited();
        stage.activate = false;
        live(&mut node, Some(&stage));
        assert_eq!(node.record.at, Point::Staged, "{at:?}");
        assert_eq!((node.boots, node.cordoned), (0, false), "{at:?}");
        live(&mut node, Some(&edited()));
        assert_eq!(
            results(&node),
            [Ending::Cancelled, Ending::Completed],
            "{at:?}"
        );
        assert_eq!(node.marker[index(Slot::B)], Some(digest(7)), "{at:?}");
        assert_eq!(node.boots, 1, "{at:?}");
    }
}

#[test]
fn an_edit_that_is_taken_back_is_staged_like_any_other() {
    for at in BEFORE_THE_REBOOT {
        let mut node = Node::new(Nature::Healthy);
        live_to(&mut node, &wish(0), at);
        node.supply = (7, Nature::Healthy);
        live_to(&mut node, &edited(), Point::Write);
        node.supply = (2, Nature::Healthy);
        live(&mut node, Some(&wish(0)));
        assert_eq!(
            results(&node),
            [Ending::Cancelled, Ending::Cancelled, Ending::Completed],
            "{at:?}"
        );
        assert_eq!(node.marker[index(Slot::B)], Some(digest(2)), "{at:?}");
    }
    // Also after both versions ran: what ended first is not the end of what is asked now.
    let mut node = Node::new(Nature::Healthy);
    live(&mut node, Some(&wish(0)));
    node.supply = (7, Nature::Healthy);
    live(&mut node, Some(&edited()));
    let task = wish(0).image.task.unwrap();
    assert_eq!(node.record.ended(&task), None);
    node.supply = (2, Nature::Healthy);
    live(&mut node, Some(&wish(0)));
    assert_eq!(results(&node), [Ending::Completed; 3]);
}

#[test]
fn a_deletion_before_the_reboot_leaves_an_empty_slot_and_no_cordon() {
    for at in BEFORE_THE_REBOOT {
        let mut node = Node::new(Nature::Healthy);
        live_to(&mut node, &wish(0), at);
        live(&mut node, None);
        assert_eq!(results(&node), [Ending::Cancelled], "{at:?}");
        assert_eq!(
            (node.boots, node.booted, node.cordoned),
            (0, Slot::A, false),
            "{at:?}"
        );
        assert_eq!(
            node.state(Slot::B) == SlotState::Empty,
            at != Point::Preflight,
            "{at:?}"
        );
        assert_eq!(node.record.at, Point::Idle, "{at:?}");
    }
}

#[test]
fn a_trial_boot_is_confirmed_before_an_edit_or_a_deletion_is_heard() {
    for at in ON_TRIAL {
        let mut node = Node::new(Nature::Healthy);
        live_to(&mut node, &wish(0), at);
        let mut deleted = node.clone();
        live(&mut deleted, None);
        assert_eq!(results(&deleted), [Ending::Completed], "{at:?}");
        node.supply = (7, Nature::Healthy);
        live(&mut node, Some(&edited()));
        assert_eq!(
            results(&node),
            [Ending::Completed, Ending::Completed],
            "{at:?}"
        );
        assert_eq!((node.booted, node.cordoned), (Slot::A, false), "{at:?}");
    }
}

#[test]
fn an_ended_attempt_is_not_begun_again_and_a_raised_one_is() {
    let mut node = Node::new(Nature::Unhealthy);
    live(&mut node, Some(&wish(0)));
    assert_eq!(results(&node), [Ending::RolledBack]);
    for _ in 0..3 {
        node.power_cycle();
        node.boots = 0;
        live(&mut node, Some(&wish(0)));
        assert_eq!(results(&node), [Ending::RolledBack]);
    }
    // The image failed here; a raised attempt asks for it anew.
    node.supply = (2, Nature::Healthy);
    live(&mut node, Some(&wish(1)));
    assert_eq!(results(&node), [Ending::RolledBack, Ending::Completed]);
    // What the wish becomes after a success is a new upgrade.
    node.supply = (7, Nature::Healthy);
    let mut next = edited();
    if let Some(task) = &mut next.image.task {
        task.attempt = 1;
    }
    live(&mut node, Some(&next));
    assert_eq!(results(&node).len(), 3);
    assert_eq!(node.booted, Slot::A);
}

#[test]
fn what_somebody_on_the_node_asked_for_ends_before_a_wish_begins() {
    let mut node = Node::new(Nature::Healthy);
    node.install(true);
    node.settle();
    live(&mut node, Some(&wish(0)));
    assert_eq!(node.record.at, Point::Staged);
    assert_eq!(node.record.upgrade.as_ref().unwrap().kind, Kind::Install);
    node.ask(Request::Cancel(1));
    live(&mut node, Some(&wish(0)));
    assert_eq!(results(&node), [Ending::Cancelled, Ending::Completed]);
}

#[test]
fn a_drain_that_fails_leads_to_no_reboot_and_frees_the_node() {
    for kind in [ErrorKind::Retry, ErrorKind::Reject] {
        let mut node = Node::new(Nature::Healthy);
        live_to(&mut node, &wish(0), Point::Drain);
        node.cordoned = true;
        node.plan = vec![(node.effects, Fault::Error(kind))];
        live(&mut node, Some(&wish(0)));
        assert_eq!(results(&node), [Ending::Failed]);
        assert_eq!(
            (node.boots, node.booted, node.cordoned),
            (0, Slot::A, false)
        );
    }
}

#[test]
fn every_fault_on_the_way_of_a_wish_ends_with_the_node_uncordoned_on_a_good_slot() {
    for (nature, wanted) in [(Nature::Healthy, Slot::B), (Nature::Unhealthy, Slot::A)] {
        let mut whole = Node::new(nature);
        live(&mut whole, Some(&wish(0)));
        assert!(whole.effects > 8);
        for at in 0..whole.effects {
            for fault in FAULTS {
                let mut node = Node::new(nature);
                node.plan = vec![(at, fault)];
                live(&mut node, Some(&wish(0)));
                let story = || format!("{fault:?} at {at}\n{}", node.story());
                assert_eq!(node.state(node.booted), SlotState::Good, "{}", story());
                assert!(!node.cordoned, "{}", story());
                if wanted == Slot::A {
                    assert_eq!(node.booted, Slot::A, "{}", story());
                }
                // A rename that is cut off on FAT may cost the entry its name: then the old slot is started, and that is no
                // failure of the way, but of the medium.
                let name_lost = node.struck.contains(&(Fault::PowerWithin, "MarkGood"));
                let crash = !matches!(
                    fault,
                    Fault::Error(_)
                        | Fault::LostAnswer
                        | Fault::Unrecorded
                        | Fault::RecordUnanswered
                        | Fault::RecordLost
                );
                if crash && !name_lost {
                    assert_eq!(node.booted, wanted, "{}", story());
                }
            }
        }
    }
}

#[test]
fn a_raised_attempt_of_a_staged_image_needs_no_other_download_and_holds_a_drain() {
    for at in [Point::Write, Point::Staged, Point::Drain] {
        let mut node = Node::new(Nature::Healthy);
        live_to(&mut node, &wish(0), at);
        if at == Point::Drain {
            node.cordoned = true;
        }
        let mut raised = wish(1);
        raised.activate = false;
        live(&mut node, Some(&raised));
        assert_eq!(node.record.at, Point::Staged, "{at:?}");
        assert!(!node.cordoned, "{at:?}");
        let request = node.record.upgrade.as_ref().unwrap().request.clone();
        assert_eq!(request, Some(raised.image), "{at:?}");
        live(&mut node, Some(&wish(1)));
        assert_eq!(results(&node), [Ending::Completed], "{at:?}");
        assert_eq!(node.turns_at(Point::Write), 1, "{at:?}\n{}", node.story());
        let task = wish(1).image.task.unwrap();
        assert!(node.record.ended(&task).is_some(), "{at:?}");
    }
    // Armed already: it is taken back, since somebody may have counted on that.
    let mut node = Node::new(Nature::Healthy);
    live_to(&mut node, &wish(0), Point::Restart);
    let mut raised = wish(1);
    raised.activate = false;
    live(&mut node, Some(&raised));
    assert_eq!((node.record.at, node.boots), (Point::Staged, 0));
}
