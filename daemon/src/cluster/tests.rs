//! Which object counts, what comes of it, and what it is told: pure, on whole objects.

mod report;

use serde_json::{Value, json};
use slotd_crds::api::OSUpgradeProgress;
use slotd_engine::{
    Digest, Ended, Failure, Kind, Point, Record, RefusedImage, Result, Slot, Upgrade,
};

use super::report::{NodeFacts, status};
use super::wish::{Judgement, Running, choose, judge, says_ended, task};
use crate::agent::Snapshot;
use crate::status::SlotLetter;

const DIGITS: &str = "99af82a263deca44ad91d21d684f0fa944d5d0456a1da540f1c644f8aa59b14b";

/// An object of the year 2026 for this node, changed as given.
pub(super) fn object(name: &str, second: u32, change: &Value) -> OSUpgradeProgress {
    let mut value = json!({
        "apiVersion": "monok8s.io/v1alpha1",
        "kind": "OSUpgradeProgress",
        "metadata": {
            "name": name,
            "uid": format!("uid-of-{name}"),
            "generation": 3,
            "creationTimestamp": format!("2026-12-01T10:00:{second:02}Z"),
        },
        "spec": {
            "nodeName": "n1",
            "image": {
                "version": "v1.35.1",
                "url": "https://updates.example.com/rootfs.ext4.zst",
                "checksum": format!("sha256:{DIGITS}"),
            },
            "action": "Activate",
        },
    });
    merge(&mut value, change);
    serde_json::from_value(value).unwrap()
}

fn merge(value: &mut Value, change: &Value) {
    match (value, change) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(fields.entry(key).or_insert(Value::Null), change);
            }
        }
        (value, change) => *value = change.clone(),
    }
}

pub(super) fn running(version: &str) -> Running {
    Running {
        version: Some(version.to_owned()),
        good: true,
    }
}

fn chosen(objects: &[OSUpgradeProgress], record: &Record) -> Option<String> {
    let all: Vec<&OSUpgradeProgress> = objects.iter().collect();
    choose(&all, "node-1", record).and_then(|object| object.metadata.name.clone())
}

/// A record whose upgrade was begun for this object and stands there.
pub(super) fn under_way(object: &OSUpgradeProgress, at: Point) -> Record {
    let Judgement::Take(assignment) = judge(object, &Record::default(), &running("v1.34.0")) else {
        panic!("it is not begun");
    };
    Record {
        last_id: 1,
        at,
        upgrade: Some(Upgrade {
            id: 1,
            kind: Kind::Install,
            target: Slot::B,
            request: Some(assignment.image),
            image: None,
            left: None,
            back_to: None,
            drain: None,
            attempt: 2,
            tries: 0,
            restarts: 0,
            trials: 0,
            granted: 0,
            boot_id: None,
            failure: None,
            ending: None,
            started_at: 1_796_000_000,
            ended_at: None,
        }),
        ..Record::default()
    }
}

fn ended(object: &OSUpgradeProgress, result: Result, failure: Option<Failure>) -> Record {
    let ended = Ended {
        id: 1,
        kind: Kind::Install,
        result,
        slot: Slot::B,
        version: None,
        digest: None,
        source: None,
        failure,
        task: Some(task(object)),
        started_at: 1_796_000_000,
        ended_at: 1_796_000_300,
    };
    Record {
        last_id: 1,
        tasks: vec![ended],
        ..Record::default()
    }
}

fn snapshot(record: Record) -> Snapshot {
    Snapshot {
        record,
        progress: None,
        message: None,
    }
}

fn facts() -> NodeFacts {
    NodeFacts {
        version: Some("v1.34.0".to_owned()),
        booted: Some(SlotLetter::A),
    }
}

