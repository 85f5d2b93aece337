//! The durable record: files of version 1 as they were written stay readable, and what is no record is told
//! apart.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use slotd_engine::table::POINTS;
use slotd_engine::{
    DecodeError, Digest, Drain, Ended, ErrorKind, Failure, Image, ImageRequest, Kind, Point,
    Record, RefusedImage, Result as Ending, Slot, Task, Upgrade, decode, encode,
};

fn digest(byte: &str) -> Digest {
    Digest::new(&byte.repeat(32)).unwrap()
}

fn request() -> ImageRequest {
    ImageRequest {
        source: "https://updates.example.com/rootfs.ext4.zst".to_owned(),
        locator: Some("https://updates.example.com/rootfs.ext4.zst?token=x".to_owned()),
        checksum: Some(digest("99")),
        expanded_checksum: None,
        size: Some(1_858_076_672),
        version: Some("v1.35.1".to_owned()),
        stage_only: false,
        allow_downgrade: false,
        allow_same_version: false,
        allow_no_agent: false,
        asked_anew: true,
        task: None,
    }
}

fn upgrade() -> Upgrade {
    Upgrade {
        id: 7,
        kind: Kind::Install,
        target: Slot::B,
        request: Some(request()),
        image: Some(Image {
            digest: digest("ab"),
            published: Some(digest("99")),
            size: 1_858_076_672,
            version: Some("v1.35.1".to_owned()),
        }),
        left: None,
        back_to: None,
        drain: None,
        attempt: 1,
        tries: 0,
        restarts: 0,
        trials: 1,
        granted: 3,
        boot_id: Some("2b3a5a3c-9f0b-4a53-9a3e-0d7d0f2b8a11".to_owned()),
        failure: Some(Failure {
            kind: ErrorKind::Reject,
            reason: "health check web failed".to_owned(),
            code: None,
            check: Some("web".to_owned()),
            output: Some("connection refused".to_owned()),
        }),
        ending: None,
        started_at: 1_796_000_000,
        ended_at: None,
    }
}

fn giving_up() -> Record {
    Record {
        last_id: 7,
        at: Point::GiveUp,
        upgrade: Some(upgrade()),
        ..Record::default()
    }
}

fn rolled_back() -> Record {
    let ended = Ended {
        id: 7,
        kind: Kind::Install,
        result: Ending::RolledBack,
        slot: Slot::B,
        version: Some("v1.35.1".to_owned()),
        digest: Some(digest("ab")),
        source: Some(request().source),
        failure: upgrade().failure,
        task: None,
        started_at: 1_796_000_000,
        ended_at: 1_796_000_300,
    };
    Record {
        last_id: 7,
        at: Point::RolledBack,
        upgrade: Some(Upgrade {
            ended_at: Some(1_796_000_300),
            boot_id: None,
            ..upgrade()
        }),
        last: Some(ended.clone()),
        unreported: vec![ended],
        refused: vec![RefusedImage {
            digest: digest("ab"),
            published: Some(digest("99")),
            version: Some("v1.35.1".to_owned()),
            reason: "health check web failed".to_owned(),
        }],
        ..Record::default()
    }
}

/// An upgrade under way, with nothing gone wrong.
fn under_way(at: Point, upgrade: Upgrade) -> Record {
    Record {
        last_id: 7,
        at,
        upgrade: Some(Upgrade {
            failure: None,
            ..upgrade
        }),
        ..Record::default()
    }
}

/// Staged, and told to wait there.
fn staged() -> Record {
    let request = ImageRequest {
        expanded_checksum: Some(digest("ab")),
        stage_only: true,
        ..request()
    };
    let upgrade = Upgrade {
        request: Some(request),
        trials: 0,
        granted: 0,
        boot_id: None,
        ..upgrade()
    };
    under_way(Point::Staged, upgrade)
}

/// Draining for a second attempt of the cluster's, whose first one could not drain.
fn drain() -> Record {
    let task = |attempt| Task {
        uid: "4f1d0a52-7d2b-4a57-8f0e-2a3c4d5e6f70".to_owned(),
        attempt,
        version: "v1.35.1".to_owned(),
    };
    let upgrade = Upgrade {
        request: Some(ImageRequest {
            stage_only: true,
            task: Some(task(2)),
            ..request()
        }),
        drain: Some(Drain {
            timeout: 600,
            force: true,
        }),
        trials: 0,
        granted: 0,
        boot_id: None,
        ..upgrade()
    };
    let failed = Ended {
        id: 6,
        kind: Kind::Install,
        result: Ending::Failed,
        slot: Slot::B,
        version: Some("v1.35.1".to_owned()),
        digest: Some(digest("ab")),
        source: Some(request().source),
        failure: Some(
            Failure::new(
                ErrorKind::Retry,
                "not drained within 600 s: pod default/web-0 is kept by a budget",
            )
            .coded("DrainTimeout"),
        ),
        task: Some(task(1)),
        started_at: 1_795_990_000,
        ended_at: 1_795_991_000,
    };
    Record {
        tasks: vec![failed],
        ..under_way(Point::Drain, upgrade)
    }
}

