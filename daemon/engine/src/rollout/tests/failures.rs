//! Counting failures, halting, going on.

use super::fixture::{failed, fleet, outlook, place, progress, runs, wait, waits, writes};
use crate::rollout::{Action, At, End, Halted, ImageId, Phase, Progress, Resolution, Wait};

#[test]
fn so_many_failures_halt_it() {
    let mut fleet = fleet(&["n1", "n2", "n3"]);
    fleet.upgrades[0].max_failures = 2;
    fleet.progress = vec![failed("u", "n2", End::RolledBack, 9)];
    assert_eq!(writes(&fleet), ["create u n1 0"]);
    fleet.progress.push(failed("u", "n1", End::Failed, 4));
    assert_eq!(writes(&fleet), [""; 0]);
    let halted = outlook(&fleet, "u");
    assert_eq!(halted.phase, Phase::Halted);
    assert_eq!(halted.halted, Some(Halted::Failures { failed: 2 }));
    assert_eq!((halted.targets, halted.ok, halted.fail), (3, 0, 2));
    let first = halted.first_failure.unwrap();
    assert_eq!(
        (first.node.as_str(), first.failure.reason.as_str()),
        ("n1", "Failed on n1")
    );
    assert_eq!(waits(&fleet, "u"), [wait("n3", Wait::Halted)]);
    // A claim that was not used is taken back.
    fleet.progress.push(progress("u", "n3", At::Staged));
    fleet.places = vec![place("u", "n3", 0)];
    fleet.upgrades[0].bound = true;
    assert_eq!(writes(&fleet), ["raise u-n3 1 HeldBack"]);
}

#[test]
fn what_halts_an_upgrade_is_counted_from_the_same_moment_on() {
    for end in [End::Failed, End::RolledBack] {
        let mut fleet = fleet(&["n1", "n2"]);
        fleet.progress = vec![Progress {
            activated: Some(0),
            action: Action::Activate,
            ..failed("u", "n1", end, 9)
        }];
        // It has its place until it is back.
        fleet.places = vec![place("u", "n1", 0)];
        fleet.upgrades[0].bound = true;
        fleet.nodes[0].ready = false;
        fleet.nodes[0].cordoned_by_us = true;
        let halted = outlook(&fleet, "u");
        assert_eq!(halted.halted, Some(Halted::Failures { failed: 1 }));
        assert_eq!((halted.ok, halted.fail), (0, 1), "{end:?}");
        fleet.nodes[0].ready = true;
        fleet.nodes[0].cordoned_by_us = false;
        fleet.places.clear();
        assert_eq!(outlook(&fleet, "u").fail, 1, "{end:?}");
    }
}

#[test]
fn refusals_fail_but_do_not_halt() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.progress = vec![failed("u", "n1", End::Refused, 9)];
    assert_eq!(writes(&fleet), ["create u n2 0"]);
    let outlook = outlook(&fleet, "u");
    assert_eq!(outlook.fail, 1);
    assert_eq!(
        outlook.first_failure.unwrap().failure.reason,
        "Refused on n1"
    );
}

#[test]
fn a_raised_attempt_counts_anew() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.progress = vec![failed("u", "n1", End::RolledBack, 9)];
    fleet.progress[0].attempt = 4;
    fleet.progress[0].status.as_mut().unwrap().attempt = 4;
    assert_eq!(outlook(&fleet, "u").phase, Phase::Halted);
    fleet.upgrades[0].attempt = 1;
    let anew = outlook(&fleet, "u");
    assert_eq!((anew.phase, anew.fail), (Phase::RollingOut, 0));
    assert_eq!(writes(&fleet), ["raise u-n1 5 AskedAnew"]);
    fleet.progress[0].attempt = 5;
    fleet.progress[0].upgrade_attempt = 1;
    assert_eq!(outlook(&fleet, "u").fail, 0);
    fleet.progress[0].status.as_mut().unwrap().attempt = 5;
    assert_eq!(outlook(&fleet, "u").phase, Phase::Halted);
    // Lowering it changes nothing.
    fleet.upgrades[0].attempt = 0;
    assert_eq!(outlook(&fleet, "u").phase, Phase::Halted);
}

#[test]
fn another_target_counts_anew() {
    let mut fleet = fleet(&["n1"]);
    fleet.progress = vec![failed("u", "n1", End::Failed, 9)];
    fleet.upgrades[0].resolution = Resolution::Image(ImageId("v3".to_owned()));
    assert_eq!(outlook(&fleet, "u").phase, Phase::Accepted);
    assert_eq!(writes(&fleet), ["raise u-n1 1 OtherImage"]);
}

#[test]
fn what_runs_outranks_what_was_recorded() {
    let mut fleet = fleet(&["n1"]);
    fleet.progress = vec![failed("u", "n1", End::Failed, 9)];
    runs(&mut fleet, 0, &["n1"]);
    let outlook = outlook(&fleet, "u");
    assert_eq!(
        (outlook.phase, outlook.ok, outlook.fail),
        (Phase::Completed, 1, 0)
    );
}

#[test]
fn deleting_the_node_of_a_failure_is_no_way_on() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.progress = vec![failed("u", "n1", End::Failed, 9)];
    fleet.nodes.remove(0);
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(outlook(&fleet, "u").phase, Phase::Halted);
    fleet.upgrades[0].attempt = 1;
    assert_eq!(writes(&fleet), ["delete u-n1 NodeGone", "create u n2 1"]);
}

#[test]
fn a_version_that_is_blocked_when_all_run_it_halts_nothing() {
    let mut fleet = fleet(&["n1", "n2"]);
    runs(&mut fleet, 0, &["n1", "n2"]);
    fleet.upgrades[0].resolution = Resolution::Blocked(ImageId("v2".to_owned()));
    assert_eq!(outlook(&fleet, "u").phase, Phase::Completed);
    runs(&mut fleet, 0, &["n1"]);
    fleet.nodes[1].ready = false;
    let halted = outlook(&fleet, "u");
    assert_eq!(
        (halted.phase, halted.halted),
        (Phase::Halted, Some(Halted::Blocked))
    );
}
