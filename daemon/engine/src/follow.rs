//! The record follows an event: what an upgrade remembers, how it ends, what is never forgotten.

use crate::next::Outcome;
use crate::read::{Seen, own_image, rebooted};
use crate::record::{
    Ended, Ending, ErrorKind, Failure, ImageRequest, Kind, REMEMBERED, Record, RefusedImage,
    Result, TASKS, UNREPORTED, Upgrade,
};
use crate::table::{Event, Phase, Point};
use crate::world::{Observation, ProvenSlot, Request, Slot, SlotState};

/// The record follows an event to a point.
pub(crate) fn follow(
    record: &mut Record,
    seen: &Observation,
    outcome: Option<&Outcome>,
    event: Seen,
    to: Point,
) {
    let from = record.at;
    begin(record, seen, &event, from);
    if let Some(upgrade) = &mut record.upgrade {
        upgrade.tries = 0;
        match event.event {
            Event::Interrupted if from.phase() == Phase::Staging => {
                upgrade.attempt = upgrade.attempt.saturating_add(1);
                upgrade.image = None;
            }
            Event::Interrupted if from == Point::Restart && rebooted(upgrade, seen) => {
                upgrade.restarts = upgrade.restarts.saturating_add(1);
            }
            Event::NotStarted | Event::NotSelected => {
                upgrade.restarts = upgrade.restarts.saturating_add(1);
            }
            Event::Armed | Event::Done
                if from.phase() != Phase::Confirming && upgrade.ending.is_none() =>
            {
                upgrade.failure = None;
            }
            Event::CancelAsked if upgrade.ending != Some(Ending::Failed) => {
                upgrade.ending = Some(Ending::Cancelled);
            }
            Event::TrialRunning => tried(upgrade, seen, from),
            Event::DrainAsked => {
                if let Some(Request::Activate { drain }) = &seen.request {
                    upgrade.drain = *drain;
                }
            }
            Event::HoldAsked => upgrade.drain = None,
            Event::RenewAsked => {
                upgrade.drain = None;
                if let (Some(Request::Renew(task)), Some(request)) =
                    (&seen.request, &mut upgrade.request)
                {
                    request.task = Some(task.clone());
                    request.asked_anew = true;
                }
            }
            _ => {}
        }
        match outcome {
            Some(Outcome::Written(image)) if event.event == Event::Done => {
                upgrade.image = Some(image.clone());
            }
            Some(Outcome::Prepared { version }) if event.event == Event::Done => {
                if let Some(image) = &mut upgrade.image {
                    image.version.clone_from(version);
                }
            }
            _ => {}
        }
        if matches!(to, Point::Discard | Point::Disarm) && upgrade.ending.is_none() {
            upgrade.ending = Some(Ending::Failed);
        }
        if matches!(to, Point::Arm | Point::Select | Point::Restart) {
            upgrade.boot_id = Some(seen.world.boot_id.clone());
        }
        if to == Point::Arm {
            upgrade.granted = seen.limits.tries;
        }
        if event.event == Event::Armed {
            granted(upgrade, seen, 0);
        }
        explain(upgrade, &event, from);
    }
    if event.event == Event::Failed && from == Point::PrepareBoot {
        remember_refusal(record);
    }
    record.at = to;
    match to {
        Point::Idle => end(record, seen, Result::Cancelled),
        Point::Failed => {
            // Of a trial that was overtaken nobody knows any more what it came to: it is not tried again by itself.
            let overtaken = event.event == Event::Overtaken && may_have_run(record, seen);
            if from.phase() == Phase::Confirming || overtaken {
                remember(record);
            }
            end(record, seen, Result::Failed);
        }
        Point::RolledBack => {
            remember(record);
            end(record, seen, Result::RolledBack);
        }
        Point::Completed => {
            if let Some(proof) = seen.world.booted.and_then(|slot| seen.world.proven(slot)) {
                completed(record, seen, proof);
            }
        }
        _ => {}
    }
}

/// Whether the machine rebooted since the trial was to be armed.
fn may_have_run(record: &Record, seen: &Observation) -> bool {
    record
        .upgrade
        .as_ref()
        .is_some_and(|upgrade| upgrade.boot_id.is_some() && rebooted(upgrade, seen))
}

