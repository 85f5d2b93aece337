use std::sync::Arc;

use serde_json::json;
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress, OSUpgradeStatus, Phase};
use slotd_engine::rollout::{Plan, ProgressUid, plan};

use super::{patch, wanted};
use crate::controller::catalogs::Reading;
use crate::controller::conditions::Holds;
use crate::controller::resolution::{Meaning, settle};
use crate::controller::snapshot::Snapshot;
use crate::controller::snapshot::tests::{node, progress, read, upgrade};
use crate::controller::waiting;

/// The plan for a snapshot of one upgrade, and the status that it is to have.
fn of(snapshot: &Snapshot) -> (Plan, OSUpgradeStatus) {
    let upgrade = &snapshot.upgrades[0];
    let settled = settle(upgrade, None, &snapshot.progress);
    let plan = plan(&snapshot.fleet(&[("uid-u".to_owned(), settled.clone())].into()));
    let status = wanted(upgrade, &settled, &plan.upgrades[0], snapshot);
    (plan, status)
}

/// What is to be written of those that wait.
fn conditions(snapshot: &Snapshot, plan: &Plan) -> Vec<(ProgressUid, Holds)> {
    let settled = settle(&snapshot.upgrades[0], None, &snapshot.progress);
    waiting::changes(snapshot, &[("uid-u".to_owned(), settled)].into(), plan)
}

fn condition(status: &OSUpgradeStatus, kind: &str) -> Option<(String, String)> {
    let conditions = status.conditions.as_ref()?;
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    assert_eq!(condition.observed_generation, Some(3));
    Some((condition.reason.clone(), condition.message.clone()))
}

#[test]
fn a_status_is_written_only_when_it_says_something_else() {
    let mut snapshot = Snapshot {
        nodes: vec![read(node("n1", "v1.35.0")), read(node("n2", "v1.35.0"))],
        upgrades: vec![read(upgrade("v1.35.1", json!({})))],
        ..Snapshot::default()
    };
    let (_, first) = of(&snapshot);
    assert_eq!(
        (first.phase.clone(), first.targets, first.ok, first.fail),
        (Some(Phase::RollingOut), Some(2), Some(0), Some(0))
    );
    assert!(patch(&snapshot.upgrades[0], &first).is_some());
    let mut stored = OSUpgrade::clone(&snapshot.upgrades[0]);
    // As it comes back from the server, to the second.
    stored.status = Some(serde_json::from_value(serde_json::to_value(&first).unwrap()).unwrap());
    snapshot.upgrades = vec![stored.clone().into()];
    let (_, second) = of(&snapshot);
    assert_eq!(patch(&snapshot.upgrades[0], &second), None);
    stored.metadata.generation = Some(4);
    snapshot.upgrades = vec![stored.into()];
    let settled = settle(&snapshot.upgrades[0], None, &snapshot.progress);
    let plan = plan(&snapshot.fleet(&[("uid-u".to_owned(), settled.clone())].into()));
    let third = wanted(
        &snapshot.upgrades[0],
        &settled,
        &plan.upgrades[0],
        &snapshot,
    );
    assert!(patch(&snapshot.upgrades[0], &third).is_some());
}

#[test]
fn a_failure_is_named_on_the_upgrade() {
    let mut failed = upgrade("v1.35.1", json!({}));
    failed["spec"]["rollout"]["maxFailures"] = json!(1);
    let status = json!({ "phase": "RolledBack", "attempt": 7, "failureReason": "HealthCheckFailed", "message": "kubelet: exit 1" });
    let snapshot = Snapshot {
        nodes: vec![read(node("n1", "v1.35.0")), read(node("n2", "v1.35.0"))],
        upgrades: vec![read(failed)],
        progress: vec![read::<OSUpgradeProgress>(progress("n1", status))],
        ..Snapshot::default()
    };
    let (_, status) = of(&snapshot);
    assert_eq!(
        (status.phase.clone(), status.fail),
        (Some(Phase::Halted), Some(1))
    );
    assert_eq!(
        condition(&status, "NodesFailed"),
        Some((
            "HealthCheckFailed".to_owned(),
            "n1: kubelet: exit 1".to_owned()
        ))
    );
    assert_eq!(condition(&status, "Halted").unwrap().0, "Failures");
    assert_eq!(condition(&status, "Waiting").unwrap().1, "Halted: n2");
}

