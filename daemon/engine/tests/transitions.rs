//! Single steps: what runs outranks what was recorded, requests get the answer of their moment, bounds hold.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use node::points::{TRIAL, record, step, world};
use node::{Nature, Node, digest, request};
use slotd_engine::{
    Command, ErrorKind, Failure, Image, Outcome, Phase, Point, Record, Refusal, Request,
    Result as Ending, Slot, SlotState, admit, next,
};

#[test]
fn a_booted_good_target_is_a_success_whatever_was_recorded() {
    for at in [
        Point::Staged,
        Point::Arm,
        Point::Restart,
        Point::Disarm,
        Point::Check,
        Point::GiveUp,
    ] {
        let step = next(&record(at), &world(Slot::B, SlotState::Good, 2), None);
        assert_eq!(step.record.at, Point::Completed, "{at:?}");
        assert_eq!(step.record.last.unwrap().result, Ending::Completed);
    }
}

#[test]
fn a_spent_trial_on_the_old_slot_is_a_rollback_with_the_loaders_reason() {
    for spent in [SlotState::Bad, SlotState::Trial { left: 0, done: 3 }] {
        let step = next(&record(Point::Restart), &world(Slot::A, spent, 5), None);
        assert_eq!(step.record.at, Point::RolledBack);
        let failure = step.record.last.unwrap().failure.unwrap();
        assert!(
            failure.reason.contains("gave slot B up after 3 tries"),
            "{}",
            failure.reason
        );
        assert_eq!(step.record.refused[0].digest, digest(2));
    }
}

#[test]
fn a_trial_has_as_many_boots_as_the_loader_gave_it() {
    // The firmware's own boot manager: BootNext is gone once it was followed.
    let armed = step_record(
        &record(Point::Arm),
        SlotState::Trial { left: 1, done: 0 },
        1,
    );
    assert_eq!(armed.at, Point::Restart);
    assert_eq!(armed.upgrade.as_ref().unwrap().granted, 1);
    let back = step_record(&armed, SlotState::Bad, 3);
    assert_eq!(back.at, Point::RolledBack);
    let reason = back.last.unwrap().failure.unwrap().reason;
    assert!(
        reason.contains("gave slot B up after 1 try without"),
        "{reason}"
    );
}

fn step_record(record: &Record, target: SlotState, boot: u32) -> Record {
    next(record, &world(Slot::A, target, boot), Some(&Outcome::Done)).record
}

#[test]
fn a_trial_that_the_loader_never_started_is_rebooted_twice_and_then_taken_back() {
    let untried = SlotState::Trial { left: 3, done: 0 };
    let mut record = record(Point::Restart);
    for boot in 2..4 {
        let step = next(&record, &world(Slot::A, untried, boot), None);
        assert_eq!(
            step.command,
            Command::Reboot { forced: false },
            "boot {boot}"
        );
        record = step.record;
    }
    let taken = next(&record, &world(Slot::A, untried, 4), None);
    assert_eq!(taken.command, Command::Disarm { slot: Slot::B });
    let seen = world(Slot::A, SlotState::Empty, 4);
    let failed = next(&taken.record, &seen, Some(&Outcome::Done));
    assert_eq!(failed.record.at, Point::Failed);
    let reason = failed.record.last.unwrap().failure.unwrap().reason;
    assert!(reason.contains("still starts slot A"), "{reason}");
}

#[test]
fn an_old_slot_with_tries_left_and_a_started_trial_gives_the_trial_up_without_a_reboot() {
    for at in [Point::Restart, Point::Check, Point::Return] {
        let (to, command) = step(&record(at), &world(Slot::A, TRIAL, 3));
        assert_eq!(
            (to, command),
            (Point::GiveUp, Command::MarkBad { slot: Slot::B }),
            "{at:?}"
        );
        let mut giving_up = record(at);
        giving_up.at = Point::GiveUp;
        let seen = world(Slot::A, SlotState::Bad, 3);
        let after = next(&giving_up, &seen, Some(&Outcome::Done));
        assert_eq!(after.record.at, Point::RolledBack);
    }
}

#[test]
fn a_trial_boot_without_any_record_is_adopted() {
    let step = next(&Record::default(), &world(Slot::B, TRIAL, 2), None);
    assert_eq!(step.record.at, Point::Check);
    assert_eq!(step.command, Command::RunChecks { deadline: 600 });
    assert_eq!(step.record.upgrade.unwrap().target, Slot::B);
}

