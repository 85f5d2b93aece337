//! What a progress object is told of the node: the status that is true now. Pure; whoever calls writes it where it differs.

use slotd_crds::api::{OSUpgradeProgress, OSUpgradeProgressStatus, Partition, ProgressPhase};
use slotd_engine::{Ended, ErrorKind, Failure, Phase, Point, Record, Result, Upgrade};

use super::time;
use super::wish::{Judgement, begun, says_ended, task, went_down};
use crate::agent::Snapshot;
use crate::status::SlotLetter;

/// What an ended attempt's message says where the object was edited since.
const EDITED: &str =
    "the spec was edited after this attempt had ended: raise attempt to have that acted upon";

/// Longest message that the schema admits, in characters, and some room.
const MESSAGE_LIMIT: usize = 32_000;

/// What of the node stands in each status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeFacts {
    /// The version that runs.
    pub(super) version: Option<String>,
    /// The slot that runs.
    pub(super) booted: Option<SlotLetter>,
}

/// The status that an object should have; `None` where nothing is to be said of it. `judgement` is that of the object that
/// counts, `None` for each other one.
pub(super) fn status(
    object: &OSUpgradeProgress,
    snapshot: &Snapshot,
    facts: &NodeFacts,
    judgement: Option<&Judgement>,
) -> Option<OSUpgradeProgressStatus> {
    let record = &snapshot.record;
    let task = task(object);
    let mut status = OSUpgradeProgressStatus {
        observed_generation: object.metadata.generation,
        attempt: Some(task.attempt),
        current_version: facts.version.clone(),
        target_version: Some(task.version.clone()),
        inactive_partition: facts.booted.map(|booted| match booted {
            SlotLetter::A => Partition::B,
            SlotLetter::B => Partition::A,
        }),
        ..OSUpgradeProgressStatus::default()
    };
    if begun(record) == object.metadata.uid.as_deref()
        && let Some(upgrade) = record.under_way()
    {
        let own = upgrade.request.as_ref().and_then(|own| own.task.as_ref());
        if own.is_some_and(|own| *own != task) {
            // The object was edited meanwhile, which is not acted upon yet.
            let known = object.status.as_ref();
            status.observed_generation = known.and_then(|known| known.observed_generation);
        }
        under_way(&mut status, snapshot, upgrade);
    } else if let Some(ended) = record.ended(&task) {
        end(&mut status, ended);
    } else if says_ended(object) {
        // It ended, and this node remembers no more of it than that: only what runs may have changed since.
        let known = object.status.clone()?;
        status = OSUpgradeProgressStatus {
            current_version: facts.version.clone().or(known.current_version),
            conditions: None,
            ..known
        };
    } else if let Some(judgement) = judgement {
        judged(&mut status, judgement);
        if matches!(judgement, Judgement::Wait(_)) && went_down(object) {
            // A trial boot whose record was lost, until it is known how it ended.
            status.phase = Some(ProgressPhase::Confirming);
        }
    } else if object.metadata.deletion_timestamp.is_some() {
        let message = "the object was deleted before the node began with it";
        failed(&mut status, ProgressPhase::Failed, "Cancelled", message);
    } else {
        pending(&mut status, "another object for this node comes first");
    }
    if let Some(generation) = edited_since(object, &status) {
        // It speaks of what it acted on.
        status.observed_generation = Some(generation);
        status.message = match status.message.take() {
            Some(message) if message.ends_with(EDITED) => Some(message),
            Some(message) if !message.is_empty() => Some(format!("{message}; {EDITED}")),
            _ => Some(EDITED.to_owned()),
        };
    }
    let phase = status.phase.as_ref();
    status.display = phase.map(|phase| phase.display(status.percent));
    if let Some(message) = &mut status.message
        && let Some((end, _)) = message.char_indices().nth(MESSAGE_LIMIT)
    {
        message.truncate(end);
    }
    if phase.is_some_and(ProgressPhase::is_end) && status.completed_at.is_none() {
        status.completed_at = known_end(object).or_else(|| Some(time::now()));
    }
    Some(status)
}

