//! Which object counts, what comes of it, and what it is told: pure, on whole objects.

use serde_json::{Value, json};
use slotd_crds::api::OSUpgradeProgress;
use slotd_engine::{
    Digest, Ended, ErrorKind, Failure, Image, Kind, Point, Record, RefusedImage, Result, Slot,
    Upgrade,
};

use super::report::{News, NodeFacts, news, patch, status};
use super::wish::{Judgement, Running, choose, judge, says_ended, task};
use crate::agent::Snapshot;
use crate::status::{ProgressStatus, SlotLetter};

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
fn a_status_tells_how_far_the_node_is() {
    let object = object("o", 1, &json!({}));
    let mut moving = snapshot(under_way(&object, Point::Write));
    moving.progress = Some(ProgressStatus {
        percent: Some(43),
        bytes_written: 43,
        bytes_total: Some(100),
        ..ProgressStatus::default()
    });
    let told = status(&object, &moving, &facts(), None).unwrap();
    let told = serde_json::to_value(told).unwrap();
    let wanted = json!({
        "observedGeneration": 3, "attempt": 0, "currentVersion": "v1.34.0", "targetVersion": "v1.35.1",
        "phase": "Downloading", "display": "downloading 43%", "percent": 43, "bytesDone": 43, "bytesTotal": 100,
        "startedAt": "2026-11-30T00:53:20Z", "retryCount": 1, "inactivePartition": "B",
    });
    assert_eq!(told, wanted);
    for (at, display) in [
        (Point::PrepareBoot, "verifying"),
        (Point::Staged, "staged"),
        (Point::Drain, "draining"),
        (Point::Restart, "rebooting"),
        (Point::Bless, "confirming"),
    ] {
        let told = status(&object, &snapshot(under_way(&object, at)), &facts(), None).unwrap();
        assert_eq!(told.display.as_deref(), Some(display));
    }
}

#[test]
fn an_end_is_told_with_its_reason_and_the_output_of_the_check() {
    let object = object("o", 1, &json!({}));
    let tell = |result, failure| {
        let record = ended(&object, result, failure);
        let told = status(&object, &snapshot(record), &facts(), None).unwrap();
        (
            told.display.unwrap(),
            told.failure_reason.unwrap_or_default(),
            told.message.unwrap_or_default(),
        )
    };
    let words = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    assert_eq!(tell(Result::Completed, None), words("completed", "", ""));
    let unhealthy = Failure {
        output: Some("no answer\n".to_owned()),
        ..Failure::new(ErrorKind::Reject, "health check web failed").coded("HealthCheckFailed")
    };
    assert_eq!(
        tell(Result::RolledBack, Some(unhealthy)),
        words(
            "rolledback",
            "HealthCheckFailed",
            "health check web failed: no answer"
        )
    );
    let late = Failure {
        check: Some("http kubelet".to_owned()),
        output: Some("refused".to_owned()),
        ..Failure::new(
            ErrorKind::Reject,
            "not proven healthy within 9 seconds of boot",
        )
        .coded("HealthDeadlineExceeded")
    };
    assert_eq!(
        tell(Result::RolledBack, Some(late)).2,
        "not proven healthy within 9 seconds of boot (http kubelet): refused"
    );
    let mismatch =
        Failure::new(ErrorKind::Reject, "the image names itself 3").coded("VersionMismatch");
    assert_eq!(
        tell(Result::Failed, Some(mismatch)),
        words("failed", "VersionMismatch", "the image names itself 3")
    );
    assert_eq!(
        tell(
            Result::Failed,
            Some(Failure::new(ErrorKind::Retry, "reset"))
        ),
        words("failed", "Retry", "reset")
    );
    assert_eq!(tell(Result::Cancelled, None).1, "Cancelled");
}

#[test]
fn a_status_is_written_for_news_and_never_for_nothing() {
    let mut object = object("o", 1, &json!({}));
    let mut record = under_way(&object, Point::Write);
    record.upgrade.as_mut().unwrap().image = Some(Image {
        digest: Digest::new(DIGITS).unwrap(),
        published: None,
        size: 1,
        version: None,
    });
    let mut told = status(&object, &snapshot(record), &facts(), None).unwrap();
    assert_eq!(news(&told, &object), News::Change);
    // As the API server answers: with the controller's condition in it.
    object.status = Some(told.clone());
    if let Some(status) = &mut object.status {
        status.conditions = Some(Vec::new());
        status.last_updated_at = super::time::at(1_796_000_000);
    }
    assert_eq!(news(&told, &object), News::Nothing);
    told.percent = Some(44);
    assert_eq!(news(&told, &object), News::Moving);
    let written = patch(&told).unwrap();
    assert_eq!(written["status"]["percent"], 44);
    assert!(written["status"]["failureReason"].is_null());
    assert_eq!(written["status"].get("conditions"), None);
    // No field of the status that is the agent's stays behind from an earlier phase.
    let schema = serde_json::to_value(slotd_crds::api::OSUpgradeProgressStatus {
        observed_generation: Some(1),
        attempt: Some(1),
        current_version: Some(String::new()),
        target_version: Some(String::new()),
        phase: Some(slotd_crds::api::ProgressPhase::Failed),
        display: Some(String::new()),
        percent: Some(1),
        bytes_done: Some(1),
        bytes_total: Some(1),
        started_at: super::time::at(1),
        completed_at: super::time::at(1),
        last_updated_at: super::time::at(1),
        retry_count: Some(1),
        inactive_partition: Some(slotd_crds::api::Partition::A),
        failure_reason: Some(String::new()),
        message: Some(String::new()),
        conditions: None,
    })
    .unwrap();
    for field in schema.as_object().unwrap().keys() {
        assert!(written["status"].get(field).is_some(), "{field}");
    }
}

