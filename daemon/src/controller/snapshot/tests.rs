use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use serde_json::{Value, json};
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};
use slotd_engine::rollout;
use slotd_engine::rollout::{At, End, Fit, NodeUid, Resolution};

use super::Snapshot;
use crate::controller::resolution::{Meaning, settle};

pub(in crate::controller) fn read<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

pub(in crate::controller) fn node(name: &str, version: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": format!("uid-{name}"),
            "labels": { "monok8s.io/agent": "true", "zone": "a" },
            "annotations": { "monok8s.io/version": version },
        },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

pub(in crate::controller) fn upgrade(version: &str, selector: Value) -> Value {
    let mut upgrade = json!({
        "apiVersion": "monok8s.io/v1alpha1", "kind": "OSUpgrade",
        "metadata": { "name": "u", "uid": "uid-u", "generation": 3, "creationTimestamp": "2026-01-01T00:00:10Z" },
        "spec": {
            "version": version, "imageURL": "https://h/i.zst", "checksum": "a".repeat(64),
            "nodeSelector": selector, "rollout": { "maxUnavailable": "50%", "maxFailures": 2 },
        },
    });
    let read: OSUpgrade = serde_json::from_value(upgrade.clone()).unwrap();
    upgrade["status"] = json!({
        "phase": "RollingOut", "resolvedFrom": read.spec.resolution_digest(),
        "resolved": { "version": version, "url": "https://h/i.zst", "checksum": "a".repeat(64) },
    });
    upgrade
}

pub(in crate::controller) fn progress(node: &str, status: Value) -> Value {
    json!({
        "apiVersion": "monok8s.io/v1alpha1", "kind": "OSUpgradeProgress",
        "metadata": { "name": format!("p-{node}"), "uid": format!("uid-p-{node}"), "annotations": { "monok8s.io/upgrade-attempt": "4" } },
        "spec": {
            "sourceRef": { "name": "u", "uid": "uid-u" }, "nodeName": node, "nodeUID": format!("uid-{node}"),
            "image": { "version": "v1.35.1", "url": "https://h/i.zst", "checksum": "a".repeat(64) },
            "action": "Stage", "attempt": 7,
        },
        "status": status,
    })
}

fn fleet(snapshot: &Snapshot) -> rollout::Fleet {
    let settled: BTreeMap<_, _> = snapshot
        .upgrades
        .iter()
        .map(|upgrade| {
            (
                upgrade.metadata.uid.clone().unwrap(),
                settle(upgrade, None, &[]),
            )
        })
        .collect();
    snapshot.fleet(&settled)
}

