//! Who may be away at one time, and what gives a place back.

use super::fixture::{
    activated, failed, fleet, node_uid, outlook, place, progress, runs, upgrade, wait, waits,
    writes,
};
use crate::rollout::{Action, At, End, Limit, Place, Wait};

/// Two nodes staged, and the upgrade bound.
fn two_staged() -> crate::rollout::Fleet {
    let mut fleet = fleet(&["n1", "n2", "n3"]);
    fleet.upgrades[0].bound = true;
    fleet.upgrades[0].max_staging = Some(Limit::Nodes(2));
    fleet.progress = vec![
        progress("u", "n1", At::Staged),
        progress("u", "n2", At::Staged),
    ];
    fleet
}

#[test]
fn claims_of_one_plan_count_against_each_other() {
    let mut fleet = two_staged();
    assert_eq!(writes(&fleet), ["claim n1"]);
    fleet.upgrades[0].max_unavailable = Limit::Nodes(2);
    assert_eq!(writes(&fleet), ["claim n1", "claim n2"]);
    fleet.upgrades[0].max_unavailable = Limit::Percent(50);
    assert_eq!(writes(&fleet), ["claim n1"]);
}

#[test]
fn unavailable_targets_count_and_no_node_counts_twice() {
    let mut fleet = two_staged();
    fleet.upgrades[0].max_unavailable = Limit::Nodes(2);
    fleet.nodes[2].ready = false;
    assert_eq!(writes(&fleet), ["claim n1"]);
    fleet.nodes[2].ready = true;
    fleet.nodes[2].unschedulable = true;
    assert_eq!(writes(&fleet), ["claim n1"]);
    // It is unavailable itself: that is not held against it.
    fleet.nodes[2].unschedulable = false;
    fleet.nodes[0].unschedulable = true;
    assert_eq!(writes(&fleet), ["claim n1", "claim n2"]);
    fleet.upgrades[0].max_unavailable = Limit::Nodes(1);
    assert_eq!(writes(&fleet), ["claim n1"]);
    // A holder that is not Ready counts once.
    fleet.upgrades[0].max_unavailable = Limit::Nodes(2);
    fleet.progress[0] = activated("u", "n1", At::Leaving);
    fleet.places = vec![place("u", "n1", 0)];
    fleet.nodes[0].ready = false;
    assert_eq!(writes(&fleet)[0], "claim n2");
    // One that is no target does not count.
    fleet.upgrades[0].matches.remove(&node_uid("n3"));
    fleet.nodes[2].ready = false;
    assert_eq!(writes(&fleet), ["claim n2"]);
}

#[test]
fn places_count_over_all_upgrades() {
    let mut fleet = two_staged();
    fleet.nodes.push(super::fixture::node("m1"));
    fleet.upgrades.push(upgrade("w", 1, &["m1"]));
    fleet.progress.push(activated("w", "m1", At::Leaving));
    fleet.places = vec![place("w", "m1", 0)];
    fleet.upgrades[1].bound = true;
    assert_eq!(writes(&fleet), [""; 0]);
    fleet.upgrades[0].max_unavailable = Limit::Nodes(2);
    assert_eq!(writes(&fleet), ["claim n1"]);
    // Also one whose upgrade is gone, or that cannot be read.
    fleet.upgrades[0].max_unavailable = Limit::Nodes(1);
    fleet.upgrades.truncate(1);
    assert_eq!(writes(&fleet), [""; 0]);
    fleet.progress.truncate(2);
    fleet.places = vec![Place {
        node: node_uid("m1"),
        node_name: "m1".to_owned(),
        holder: None,
    }];
    assert_eq!(writes(&fleet), [""; 0]);
    // And a node that somebody activated by hand.
    fleet.places.clear();
    fleet.progress.push(activated("w", "m1", At::Staged));
    fleet.progress[2].upgrade = None;
    fleet.progress[2].activated = None;
    assert_eq!(writes(&fleet), [""; 0]);
}