#[test]
fn an_end_that_only_the_object_remembers_stays_and_a_deleted_object_is_told_an_end() {
    let done = object(
        "o",
        1,
        &json!({"status": {"phase": "Completed", "display": "completed", "attempt": 0, "targetVersion": "v1.35.1",
            "completedAt": "2026-12-01T10:01:00Z", "currentVersion": "v1.35.1"}}),
    );
    let told = status(&done, &snapshot(Record::default()), &facts(), None).unwrap();
    assert_eq!(told.display.as_deref(), Some("completed"));
    assert_eq!(
        told.current_version.as_deref(),
        Some("v1.34.0"),
        "what runs"
    );
    let deleted = object(
        "o",
        1,
        &json!({"metadata": {"deletionTimestamp": "2026-12-01T11:00:00Z"}}),
    );
    let told = status(&deleted, &snapshot(Record::default()), &facts(), None).unwrap();
    assert_eq!(told.failure_reason.as_deref(), Some("Cancelled"));
}

#[test]
fn a_status_speaks_of_the_attempt_that_the_node_is_at() {
    let first = object("o", 1, &json!({}));
    let raised = object(
        "o",
        1,
        &json!({"spec": {"attempt": 4, "image": {"version": "v1.36.0"}}}),
    );
    let record = under_way(&first, Point::Restart);
    let told = status(&raised, &snapshot(record), &facts(), None).unwrap();
    assert_eq!(told.attempt, Some(0));
    assert_eq!(told.target_version.as_deref(), Some("v1.35.1"));
    assert_eq!(told.display.as_deref(), Some("rebooting"));
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
fn a_sentence_about_very_many_pods_fits_the_schema() {
    let object = object("o", 1, &json!({}));
    let mut draining = snapshot(under_way(&object, Point::Drain));
    draining.message = Some("pod team/\u{fc}ber is kept: its budget needs it; ".repeat(2000));
    let told = status(&object, &draining, &facts(), None).unwrap();
    let length = told.message.unwrap().chars().count();
    assert!((30_000..=32_768).contains(&length), "{length}");
    let waits = Judgement::Wait("x".repeat(40_000));
    let told = status(
        &object,
        &snapshot(Record::default()),
        &facts(),
        Some(&waits),
    )
    .unwrap();
    assert!(told.message.unwrap().chars().count() <= 32_768);
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

#[test]
fn an_edit_after_the_end_is_told_to_wait_for_another_attempt() {
    let end = |result, failure, change: &Value| {
        let object = object("o", 1, change);
        let record = ended(&object, result, failure);
        let told = status(&object, &snapshot(record), &facts(), None).unwrap();
        (told, object)
    };
    let edited = json!({
        "metadata": {"generation": 4},
        "spec": {"image": {"url": "https://h/mended.zst"}},
        "status": {"phase": "Failed", "attempt": 0, "observedGeneration": 3, "message": "too short"},
    });
    let failure = || Some(Failure::new(ErrorKind::Reject, "too short".to_owned()));
    let (told, _) = end(Result::Failed, failure(), &edited);
    assert_eq!(told.observed_generation, Some(3));
    let message = told.message.clone().unwrap();
    assert!(
        message.starts_with("too short; the spec was edited") && message.contains("raise attempt"),
        "{message}"
    );
    // Said once, also where only the object remembers the end.
    let mut again = edited.clone();
    again["status"]["message"] = json!(message);
    let object_again = object("o", 1, &again);
    let told = status(&object_again, &snapshot(Record::default()), &facts(), None).unwrap();
    assert_eq!(told.message, Some(message));
    // Not edited, or taken up already.
    let mut same = edited.clone();
    same["metadata"]["generation"] = json!(3);
    let (told, _) = end(Result::Failed, failure(), &same);
    assert_eq!(
        (told.observed_generation, told.message.as_deref()),
        (Some(3), Some("too short"))
    );
    // The first word of an end is one of what the object says now.
    let mut first = edited;
    first["status"]["phase"] = json!("Downloading");
    let (told, _) = end(Result::Failed, failure(), &first);
    assert_eq!(
        (told.observed_generation, told.message.as_deref()),
        (Some(4), Some("too short"))
    );
}
