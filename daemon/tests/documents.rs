//! What `--output json` prints: the documents, and that daemon/README.md describes them.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has to fail"
)]

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;
use slotd::agent::{Plan, PlanRefusal, PlanStep};
use slotd::error::ErrorKind;
use slotd::status::{
    Condition, FailureStatus, HistoryEntry, LoaderStatus, ProgressStatus, SlotLetter, SlotStatus,
    StatusDocument, UpgradeStatus,
};
use slotd_engine::Record;
use slotd_engine::table::POINTS;

const README: &str = include_str!("../README.md");

fn digest() -> Option<String> {
    Some(format!("sha256:{}", "ab".repeat(32)))
}

fn failure() -> Option<FailureStatus> {
    Some(FailureStatus {
        kind: "Reject".to_owned(),
        reason: "health check required.d/50-web failed".to_owned(),
        code: None,
        check: Some("required.d/50-web".to_owned()),
        output: Some("no answer\nexit status 1".to_owned()),
    })
}

fn history_entry() -> HistoryEntry {
    HistoryEntry {
        id: 6,
        kind: "install".to_owned(),
        result: "RolledBack".to_owned(),
        slot: SlotLetter::B,
        version: Some("v1.35.1".to_owned()),
        digest: digest(),
        source: Some("https://updates.example.com/v1.35.1.ext4.zst".to_owned()),
        failure: failure(),
        started_at: "2026-11-30T00:53:20Z".parse().unwrap(),
        completed_at: "2026-11-30T00:58:20Z".parse().unwrap(),
    }
}

/// Everything that can be said at once; no moment of a node is like this.
fn status() -> StatusDocument {
    StatusDocument {
        version: 1,
        daemon: "0.1.0".to_owned(),
        booted: Some(SlotLetter::A),
        slots: vec![SlotStatus {
            slot: SlotLetter::A,
            device: "/dev/nvme0n1p2".into(),
            label: "root-a".to_owned(),
            size: 536_870_912,
            version: Some("v1.35.1".to_owned()),
            state: "trial".to_owned(),
            tries_left: Some(2),
            tries_done: Some(1),
            booted: true,
            digest: digest(),
        }],
        loader: Some(LoaderStatus {
            backend: "systemd-boot".to_owned(),
            next_slot: Some(SlotLetter::A),
            next_boot: "slot A, on trial".to_owned(),
            trial_boot: true,
            counting: "active".to_owned(),
            problems: vec!["an entry is there twice".to_owned()],
        }),
        upgrade: UpgradeStatus {
            phase: "Staging".to_owned(),
            step: "write".to_owned(),
            id: Some(7),
            kind: Some("install".to_owned()),
            target_slot: Some(SlotLetter::B),
            target_version: Some("v1.35.2".to_owned()),
            source: Some("https://updates.example.com/v1.35.2.ext4.zst".to_owned()),
            digest: digest(),
            attempt: 1,
            stage_only: true,
            progress: Some(ProgressStatus {
                percent: Some(45),
                bytes_written: 249_561_088,
                bytes_verified: 234_881_024,
                bytes_total: Some(536_870_912),
                published_bytes: 83_886_080,
                published_total: Some(180_355_072),
                rate: 35_012_608,
                seconds_left: Some(10),
            }),
            message: Some("next try in 4 s: connection reset".to_owned()),
            failure: failure(),
            started_at: Some("2026-12-01T00:00:00Z".parse().unwrap()),
            completed_at: Some("2026-12-01T00:05:00Z".parse().unwrap()),
        },
        last_result: Some(history_entry()),
        conditions: vec![Condition::new("LoaderProblem", "an entry is there twice")],
    }
}

fn plan() -> Plan {
    Plan {
        slot: SlotLetter::B,
        source: "https://updates.example.com/v1.35.2.ext4.zst".to_owned(),
        size: Some(536_870_912),
        refusals: vec![PlanRefusal {
            kind: ErrorKind::Configuration,
            reason: "/efi is read-only".to_owned(),
        }],
        refused: Some(ErrorKind::Configuration),
        steps: vec![PlanStep {
            moment: "activate",
            target: "/efi/loader/entries/slotd-b+3.conf".to_owned(),
            change: "written".to_owned(),
            content: Some("title slot B\n".to_owned()),
            why: "the trial".to_owned(),
        }],
    }
}

/// As it is printed.
fn printed(document: &impl Serialize) -> String {
    serde_json::to_string_pretty(document).unwrap()
}

#[test]
fn the_documents_are_the_golden_ones() {
    insta::assert_snapshot!("status_json", printed(&status()));
    insta::assert_snapshot!("history_json", printed(&[history_entry()]));
    insta::assert_snapshot!("plan_json", printed(&plan()));
}

/// All field names of a document, at any depth.
fn fields(document: &Value, found: &mut BTreeSet<String>) {
    match document {
        Value::Object(map) => {
            for (name, value) in map {
                found.insert(name.clone());
                fields(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, found)),
        _ => {}
    }
}

/// The text of the README's section with this heading.
fn section(heading: &str) -> &'static str {
    let (_, text) = README.split_once(&format!("\n## {heading}\n")).unwrap();
    text.split("\n## ").next().unwrap()
}

/// The names that a text sets as code, without the path before them: `label` of `slots[].label`.
fn named(text: &str) -> BTreeSet<&str> {
    let code = text.split('`').skip(1).step_by(2);
    code.filter_map(|path| path.trim_end_matches("[]").rsplit('.').next())
        .collect()
}

#[test]
fn the_readme_names_every_field() {
    let history = section("`slotd history`");
    for (document, text) in [
        // Its last result is an entry of the history.
        (
            serde_json::to_value(status()).unwrap(),
            [section("`slotd status`"), history].concat(),
        ),
        (
            serde_json::to_value(history_entry()).unwrap(),
            [section("`slotd status`"), history].concat(),
        ),
        (
            serde_json::to_value(plan()).unwrap(),
            section("`slotd plan`").to_owned(),
        ),
    ] {
        let mut found = BTreeSet::new();
        fields(&document, &mut found);
        let named = named(&text);
        for name in found {
            assert!(named.contains(name.as_str()), "{name} is not described");
        }
    }
}

#[test]
fn the_readme_names_every_phase_and_step() {
    let text = section("`slotd status`");
    for at in POINTS {
        let record = Record {
            at,
            ..Record::default()
        };
        let status = UpgradeStatus::of(&record, None);
        for word in [status.phase, status.step] {
            assert!(text.contains(&format!("`\"{word}\"`")), "{word}");
        }
    }
}

#[test]
fn the_readme_names_every_kind_of_error_with_its_code() {
    let text = section("Errors");
    let kinds = ErrorKind::ALL;
    for kind in kinds {
        let row = format!("\n| `\"{kind}\"` | {} | ", kind.exit_code());
        assert!(text.contains(&row), "{row}");
    }
    assert_eq!(text.matches("\n| `\"").count(), kinds.len());
}