#[test]
fn one_control_plane_node_at_a_time() {
    let mut fleet = two_staged();
    fleet.upgrades[0].max_unavailable = Limit::Percent(100);
    fleet.nodes[0].control_plane = true;
    fleet.nodes[1].control_plane = true;
    assert_eq!(writes(&fleet), ["claim n1"]);
    assert_eq!(
        waits(&fleet, "u"),
        [
            wait("n2", Wait::ControlPlane("n1".to_owned())),
            wait("n3", Wait::StagingTurn)
        ]
    );
    // One that is not Ready for another reason is one less already.
    fleet.nodes[2].control_plane = true;
    fleet.nodes[2].ready = false;
    assert_eq!(writes(&fleet), [""; 0]);
    // Over all upgrades.
    fleet.nodes[2].ready = true;
    fleet.upgrades[0].matches.remove(&node_uid("n3"));
    fleet.upgrades.push(upgrade("w", 1, &["n3"]));
    fleet.upgrades[1].bound = true;
    fleet.progress.push(activated("w", "n3", At::Leaving));
    fleet.places = vec![place("w", "n3", 0)];
    assert_eq!(writes(&fleet), [""; 0]);
}

#[test]
fn a_control_plane_node_that_has_to_wait_for_another_one_keeps_no_worker_from_its_turn() {
    let mut fleet = fleet(&["n1", "n2", "n3", "n4"]);
    fleet.upgrades[0].bound = true;
    fleet.upgrades[0].max_staging = None;
    fleet.progress = vec![progress("u", "n1", At::Staged)];
    for node in &mut fleet.nodes[..2] {
        node.control_plane = true;
    }
    // No target, and down for long.
    let mut down = super::fixture::node("m1");
    down.control_plane = true;
    down.ready = false;
    fleet.nodes.push(down);
    // Nor does another one of the control plane stage for a place that it could not take.
    assert_eq!(writes(&fleet), ["create u n3 0"]);
    let busy = || Wait::ControlPlane("m1".to_owned());
    assert_eq!(
        waits(&fleet, "u"),
        [
            wait("n1", busy()),
            wait("n2", busy()),
            wait("n4", Wait::StagingTurn)
        ]
    );
    fleet.progress.push(progress("u", "n3", At::Staged));
    assert_eq!(writes(&fleet), ["claim n3"]);
    // A number that was asked for counts all that hold the image ready.
    fleet.progress.truncate(1);
    fleet.upgrades[0].max_staging = Some(Limit::Nodes(1));
    assert_eq!(writes(&fleet), [""; 0]);
    // With the other one back it is as ever.
    fleet.upgrades[0].max_staging = None;
    fleet.nodes[4].ready = true;
    assert_eq!(writes(&fleet), ["claim n1"]);
}

#[test]
fn a_place_is_given_back_for_four_reasons_and_no_other() {
    let mut fleet = fleet(&["n1"]);
    fleet.upgrades[0].bound = true;
    fleet.places = vec![place("u", "n1", 0)];
    fleet.progress = vec![activated("u", "n1", At::Leaving)];
    assert_eq!(writes(&fleet), [""; 0]);

    fleet.progress[0] = activated("u", "n1", At::Ended(End::Completed));
    assert_eq!(writes(&fleet), [""; 0], "another version runs");
    runs(&mut fleet, 0, &["n1"]);
    fleet.nodes[0].ready = false;
    assert_eq!(writes(&fleet), [""; 0], "not Ready");
    fleet.nodes[0].ready = true;
    fleet.nodes[0].cordoned_by_us = true;
    assert_eq!(writes(&fleet), [""; 0], "cordoned by us");
    fleet.nodes[0].cordoned_by_us = false;
    assert_eq!(writes(&fleet), ["free n1 Completed"]);
    fleet.nodes[0].unschedulable = true;
    assert_eq!(
        writes(&fleet),
        ["free n1 Completed"],
        "cordoned by somebody else"
    );
    fleet.nodes[0].unschedulable = false;

    fleet.progress[0] = failed("u", "n1", End::RolledBack, 3);
    fleet.nodes[0].ready = false;
    assert_eq!(writes(&fleet), [""; 0], "rolled back, not Ready");
    fleet.nodes[0].ready = true;
    assert_eq!(writes(&fleet), ["free n1 RolledBack"]);
    for end in [End::Failed, End::Refused] {
        fleet.progress[0] = failed("u", "n1", end, 3);
        fleet.nodes[0].cordoned_by_us = true;
        assert_eq!(writes(&fleet), [""; 0]);
        fleet.nodes[0].cordoned_by_us = false;
        assert_eq!(writes(&fleet), ["free n1 Ended"]);
    }

    // An earlier attempt's end is not this one's.
    fleet.progress[0] = activated("u", "n1", At::Ended(End::Failed));
    fleet.progress[0].attempt = 1;
    fleet.places = vec![place("u", "n1", 1)];
    assert_eq!(writes(&fleet), [""; 0]);

    fleet.progress.clear();
    fleet.places = vec![place("u", "n1", 0)];
    fleet.nodes[0].ready = false;
    assert_eq!(
        writes(&fleet),
        [""; 0],
        "the object is gone, the node is not back"
    );
    fleet.nodes[0].ready = true;
    assert_eq!(writes(&fleet)[0], "free n1 ProgressGone");
    fleet.nodes.clear();
    assert_eq!(writes(&fleet)[0], "free n1 NodeGone");
    fleet.places[0].holder = None;
    assert_eq!(writes(&fleet)[0], "free n1 NodeGone");
}