/// Starts a new upgrade where the event asks for one.
fn begin(record: &mut Record, seen: &Observation, event: &Seen, from: Point) {
    let booted = seen.world.booted;
    // Where neither slot runs, an edited target stays where the former one was to go, and A stands for the target of an
    // upgrade that is refused at once.
    let under_way = record.under_way().map(|upgrade| upgrade.target);
    let slot = booted.map(|slot| !slot).or(under_way).unwrap_or(Slot::A);
    match (event.event, &seen.request) {
        (Event::InstallAsked | Event::AskedUnsafe, Some(Request::Install(request))) => {
            open(record, seen, Kind::Install, slot, Some(request.clone()));
        }
        (Event::RollbackAsked | Event::AskedUnsafe, Some(Request::Rollback { version })) => {
            let left = record
                .upgrade
                .take()
                .filter(|last| from == Point::Completed && Some(last.target) == booted)
                .and_then(|last| last.image);
            open(record, seen, Kind::Rollback, slot, None);
            if let Some(upgrade) = &mut record.upgrade {
                upgrade.left = left;
                upgrade.back_to.clone_from(version);
            }
        }
        (Event::RetargetAsked, Some(Request::Retarget(request))) => {
            if from == Point::Preflight {
                end(record, seen, Result::Cancelled);
                open(record, seen, Kind::Install, slot, Some(request.clone()));
            } else if let Some(upgrade) = &mut record.upgrade {
                upgrade.ending = Some(Ending::Replaced(Box::new(request.clone())));
            }
        }
        (Event::Replaced, _) => {
            let ending = record
                .upgrade
                .as_ref()
                .and_then(|upgrade| upgrade.ending.clone());
            if let Some(Ending::Replaced(request)) = ending {
                end(record, seen, Result::Cancelled);
                open(record, seen, Kind::Install, slot, Some(*request));
            }
        }
        (Event::TrialRunning, _) => {
            let Some(booted) = booted else {
                return;
            };
            if from.is_rest() {
                open(record, seen, Kind::Adopted, booted, None);
            } else if from.phase() != Phase::Confirming && another_image(record, seen) {
                overtaken(record, seen, booted);
                open(record, seen, Kind::Adopted, booted, None);
            }
        }
        _ => {}
    }
}

/// Whether the slot that runs on trial is known not to hold what the upgrade wrote.
fn another_image(record: &Record, seen: &Observation) -> bool {
    let Some(upgrade) = &record.upgrade else {
        return false;
    };
    let not_written = upgrade.image.is_none();
    upgrade.kind == Kind::Install && (not_written || own_image(upgrade, seen) == Some(false))
}

/// Somebody else's trial runs in the slot: what that comes to is nothing of this upgrade.
fn overtaken(record: &mut Record, seen: &Observation, slot: Slot) {
    if let Some(upgrade) = &mut record.upgrade {
        let reason = format!("slot {slot} runs on trial with an image that is not this upgrade's");
        upgrade.failure = Some(Failure::new(ErrorKind::Unsafe, reason));
    }
    if may_have_run(record, seen) {
        remember(record);
    }
    end(record, seen, Result::Failed);
}

fn open(
    record: &mut Record,
    seen: &Observation,
    kind: Kind,
    slot: Slot,
    request: Option<ImageRequest>,
) {
    record.last_id = record.last_id.saturating_add(1);
    if let Some(task) = request.as_ref().and_then(|request| request.task.as_ref()) {
        // Its target was edited within the attempt: should it ever ask for an earlier one again, that is to run anew.
        record.tasks.retain(|ended| {
            let known = ended.task.as_ref();
            known.is_none_or(|known| (&known.uid, known.attempt) != (&task.uid, task.attempt))
        });
    }
    record.upgrade = Some(Upgrade {
        id: record.last_id,
        kind,
        target: slot,
        request,
        image: None,
        left: None,
        back_to: None,
        drain: None,
        attempt: 1,
        tries: 0,
        restarts: 0,
        trials: 0,
        granted: 0,
        boot_id: None,
        failure: None,
        ending: None,
        started_at: seen.world.now,
        ended_at: None,
    });
}

/// A trial boot began: judged anew, whatever an earlier one came to.
fn tried(upgrade: &mut Upgrade, seen: &Observation, from: Point) {
    upgrade.trials = upgrade.trials.saturating_add(1);
    upgrade.boot_id = Some(seen.world.boot_id.clone());
    upgrade.ending = None;
    if from.phase() != Phase::Confirming {
        upgrade.failure = None;
    }
    if upgrade.kind == Kind::Rollback {
        // Its slot was good; somebody made a trial of it since, which is confirmed or left like any other.
        upgrade.kind = Kind::Adopted;
        upgrade.left = None;
    }
    granted(upgrade, seen, upgrade.granted);
}

/// The loader's own data say how many boots the trial has: firmware that forgets it as it starts it gives one, whatever was asked for.
fn granted(upgrade: &mut Upgrade, seen: &Observation, at_least: u32) {
    if let Some(SlotState::Trial { left, done }) = seen.world.state(upgrade.target) {
        upgrade.granted = at_least.max(left.saturating_add(done));
    }
}

