//! Which progress objects go, and when finalizers do.

use super::fixture::{activated, fleet, node_uid, place, progress, writes};
use crate::rollout::{At, End, Resolution};

#[test]
fn objects_go_that_nobody_wants() {
    let mut fleet = fleet(&["n1", "n2"]);
    fleet.upgrades[0].max_staging = Some(crate::rollout::Limit::Nodes(2));
    fleet.progress = vec![
        progress("u", "n1", At::Before),
        progress("u", "n2", At::Before),
    ];
    assert_eq!(writes(&fleet), [""; 0]);
    fleet.upgrades[0].matches.remove(&node_uid("n1"));
    assert_eq!(writes(&fleet), ["delete u-n1 NoTarget"]);
    fleet.nodes[1].agent = false;
    assert_eq!(
        writes(&fleet),
        ["delete u-n1 NoTarget", "delete u-n2 NoTarget"]
    );
    fleet.upgrades[0].resolution = Resolution::Rejected;
    assert_eq!(
        writes(&fleet),
        ["delete u-n1 UpgradeRejected", "delete u-n2 UpgradeRejected"]
    );
    fleet.nodes.remove(0);
    assert_eq!(
        writes(&fleet),
        ["delete u-n1 NodeGone", "delete u-n2 UpgradeRejected"]
    );
    fleet.progress[0].deleting = true;
    assert_eq!(writes(&fleet), ["delete u-n2 UpgradeRejected"]);
    // Its upgrade is not known here: younger than the snapshot, or gone.
    fleet.upgrades.clear();
    assert_eq!(writes(&fleet), [""; 0]);
}

#[test]
fn what_is_under_way_is_stopped_only_where_its_upgrade_goes() {
    let mut fleet = fleet(&["n1"]);
    fleet.upgrades[0].bound = true;
    fleet.progress = vec![activated("u", "n1", At::Leaving)];
    fleet.places = vec![place("u", "n1", 0)];
    fleet.upgrades[0].matches.clear();
    assert_eq!(writes(&fleet), [""; 0]);
    fleet.upgrades[0].resolution = Resolution::Rejected;
    assert_eq!(writes(&fleet), [""; 0]);
    fleet.upgrades[0].deleting = true;
    assert_eq!(writes(&fleet), ["delete u-n1 UpgradeDeleted"]);
    fleet.progress[0].deleting = true;
    assert_eq!(writes(&fleet), [""; 0]);
    fleet.progress[0].status.as_mut().unwrap().at = At::Ended(End::Failed);
    assert_eq!(writes(&fleet), ["free n1 Ended"]);
    fleet.places.clear();
    assert_eq!(writes(&fleet), ["unbind u-n1"]);
    fleet.progress.clear();
    assert_eq!(writes(&fleet), ["unbind u"]);
}

#[test]
fn finalizers_stay_while_a_node_may_be_away() {
    let mut fleet = fleet(&["n1"]);
    fleet.upgrades[0].bound = true;
    fleet.progress = vec![activated("u", "n1", At::Ended(End::Completed))];
    fleet.places = vec![place("u", "n1", 0)];
    // Completed, but not Ready: the place is held, and the object that it is held for stays.
    fleet.nodes[0].ready = false;
    assert_eq!(writes(&fleet), [""; 0]);
    // The Node is gone.
    fleet.progress = vec![activated("u", "n1", At::Leaving)];
    fleet.nodes.clear();
    assert_eq!(writes(&fleet), ["free n1 NodeGone", "delete u-n1 NodeGone"]);
    fleet.places.clear();
    fleet.progress[0].deleting = true;
    assert_eq!(writes(&fleet), ["unbind u-n1 NodeGone"]);
}

#[test]
fn no_second_object_is_made_while_one_goes() {
    let mut fleet = fleet(&["n1"]);
    fleet.progress = vec![progress("u", "n1", At::Staged)];
    fleet.progress[0].deleting = true;
    assert_eq!(writes(&fleet), [""; 0]);
}