#[test]
fn a_place_that_cannot_be_read_is_kept_while_there_is_its_node() {
    let mut fleet = fleet(&["n1"]);
    fleet.places = vec![Place {
        node: node_uid("n1"),
        node_name: "n1".to_owned(),
        holder: None,
    }];
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(
        waits(&fleet, "u"),
        [wait("n1", Wait::OtherFirst(String::new()))]
    );
}

#[test]
fn a_claim_that_does_not_fit_any_more_is_taken_back_not_used() {
    let mut fleet = two_staged();
    fleet.upgrades[0].max_unavailable = Limit::Nodes(2);
    fleet.places = vec![place("u", "n1", 0), place("u", "n2", 0)];
    fleet.nodes[2].ready = false;
    // Neither is used while both are held; the last goes, then the first fits again.
    assert_eq!(writes(&fleet), ["raise u-n2 1 HeldBack"]);
    fleet.progress[1].attempt = 1;
    assert_eq!(writes(&fleet), ["free n2 Raised"]);
    fleet.places.truncate(1);
    assert_eq!(writes(&fleet), ["activate u-n1 0"]);
}

#[test]
fn what_is_given_back_is_taken_by_the_same_write_and_used_once_that_is_stored() {
    let mut fleet = two_staged();
    fleet.nodes[0].hold = Some("disk".to_owned());
    fleet.places = vec![place("u", "n1", 0)];
    assert_eq!(
        writes(&fleet),
        ["raise u-n1 1 HeldBack", "create u n3 0"],
        "n2 has to wait"
    );
    fleet.progress[0] = failed("u", "n1", End::Refused, 3);
    assert_eq!(
        writes(&fleet),
        ["free n1 Ended", "claim n2", "create u n3 0"]
    );
    // Both stored, as by two controllers: neither of them is used, the one that is given back counts.
    fleet.places.push(place("u", "n2", 0));
    assert_eq!(writes(&fleet), ["free n1 Ended", "create u n3 0"]);
    fleet.places.remove(0);
    assert_eq!(writes(&fleet), ["activate u-n2 0", "create u n3 0"]);
}

#[test]
fn a_place_that_is_given_back_is_no_ones_while_its_node_is_away_on_another_account() {
    let mut fleet = two_staged();
    fleet.places = vec![place("u", "n1", 0)];
    fleet.progress[0] = failed("u", "n1", End::Refused, 3);
    let mut by_hand = activated("w", "n1", At::Leaving);
    by_hand.upgrade = None;
    fleet.progress.push(by_hand);
    assert_eq!(writes(&fleet), ["free n1 Ended", "create u n3 0"]);
}