/// The generation that an attempt ended with, where the spec was edited since and asks for no other attempt or version: that is
/// acted upon when the attempt is raised.
fn edited_since(object: &OSUpgradeProgress, status: &OSUpgradeProgressStatus) -> Option<i64> {
    if !status.phase.as_ref().is_some_and(ProgressPhase::is_end) || !says_ended(object) {
        return None;
    }
    let known = object.status.as_ref()?.observed_generation?;
    let deleted = object.metadata.deletion_timestamp.is_some();
    (!deleted && object.metadata.generation? > known).then_some(known)
}

/// When the object says that it ended, so that the time is not another one at each look.
fn known_end(
    object: &OSUpgradeProgress,
) -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
    let status = object.status.as_ref().filter(|_| says_ended(object))?;
    status.completed_at.clone()
}

fn pending(status: &mut OSUpgradeProgressStatus, message: &str) {
    status.phase = Some(ProgressPhase::Pending);
    status.message = Some(message.to_owned());
}

fn failed(status: &mut OSUpgradeProgressStatus, phase: ProgressPhase, code: &str, message: &str) {
    status.phase = Some(phase);
    status.failure_reason = Some(code.to_owned());
    status.message = Some(message.to_owned());
}

fn judged(status: &mut OSUpgradeProgressStatus, judgement: &Judgement) {
    match judgement {
        Judgement::Take(_) => status.phase = Some(ProgressPhase::Pending),
        Judgement::Runs => status.phase = Some(ProgressPhase::Completed),
        Judgement::Reject { code, message } => {
            failed(status, ProgressPhase::Rejected, code, message);
        }
        Judgement::Forgotten => {
            let message = "the node went down for its trial boot, came back with another version, and its state is gone";
            failed(status, ProgressPhase::RolledBack, "StateLost", message);
        }
        Judgement::Wait(reason) => pending(status, reason),
    }
}

fn under_way(status: &mut OSUpgradeProgressStatus, snapshot: &Snapshot, upgrade: &Upgrade) {
    let record = &snapshot.record;
    // What the node is at, not what it is asked for by now: the next attempt begins when this one is over.
    let request = upgrade.request.as_ref();
    if let Some(task) = request.and_then(|request| request.task.as_ref()) {
        status.attempt = Some(task.attempt);
        status.target_version = Some(task.version.clone());
    }
    status.phase = Some(phase(record));
    status.started_at = time::at(upgrade.started_at);
    let again = upgrade.attempt.saturating_sub(1);
    status.retry_count = (again > 0).then_some(again);
    status.message.clone_from(&snapshot.message);
    if record.at == Point::Staged {
        status.message = Some("waits to be activated".to_owned());
    }
    if record.phase() != Phase::Staging {
        return;
    }
    if let Some(progress) = &snapshot.progress {
        status.percent = progress.percent.map(u32::from);
        status.bytes_done = Some(progress.bytes_written);
        status.bytes_total = progress.bytes_total;
        if progress.bytes_total == Some(progress.bytes_written) {
            status.phase = Some(ProgressPhase::Verifying);
        }
    }
}

fn phase(record: &Record) -> ProgressPhase {
    match record.at {
        Point::PrepareBoot => ProgressPhase::Verifying,
        Point::Preflight | Point::Invalidate | Point::Write | Point::Discard => {
            ProgressPhase::Downloading
        }
        Point::Staged => ProgressPhase::Staged,
        Point::Drain => ProgressPhase::Draining,
        Point::Arm | Point::Select | Point::Restart | Point::Disarm => ProgressPhase::Rebooting,
        Point::Check | Point::AwaitBootComplete | Point::Bless | Point::GiveUp | Point::Return => {
            ProgressPhase::Confirming
        }
        // Nothing is under way there.
        Point::Idle | Point::Completed | Point::RolledBack | Point::Failed => {
            ProgressPhase::Pending
        }
    }
}