#[test]
fn the_youngest_counts_and_what_ended_goes_away_or_means_another_node_does_not() {
    let none = json!({});
    let old = object("old", 1, &none);
    let young = object("young", 2, &none);
    let twin = object("zwin", 2, &none);
    let empty = Record::default();
    assert_eq!(
        chosen(&[young.clone(), old.clone()], &empty).as_deref(),
        Some("young")
    );
    assert_eq!(
        chosen(&[young.clone(), twin], &empty).as_deref(),
        Some("zwin")
    );
    for out in [
        json!({"metadata": {"deletionTimestamp": "2026-12-01T11:00:00Z"}}),
        json!({"spec": {"nodeUID": "of another Node of that name"}}),
        json!({"status": {"phase": "Completed", "attempt": 0}}),
        json!({"status": {"phase": "Rejected"}}),
    ] {
        let other = object("young", 2, &out);
        assert_eq!(
            chosen(&[other, old.clone()], &empty).as_deref(),
            Some("old"),
            "{out}"
        );
    }
    let done = ended(&young, Result::Failed, None);
    assert_eq!(
        chosen(&[young.clone(), old.clone()], &done).as_deref(),
        Some("old")
    );
    // A raised attempt, and another version, are not what ended.
    for again in [
        json!({"spec": {"attempt": 1}, "status": {"phase": "Failed", "attempt": 0}}),
        json!({"spec": {"image": {"version": "v1.35.2"}}, "status": {"phase": "Completed", "targetVersion": "v1.35.1"}}),
    ] {
        let again = object("young", 2, &again);
        assert!(!says_ended(&again));
        assert_eq!(
            chosen(&[again, old.clone()], &done).as_deref(),
            Some("young")
        );
    }
}

#[test]
fn what_is_in_flight_ends_before_a_younger_object_and_what_only_waits_does_not() {
    let stage = json!({"spec": {"action": "Stage"}});
    let young = object("young", 2, &json!({}));
    for (change, at, first) in [
        (json!({}), Point::Write, "old"),
        (json!({}), Point::Restart, "old"),
        (stage.clone(), Point::Staged, "young"),
        (stage.clone(), Point::Write, "young"),
        (stage, Point::Check, "old"),
    ] {
        let old = object("old", 1, &change);
        let record = under_way(&old, at);
        assert_eq!(
            chosen(&[old, young.clone()], &record).as_deref(),
            Some(first),
            "{at:?}"
        );
    }
}

#[test]
fn a_wish_is_judged_before_anything_is_begun_for_it() {
    let code = |change: Value, record: &Record, running: &Running| match judge(
        &object("o", 1, &change),
        record,
        running,
    ) {
        Judgement::Take(_) => "take".to_owned(),
        Judgement::Runs => "runs".to_owned(),
        Judgement::Reject { code, .. } => code,
        Judgement::Forgotten => "forgotten".to_owned(),
        Judgement::Wait(reason) => format!("waits: {reason}"),
    };
    let empty = Record::default();
    let older = running("v1.34.0");
    assert_eq!(code(json!({}), &empty, &older), "take");
    assert_eq!(code(json!({}), &empty, &running("1.35.1")), "runs");
    let unproven = Running {
        good: false,
        ..running("v1.35.1")
    };
    assert!(code(json!({}), &empty, &unproven).starts_with("waits: v1.35.1 runs, but"));
    assert_eq!(code(json!({}), &empty, &running("v1.36.0")), "Downgrade");
    let allowed = json!({"spec": {"allowDowngrade": true}});
    assert_eq!(code(allowed, &empty, &running("v1.36.0")), "take");
    for (image, rejected) in [
        (json!({"checksum": "sha256:..."}), "InvalidChecksum"),
        (json!({"expandedChecksum": "abc"}), "InvalidChecksum"),
        (json!({"url": "-"}), "InvalidURL"),
        (json!({"url": "/etc/shadow"}), "InvalidURL"),
        // The node's own may name a file; who writes an object may not have its devices opened.
        (json!({"url": "file:///dev/vda"}), "InvalidURL"),
        (json!({"url": "https://user@h/x"}), "InvalidURL"),
    ] {
        assert_eq!(
            code(json!({"spec": {"image": image}}), &empty, &older),
            rejected,
            "{image}"
        );
    }
    let suspended = json!({"spec": {"suspend": true}});
    assert_eq!(code(suspended, &empty, &older), "waits: suspended");
    let down = json!({"status": {"phase": "Rebooting", "attempt": 0}});
    assert_eq!(code(down, &empty, &older), "forgotten");
    let known = Record {
        refused: vec![RefusedImage {
            digest: Digest::new(DIGITS).unwrap(),
            published: None,
            version: None,
            reason: "health check web failed".to_owned(),
        }],
        ..Record::default()
    };
    assert_eq!(code(json!({}), &known, &older), "FailedBefore");
    assert_eq!(
        code(json!({"spec": {"attempt": 1}}), &known, &older),
        "take"
    );
    let mut local = under_way(&object("o", 1, &json!({})), Point::Write);
    if let Some(request) = local
        .upgrade
        .as_mut()
        .and_then(|upgrade| upgrade.request.as_mut())
    {
        request.task = None;
    }
    assert!(
        code(json!({}), &local, &older)
            .starts_with("waits: upgrade 1, which was asked for on the node")
    );
}

