//! The model's judge can tell: each promise, broken on purpose at an effect, is named.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use std::panic::{AssertUnwindSafe, catch_unwind};

use node::{Content, Nature, Node, SECRET};
use slotd_engine::{Command, Drain, Point, Result as Ending, Slot, SlotState};

/// A node on slot A with a verified image in B, which the loader does not know yet.
fn staged() -> Node {
    let mut node = Node::new(Nature::Healthy);
    node.install(true);
    node.settle();
    assert_eq!(node.record.at, Point::Staged);
    node
}

/// The same at a point, and its record says so.
fn at(point: Point) -> Node {
    let mut node = staged();
    let mut record = node.record.clone();
    record.at = point;
    node.resume(record);
    node
}

fn arm(node: &mut Node) {
    let upgrade = node.record.upgrade.clone().unwrap();
    let proof = node.observe().world.staged_for(&upgrade).unwrap();
    node.effect(&Command::Arm(proof), None);
}

fn breaks(promise: &str, mut node: Node, act: impl FnOnce(&mut Node)) {
    let panic = catch_unwind(AssertUnwindSafe(|| act(&mut node)));
    let Err(panic) = panic else {
        panic!("nobody noticed: {promise}\n{}", node.story());
    };
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.starts_with(promise), "{promise}: {text}");
}

const LOOK: Command = Command::RunChecks { deadline: 600 };

#[test]
fn one_the_booted_slot() {
    for command in [
        Command::Preflight { slot: Slot::A },
        Command::Invalidate { slot: Slot::A },
        Command::Write { slot: Slot::A },
        Command::Discard { slot: Slot::A },
    ] {
        breaks(
            "promise 1: the booted slot is worked on",
            staged(),
            |node| {
                node.effect(&command, None);
            },
        );
    }
    breaks("promise 1: the booted slot was written", staged(), |node| {
        node.disk[0] = Content::Image(2, Nature::Healthy);
        node.effect(&LOOK, None);
    });
}

#[test]
fn two_a_good_slot_that_can_be_selected() {
    for other in [
        SlotState::Empty,
        SlotState::Bad,
        SlotState::Trial { left: 3, done: 0 },
    ] {
        breaks("promise 2", staged(), |node| {
            node.loader = [SlotState::Bad, other];
            node.effect(&LOOK, None);
        });
    }
    breaks("promise 3: a partial image is selected", staged(), |node| {
        node.loader[1] = SlotState::Good;
        node.loader[0] = SlotState::Bad;
        node.disk[1] = Content::Partial;
        node.effect(&LOOK, None);
    });
}

#[test]
fn three_only_what_was_read_back_is_tried() {
    for content in [Content::Partial, Content::Image(9, Nature::Healthy)] {
        breaks("promise 3: armed", at(Point::Arm), |node| {
            node.disk[1] = content;
            arm(node);
        });
    }
    breaks("promise 3: on trial, and not read back", staged(), |node| {
        node.loader[1] = SlotState::Trial { left: 3, done: 0 };
        node.marker[1] = None;
        node.effect(&LOOK, None);
    });
}

#[test]
fn four_the_truth_and_all_of_it() {
    let mut ended = Node::new(Nature::Healthy);
    ended.upgrade();
    let success = ended.record.last.clone().unwrap();
    assert_eq!(success.result, Ending::Completed);
    breaks("promise 4: a success that is none", staged(), |node| {
        node.record.last = Some(success.clone());
        node.reported();
    });
    for result in [Ending::Failed, Ending::Cancelled] {
        breaks("promise 4: a success is not told", ended.clone(), |node| {
            node.record.last.as_mut().unwrap().result = result;
            node.reported();
        });
    }
    breaks(
        "promise 4: a rollback that is none",
        ended.clone(),
        |node| {
            node.record.last.as_mut().unwrap().result = Ending::RolledBack;
            node.reported();
        },
    );
    breaks(
        "promise 4: one end after another",
        ended.clone(),
        Node::reported,
    );
    breaks("promise 4: an end is not told", ended, |node| {
        node.history.clear();
        node.told_all();
    });
    breaks(
        "promise 4: begun, and nothing recorded",
        at(Point::Staged),
        |node| {
            node.record.at = Point::Arm;
            arm(node);
        },
    );
}

#[test]
fn five_trials_are_bounded_and_a_proven_slot_stays_proven() {
    breaks("promise 5: reboots without an end", staged(), |node| {
        for _ in 0..9 {
            node.effect(&Command::Reboot { forced: true }, None);
        }
    });
    breaks("promise 5: a proven slot is given up", staged(), |node| {
        node.loader[1] = SlotState::Good;
        node.effect(&Command::MarkBad { slot: Slot::B }, None);
    });
    breaks("promise 5: more trial boots", at(Point::Arm), |node| {
        arm(node);
        for _ in 0..4 {
            node.loader[1] = SlotState::Trial { left: 3, done: 0 };
            node.power_cycle();
        }
        node.effect(&LOOK, None);
    });
}

#[test]
fn six_a_trial_boot_needs_nobody() {
    let drain = Drain {
        timeout: 300,
        force: true,
    };
    for command in [Command::Preflight { slot: Slot::A }, Command::Drain(drain)] {
        breaks("promise", at(Point::Arm), |node| {
            arm(node);
            node.power_cycle();
            node.effect(&command, None);
        });
    }
}

#[test]
fn eight_on_to_a_reboot_only_when_drained() {
    let drained = |node: &mut Node| {
        let mut record = node.record.clone();
        record.upgrade.as_mut().unwrap().drain = Some(Drain {
            timeout: 300,
            force: false,
        });
        node.resume(record);
    };
    breaks("promise 8", at(Point::Arm), |node| {
        drained(node);
        arm(node);
    });
    breaks("promise 8", at(Point::Restart), |node| {
        drained(node);
        node.effect(&Command::Reboot { forced: false }, None);
    });
}

#[test]
fn nine_what_failed_here_is_not_tried_again_by_itself() {
    let mut failed = Node::new(Nature::Unhealthy);
    failed.upgrade();
    failed.install(true);
    failed.settle();
    breaks("promise 9", failed, |node| {
        let mut record = node.record.clone();
        record.at = Point::Arm;
        let request = record.upgrade.as_mut().unwrap().request.as_mut();
        request.unwrap().asked_anew = false;
        node.resume(record);
        arm(node);
    });
}

#[test]
fn ten_no_secret_is_told() {
    breaks("promise 10", staged(), |node| {
        let reason = format!("https://example.com/?token={SECRET}");
        node.effect(&Command::Stay { reason }, None);
    });
    let mut ended = Node::new(Nature::Unhealthy);
    ended.upgrade();
    breaks("promise 10", ended, |node| {
        let last = node.record.last.as_mut().unwrap();
        last.failure.as_mut().unwrap().reason = SECRET.to_owned();
        node.reported();
    });
}

#[test]
fn eleven_what_was_refused_is_neither_written_nor_tried() {
    breaks("promise 11: begun", at(Point::Invalidate), |node| {
        node.daemon_restart();
        node.effect(&Command::Invalidate { slot: Slot::B }, None);
    });
    breaks(
        "promise 11: a refused image on trial",
        at(Point::Arm),
        |node| {
            node.disk[1] = Content::Image(2, Nature::Unfit);
            arm(node);
        },
    );
}