#[test]
fn a_boot_whose_loader_data_cannot_be_read_is_looked_at_again_however_late() {
    for uptime in [0, 599, 600, 100_000] {
        let mut seen = world(Slot::B, TRIAL, 2);
        seen.world.loader = None;
        seen.world.uptime = uptime;
        let step = next(&Record::default(), &seen, None);
        assert!(
            matches!(step.command, Command::Wait { .. }),
            "{uptime}: {step:?}"
        );
        seen.world.loader = world(Slot::B, TRIAL, 2).world.loader;
        assert_eq!(
            next(&Record::default(), &seen, None).record.at,
            Point::Check
        );
    }
}

#[test]
fn each_new_trial_boot_is_judged_anew_and_a_restart_of_the_daemon_is_none() {
    let mut judged = record(Point::GiveUp);
    judged.upgrade.as_mut().unwrap().boot_id = Some("boot-2".to_owned());
    let same = step(&judged, &world(Slot::B, TRIAL, 2));
    assert_eq!(same, (Point::GiveUp, Command::MarkBad { slot: Slot::B }));
    let other = step(&judged, &world(Slot::B, TRIAL, 3));
    assert_eq!(other, (Point::Check, Command::RunChecks { deadline: 600 }));
}

#[test]
fn a_restart_stages_again_as_often_as_allowed_and_never_without_a_source() {
    let seen = world(Slot::A, SlotState::Empty, 1);
    let mut staging = record(Point::Write);
    for attempt in 2..=3 {
        let step = next(&staging, &seen, None);
        assert_eq!(step.command, Command::Preflight { slot: Slot::B });
        assert_eq!(step.record.upgrade.as_ref().unwrap().attempt, attempt);
        staging = step.record;
        staging.at = Point::Write;
    }
    assert_eq!(step(&staging, &seen).0, Point::Discard);
    let mut piped = record(Point::Write);
    piped
        .upgrade
        .as_mut()
        .unwrap()
        .request
        .as_mut()
        .unwrap()
        .locator = None;
    let discard = next(&piped, &seen, None);
    assert_eq!(discard.command, Command::Discard { slot: Slot::B });
    let failed = next(&discard.record, &seen, Some(&Outcome::Done));
    assert_eq!(failed.record.at, Point::Failed);
    assert!(
        failed
            .record
            .last
            .unwrap()
            .failure
            .unwrap()
            .reason
            .contains("cannot be opened again")
    );
}

#[test]
fn a_staged_image_survives_a_restart_while_its_marker_matches() {
    let staged = record(Point::Staged);
    let mut seen = world(Slot::A, SlotState::Empty, 2);
    assert_eq!(step(&staged, &seen), (Point::Staged, Command::Rest));
    seen.world.images[1] = Some(digest(9));
    assert_eq!(step(&staged, &seen).0, Point::Failed);
    seen.world.images[1] = None;
    assert_eq!(step(&staged, &seen).0, Point::Failed);
    seen.world.loader = None;
    assert_eq!(
        step(&staged, &seen).0,
        Point::Staged,
        "what cannot be read is not lost"
    );
}

#[test]
fn nothing_is_written_while_the_running_slot_is_unproven() {
    let mut seen = world(Slot::A, SlotState::Empty, 1);
    seen.world.loader = Some([SlotState::Bad, SlotState::Good]);
    seen.request = Some(Request::Install(request(false)));
    let refused = next(&Record::default(), &seen, None);
    assert_eq!(refused.record.at, Point::Failed);
    assert_eq!(
        refused.record.last.unwrap().failure.unwrap().kind,
        ErrorKind::Unsafe
    );
    seen.world.booted = None;
    assert_eq!(step(&Record::default(), &seen).0, Point::Failed);
}

#[test]
fn an_old_slot_whose_loader_cannot_be_read_is_neither_rebooted_nor_judged() {
    for at in [Point::Restart, Point::GiveUp, Point::Return] {
        let mut seen = world(Slot::A, TRIAL, 3);
        seen.world.loader = None;
        let (to, command) = step(&record(at), &seen);
        assert_eq!(to, at);
        assert!(
            matches!(command, Command::Wait { .. }),
            "{at:?} {command:?}"
        );
    }
}