/// Armed: what the old version leaves to the new one.
fn restart() -> Record {
    let upgrade = Upgrade {
        trials: 0,
        ..upgrade()
    };
    under_way(Point::Restart, upgrade)
}

/// The same of a deliberate rollback, which has no image of its own.
fn restart_of_a_rollback() -> Record {
    let upgrade = Upgrade {
        kind: Kind::Rollback,
        target: Slot::A,
        request: None,
        image: None,
        left: upgrade().image,
        back_to: Some("v1.34.6".to_owned()),
        attempt: 0,
        trials: 0,
        granted: 0,
        ..upgrade()
    };
    under_way(Point::Restart, upgrade)
}

/// On the trial boot.
fn check() -> Record {
    let upgrade = Upgrade {
        boot_id: Some("c1f7f0de-5f0c-4a8e-8b0a-6a4f3c2d1e90".to_owned()),
        ..upgrade()
    };
    under_way(Point::Check, upgrade)
}

#[test]
fn every_point_has_the_name_that_it_always_had() {
    let names = [
        "idle",
        "preflight",
        "invalidate",
        "write",
        "prepareBoot",
        "discard",
        "staged",
        "drain",
        "arm",
        "select",
        "restart",
        "disarm",
        "check",
        "awaitBootComplete",
        "bless",
        "giveUp",
        "return",
        "completed",
        "rolledBack",
        "failed",
    ];
    assert_eq!(
        serde_json::to_value(POINTS).unwrap(),
        serde_json::json!(names)
    );
    let read: [Point; 20] = serde_json::from_value(serde_json::json!(names)).unwrap();
    assert_eq!(read, POINTS);
}

#[test]
fn files_of_version_1_are_read_and_written_as_ever() {
    for (golden, record) in [
        (
            &include_bytes!("golden/v1/idle.json")[..],
            Record::default(),
        ),
        (include_bytes!("golden/v1/staged.json"), staged()),
        (include_bytes!("golden/v1/drain.json"), drain()),
        (include_bytes!("golden/v1/restart.json"), restart()),
        (
            include_bytes!("golden/v1/restart-of-a-rollback.json"),
            restart_of_a_rollback(),
        ),
        (include_bytes!("golden/v1/check.json"), check()),
        (include_bytes!("golden/v1/giving-up.json"), giving_up()),
        (include_bytes!("golden/v1/rolled-back.json"), rolled_back()),
    ] {
        assert_eq!(decode(golden).unwrap(), record);
        let written = String::from_utf8(encode(&record).unwrap()).unwrap();
        assert_eq!(written, std::str::from_utf8(golden).unwrap());
    }
}

#[test]
fn a_newer_writers_file_is_read_and_its_unknown_fields_are_passed_over() {
    let bytes = include_bytes!("golden/v2-read-by-v1.json");
    let record = decode(bytes).unwrap();
    assert_eq!(record.at, Point::Check);
    assert_eq!(record.upgrade.unwrap().target, Slot::A);
}

#[test]
fn a_file_that_needs_a_newer_reader_is_told_from_a_damaged_one() {
    let future = br#"{"version": 3, "min_reader": 2, "record": ["quite", "other"]}"#;
    let error = decode(future).unwrap_err();
    assert!(
        matches!(
            error,
            DecodeError::Future {
                version: 3,
                min_reader: 2
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("version 3"), "{error}");
    // A point of the future in a file that says we could read it: kept all the same.
    let unknown = br#"{"version": 2, "min_reader": 1, "record": {"at": "draining"}}"#;
    assert!(matches!(
        decode(unknown),
        Err(DecodeError::Future { version: 2, .. })
    ));
}

#[test]
fn empty_and_damaged_files_are_told_apart() {
    for empty in [&b""[..], b"\n", &[0; 512]] {
        assert!(matches!(decode(empty), Err(DecodeError::Empty)));
    }
    for garbage in [
        &b"\x7fELF"[..],
        b"{",
        b"{}",
        br#"{"version": 1, "min_reader": 1, "record": {"at": "flying"}}"#,
        br#"{"version": 1, "min_reader": 1, "record": {"at": "write"}}"#,
        br#"{"version": 1, "min_reader": 1}"#,
    ] {
        let error = decode(garbage).unwrap_err();
        assert!(matches!(error, DecodeError::Garbage { .. }), "{error}");
    }
}

#[test]
fn every_torn_file_is_refused() {
    let whole = encode(&rolled_back()).unwrap();
    // The last byte is the newline behind the document.
    for length in 0..whole.len() - 2 {
        assert!(
            decode(&whole[..length]).is_err(),
            "{length} bytes were read as a record"
        );
    }
}
