//! What other hands did meanwhile, and what cannot be seen: whose image runs, whether the node is still drained.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use node::points::{TRIAL, record, world};
use node::{Nature, Node, digest, request};
use slotd_engine::{
    Command, Drain, Event, Kind, Outcome, Phase, Point, Record, Request, Result as Ending, Slot,
    SlotState, Verdict, next,
};

/// The points at which the target may come to run, once an image lies in it.
const STAGED: [Point; 10] = [
    Point::Staged,
    Point::Drain,
    Point::Arm,
    Point::Restart,
    Point::Disarm,
    Point::Check,
    Point::AwaitBootComplete,
    Point::Bless,
    Point::GiveUp,
    Point::Return,
];

const ARMED: SlotState = SlotState::Trial { left: 3, done: 0 };
const DRAIN: Drain = Drain {
    timeout: 300,
    force: false,
};

#[test]
fn a_proven_target_that_holds_another_image_is_no_success_and_one_that_nothing_is_known_of_is() {
    for at in STAGED {
        for (lies, result) in [
            (Some(digest(9)), Ending::Failed),
            (Some(digest(2)), Ending::Completed),
            (None, Ending::Completed),
        ] {
            let mut seen = world(Slot::B, SlotState::Good, 2);
            seen.world.images[1] = lies;
            let mut record = record(at);
            let tried = !matches!(at, Point::Staged | Point::Drain);
            if !tried {
                record.upgrade.as_mut().unwrap().boot_id = None;
            }
            let ended = next(&record, &seen, None).record;
            let last = ended.last.unwrap();
            assert_eq!((last.id, last.result), (1, result), "{at:?}");
            assert_eq!(last.failure.is_some(), result == Ending::Failed, "{at:?}");
            // What its own trial came to is not known any more.
            let refused = tried && result == Ending::Failed;
            assert_eq!(ended.refused.len(), usize::from(refused), "{at:?}");
        }
    }
}

#[test]
fn a_success_is_told_also_where_it_was_to_be_discarded() {
    for at in [Point::PrepareBoot, Point::Discard] {
        let mut seen = world(Slot::B, SlotState::Good, 2);
        seen.world.images[1] = Some(digest(2));
        let last = next(&record(at), &seen, None).record.last.unwrap();
        assert_eq!(last.result, Ending::Completed, "{at:?}");
        seen.world.images[1] = Some(digest(9));
        let last = next(&record(at), &seen, None).record.last.unwrap();
        assert_eq!(last.result, Ending::Failed, "{at:?}");
    }
}

#[test]
fn what_became_of_another_image_in_the_target_is_not_told_of_the_upgrades_own_and_it_is_left_there()
{
    for at in STAGED {
        for state in [
            SlotState::Empty,
            SlotState::Bad,
            ARMED,
            TRIAL,
            SlotState::Good,
        ] {
            let mut seen = world(Slot::A, state, 2);
            seen.world.images[1] = Some(digest(9));
            let step = next(&record(at), &seen, None);
            assert_eq!(step.event, Some(Event::Overtaken), "{at:?} {state:?}");
            assert_eq!(step.record.last.unwrap().result, Ending::Failed);
            assert!(matches!(step.command, Command::Report(_)), "{at:?}");
        }
    }
}

/// A drained node whose record stands there, and goes no further: it cannot be written from now on.
fn sealed_at(at: Point) -> Node {
    let mut node = Node::new(Nature::Healthy);
    node.install(true);
    node.settle();
    node.ask(Request::Activate { drain: Some(DRAIN) });
    node.run_to(at);
    assert!(node.cordoned);
    node.trouble.sealed = true;
    node
}

#[test]
fn an_end_that_could_not_be_recorded_leads_to_no_reboot_undrained_after_a_restart() {
    for at in [Point::Arm, Point::Restart] {
        for power in [false, true] {
            let mut node = sealed_at(at);
            node.trouble.blind = true;
            node.ask(Request::Cancel(1));
            for _ in 0..20 {
                node.turn();
            }
            assert_eq!(node.record.phase(), Phase::Failed, "{}", node.story());
            assert!(!node.cordoned);
            node.trouble.sealed = false;
            node.trouble.blind = false;
            if power {
                node.trouble.deaf = true;
                node.power_cycle();
                node.trouble.deaf = false;
            } else {
                node.daemon_restart();
            }
            // The judge asks whether it is drained before it arms and before it reboots.
            node.settle();
            assert_eq!(node.last(), Some(Ending::Completed), "{}", node.story());
            assert_eq!(
                node.turns_at(Point::Drain),
                2 + usize::from(at == Point::Restart) * 2
            );
        }
    }
}

