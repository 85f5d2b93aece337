//! One node after the other, from the first look to Completed.

use super::fixture::{
    activated, failed, fleet, node_uid, outlook, place, progress, runs, upgrade, wait, waits,
    writes,
};
use crate::rollout::{
    Action, At, End, Failure, Fit, Halted, ImageId, Limit, Phase, Resolution, Wait, Write, plan,
};

#[test]
fn a_node_stages_claims_activates_and_gives_its_place_back() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.upgrades[0].suspended = true;
    assert_eq!(outlook(&fleet, "u").phase, Phase::Accepted);
    fleet.upgrades[0].suspended = false;
    assert_eq!(outlook(&fleet, "u").phase, Phase::RollingOut);
    assert_eq!(writes(&fleet), ["create u n1 0"]);
    assert_eq!(waits(&fleet, "u"), [wait("n2", Wait::StagingTurn)]);

    fleet.progress = vec![progress("u", "n1", At::Before)];
    fleet.progress[0].status = None;
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(outlook(&fleet, "u").phase, Phase::RollingOut);

    fleet.progress = vec![progress("u", "n1", At::Staged)];
    assert_eq!(writes(&fleet), ["bind u", "claim n1"]);

    // Nothing is activated on a claim that was not seen stored, nor before the upgrade is bound.
    fleet.upgrades[0].bound = true;
    assert_eq!(writes(&fleet), ["claim n1"]);
    fleet.upgrades[0].bound = false;
    fleet.places = vec![place("u", "n1", 0)];
    assert_eq!(writes(&fleet), ["bind u", "create u n2 0"]);
    fleet.upgrades[0].bound = true;
    assert_eq!(writes(&fleet), ["activate u-n1 0", "create u n2 0"]);

    fleet.progress = vec![
        activated("u", "n1", At::Leaving),
        progress("u", "n2", At::Staged),
    ];
    fleet.nodes[0].ready = false;
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(waits(&fleet, "u"), [wait("n2", Wait::Place)]);

    // Completed, but not Ready yet.
    fleet.progress[0] = activated("u", "n1", At::Ended(End::Completed));
    runs(&mut fleet, 0, &["n1"]);
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(outlook(&fleet, "u").ok, 0);
    fleet.nodes[0].ready = true;
    assert_eq!(writes(&fleet), ["free n1 Completed", "claim n2"]);
    assert_eq!(outlook(&fleet, "u").ok, 0);
    fleet.places = vec![place("u", "n2", 0)];
    assert_eq!(writes(&fleet), ["activate u-n2 0", "unbind u-n1"]);

    fleet.progress = vec![
        progress("u", "n1", At::Ended(End::Completed)),
        progress("u", "n2", At::Ended(End::Completed)),
    ];
    runs(&mut fleet, 0, &["n1", "n2"]);
    fleet.places.clear();
    assert_eq!(writes(&fleet), ["unbind u"]);
    fleet.upgrades[0].bound = false;
    assert_eq!(writes(&fleet), [""; 0]);
    let all = outlook(&fleet, "u");
    assert_eq!(
        (all.phase, all.targets, all.ok, all.fail),
        (Phase::Completed, 2, 2, 0)
    );
}

#[test]
fn a_single_node_is_upgraded() {
    let mut fleet = fleet(&["n1"]);
    fleet.nodes[0].control_plane = true;
    assert_eq!(writes(&fleet), ["create u n1 0"]);
    fleet.progress = vec![progress("u", "n1", At::Staged)];
    fleet.upgrades[0].bound = true;
    assert_eq!(writes(&fleet), ["claim n1"]);
    fleet.places = vec![place("u", "n1", 0)];
    assert_eq!(writes(&fleet), ["activate u-n1 0"]);
}

#[test]
fn nodes_that_run_the_image_already_are_left_alone() {
    let mut fleet = fleet(&["n1"]);
    runs(&mut fleet, 0, &["n1"]);
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(outlook(&fleet, "u").phase, Phase::Completed);
    fleet.nodes[0].ready = false;
    assert_eq!(outlook(&fleet, "u").ok, 0);
    assert_eq!(waits(&fleet, "u"), [wait("n1", Wait::NotReady)]);
}

#[test]
fn a_late_joiner_is_brought_to_a_completed_upgrade() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.upgrades[0].completed = true;
    runs(&mut fleet, 0, &["n1"]);
    assert_eq!(writes(&fleet), ["create u n2 0"]);
    fleet.nodes.truncate(1);
    assert_eq!(outlook(&fleet, "u").phase, Phase::Completed);
    // All its nodes have gone, and it stays what it was.
    fleet.nodes.clear();
    assert_eq!(outlook(&fleet, "u").phase, Phase::Completed);
}