/// Why it ended badly: the event's reason, unless a verdict on the trial boot says more.
fn explain(upgrade: &mut Upgrade, event: &Seen, from: Point) {
    let judged = from.phase() == Phase::Confirming && upgrade.failure.is_some();
    match (&event.failure, event.event) {
        (_, Event::FellBack | Event::Abandoned) if judged => {}
        (Some(failure), Event::NoFallback | Event::Overtaken)
            if judged && failure.check.is_none() =>
        {
            if let Some(own) = &mut upgrade.failure {
                own.reason = format!("{}; {}", own.reason, failure.reason);
            }
        }
        (Some(failure), Event::GaveUp) => {
            let before = upgrade
                .failure
                .as_ref()
                .map(|own| format!("{}; ", own.reason));
            let before = before.unwrap_or_default();
            let reason = format!("{before}taking it back failed: {}", failure.reason);
            upgrade.failure = Some(Failure::new(failure.kind, reason));
        }
        (Some(failure), _) => upgrade.failure = Some(failure.clone()),
        (None, Event::FellBack) => {
            let slot = upgrade.target;
            let tries = upgrade.granted.max(upgrade.trials);
            upgrade.failure = Some(Failure::new(
                ErrorKind::Reject,
                format!(
                    "the boot loader gave slot {slot} up after {tries} {} without a verdict of \
                     its own: no agent there reported",
                    if tries == 1 { "try" } else { "tries" }
                ),
            ));
        }
        (None, _) => {}
    }
}

/// The look into the image refused it: that will not change by trying again. A refusal with a code is about what was asked
/// of the image (`VersionMismatch`, `Downgrade`), which another request may ask otherwise.
fn remember_refusal(record: &mut Record) {
    let failure = record
        .upgrade
        .as_ref()
        .and_then(|upgrade| upgrade.failure.as_ref());
    if failure.is_some_and(|failure| failure.kind == ErrorKind::Reject && failure.code.is_none()) {
        remember(record);
    }
}

fn remember(record: &mut Record) {
    let Some(upgrade) = &record.upgrade else {
        return;
    };
    let Some(image) = upgrade.image.as_ref().or(upgrade.left.as_ref()) else {
        return;
    };
    let refused = RefusedImage {
        digest: image.digest.clone(),
        published: image.published.clone(),
        version: image.version.clone(),
        reason: upgrade.failure.as_ref().map_or_else(
            || String::from("rolled back"),
            |failure| failure.reason.clone(),
        ),
    };
    record
        .refused
        .retain(|known| known.digest != refused.digest);
    record.refused.push(refused);
    let surplus = record.refused.len().saturating_sub(REMEMBERED);
    record.refused.drain(..surplus);
}

/// Success, which only the loader's own data can prove.
fn completed(record: &mut Record, seen: &Observation, proof: ProvenSlot) {
    let Some(upgrade) = &mut record.upgrade else {
        return;
    };
    if upgrade.target != proof.slot() {
        return;
    }
    // What was noted on the way (a record of success that had to be retried) is past.
    upgrade.failure = None;
    upgrade.ending = None;
    if let Some(image) = &upgrade.image {
        let digest = image.digest.clone();
        record.refused.retain(|known| known.digest != digest);
    }
    end(record, seen, Result::Completed);
}

fn end(record: &mut Record, seen: &Observation, result: Result) {
    let Some(upgrade) = &mut record.upgrade else {
        return;
    };
    if result == Result::Cancelled {
        upgrade.failure = None;
    }
    upgrade.ended_at = Some(seen.world.now);
    upgrade.ending = None;
    if !(result == Result::Failed && upgrade.trials > 0) {
        // A failed trial that still runs must be known by its boot, or it would be adopted again.
        upgrade.boot_id = None;
    }
    let ended = Ended {
        id: upgrade.id,
        kind: upgrade.kind,
        result,
        slot: upgrade.target,
        version: upgrade.version().map(str::to_owned),
        digest: upgrade.image.as_ref().map(|image| image.digest.clone()),
        source: upgrade
            .request
            .as_ref()
            .map(|request| request.source.clone()),
        failure: upgrade.failure.clone(),
        task: upgrade
            .request
            .as_ref()
            .and_then(|request| request.task.clone()),
        started_at: upgrade.started_at,
        ended_at: seen.world.now,
    };
    if result == Result::Cancelled {
        record.upgrade = None;
    }
    record.last = Some(ended.clone());
    if ended.task.is_some() {
        record.tasks.retain(|known| known.task != ended.task);
        record.tasks.push(ended.clone());
        let surplus = record.tasks.len().saturating_sub(TASKS);
        record.tasks.drain(..surplus);
    }
    record.unreported.push(ended);
    let surplus = record.unreported.len().saturating_sub(UNREPORTED);
    record.unreported.drain(..surplus);
}