#[test]
fn a_restart_before_the_reboot_takes_the_trial_back_and_drains_again() {
    for boot in [1, 2] {
        let mut armed = record(Point::Restart);
        let upgrade = armed.upgrade.as_mut().unwrap();
        upgrade.drain = Some(DRAIN);
        let mut seen = world(Slot::A, ARMED, boot);
        let again = next(&armed, &seen, None);
        assert_eq!(again.record.at, Point::Drain);
        assert_eq!(again.command, Command::Disarm { slot: Slot::B });
        // A reboot that did not lead into the trial counts all the same.
        let restarts = again.record.upgrade.as_ref().unwrap().restarts;
        assert_eq!(restarts, boot - 1);
        seen.world.loader = Some([SlotState::Good, SlotState::Empty]);
        let back = next(&again.record, &seen, Some(&Outcome::Done));
        assert_eq!(back.record.at, Point::Drain);
        let drain = next(&back.record, &seen, Some(&Outcome::Waited));
        assert_eq!(drain.command, Command::Drain(DRAIN));
        let drained = next(&drain.record, &seen, Some(&Outcome::Drained));
        assert!(matches!(drained.command, Command::Arm(_)));
        // In between somebody may hold it.
        seen.request = Some(Request::Hold);
        let held = next(&back.record, &seen, Some(&Outcome::Waited));
        assert_eq!(held.record.at, Point::Staged);
    }
    // Whoever asked for no drain gets none.
    let step = next(&record(Point::Restart), &world(Slot::A, ARMED, 1), None);
    assert_eq!(step.command, Command::Reboot { forced: false });
}

#[test]
fn a_target_that_runs_is_not_worked_on_while_the_loader_cannot_be_read() {
    for at in [Point::Staged, Point::Drain] {
        for request in [Request::Cancel(1), Request::Retarget(request(true))] {
            let mut seen = world(Slot::B, TRIAL, 2);
            seen.world.loader = None;
            seen.world.images = [None, None];
            seen.request = Some(request);
            let step = next(&record(at), &seen, None);
            assert_eq!(step.record.at, Point::Check, "{at:?}");
        }
    }
}

#[test]
fn nobody_goes_back_while_what_runs_may_be_a_trial_that_cannot_be_seen() {
    let mut seen = world(Slot::B, TRIAL, 2);
    seen.world.loader = None;
    seen.request = Some(Request::Rollback { version: None });
    let refused = next(&Record::default(), &seen, None).record;
    assert_eq!(refused.at, Point::Failed);
    let last = refused.last.unwrap();
    assert_eq!((last.kind, last.slot), (Kind::Rollback, Slot::A));
}

#[test]
fn the_deadline_of_a_trial_is_that_of_its_own_boot() {
    for at in [Point::Check, Point::AwaitBootComplete] {
        let mut checking = record(at);
        checking.upgrade.as_mut().unwrap().boot_id = Some("boot-2".to_owned());
        let mut seen = world(Slot::A, SlotState::Good, 3);
        seen.world.booted = None;
        seen.world.uptime = 10_000;
        let step = next(&checking, &seen, Some(&Outcome::Waited));
        assert_eq!(step.record.at, at);
        assert!(
            matches!(step.command, Command::Wait { .. }),
            "{:?}",
            step.command
        );
    }
}

#[test]
fn a_system_that_is_neither_slot_arms_nothing_without_a_fallback() {
    let mut seen = world(Slot::A, SlotState::Empty, 1);
    seen.world.booted = None;
    let step = next(&record(Point::Arm), &seen, Some(&Outcome::Waited));
    assert!(matches!(step.command, Command::Arm(_)));
    seen.world.loader = Some([SlotState::Bad, SlotState::Empty]);
    let step = next(&record(Point::Arm), &seen, Some(&Outcome::Waited));
    assert!(matches!(step.command, Command::Wait { .. }));
}