#[test]
fn the_list_of_those_without_a_place_changes_with_the_places_alone() {
    let mut fleet = two_staged();
    let without = |fleet: &crate::rollout::Fleet| {
        let outlook = outlook(fleet, "u");
        let mut names: Vec<_> = outlook
            .waiting
            .iter()
            .chain(&outlook.ahead)
            .map(|one| one.node_name.clone())
            .collect();
        names.sort();
        names
    };
    fleet.progress[0] = activated("u", "n1", At::Leaving);
    fleet.places = vec![place("u", "n1", 0)];
    let at = |fleet: &mut crate::rollout::Fleet, parts: &[At]| {
        fleet.progress.truncate(1);
        for (name, at) in ["n2", "n3"].iter().zip(parts) {
            fleet.progress.push(progress("u", name, *at));
        }
    };
    for parts in [
        &[][..],
        &[At::Before],
        &[At::Staged],
        &[At::Staged, At::Before],
        &[At::Staged, At::Staged],
    ] {
        at(&mut fleet, parts);
        assert_eq!(without(&fleet), ["n2", "n3"], "{parts:?}");
    }
    // Given back and taken by this very plan, which may be lost.
    fleet.progress[0] = activated("u", "n1", At::Ended(End::Completed));
    runs(&mut fleet, 0, &["n1"]);
    assert_eq!(writes(&fleet), ["free n1 Completed", "claim n2"]);
    assert_eq!(without(&fleet), ["n2", "n3"]);
    fleet.places = vec![place("u", "n2", 0)];
    assert_eq!(without(&fleet), ["n3"]);
    // With nobody away, who stages waits for nothing.
    fleet.places.clear();
    fleet.progress = vec![progress("u", "n2", At::Before)];
    assert_eq!(without(&fleet), [""; 0]);
}

#[test]
fn a_claim_is_taken_back_when_its_node_may_not_start_any_more() {
    let mut fleet = two_staged();
    fleet.progress.truncate(1);
    fleet.places = vec![place("u", "n1", 0)];
    fleet.upgrades[0].suspended = true;
    assert_eq!(writes(&fleet), ["raise u-n1 1 HeldBack"]);
    // What is under way ends first.
    fleet.progress[0] = activated("u", "n1", At::Leaving);
    assert_eq!(writes(&fleet), [""; 0]);
    // One node that somebody holds back before it began.
    fleet.upgrades[0].suspended = false;
    fleet.progress[0] = activated("u", "n1", At::Staged);
    fleet.progress[0].suspended = true;
    assert_eq!(writes(&fleet)[0], "raise u-n1 1 HeldBack");
    fleet.progress[0].status.as_mut().unwrap().at = At::Leaving;
    assert_eq!(writes(&fleet), ["create u n2 0", "create u n3 0"]);
}

#[test]
fn a_lost_place_of_a_node_under_way_is_taken_again() {
    let mut fleet = two_staged();
    fleet.progress[0] = activated("u", "n1", At::Leaving);
    assert_eq!(writes(&fleet), ["claim n1", "create u n3 0"]);
    // Also where it says Stage again, until the agent has taken that up.
    fleet.progress[0].action = Action::Stage;
    fleet.progress[0].attempt = 1;
    assert_eq!(writes(&fleet)[0], "claim n1");
    fleet.progress[0].status.as_mut().unwrap().attempt = 1;
    assert!(writes(&fleet).contains(&"unbind u-n1".to_owned()));
}

#[test]
fn nothing_is_staged_ahead_of_its_turn_unless_somebody_allows_it() {
    let mut fleet = fleet(&["n1", "n2", "n3"]);
    fleet.upgrades[0].bound = true;
    fleet.progress = vec![activated("u", "n1", At::Leaving)];
    fleet.places = vec![place("u", "n1", 0)];
    for (max_staging, max_unavailable, expected) in [
        (None, 1, vec![]),
        (None, 2, vec!["create u n2 0"]),
        (Some(Limit::Nodes(1)), 1, vec!["create u n2 0"]),
        (
            Some(Limit::Nodes(2)),
            1,
            vec!["create u n2 0", "create u n3 0"],
        ),
    ] {
        fleet.upgrades[0].max_staging = max_staging;
        fleet.upgrades[0].max_unavailable = Limit::Nodes(max_unavailable);
        assert_eq!(
            writes(&fleet),
            expected,
            "{max_staging:?}, {max_unavailable}"
        );
    }
    // The first one is done, and the next begins.
    fleet.upgrades[0].max_staging = None;
    fleet.upgrades[0].max_unavailable = Limit::Nodes(1);
    fleet.progress.clear();
    fleet.places.clear();
    runs(&mut fleet, 0, &["n1"]);
    assert_eq!(writes(&fleet), ["create u n2 0"]);
}
