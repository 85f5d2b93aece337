//! A boot that is not proven and has nothing good to go back to: neither rebooted nor kept.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use node::points::{TRIAL, record, step, world};
use slotd_engine::{
    Command, ErrorKind, Failure, Outcome, Point, Record, Slot, SlotState, Verdict, next,
};

#[test]
fn a_bad_slot_that_was_started_as_the_last_resort_is_not_rebooted_again() {
    let mut left = record(Point::Return);
    left.upgrade.as_mut().unwrap().failure = Some(Failure::new(ErrorKind::Reject, "web failed"));
    let (to, command) = step(&left, &world(Slot::B, SlotState::Bad, 9));
    assert_eq!(to, Point::Failed);
    assert!(!matches!(command, Command::Reboot { .. }));
}

#[test]
fn an_unhealthy_trial_without_a_good_slot_to_go_back_to_stays() {
    let mut checking = record(Point::Check);
    checking.upgrade.as_mut().unwrap().boot_id = Some("boot-2".to_owned());
    let mut seen = world(Slot::B, TRIAL, 2);
    seen.world.loader = Some([SlotState::Bad, TRIAL]);
    let verdict = Outcome::Verdict(Verdict::Unhealthy {
        check: "web".into(),
        output: "x".into(),
    });
    let after = next(&checking, &seen, Some(&verdict));
    assert_eq!(after.record.at, Point::Failed);
    let failure = after.record.last.clone().unwrap().failure.unwrap();
    assert_eq!(failure.check.as_deref(), Some("web"));
    assert!(failure.reason.contains("nothing to go back to"));
    // In this boot it is over; the trial is not taken up again.
    let mut reported = after.record;
    reported.unreported.clear();
    assert_eq!(step(&reported, &seen).1, Command::Rest);
}

#[test]
fn every_way_to_stay_without_a_good_slot_ends_in_a_release_from_the_trials_guards() {
    let failure = Failure::new(ErrorKind::Reject, "web failed");
    let unhealthy = Outcome::Verdict(Verdict::Unhealthy {
        check: "web".into(),
        output: "x".into(),
    });
    let late = Outcome::Verdict(Verdict::Late {
        check: None,
        output: String::new(),
    });
    let vain = Outcome::Failed(Failure::new(ErrorKind::Unsafe, "slot A is bad"));
    let judged = |at, tries, trials| {
        let mut record = record(at);
        let upgrade = record.upgrade.as_mut().unwrap();
        upgrade.boot_id = Some("boot-2".to_owned());
        (upgrade.tries, upgrade.trials) = (tries, trials);
        upgrade.failure = (at == Point::GiveUp).then(|| failure.clone());
        record
    };
    let good = SlotState::Good;
    for (record, old, target, outcome, boot, reason) in [
        (
            judged(Point::Check, 0, 1),
            SlotState::Bad,
            TRIAL,
            Some(&unhealthy),
            2,
            "nothing to go back to",
        ),
        (
            judged(Point::AwaitBootComplete, 0, 1),
            SlotState::Empty,
            TRIAL,
            Some(&late),
            2,
            "nothing to go back to",
        ),
        (
            judged(Point::Check, 0, 4),
            good,
            TRIAL,
            Some(&unhealthy),
            2,
            "does not count",
        ),
        (
            judged(Point::GiveUp, 2, 1),
            SlotState::Bad,
            TRIAL,
            Some(&vain),
            2,
            "slot A is bad",
        ),
        (
            judged(Point::GiveUp, 0, 1),
            good,
            SlotState::Bad,
            None,
            9,
            "started it once more",
        ),
        (
            Record::default(),
            good,
            SlotState::Bad,
            None,
            9,
            "started it all the same",
        ),
    ] {
        let mut seen = world(Slot::B, target, boot);
        seen.world.loader = Some([old, target]);
        seen.world.settled = false;
        let step = next(&record, &seen, outcome);
        let Command::Stay { reason: said } = &step.command else {
            panic!("{reason}: {:?}", step.command);
        };
        assert!(said.contains(reason), "{reason}: {said}");
        assert_ne!(step.record.at, Point::Completed);
        // Tried again soon: the guards reboot a minute after the deadline.
        let again = next(&step.record, &seen, Some(&vain));
        assert_eq!(again.command, Command::Wait { seconds: 10 }, "{reason}");
        let after = next(&again.record, &seen, Some(&Outcome::Waited));
        assert_eq!(after.command, step.command);
        // Once released, what ended is reported and the node rests.
        seen.world.settled = true;
        let after = next(&after.record, &seen, Some(&Outcome::Done));
        assert!(
            matches!(after.command, Command::Report(_) | Command::Rest),
            "{:?}",
            after.command
        );
    }
}

#[test]
fn a_slot_that_the_loader_does_not_know_or_cannot_be_read_is_not_held_for_a_failed_trial() {
    let mut seen = world(Slot::B, SlotState::Empty, 2);
    seen.world.settled = false;
    assert_eq!(step(&Record::default(), &seen).1, Command::Rest);
    seen.world.loader = None;
    assert!(matches!(
        step(&Record::default(), &seen).1,
        Command::Wait { .. }
    ));
}

#[test]
fn a_trial_that_the_loader_does_not_count_is_not_rebooted_for_ever() {
    let mut checking = record(Point::Check);
    let upgrade = checking.upgrade.as_mut().unwrap();
    upgrade.boot_id = Some("boot-2".to_owned());
    upgrade.trials = 4;
    let verdict = Outcome::Verdict(Verdict::Unhealthy {
        check: "web".into(),
        output: "x".into(),
    });
    let after = next(&checking, &world(Slot::B, TRIAL, 2), Some(&verdict));
    assert_eq!(after.record.at, Point::Failed);
}
