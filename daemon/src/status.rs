//! What a node tells of itself: one document for D-Bus, `slotd status` and programs that read it.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use slotd_engine as engine;

/// The version of [`StatusDocument`]. Fields are only ever added to one version.
pub const STATUS_VERSION: u32 = 1;

/// The node's status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDocument {
    /// The version of this document.
    pub version: u32,
    /// The version of the daemon that wrote it.
    pub daemon: String,
    /// The slot that this boot runs from; absent when it runs from neither or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<SlotLetter>,
    /// Both slots, A first; empty when they could not be found.
    pub slots: Vec<SlotStatus>,
    /// The boot loader; absent when its data could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader: Option<LoaderStatus>,
    /// Where the node stands, and the upgrade under way or the last one.
    pub upgrade: UpgradeStatus,
    /// The last finished upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_result: Option<HistoryEntry>,
    /// What an operator should know.
    pub conditions: Vec<Condition>,
}

/// The name of a slot in documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotLetter {
    /// Slot A.
    A,
    /// Slot B.
    B,
}

impl From<engine::Slot> for SlotLetter {
    fn from(slot: engine::Slot) -> Self {
        match slot {
            engine::Slot::A => Self::A,
            engine::Slot::B => Self::B,
        }
    }
}

impl std::fmt::Display for SlotLetter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::A => "A",
            Self::B => "B",
        })
    }
}

/// One slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlotStatus {
    /// Which.
    pub slot: SlotLetter,
    /// The partition's device node.
    pub device: PathBuf,
    /// The partition's label.
    pub label: String,
    /// Its size in bytes.
    pub size: u64,
    /// The version of the image in it, where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What the boot loader holds of it: `good`, `trial`, `bad`, `empty`, or `unknown` when its data
    /// cannot be read.
    pub state: String,
    /// Boots that a trial has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries_left: Option<u32>,
    /// Boots that a trial has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries_done: Option<u32>,
    /// Whether this boot runs from it.
    pub booted: bool,
    /// The digest of the expanded image in it (`sha256:…`), where it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// The boot loader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoaderStatus {
    /// Which backend drives it.
    pub backend: String,
    /// The slot that it would start next, where that is one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_slot: Option<SlotLetter>,
    /// What it would start next, in words.
    pub next_boot: String,
    /// Whether this boot is a trial boot by the loader's word.
    pub trial_boot: bool,
    /// Whether it counts trial boots: `active`, `inactive` or `unknown`.
    pub counting: String,
    /// What an operator should know of its data.
    pub problems: Vec<String>,
}

/// Where the node stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeStatus {
    /// `Idle`, `Staging`, `Staged`, `Activating`, `Confirming`, `Completed`, `RolledBack`, `Failed`.
    pub phase: String,
    /// What is being done within the phase, such as `write` or `check`.
    pub step: String,
    /// Its number on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// `install`, `rollback` or `adopted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The slot that is to run at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_slot: Option<SlotLetter>,
    /// The version that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
    /// Where the image comes from, without user and query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The digest of the expanded image, once it was read back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// How often the staging was begun.
    #[serde(default)]
    pub attempt: u32,
    /// Whether it stops once staged.
    #[serde(default)]
    pub stage_only: bool,
    /// While bytes move: how far they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// What is being waited for, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Why it failed or was rolled back, or what it stumbled over last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
}

/// How far the bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgressStatus {
    /// Whole percent of writing and reading back together; absent while the size is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// Bytes of the expanded image that were written.
    pub bytes_written: u64,
    /// Bytes of it that were read back and matched.
    pub bytes_verified: u64,
    /// Size of the expanded image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_total: Option<u64>,
    /// Bytes of the published file that were read.
    pub published_bytes: u64,
    /// Size of the published file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_total: Option<u64>,
    /// Expanded bytes a second.
    pub rate: u64,
    /// Seconds that it will still take at this rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// Why something went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureStatus {
    /// `Retry`, `Reject`, `Unsafe`, `Configuration` or `Bug`.
    pub kind: String,
    /// The reason, one sentence.
    pub reason: String,
    /// The reason in one word, such as `VersionMismatch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The health check that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// What that check printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl From<&engine::Failure> for FailureStatus {
    fn from(failure: &engine::Failure) -> Self {
        Self {
            kind: format!("{:?}", failure.kind),
            reason: failure.reason.clone(),
            code: failure.code.clone(),
            check: failure.check.clone(),
            output: failure.output.clone(),
        }
    }
}