#[test]
fn a_word_of_a_later_release_goes_no_further_than_staged() {
    let later = object(
        "o",
        1,
        &json!({"spec": {"action": "Leap", "drain": {"timeout": "90s", "onTimeout": "Ask"}}}),
    );
    let Judgement::Take(assignment) = judge(&later, &Record::default(), &running("v1.34.0")) else {
        panic!("it is not begun");
    };
    assert!(!assignment.activate);
    assert_eq!(
        (assignment.drain.timeout, assignment.drain.force),
        (90, false)
    );
}

#[test]
fn an_edit_while_the_trial_boot_runs_is_begun_once_that_has_ended() {
    let first = object("o", 1, &json!({}));
    let on_trial = under_way(&first, Point::Check);
    for change in [
        json!({"metadata": {"generation": 4}, "spec": {"attempt": 1}}),
        json!({"metadata": {"generation": 4}, "spec": {"image": {"version": "v1.36.0"}}}),
    ] {
        let mut edited = object("o", 1, &change);
        edited.status = status(&first, &snapshot(on_trial.clone()), &facts(), None);
        // The trial boot is not one of what is asked now.
        edited.status = status(&edited, &snapshot(on_trial.clone()), &facts(), None);
        let told = edited.status.as_ref().unwrap();
        assert_eq!(
            (
                told.attempt,
                told.target_version.as_deref(),
                told.observed_generation
            ),
            (Some(0), Some("v1.35.1"), Some(3)),
            "{change}"
        );
        let back = ended(&first, Result::RolledBack, None);
        let judgement = judge(&edited, &back, &running("v1.34.0"));
        assert!(
            matches!(judgement, Judgement::Take(_)),
            "{change}: {judgement:?}"
        );
    }
}

#[test]
fn an_edit_to_an_image_that_failed_here_before_stops_what_is_under_way() {
    let first = object("o", 1, &json!({}));
    let mut record = under_way(&first, Point::Drain);
    let other = DIGITS.replace('9', "8");
    record.refused.push(RefusedImage {
        digest: Digest::new(&other).unwrap(),
        published: None,
        version: None,
        reason: "health check web failed".to_owned(),
    });
    let image = json!({"version": "v1.35.2", "checksum": format!("sha256:{other}")});
    let edited = object("o", 1, &json!({"spec": {"image": image}}));
    let judgement = judge(&edited, &record, &running("v1.34.0"));
    let Judgement::Reject { code, .. } = judgement else {
        panic!("{judgement:?}");
    };
    assert_eq!(code, "FailedBefore");
    // What it goes on with is not asked for anew.
    let judgement = judge(&first, &record, &running("v1.34.0"));
    assert!(matches!(judgement, Judgement::Take(_)), "{judgement:?}");
}

#[test]
fn a_trial_boot_whose_state_was_lost_is_told_as_one_until_it_has_ended() {
    let down = object(
        "o",
        1,
        &json!({"status": {"phase": "Rebooting", "attempt": 0, "targetVersion": "v1.35.1"}}),
    );
    let mut adopted = under_way(&object("o", 1, &json!({})), Point::Check);
    let upgrade = adopted.upgrade.as_mut().unwrap();
    (upgrade.kind, upgrade.request) = (Kind::Adopted, None);
    let judgement = judge(&down, &adopted, &running("v1.35.1"));
    let told = status(&down, &snapshot(adopted), &facts(), Some(&judgement)).unwrap();
    // Or the attempt would be begun again after its rollback.
    let back = OSUpgradeProgress {
        status: Some(told),
        ..down
    };
    let judgement = judge(&back, &Record::default(), &running("v1.34.0"));
    assert_eq!(judgement, Judgement::Forgotten);
}
