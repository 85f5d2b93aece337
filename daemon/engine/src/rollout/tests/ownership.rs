//! One upgrade for a node.

use super::fixture::{
    activated, fleet, node_uid, outlook, place, progress, runs, upgrade, wait, waits, writes,
};
use crate::rollout::{At, End, Fit, Fleet, Phase, Resolution, Wait};

/// An older upgrade `a` and a younger one `b`, both for n1.
fn two_upgrades() -> Fleet {
    let mut fleet = fleet(&["n1"]);
    fleet.upgrades = vec![upgrade("a", 1, &["n1"]), upgrade("b", 2, &["n1"])];
    fleet
}

#[test]
fn the_youngest_has_the_node() {
    let mut fleet = two_upgrades();
    assert_eq!(writes(&fleet), ["create b n1 0"]);
    assert_eq!(
        waits(&fleet, "a"),
        [wait("n1", Wait::Superseded("b".to_owned()))]
    );
    assert_eq!(outlook(&fleet, "a").targets, 0);
    // Of one age, the greater name.
    fleet.upgrades[0].created = 2;
    assert_eq!(writes(&fleet), ["create b n1 0"]);
    fleet.upgrades[0].created = 3;
    assert_eq!(writes(&fleet), ["create a n1 0"]);
}

#[test]
fn also_when_it_may_start_nothing() {
    let mut fleet = two_upgrades();
    fleet.upgrades[1].suspended = true;
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(waits(&fleet, "b"), [wait("n1", Wait::Suspended)]);
    fleet.upgrades[1].suspended = false;
    fleet.upgrades[1].resolution = Resolution::Pending;
    assert_eq!(writes(&fleet), [""; 0]);
}

#[test]
fn one_that_is_rejected_or_deleted_has_no_node() {
    let mut fleet = two_upgrades();
    fleet.upgrades[1].resolution = Resolution::Rejected;
    assert_eq!(writes(&fleet), ["create a n1 0"]);
    assert_eq!(outlook(&fleet, "b").phase, Phase::Rejected);
    fleet.upgrades[1] = upgrade("b", 2, &["n1"]);
    fleet.upgrades[1].deleting = true;
    assert_eq!(writes(&fleet), ["create a n1 0"]);
}

#[test]
fn what_only_stages_makes_way_and_what_is_under_way_ends_first() {
    let mut fleet = two_upgrades();
    fleet.progress = vec![progress("a", "n1", At::Staged)];
    assert_eq!(writes(&fleet), ["delete a-n1 Superseded"]);
    assert_eq!(
        waits(&fleet, "b"),
        [wait("n1", Wait::OtherFirst("a-n1".to_owned()))]
    );
    fleet.places = vec![place("a", "n1", 0)];
    assert_eq!(writes(&fleet), ["delete a-n1 Superseded"]);

    fleet.upgrades[0].bound = true;
    fleet.progress = vec![activated("a", "n1", At::Leaving)];
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(waits(&fleet, "a"), []);
    fleet.progress = vec![activated("a", "n1", At::Ended(End::Completed))];
    fleet.progress[0].runs_target = true;
    assert_eq!(writes(&fleet), ["free n1 Completed"]);
    fleet.places.clear();
    assert_eq!(writes(&fleet), ["create b n1 0", "unbind a-n1"]);
    // Its record stays until the younger one has one of its own.
    fleet.progress[0].activated = None;
    assert_eq!(writes(&fleet), ["create b n1 0", "unbind a"]);
    fleet.progress.push(progress("b", "n1", At::Before));
    assert_eq!(writes(&fleet), ["delete a-n1 Superseded", "unbind a"]);
}

#[test]
fn a_progress_object_made_by_hand_ends_first() {
    let mut fleet = fleet(&["n1"]);
    fleet.progress = vec![progress("hand", "n1", At::Before)];
    fleet.progress[0].upgrade = None;
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(
        waits(&fleet, "u"),
        [wait("n1", Wait::OtherFirst("hand-n1".to_owned()))]
    );
    fleet.progress[0] = progress("hand", "n1", At::Ended(End::Failed));
    fleet.progress[0].upgrade = None;
    assert_eq!(writes(&fleet), ["create u n1 0"]);
}

#[test]
fn what_an_older_one_reached_needs_no_waiting() {
    let mut fleet = two_upgrades();
    runs(&mut fleet, 0, &["n1"]);
    assert_eq!(waits(&fleet, "a"), []);
    assert_eq!(
        fleet.upgrades[1].matches.get(&node_uid("n1")),
        Some(&Fit::Follows)
    );
}

#[test]
fn the_older_one_is_served_first() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.upgrades = vec![upgrade("b", 2, &["n1"]), upgrade("a", 1, &["n2"])];
    fleet.upgrades[0].bound = true;
    fleet.upgrades[1].bound = true;
    fleet.progress = vec![
        progress("b", "n1", At::Staged),
        progress("a", "n2", At::Staged),
    ];
    assert_eq!(writes(&fleet), ["claim n2"]);
    assert_eq!(waits(&fleet, "b"), [wait("n1", Wait::Place)]);
}
