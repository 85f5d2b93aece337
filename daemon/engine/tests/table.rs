//! The transition table as a whole, and its diagram.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::collections::BTreeSet;

use slotd_engine::table::{POINTS, REST, TABLE, target};
use slotd_engine::{Event, Phase, Point, diagram};

#[test]
fn each_event_leads_to_one_place_from_each_point() {
    let mut seen = BTreeSet::new();
    for row in TABLE {
        for from in row.from {
            assert!(
                seen.insert((*from, row.event)),
                "{from:?} {:?} twice",
                row.event
            );
        }
    }
}

#[test]
fn every_point_is_reached_and_every_busy_one_is_left_for_a_rest() {
    for point in POINTS {
        let reached = TABLE
            .iter()
            .any(|row| row.to == point && !row.from.contains(&point));
        assert!(
            reached || point == Point::Idle,
            "{point:?} is never reached"
        );
        let mut open = vec![point];
        let mut seen = BTreeSet::new();
        while let Some(at) = open.pop() {
            if seen.insert(at) && !REST.contains(&at) {
                let next = TABLE.iter().filter(|row| row.from.contains(&at));
                open.extend(next.map(|row| row.to));
            }
        }
        assert!(
            REST.iter().any(|rest| seen.contains(rest)),
            "no rest after {point:?}"
        );
    }
}

#[test]
fn success_is_reached_by_one_event_only() {
    for row in TABLE.iter().filter(|row| row.to == Point::Completed) {
        assert_eq!(row.event, Event::ProvenRunning);
    }
}

#[test]
fn a_trial_boot_hears_no_request() {
    let requests = [
        Event::InstallAsked,
        Event::RetargetAsked,
        Event::ActivateAsked,
        Event::DrainAsked,
        Event::HoldAsked,
        Event::RollbackAsked,
        Event::CancelAsked,
    ];
    for point in POINTS
        .into_iter()
        .filter(|point| point.phase() == Phase::Confirming)
    {
        for request in requests {
            assert_eq!(target(point, request), None, "{point:?}");
        }
    }
}

#[test]
fn only_what_was_verified_leads_to_a_trial() {
    let before: Vec<Point> = TABLE
        .iter()
        .filter(|row| row.to == Point::Arm)
        .flat_map(|row| row.from)
        .copied()
        .collect();
    assert_eq!(before, [Point::Staged, Point::Drain]);
    let before: Vec<Point> = TABLE
        .iter()
        .filter(|row| row.to == Point::Staged)
        .flat_map(|row| row.from)
        .copied()
        .collect();
    // From the two others it was staged already.
    assert_eq!(
        before,
        [
            Point::PrepareBoot,
            Point::Drain,
            Point::Staged,
            Point::Drain
        ]
    );
}

#[test]
fn only_what_was_staged_is_drained_and_what_failed_to_drain_leads_to_no_reboot() {
    let before: Vec<_> = TABLE
        .iter()
        .filter(|row| row.to == Point::Drain)
        .map(|row| (row.from, row.event))
        .collect();
    assert_eq!(
        before,
        [
            (&[Point::Staged][..], Event::DrainAsked),
            (&[Point::Arm, Point::Restart][..], Event::Interrupted),
        ]
    );
    assert_eq!(target(Point::Drain, Event::Failed), Some(Point::Discard));
    assert_eq!(target(Point::Drain, Event::Done), Some(Point::Arm));
}

#[test]
fn the_diagram_shows_every_phase_and_arrow() {
    let text = diagram();
    insta::assert_snapshot!("diagram", text);
}