#[test]
fn an_image_that_failed_here_is_refused_until_it_is_asked_for_anew() {
    let mut node = Node::new(Nature::Unhealthy);
    node.install(false);
    node.settle();
    assert_eq!(node.last(), Some(Ending::RolledBack));
    let mut again = request(false);
    again.asked_anew = false;
    again.expanded_checksum = Some(digest(2));
    let refusal = admit(&node.record, &Request::Install(again.clone())).unwrap_err();
    assert!(matches!(refusal, Refusal::FailedBefore { .. }), "{refusal}");
    // Without a checksum it is known only once it was written.
    again.expanded_checksum = None;
    admit(&node.record, &Request::Install(again.clone())).unwrap();
    node.ask(Request::Install(again.clone()));
    node.settle();
    assert_eq!(node.last(), Some(Ending::Failed));
    assert_eq!(node.state(Slot::B), SlotState::Empty);
    again.asked_anew = true;
    node.supply.1 = Nature::Healthy;
    node.ask(Request::Install(again));
    node.settle();
    assert_eq!(node.last(), Some(Ending::Completed));
    assert!(node.record.refused.is_empty(), "it proved itself");
}

#[test]
fn a_deliberate_rollback_says_who_asked_and_remembers_the_image() {
    let mut node = Node::new(Nature::Healthy);
    node.install(false);
    node.settle();
    node.ask(Request::Rollback {
        version: Some("1.0.0".to_owned()),
    });
    node.settle();
    let ended = node.ended.last().unwrap();
    assert_eq!((ended.result, node.booted), (Ending::RolledBack, Slot::A));
    assert_eq!(ended.version.as_deref(), Some("1.0.0"));
    assert_eq!(
        ended.failure.as_ref().unwrap().reason,
        "asked by the operator"
    );
    assert_eq!(node.record.refused[0].digest, digest(2));
    assert_eq!(node.record.phase(), Phase::RolledBack);
}

#[test]
fn a_rollback_to_a_slot_that_is_not_good_is_refused() {
    let mut node = Node::new(Nature::Unhealthy);
    node.install(false);
    node.settle();
    node.ask(Request::Rollback { version: None });
    node.settle();
    let ended = node.ended.last().unwrap();
    assert_eq!(ended.result, Ending::Failed);
    assert_eq!(ended.failure.as_ref().unwrap().kind, ErrorKind::Unsafe);
}

#[test]
fn an_edited_target_stops_what_is_under_way_and_begins_anew() {
    for at in [Point::Write, Point::Staged, Point::Restart] {
        let mut node = Node::new(Nature::Healthy);
        node.install(at == Point::Staged);
        node.run_to(at);
        node.supply = (7, Nature::Healthy);
        node.ask(Request::Retarget(request(false)));
        node.settle();
        let results: Vec<Ending> = node.history.iter().map(|(_, result)| *result).collect();
        assert_eq!(results, [Ending::Cancelled, Ending::Completed], "{at:?}");
        assert_eq!(node.marker[1], Some(digest(7)));
    }
}

#[test]
fn an_armed_trial_that_somebody_took_back_ends_as_failed_and_is_not_armed_again() {
    let mut node = Node::new(Nature::Healthy);
    node.install(false);
    node.run_to(Point::Restart);
    node.loader[1] = SlotState::Empty;
    node.settle();
    assert_eq!(node.last(), Some(Ending::Failed));
    assert_eq!(node.boots, 0);
}

#[test]
fn what_is_under_way_answers_requests_with_what_it_is() {
    let writing = record(Point::Write);
    let busy = admit(&writing, &Request::Install(request(false))).unwrap_err();
    assert_eq!(
        busy,
        Refusal::Busy {
            id: 1,
            phase: Phase::Staging,
            slot: Slot::B
        }
    );
    assert!(admit(&writing, &Request::Rollback { version: None }).is_err());
    assert!(admit(&writing, &Request::Cancel(1)).is_ok());
    assert_eq!(
        admit(&writing, &Request::Cancel(2)).unwrap_err(),
        Refusal::NoSuchUpgrade { id: 2 }
    );
    let trial = record(Point::Check);
    assert_eq!(
        admit(&trial, &Request::Cancel(1)).unwrap_err(),
        Refusal::TrialRunning { id: 1 }
    );
    assert_eq!(
        admit(&Record::default(), &Request::Activate { drain: None }).unwrap_err(),
        Refusal::NothingStaged
    );
    assert!(admit(&record(Point::Staged), &Request::Activate { drain: None }).is_ok());
}