#[test]
fn nodes_that_are_away_are_named_with_what_they_cost() {
    let not_ready = |name, since: &str| {
        let mut node = node(name, "v1.35.0");
        node["status"]["conditions"][0] =
            json!({ "type": "Ready", "status": "False", "lastTransitionTime": since });
        read(node)
    };
    let mut snapshot = Snapshot {
        nodes: vec![
            not_ready("n1", "2026-01-01T00:00:00Z"),
            read(node("n2", "v1.35.0")),
        ],
        upgrades: vec![read(upgrade("v1.35.1", json!({})))],
        ..Snapshot::default()
    };
    let text = "counted towards maxUnavailable until Ready and schedulable; bring them back, take them out of nodeSelector, or delete \
                the Node of a machine that is gone";
    let (_, status) = of(&snapshot);
    assert_eq!(
        condition(&status, "NodesUnavailable"),
        Some(("Unavailable".to_owned(), format!("n1: {text}")))
    );
    // On its way with a place, and away for longer than a restart takes.
    let status = json!({ "phase": "Rebooting", "attempt": 7 });
    snapshot.progress = vec![read::<OSUpgradeProgress>(progress("n1", status))];
    snapshot.places = Some(read(json!({ "data": {
        "uid-n1": r#"{"node":"n1","upgradeUID":"uid-u","progressUID":"uid-p-n1","attempt":7}"#,
    } })));
    let (_, status) = of(&snapshot);
    let told = "n1 (on its way, not Ready since 2026-01-01T00:00:00Z)";
    assert_eq!(
        condition(&status, "NodesUnavailable"),
        Some(("NotBack".to_owned(), format!("{told}: {text}")))
    );
    // Just gone: that is the restart.
    let now = jiff::Timestamp::now().to_string();
    snapshot.nodes[0] = not_ready("n1", &now);
    let (_, status) = of(&snapshot);
    assert_eq!(condition(&status, "NodesUnavailable"), None);
}

#[test]
fn a_rejected_upgrade_names_the_rule_and_forgets_its_image() {
    let mut value = upgrade("v1.35.1", json!({}));
    value["spec"]["checksum"] = json!("sha256:...");
    let snapshot = Snapshot {
        upgrades: vec![read(value)],
        ..Snapshot::default()
    };
    let (_, status) = of(&snapshot);
    assert_eq!(
        (status.phase.clone(), status.resolved.clone()),
        (Some(Phase::Rejected), None)
    );
    assert_eq!(condition(&status, "Resolved").unwrap().0, "InvalidChecksum");
    let patch = patch(&snapshot.upgrades[0], &status).unwrap();
    assert!(patch["status"]["resolved"].is_null() && patch["status"].get("resolved").is_some());
}

#[test]
fn a_node_that_waits_is_told_so_once() {
    let mut snapshot = Snapshot {
        nodes: vec![read(node("n1", "v1.35.0"))],
        upgrades: vec![read(upgrade("v1.35.1", json!({})))],
        progress: vec![read::<OSUpgradeProgress>(progress(
            "n1",
            json!({ "phase": "Staged", "attempt": 7 }),
        ))],
        ..Snapshot::default()
    };
    let mut held = node("n1", "v1.35.0");
    held["metadata"]["annotations"]["monok8s.io/hold"] = json!("disk swap");
    snapshot.nodes = vec![read(held)];
    let (plan, _) = of(&snapshot);
    let changes = conditions(&snapshot, &plan);
    let [(_, holds)] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!((holds.status, holds.reason.as_str()), ("True", "Held"));
    let mut object = OSUpgradeProgress::clone(&snapshot.progress[0]);
    object.status.as_mut().unwrap().conditions = Some(vec![holds.clone().condition(None, Some(1))]);
    snapshot.progress = vec![object.into()];
    let (plan, _) = of(&snapshot);
    assert_eq!(conditions(&snapshot, &plan), []);
    snapshot.nodes = vec![read(node("n1", "v1.35.0"))];
    let (plan, _) = of(&snapshot);
    let changes = conditions(&snapshot, &plan);
    assert_eq!(
        changes
            .iter()
            .map(|(_, holds)| (holds.status, holds.reason.as_str()))
            .collect::<Vec<_>>(),
        [("False", "NotWaiting")]
    );
}

#[test]
fn what_this_pass_ends_is_not_told_to_every_object_and_taken_back_by_the_next() {
    let mut unresolved = upgrade("v1.35.1", json!({}));
    // As after an edit of the spec: the image is found anew in this pass, and stored by it.
    unresolved["status"]["resolved"] = json!(null);
    let snapshot = Snapshot {
        nodes: vec![read(node("n1", "v1.35.0"))],
        upgrades: vec![read(unresolved)],
        progress: vec![read::<OSUpgradeProgress>(progress(
            "n1",
            json!({ "phase": "Staged", "attempt": 7 }),
        ))],
        ..Snapshot::default()
    };
    let (plan, _) = of(&snapshot);
    assert_eq!(plan.upgrades[0].waiting.len(), 1);
    assert_eq!(conditions(&snapshot, &plan), []);
}