#[test]
fn a_node_without_an_agent_is_no_target() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.nodes[0].agent = false;
    assert_eq!(writes(&fleet), ["create u n2 0"]);
    let outlook = outlook(&fleet, "u");
    assert_eq!((outlook.targets, outlook.without_agent), (1, 1));
}

#[test]
fn nothing_starts_on_what_holds_a_node_back() {
    let mut fleet = fleet(&["n1"]);
    fleet.upgrades[0].suspended = true;
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(waits(&fleet, "u"), [wait("n1", Wait::Suspended)]);
    fleet.upgrades[0].suspended = false;
    fleet.nodes[0].hold = Some("disk swap".to_owned());
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(
        waits(&fleet, "u"),
        [wait("n1", Wait::Held("disk swap".to_owned()))]
    );
    fleet.nodes[0].hold = None;
    fleet.nodes[0].ready = false;
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(waits(&fleet, "u"), [wait("n1", Wait::NotReady)]);
    fleet.nodes[0].ready = true;
    fleet.upgrades[0].resolution = Resolution::Pending;
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(waits(&fleet, "u"), [wait("n1", Wait::Unresolved)]);
    assert_eq!(outlook(&fleet, "u").phase, Phase::Pending);
    fleet.upgrades[0].resolution = Resolution::Blocked(ImageId("v2".to_owned()));
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(waits(&fleet, "u"), [wait("n1", Wait::Halted)]);
    assert_eq!(outlook(&fleet, "u").halted, Some(Halted::Blocked));
}

#[test]
fn what_is_held_back_takes_nobodys_turn_to_stage() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.progress = vec![progress("u", "n1", At::Staged)];
    fleet.progress[0].suspended = true;
    assert_eq!(writes(&fleet), ["create u n2 0"]);
    assert_eq!(waits(&fleet, "u"), [wait("n1", Wait::Suspended)]);
}

#[test]
fn staging_runs_ahead_as_far_as_it_may() {
    let mut fleet = fleet(&["n1", "n2", "n3", "n4"]);
    fleet.upgrades[0].max_staging = Some(Limit::Percent(50));
    assert_eq!(writes(&fleet), ["create u n1 0", "create u n2 0"]);
    fleet.progress = vec![
        progress("u", "n1", At::Staged),
        progress("u", "n2", At::Before),
    ];
    fleet.upgrades[0].bound = true;
    assert_eq!(writes(&fleet), ["claim n1"]);
    fleet.places = vec![place("u", "n1", 0)];
    assert_eq!(writes(&fleet), ["activate u-n1 0", "create u n3 0"]);
}

#[test]
fn another_target_is_staged_anew_and_approved_anew() {
    let mut fleet = fleet(&["n1", "n2", "n3", "n4"]);
    fleet.upgrades[0].bound = true;
    fleet.upgrades[0].max_unavailable = Limit::Nodes(4);
    fleet.progress = vec![
        activated("u", "n1", At::Leaving),
        progress("u", "n2", At::Staged),
        progress("u", "n3", At::Before),
        progress("u", "n4", At::Ended(End::Completed)),
    ];
    fleet.places = vec![place("u", "n1", 0), place("u", "n2", 0)];
    fleet.upgrades[0].resolution = Resolution::Image(ImageId("v3".to_owned()));
    assert_eq!(
        writes(&fleet),
        [
            "raise u-n1 1 OtherImage",
            "raise u-n2 1 OtherImage",
            "raise u-n3 1 OtherImage"
        ]
    );
    // Told, the one that was away keeps its place until its agent has taken the new attempt up.
    for progress in &mut fleet.progress[..3] {
        progress.attempt = 1;
        progress.action = Action::Stage;
        progress.image = ImageId("v3".to_owned());
    }
    assert_eq!(writes(&fleet), ["free n2 Raised"]);
    fleet.progress[0].status.as_mut().unwrap().attempt = 1;
    fleet.progress[0].status.as_mut().unwrap().at = At::Before;
    fleet.nodes[0].cordoned_by_us = true;
    assert_eq!(writes(&fleet), ["free n2 Raised"]);
    fleet.nodes[0].cordoned_by_us = false;
    assert_eq!(writes(&fleet), ["free n1 Raised", "free n2 Raised"]);
    fleet.places.clear();
    assert_eq!(writes(&fleet), ["unbind u-n1"]);
}