fn end(status: &mut OSUpgradeProgressStatus, ended: &Ended) {
    status.started_at = time::at(ended.started_at);
    status.completed_at = time::at(ended.ended_at);
    let failure = ended.failure.as_ref();
    let code = failure.map_or("Failed", code);
    let message = failure.map(message).unwrap_or_default();
    match ended.result {
        Result::Completed => status.phase = Some(ProgressPhase::Completed),
        Result::RolledBack => failed(status, ProgressPhase::RolledBack, code, &message),
        Result::Failed if code == "Downgrade" => {
            failed(status, ProgressPhase::Rejected, code, &message);
        }
        Result::Failed => failed(status, ProgressPhase::Failed, code, &message),
        Result::Cancelled => {
            let message = "stopped before its reboot";
            failed(status, ProgressPhase::Failed, "Cancelled", message);
        }
    }
}

/// The reason in one word: its own, or what is to be done about it.
fn code(failure: &Failure) -> &str {
    failure.code.as_deref().unwrap_or(match failure.kind {
        ErrorKind::Retry => "Retry",
        ErrorKind::Reject => "Reject",
        ErrorKind::Unsafe => "Unsafe",
        ErrorKind::Configuration => "Configuration",
        ErrorKind::Bug => "Bug",
    })
}

/// The reason with the failing check, where it does not name that itself, and what it printed.
fn message(failure: &Failure) -> String {
    let mut text = failure.reason.clone();
    if let Some(check) = &failure.check
        && !text.contains(check.as_str())
    {
        text += &format!(" ({check})");
    }
    match failure.output.as_deref().map(str::trim) {
        Some(output) if !output.is_empty() => text + ": " + output,
        _ => text,
    }
}

/// What a status has to tell beyond the object's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing.
    Nothing,
    /// How far the bytes are, or another sentence of the same phase: that can wait for some seconds.
    Moving,
    /// Something that somebody may act upon.
    Change,
}

/// What is new in a status, the time of writing left aside.
pub(super) fn news(wanted: &OSUpgradeProgressStatus, object: &OSUpgradeProgress) -> News {
    let known = object.status.clone().unwrap_or_default();
    let still = |status: &OSUpgradeProgressStatus| OSUpgradeProgressStatus {
        last_updated_at: None,
        conditions: None,
        percent: None,
        bytes_done: None,
        display: None,
        message: None,
        // Reading back is the end of the same moving of bytes, and over in a moment where the image is small.
        phase: status.phase.clone().map(|phase| match phase {
            ProgressPhase::Verifying => ProgressPhase::Downloading,
            other => other,
        }),
        ..status.clone()
    };
    if still(wanted) != still(&known) {
        News::Change
    } else if wanted.percent != known.percent
        || wanted.display != known.display
        || wanted.message != known.message
    {
        News::Moving
    } else {
        News::Nothing
    }
}

/// The patch that writes a status: every field that is the agent's, those without a value taken away. `conditions` is not
/// among them.
pub(super) fn patch(status: &OSUpgradeProgressStatus) -> serde_json::Result<serde_json::Value> {
    let mut fields = serde_json::json!({
        "observedGeneration": null, "attempt": null, "currentVersion": null, "targetVersion": null, "phase": null,
        "display": null, "percent": null, "bytesDone": null, "bytesTotal": null, "startedAt": null, "completedAt": null,
        "lastUpdatedAt": null, "retryCount": null, "inactivePartition": null, "failureReason": null, "message": null,
    });
    let written = OSUpgradeProgressStatus {
        conditions: None,
        last_updated_at: Some(time::now()),
        ..status.clone()
    };
    let serde_json::Value::Object(values) = serde_json::to_value(written)? else {
        return Ok(fields);
    };
    if let Some(fields) = fields.as_object_mut() {
        fields.extend(values);
    }
    Ok(serde_json::json!({ "status": fields }))
}