#[test]
fn a_rollback_whose_slot_somebody_made_a_trial_of_is_confirmed_or_left_like_any_trial() {
    for (state, booted, ending, result) in [
        (
            SlotState::Good,
            Slot::B,
            Point::Completed,
            Ending::Completed,
        ),
        (
            SlotState::Bad,
            Slot::A,
            Point::RolledBack,
            Ending::RolledBack,
        ),
    ] {
        let mut node = Node::new(Nature::Healthy);
        node.ask(Request::Rollback { version: None });
        node.run_to(Point::Restart);
        let trial = next(&node.record, &world(Slot::B, TRIAL, 2), None);
        assert_eq!(trial.record.at, Point::Check);
        // The next look at the same boot is none at another one: what the checks say is heard.
        let healthy = Outcome::Verdict(Verdict::Healthy);
        let seen = world(Slot::B, TRIAL, 2);
        let checked = next(&trial.record, &seen, Some(&healthy));
        assert_eq!(checked.record.at, Point::AwaitBootComplete);
        assert_eq!(checked.record.upgrade.as_ref().unwrap().trials, 1);
        let ended = next(&checked.record, &world(booted, state, 3), None);
        assert_eq!(ended.record.at, ending);
        let last = ended.record.last.unwrap();
        assert_eq!((last.result, last.slot), (result, Slot::B));
        assert!(ended.record.refused.is_empty());
    }
}

#[test]
fn a_trial_of_another_image_is_no_success_of_the_upgrade_that_it_overtook() {
    for (at, lies, own) in [
        (Point::Staged, digest(2), true),
        (Point::Staged, digest(9), false),
        (Point::Restart, digest(9), false),
        (Point::Discard, digest(9), false),
    ] {
        let mut seen = world(Slot::B, TRIAL, 2);
        seen.world.images[1] = Some(lies);
        let trial = next(&record(at), &seen, None).record;
        assert_eq!(trial.at, Point::Check, "{at:?}");
        let kind = trial.upgrade.as_ref().unwrap().kind;
        assert_eq!(kind == Kind::Install, own, "{at:?}");
        assert_eq!(trial.last.is_none(), own, "{at:?}");
        let ended = next(&trial, &world(Slot::B, SlotState::Good, 2), None);
        let last = ended.record.last.unwrap();
        assert_eq!(
            (last.result, last.kind),
            (Ending::Completed, kind),
            "{at:?}"
        );
    }
    // Not written yet: what runs was there before.
    let mut early = record(Point::Preflight);
    early.upgrade.as_mut().unwrap().image = None;
    let trial = next(&early, &world(Slot::B, TRIAL, 2), None).record;
    assert_eq!(trial.upgrade.unwrap().kind, Kind::Adopted);
    let last = trial.last.unwrap();
    assert_eq!((last.id, last.result), (1, Ending::Failed));
}

#[test]
fn an_edit_is_heard_where_neither_slot_runs() {
    for at in [Point::Preflight, Point::Write] {
        let mut seen = world(Slot::A, SlotState::Empty, 2);
        seen.world.booted = None;
        seen.request = Some(Request::Retarget(request(true)));
        let edited = next(&record(at), &seen, None);
        seen.request = None;
        let begun = match at {
            Point::Write => next(&edited.record, &seen, Some(&Outcome::Done)),
            _ => edited,
        };
        assert_eq!(begun.command, Command::Preflight { slot: Slot::B });
        assert_eq!(begun.record.last.unwrap().result, Ending::Cancelled);
        assert_eq!(begun.record.upgrade.unwrap().id, 2);
    }
}

#[test]
fn a_running_slot_that_was_made_a_trial_is_judged_before_anything_else() {
    for at in [
        Point::Preflight,
        Point::Invalidate,
        Point::Write,
        Point::PrepareBoot,
        Point::Discard,
        Point::Staged,
        Point::Drain,
    ] {
        let mut seen = world(Slot::A, SlotState::Empty, 2);
        seen.world.loader = Some([TRIAL, SlotState::Empty]);
        let ended = next(&record(at), &seen, None).record;
        let last = ended.last.as_ref().unwrap();
        assert_eq!((last.id, last.result), (1, Ending::Failed), "{at:?}");
        let told = Outcome::Reported(1);
        let judged = [None, Some(&told)]
            .into_iter()
            .scan(ended, |record, outcome| {
                let step = next(record, &seen, outcome);
                *record = step.record.clone();
                Some(step)
            })
            .last()
            .unwrap();
        assert_eq!(judged.record.at, Point::Check, "{at:?}");
        let upgrade = judged.record.upgrade.unwrap();
        assert_eq!(
            (upgrade.kind, upgrade.target),
            (Kind::Adopted, Slot::A),
            "{at:?}"
        );
    }
}
