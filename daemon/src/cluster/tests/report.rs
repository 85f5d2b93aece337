//! What the status of an object tells.

use serde_json::{Value, json};
use slotd_engine::{Digest, ErrorKind, Failure, Image, Point, Record, Result};

use super::{DIGITS, ended, facts, object, snapshot, under_way};
use crate::cluster::report::{News, news, patch, status};
use crate::cluster::wish::Judgement;
use crate::status::ProgressStatus;

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
        status.last_updated_at = crate::cluster::time::at(1_796_000_000);
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
        started_at: crate::cluster::time::at(1),
        completed_at: crate::cluster::time::at(1),
        last_updated_at: crate::cluster::time::at(1),
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