#[test]
fn a_node_is_what_its_labels_annotations_and_conditions_say() {
    let mut value = node("n1", "v1.35.0");
    let map = |value: &Value| super::map_node(&read::<Node>(value.clone()));
    let plain = map(&value);
    assert!(
        plain.agent
            && plain.ready
            && !plain.unschedulable
            && !plain.cordoned_by_us
            && !plain.control_plane
    );
    value["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = json!("");
    value["metadata"]["labels"]["monok8s.io/agent"] = json!("false");
    value["metadata"]["annotations"]["monok8s.io/hold"] = json!("disk swap");
    value["metadata"]["annotations"]["monok8s.io/cordoned-by"] = json!("slotd/p");
    value["spec"] = json!({ "unschedulable": true });
    value["status"]["conditions"][0]["status"] = json!("Unknown");
    let other = map(&value);
    assert!(
        !other.agent
            && !other.ready
            && other.unschedulable
            && other.cordoned_by_us
            && other.control_plane
    );
    assert_eq!(other.hold.as_deref(), Some("disk swap"));
    value["status"] = json!({});
    assert!(
        !map(&value).ready,
        "a Node of which nothing is known is not Ready"
    );
}

#[test]
fn an_upgrade_matches_what_its_selector_says_and_judges_each_node() {
    let mut bare = node("n4", "v1.35.0");
    bare["metadata"]["labels"] = json!({ "zone": "b" });
    let snapshot = Snapshot {
        nodes: vec![
            read(node("n1", "v1.35.0")),
            read(node("n2", "1.35.1")),
            read(node("n3", "v1.36.0")),
            read(bare),
        ],
        upgrades: vec![read(upgrade("v1.35.1", json!({ "zone": "a" })))],
        ..Snapshot::default()
    };
    let fleet = fleet(&snapshot);
    let upgrade = &fleet.upgrades[0];
    let fit = |name: &str| upgrade.matches.get(&NodeUid(format!("uid-{name}")));
    assert_eq!(fit("n1"), Some(&Fit::Follows));
    assert_eq!(fit("n2"), Some(&Fit::Runs), "v or none is the same version");
    assert!(matches!(fit("n3"), Some(Fit::Refused(failure)) if failure.reason == "Downgrade"));
    assert_eq!(fit("n4"), None);
    assert_eq!(upgrade.max_unavailable, rollout::Limit::Percent(50));
    assert_eq!(upgrade.max_staging, None);
    assert_eq!((upgrade.max_failures, upgrade.created), (2, 1_767_225_610));
    assert!(matches!(upgrade.resolution, Resolution::Image(_)));
}

#[test]
fn a_selector_that_cannot_be_read_matches_nothing_and_is_rejected() {
    for selector in [
        Value::Null,
        json!("zone=a"),
        json!({ "zone": 1 }),
        json!({ "matchLabels": { "zone": "a" }, "x": "y" }),
    ] {
        let snapshot = Snapshot {
            nodes: vec![read(node("n1", "v1.35.0"))],
            upgrades: vec![read(upgrade("v1.35.1", selector.clone()))],
            ..Snapshot::default()
        };
        let fleet = fleet(&snapshot);
        assert_eq!(
            fleet.upgrades[0].resolution,
            Resolution::Rejected,
            "{selector}"
        );
        assert!(fleet.upgrades[0].matches.is_empty(), "{selector}");
    }
}

#[test]
fn an_image_that_was_not_stored_before_is_not_told_to_nodes() {
    let mut value = upgrade("v1.35.1", json!({}));
    value["status"]["resolvedFrom"] = json!("of another spec");
    let upgrade = read::<OSUpgrade>(value);
    assert!(matches!(
        settle(&upgrade, None, &[]).meaning,
        Meaning::Found(_)
    ));
    let snapshot = Snapshot {
        upgrades: vec![upgrade],
        ..Snapshot::default()
    };
    assert_eq!(fleet(&snapshot).upgrades[0].resolution, Resolution::Pending);
}

#[test]
fn a_progress_object_says_which_attempt_its_status_speaks_of() {
    let map = |value: Value| {
        let snapshot = Snapshot {
            nodes: vec![read(node("n1", "v1.35.1"))],
            progress: vec![read::<OSUpgradeProgress>(value)],
            ..Snapshot::default()
        };
        fleet(&snapshot).progress.pop()
    };
    // The controller's first status speaks of no attempt.
    let first = map(progress("n1", json!({ "phase": "Pending" }))).unwrap();
    assert_eq!(
        (
            first.attempt,
            first.upgrade_attempt,
            first.status,
            first.activated
        ),
        (7, 4, None, None)
    );
    assert!(first.runs_target);
    for (phase, at) in [
        ("Pending", At::Before),
        ("Downloading", At::Before),
        ("Verifying", At::Before),
        ("Staged", At::Staged),
        ("Draining", At::Leaving),
        ("Rebooting", At::Leaving),
        ("Confirming", At::Leaving),
        ("Resting", At::Leaving),
        ("Completed", At::Ended(End::Completed)),
        ("RolledBack", At::Ended(End::RolledBack)),
        ("Failed", At::Ended(End::Failed)),
        ("Rejected", At::Ended(End::Refused)),
    ] {
        let status = map(progress("n1", json!({ "phase": phase, "attempt": 6 })))
            .unwrap()
            .status
            .unwrap();
        assert_eq!((status.attempt, status.at), (6, at), "{phase}");
    }
    let mut value = progress("n1", json!({}));
    value["metadata"]["finalizers"] = json!(["monok8s.io/slotd"]);
    assert_eq!(map(value.clone()).unwrap().activated, Some(7));
    value["metadata"]["annotations"]["monok8s.io/activated-attempt"] = json!("5");
    assert_eq!(map(value.clone()).unwrap().activated, Some(5));
    value["metadata"]["finalizers"] = json!(["of.others/x"]);
    assert_eq!(map(value.clone()).unwrap().activated, None);
    // One made by hand has its node by name; one of a node that is not there is none of ours.
    value["spec"]["nodeUID"] = Value::Null;
    value["spec"]["sourceRef"] = Value::Null;
    value["spec"]["action"] = json!("Explode");
    let hand = map(value.clone()).unwrap();
    assert_eq!(
        (hand.upgrade, hand.node.0.as_str(), hand.action),
        (None, "uid-n1", rollout::Action::Stage)
    );
    value["spec"]["nodeName"] = json!("n9");
    assert_eq!(map(value), None);
}

#[test]
fn a_place_that_cannot_be_read_is_held() {
    let places = json!({ "data": {
        "uid-n1": r#"{"node":"n1","upgradeUID":"u","progressUID":"p","attempt":2}"#,
        "uid-n2": "garbage",
    } });
    let places = super::map_places(&read::<ConfigMap>(places));
    assert_eq!(places.len(), 2);
    assert_eq!(
        places[0].holder.as_ref().map(|holder| holder.attempt),
        Some(2)
    );
    assert_eq!(
        (places[1].node.0.as_str(), &places[1].holder),
        ("uid-n2", &None)
    );
}