#[test]
fn checks_that_cannot_run_are_tried_until_the_deadline_and_then_count_as_late() {
    let mut checking = record(Point::Check);
    checking.upgrade.as_mut().unwrap().boot_id = Some("boot-2".to_owned());
    let mut seen = world(Slot::B, TRIAL, 2);
    let broken = Outcome::Failed(Failure::new(ErrorKind::Bug, "systemd-run is missing"));
    let again = next(&checking, &seen, Some(&broken));
    assert!(matches!(again.command, Command::Wait { .. }));
    seen.world.uptime = 600;
    let late = next(&again.record, &seen, Some(&Outcome::Waited));
    assert_eq!(late.record.at, Point::GiveUp);
    let reason = &late.record.upgrade.unwrap().failure.unwrap().reason;
    assert!(reason.contains("within 600 seconds"), "{reason}");
}

#[test]
fn a_writer_that_answers_without_an_image_is_not_believed() {
    let seen = world(Slot::A, SlotState::Empty, 1);
    let mut writing = record(Point::Write);
    writing.upgrade.as_mut().unwrap().image = None;
    assert_eq!(
        next(&writing, &seen, Some(&Outcome::Done)).record.at,
        Point::Discard
    );
    let image = Image {
        digest: digest(2),
        published: None,
        size: 1,
        version: None,
    };
    let written = next(&writing, &seen, Some(&Outcome::Written(image.clone())));
    assert_eq!(written.record.at, Point::PrepareBoot);
    assert_eq!(written.record.upgrade.unwrap().image, Some(image));
}

#[test]
fn giving_a_trial_up_from_the_old_slot_never_reboots_even_when_the_loader_cannot_be_read() {
    let mut seen = world(Slot::A, TRIAL, 3);
    seen.world.loader = None;
    let after = next(&record(Point::GiveUp), &seen, Some(&Outcome::Done));
    assert_eq!(after.record.at, Point::GiveUp);
    assert!(
        matches!(after.command, Command::Wait { .. }),
        "{:?}",
        after.command
    );
}

#[test]
fn what_changes_a_slot_or_the_next_boot_needs_the_record_and_what_proves_or_leaves_a_trial_does_not()
 {
    for needs in [
        Command::Invalidate { slot: Slot::B },
        Command::Write { slot: Slot::B },
        Command::PrepareBoot { slot: Slot::B },
        Command::Select { slot: Slot::B },
        Command::Reboot { forced: false },
    ] {
        assert!(needs.needs_record(), "{needs:?}");
    }
    for free in [
        Command::RunChecks { deadline: 600 },
        Command::MarkGood { slot: Slot::B },
        Command::MarkBad { slot: Slot::B },
        Command::Reboot { forced: true },
        Command::Settle,
    ] {
        assert!(!free.needs_record(), "{free:?}");
    }
}

#[test]
fn a_cancel_that_meets_an_armed_trial_is_heard_before_the_reboot() {
    let untried = SlotState::Trial { left: 3, done: 0 };
    for (at, boot) in [(Point::Arm, 1), (Point::Restart, 1), (Point::Restart, 2)] {
        let mut seen = world(Slot::A, untried, boot);
        seen.request = Some(Request::Cancel(1));
        let step = next(&record(at), &seen, Some(&Outcome::Done));
        assert_eq!(step.command, Command::Disarm { slot: Slot::B }, "{at:?}");
    }
}

#[test]
fn what_was_refused_for_what_was_asked_of_it_is_not_remembered_as_a_bad_image() {
    let seen = world(Slot::A, SlotState::Empty, 1);
    for (code, remembered) in [(None, 1), (Some("VersionMismatch"), 0)] {
        let mut failure = Failure::new(ErrorKind::Reject, "it does not fit");
        failure.code = code.map(str::to_owned);
        let outcome = Outcome::Failed(failure);
        let step = next(&record(Point::PrepareBoot), &seen, Some(&outcome));
        assert_eq!(step.command, Command::Discard { slot: Slot::B });
        assert_eq!(step.record.refused.len(), remembered, "{code:?}");
    }
}