#[test]
fn what_an_upgrade_came_to_stays_when_its_nodes_follow_a_younger_one() {
    let mut snapshot = Snapshot {
        nodes: vec![read(node("n1", "v1.35.1"))],
        upgrades: vec![read(upgrade("v1.35.1", json!({})))],
        ..Snapshot::default()
    };
    let (_, first) = of(&snapshot);
    let counts = |status: &OSUpgradeStatus| (status.targets, status.ok, status.fail);
    assert_eq!(first.phase, Some(Phase::Completed));
    assert_eq!(counts(&first), (Some(1), Some(1), Some(0)));

    let mut stored = OSUpgrade::clone(&snapshot.upgrades[0]);
    stored.status = Some(first);
    let mut younger = upgrade("v1.35.2", json!({}));
    younger["metadata"]["name"] = json!("w");
    younger["metadata"]["uid"] = json!("uid-w");
    younger["metadata"]["creationTimestamp"] = json!("2026-12-01T00:00:00Z");
    snapshot.upgrades = vec![stored.into(), read(younger)];
    let settled = |index: usize| settle(&snapshot.upgrades[index], None, &snapshot.progress);
    let meanings = [
        ("uid-u".to_owned(), settled(0)),
        ("uid-w".to_owned(), settled(1)),
    ];
    let plan = plan(&snapshot.fleet(&meanings.into()));
    let wanted = |index: usize| {
        wanted(
            &snapshot.upgrades[index],
            &settled(index),
            &plan.upgrades[index],
            &snapshot,
        )
    };
    assert_eq!(wanted(0).phase, Some(Phase::Completed));
    assert_eq!(counts(&wanted(0)), (Some(1), Some(1), Some(0)));
    assert_eq!(counts(&wanted(1)), (Some(1), Some(0), Some(0)));
}

/// One whose image has a query, as its status is stored.
fn with_query(catalog: bool) -> (OSUpgrade, OSUpgradeStatus) {
    let mut document = upgrade("v1.35.1", json!({}));
    let url = "https://h/i.zst?token=hunter2";
    if catalog {
        let spec = document["spec"].as_object_mut().unwrap();
        spec.remove("imageURL");
        spec.remove("checksum");
        spec.insert(
            "catalog".to_owned(),
            json!({ "URL": "https://h/images.yaml" }),
        );
    } else {
        document["spec"]["imageURL"] = json!(url);
    }
    document["status"] = json!(null);
    let mut upgrade = OSUpgrade::clone(&read(document));
    let text = format!(
        "images: [{{version: v1.35.1, url: '{url}', checksum: '{}'}}]",
        "a".repeat(64)
    );
    let catalog = catalog.then(|| reading(&text));
    let settled = settle(&upgrade, catalog.as_ref(), &[]);
    let snapshot = Snapshot {
        upgrades: vec![upgrade.clone().into()],
        ..Snapshot::default()
    };
    let fleet = snapshot.fleet(&[("uid-u".to_owned(), settled.clone())].into());
    let status = wanted(&upgrade, &settled, &plan(&fleet).upgrades[0], &snapshot);
    upgrade.status = Some(status.clone());
    (upgrade, status)
}

fn reading(text: &str) -> Reading {
    let catalog = slotd_crds::catalog::Catalog::parse(text.as_bytes(), 1 << 20).unwrap();
    Reading::Read(catalog.into(), None)
}

#[test]
fn a_query_is_shown_to_nobody_and_told_to_the_nodes() {
    for catalog in [false, true] {
        let (upgrade, status) = with_query(catalog);
        let text = serde_json::to_string(&status).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        assert_eq!(status.resolved.as_ref().unwrap().url, "https://h/i.zst");
        let whole = |reading: Option<&Reading>, told: &[Arc<OSUpgradeProgress>]| match settle(
            &upgrade, reading, told,
        )
        .meaning
        {
            Meaning::Frozen(image) => image.url,
            other => format!("{other:?}"),
        };
        let url = "https://h/i.zst?token=hunter2";
        if !catalog {
            assert_eq!(whole(None, &[]), url);
            continue;
        }
        let entry = |url: &str, digit: &str| {
            reading(&format!(
                "images: [{{version: v1.35.1, url: '{url}', checksum: '{}'}}]",
                digit.repeat(64)
            ))
        };
        assert_eq!(whole(Some(&entry(url, "a")), &[]), url);
        // The catalog has another by now: what a node was told of this very upgrade is known.
        let newer = "https://h/i.zst?token=other";
        let other = entry(newer, "b");
        let mut object = progress("n1", json!(null));
        object["spec"]["image"]["url"] = json!(url);
        let told = [read(object)];
        assert_eq!(whole(Some(&other), &told), url);
        // The same image with a newer signature serves as well.
        assert_eq!(whole(Some(&entry(newer, "a")), &[]), newer);
        // Nobody knows it: no node is told of another, and what is frozen stays.
        let pending = settle(&upgrade, Some(&other), &[]);
        assert!(matches!(pending.meaning, Meaning::Pending(_)));
        let snapshot = Snapshot {
            upgrades: vec![upgrade.clone().into()],
            ..Snapshot::default()
        };
        let fleet = snapshot.fleet(&[("uid-u".to_owned(), pending.clone())].into());
        let kept = wanted(&upgrade, &pending, &plan(&fleet).upgrades[0], &snapshot);
        assert_eq!(kept.resolved, status.resolved);
        assert_eq!(kept.resolved_url_digest, status.resolved_url_digest);
        assert_eq!(kept.resolved_from, status.resolved_from);
    }
}