#[test]
fn another_target_of_an_upgrade_that_may_start_nothing_takes_the_objects_away() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.upgrades[0].suspended = true;
    fleet.upgrades[0].resolution = Resolution::Image(ImageId("v3".to_owned()));
    fleet.progress = vec![
        progress("u", "n1", At::Before),
        progress("u", "n2", At::Ended(End::Completed)),
    ];
    assert_eq!(writes(&fleet), ["delete u-n1 OtherImage"]);
    fleet.upgrades[0].resolution = Resolution::Pending;
    assert_eq!(writes(&fleet), [""; 0]);
    fleet.progress[0].status.as_mut().unwrap().at = At::Staged;
    fleet.places = vec![place("u", "n1", 0)];
    assert_eq!(writes(&fleet)[0], "delete u-n1 OtherImage");
}

#[test]
fn a_node_that_left_its_target_is_not_pushed_there_again() {
    let mut fleet = fleet(&["n1"]);
    fleet.progress = vec![progress("u", "n1", At::Ended(End::Completed))];
    assert_eq!(writes(&fleet), [""; 0]);
    assert_eq!(waits(&fleet, "u"), [wait("n1", Wait::Drifted)]);
    assert_eq!(outlook(&fleet, "u").phase, Phase::RollingOut);
    fleet.upgrades[0].attempt = 3;
    assert_eq!(writes(&fleet), ["raise u-n1 3 AskedAnew"]);
}

#[test]
fn all_targets_refusing_is_a_rejection() {
    let mut fleet = fleet(&["n1", "n2"]);
    let refused = Fit::Refused(Failure {
        reason: "Downgrade".to_owned(),
        message: "older".to_owned(),
    });
    fleet.upgrades[0]
        .matches
        .insert(node_uid("n1"), refused.clone());
    let one = outlook(&fleet, "u");
    assert_eq!((one.phase, one.fail), (Phase::RollingOut, 1));
    assert_eq!(writes(&fleet), ["create u n2 0"]);
    assert_eq!(one.first_failure.unwrap().failure.reason, "Downgrade");
    fleet.upgrades[0].matches.insert(node_uid("n2"), refused);
    let all = outlook(&fleet, "u");
    assert_eq!((all.phase, all.targets, all.fail), (Phase::Rejected, 2, 2));
    // And the next one has its nodes.
    fleet.upgrades.push(upgrade("a", -5, &["n1", "n2"]));
    assert_eq!(writes(&fleet), ["create a n1 0"]);
}

#[test]
fn where_the_rest_is_done_and_some_refused_it_says_so() {
    let mut fleet = fleet(&["n1", "n2"]);
    runs(&mut fleet, 0, &["n1"]);
    fleet.progress = vec![failed("u", "n2", End::Refused, 4)];
    let outlook = outlook(&fleet, "u");
    assert_eq!(outlook.phase, Phase::Halted);
    assert_eq!(outlook.halted, Some(Halted::NothingLeft));
    assert_eq!((outlook.ok, outlook.fail), (1, 1));
}

#[test]
fn what_is_held_begins_nothing_and_what_is_over_is_put_in_order() {
    let mut fleet = fleet(&["n1", "n2", "n3", "n4"]);
    fleet.upgrades[0].bound = true;
    fleet.upgrades[0].max_unavailable = Limit::Nodes(3);
    fleet.upgrades[0].max_staging = Some(Limit::Nodes(3));
    fleet.progress = vec![
        activated("u", "n1", At::Ended(End::Completed)),
        progress("u", "n2", At::Staged),
        progress("u", "n3", At::Staged),
    ];
    fleet.places = vec![place("u", "n1", 0), place("u", "n2", 0)];
    runs(&mut fleet, 0, &["n1"]);
    let mut planned = plan(&fleet);
    let kinds = |planned: &crate::rollout::Plan| -> Vec<&str> {
        let kind = |write: &Write| match write {
            Write::Free { .. } => "free",
            Write::Claim(_) => "claim",
            Write::Create { .. } => "create",
            Write::Activate { .. } => "activate",
            _ => "other",
        };
        planned.writes.iter().map(kind).collect()
    };
    assert_eq!(kinds(&planned), ["free", "activate", "claim", "create"]);
    planned.begin_nothing(&fleet, |_| false);
    assert_eq!(kinds(&planned).len(), 4);
    planned.begin_nothing(&fleet, |upgrade| *upgrade == fleet.upgrades[0].uid);
    assert_eq!(kinds(&planned), ["free"]);
}