/// A finished upgrade: one line of `history.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The upgrade's number on this node.
    pub id: u64,
    /// `install`, `rollback` or `adopted`.
    pub kind: String,
    /// `Completed`, `RolledBack`, `Failed` or `Cancelled`.
    pub result: String,
    /// The slot that was to run.
    pub slot: SlotLetter,
    /// The version that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The digest of the expanded image, where it was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Where the image came from, without user and query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Why it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub completed_at: Timestamp,
}

impl From<&engine::Ended> for HistoryEntry {
    fn from(ended: &engine::Ended) -> Self {
        Self {
            id: ended.id,
            kind: kind_word(ended.kind).to_owned(),
            result: format!("{:?}", ended.result),
            slot: ended.slot.into(),
            version: ended.version.clone(),
            digest: ended.digest.as_ref().map(ToString::to_string),
            source: ended.source.clone(),
            failure: ended.failure.as_ref().map(FailureStatus::from),
            started_at: timestamp(ended.started_at),
            completed_at: timestamp(ended.ended_at),
        }
    }
}

/// Something that an operator should know and that lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// A word for programs, such as `StateDirectoryRefused`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The sentence for people.
    pub message: String,
}

impl Condition {
    /// A condition.
    #[must_use]
    pub fn new(kind: &str, message: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            message: message.into(),
        }
    }
}

/// Slots and loader as they are now; what the daemon adds to make a [`StatusDocument`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// The booted slot.
    pub booted: Option<SlotLetter>,
    /// Both slots, or none.
    pub slots: Vec<SlotStatus>,
    /// The boot loader.
    pub loader: Option<LoaderStatus>,
    /// What could not be found out, and other lasting troubles.
    pub conditions: Vec<Condition>,
}

impl UpgradeStatus {
    /// The record as it is shown.
    #[must_use]
    pub fn of(record: &engine::Record, progress: Option<ProgressStatus>) -> Self {
        let mut status = Self {
            phase: format!("{:?}", record.phase()),
            step: step_word(record.at).to_owned(),
            ..Self::default()
        };
        let Some(upgrade) = &record.upgrade else {
            return status;
        };
        status.id = Some(upgrade.id);
        status.kind = Some(kind_word(upgrade.kind).to_owned());
        status.target_slot = Some(upgrade.target.into());
        status.target_version = upgrade.version().map(str::to_owned);
        status.source = upgrade
            .request
            .as_ref()
            .map(|request| request.source.clone());
        status.digest = upgrade.image.as_ref().map(|image| image.digest.to_string());
        status.attempt = upgrade.attempt;
        status.stage_only = upgrade
            .request
            .as_ref()
            .is_some_and(|request| request.stage_only);
        status.failure = upgrade.failure.as_ref().map(FailureStatus::from);
        status.started_at = Some(timestamp(upgrade.started_at));
        status.completed_at = upgrade.ended_at.map(timestamp);
        if record.phase() == engine::Phase::Staging {
            status.progress = progress;
        }
        status
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        matches!(
            self.phase.as_str(),
            "Idle" | "Completed" | "RolledBack" | "Failed"
        )
    }
}

fn kind_word(kind: engine::Kind) -> &'static str {
    match kind {
        engine::Kind::Install => "install",
        engine::Kind::Rollback => "rollback",
        engine::Kind::Adopted => "adopted",
    }
}

fn step_word(point: engine::Point) -> &'static str {
    match point {
        engine::Point::Idle
        | engine::Point::Completed
        | engine::Point::RolledBack
        | engine::Point::Failed => "rest",
        engine::Point::Preflight => "preflight",
        engine::Point::Invalidate => "invalidate",
        engine::Point::Write => "write",
        engine::Point::PrepareBoot => "prepareBoot",
        engine::Point::Discard => "discard",
        engine::Point::Staged => "wait",
        engine::Point::Drain => "drain",
        engine::Point::Arm => "arm",
        engine::Point::Select => "select",
        engine::Point::Restart | engine::Point::Return => "reboot",
        engine::Point::Disarm => "disarm",
        engine::Point::Check => "check",
        engine::Point::AwaitBootComplete => "awaitBootComplete",
        engine::Point::Bless => "markGood",
        engine::Point::GiveUp => "markBad",
    }
}

/// Seconds since 1970 as a timestamp; the epoch where they are beyond what one can be.
fn timestamp(seconds: u64) -> Timestamp {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH)
}
