//! What the last command answered, checked against the world where that can tell.

use crate::next::Outcome;
use crate::read::{Seen, activates, rebooted};
use crate::record::{Ending, ErrorKind, Failure, Kind, Record, Upgrade};
use crate::table::{Event, Phase, Point};
use crate::world::{Observation, SlotState, Verdict};

/// What the last command answered; without an answer, what a restart means.
pub(crate) fn answered(
    record: &Record,
    seen: &Observation,
    outcome: Option<&Outcome>,
) -> Option<Seen> {
    let upgrade = record.upgrade.as_ref()?;
    let at = record.at;
    if at == Point::Staged {
        return if activates(upgrade, seen) {
            Seen::plain(Event::ActivateAsked)
        } else {
            None
        };
    }
    match outcome {
        None if at.phase() == Phase::Staging && at != Point::Discard => {
            interrupted(upgrade, seen.limits.staging_attempts)
        }
        // Whether its pods are still away is not known.
        None if matches!(at, Point::Arm | Point::Restart) && upgrade.drain.is_some() => {
            Seen::plain(Event::Interrupted)
        }
        None | Some(Outcome::Waited) => late(at, upgrade, seen),
        Some(Outcome::Failed(failure)) => failed(record, upgrade, seen, failure),
        Some(Outcome::Stopped) => Seen::because(
            Event::Failed,
            ErrorKind::Retry,
            "stopped before it was finished",
        ),
        Some(Outcome::Verdict(verdict)) => judged(upgrade, seen, verdict),
        Some(Outcome::Done | Outcome::Prepared { .. } | Outcome::Written(_) | Outcome::Drained) => {
            done(record, upgrade, seen, outcome)
        }
        Some(Outcome::Reported(_)) => None,
    }
}

fn interrupted(upgrade: &Upgrade, attempts: u32) -> Option<Seen> {
    let again = upgrade
        .request
        .as_ref()
        .is_some_and(|request| request.locator.is_some());
    if !again {
        let reason = "interrupted by a restart, and its source cannot be opened again";
        return Seen::because(Event::Exhausted, ErrorKind::Retry, reason);
    }
    if upgrade.attempt >= attempts {
        let reason = format!("interrupted by restarts {} times", upgrade.attempt);
        return Seen::because(Event::Exhausted, ErrorKind::Retry, reason);
    }
    Seen::plain(Event::Interrupted)
}

fn late(at: Point, upgrade: &Upgrade, seen: &Observation) -> Option<Seen> {
    // Only the trial boot itself has a deadline.
    let undecided =
        matches!(at, Point::Check | Point::AwaitBootComplete) && !rebooted(upgrade, seen);
    if !undecided || seen.world.uptime < seen.limits.trial_deadline {
        return None;
    }
    let what = if at == Point::Check {
        "proven healthy"
    } else {
        "at boot-complete.target"
    };
    let reason = format!(
        "not {what} within {} seconds of boot",
        seen.limits.trial_deadline
    );
    condemned(
        upgrade,
        seen,
        Event::Late,
        Failure::new(ErrorKind::Reject, reason),
    )
}

fn judged(upgrade: &Upgrade, seen: &Observation, verdict: &Verdict) -> Option<Seen> {
    let (event, reason, check, output) = match verdict {
        Verdict::Healthy => return Seen::plain(Event::Healthy),
        Verdict::Unhealthy { check, output } => (
            Event::Unhealthy,
            format!("health check {check} failed"),
            Some(check.clone()),
            Some(output.clone()),
        ),
        Verdict::Late { check, output } => (
            Event::Late,
            format!(
                "not proven healthy within {} seconds of boot",
                seen.limits.trial_deadline
            ),
            check.clone(),
            (!output.is_empty()).then(|| output.clone()),
        ),
    };
    let failure = Failure {
        kind: ErrorKind::Reject,
        reason,
        code: Some(String::from(match event {
            Event::Late => "HealthDeadlineExceeded",
            _ => "HealthCheckFailed",
        })),
        check,
        output,
    };
    condemned(upgrade, seen, event, failure)
}

/// Whether the other slot is known not to be good.
fn no_fallback(upgrade: &Upgrade, seen: &Observation) -> bool {
    let other = seen.world.state(!upgrade.target);
    other.is_some_and(|state| state != SlotState::Good)
}

/// The trial boot is to be left, unless leaving it leads nowhere or round in circles.
fn condemned(
    upgrade: &Upgrade,
    seen: &Observation,
    event: Event,
    mut failure: Failure,
) -> Option<Seen> {
    let other = !upgrade.target;
    let stay = if no_fallback(upgrade, seen) {
        format!("slot {other} is not good: there is nothing to go back to")
    } else if upgrade.trials > upgrade.granted.max(1) {
        format!(
            "the boot loader does not count: {} trial boots",
            upgrade.trials
        )
    } else {
        return Some(Seen {
            event,
            failure: Some(failure),
        });
    };
    failure.reason = format!("{}; {stay}", failure.reason);
    failure.kind = ErrorKind::Unsafe;
    Some(Seen {
        event: Event::NoFallback,
        failure: Some(failure),
    })
}

/// A command says that it did its work: where the loader's data can tell, they are asked.
fn done(
    record: &Record,
    upgrade: &Upgrade,
    seen: &Observation,
    outcome: Option<&Outcome>,
) -> Option<Seen> {
    let state = seen.world.state(upgrade.target);
    let contradicted = |what: &str| {
        let failure = Failure::new(ErrorKind::Retry, format!("the boot loader's data {what}"));
        failed(record, upgrade, seen, &failure)
    };
    match record.at {
        Point::Preflight if seen.world.proven(!upgrade.target).is_none() => Seen::because(
            Event::Failed,
            ErrorKind::Unsafe,
            "the boot loader does not call the running slot good any more",
        ),
        Point::Invalidate if state.is_some_and(|state| state != SlotState::Empty) => {
            contradicted("still know an image in the slot that was to be emptied")
        }
        Point::Write => written(record, upgrade, outcome),
        Point::Arm => contradicted("do not show the trial that was asked for"),
        Point::Disarm => {
            if upgrade.kind != Kind::Rollback && matches!(state, Some(SlotState::Trial { .. })) {
                return contradicted("still show the trial that was to be taken back");
            }
            taken_back(record.at, upgrade)
        }
        Point::Discard => taken_back(record.at, upgrade),
        // A trial that was armed was taken back, and the node is drained next.
        Point::Drain if outcome != Some(&Outcome::Drained) => None,
        // The machine goes down, or the loader's data are waited for.
        Point::Restart | Point::Return | Point::Bless => None,
        // Only the trial boot itself is to be left.
        Point::GiveUp if seen.world.booted != Some(upgrade.target) => None,
        _ => Seen::plain(Event::Done),
    }
}

fn written(record: &Record, upgrade: &Upgrade, outcome: Option<&Outcome>) -> Option<Seen> {
    let Some(Outcome::Written(image)) = outcome else {
        let reason = "the writer answered without saying what it wrote";
        return Seen::because(Event::Failed, ErrorKind::Bug, reason);
    };
    let anew = upgrade
        .request
        .as_ref()
        .is_some_and(|request| request.asked_anew);
    match record.refused(&[&image.digest]) {
        Some(refused) if !anew => Seen::because(
            Event::Failed,
            ErrorKind::Reject,
            format!(
                "this image failed here before ({}) and was not asked for anew",
                refused.reason
            ),
        ),
        _ => Seen::plain(Event::Done),
    }
}

/// Taken back as far as this point does it: what comes of it.
fn taken_back(at: Point, upgrade: &Upgrade) -> Option<Seen> {
    let more = at == Point::Disarm && upgrade.kind == Kind::Install;
    match upgrade.ending {
        Some(Ending::Failed) | None => Seen::plain(Event::GaveUp),
        Some(Ending::Cancelled | Ending::Replaced(_)) if more => Seen::plain(Event::Done),
        Some(Ending::Cancelled) => Seen::plain(Event::Cancelled),
        Some(Ending::Replaced(_)) => Seen::plain(Event::Replaced),
    }
}

/// How often a point is tried before its failure counts.
fn patience(at: Point, kind: ErrorKind) -> u32 {
    match at {
        Point::Arm | Point::Select if kind == ErrorKind::Retry => 3,
        Point::Disarm | Point::Discard => 3,
        Point::GiveUp => 3,
        Point::Restart => 30,
        // Failing to record success is no ill health, and a bad slot is left at any price. Checks
        // that cannot run are bounded by the deadline.
        Point::Bless | Point::Return | Point::Check | Point::AwaitBootComplete => u32::MAX,
        _ => 1,
    }
}

fn failed(
    record: &Record,
    upgrade: &Upgrade,
    seen: &Observation,
    failure: &Failure,
) -> Option<Seen> {
    let at = record.at;
    if upgrade.tries.saturating_add(1) < patience(at, failure.kind) {
        return late(at, upgrade, seen);
    }
    let event = match at {
        Point::GiveUp if seen.world.booted != Some(upgrade.target) => Event::FellBack,
        Point::GiveUp if no_fallback(upgrade, seen) => Event::NoFallback,
        // The loader's own counter bounds the trial as well.
        Point::GiveUp => return Seen::plain(Event::Done),
        Point::Disarm | Point::Discard => Event::GaveUp,
        _ => Event::Failed,
    };
    Some(Seen {
        event,
        failure: Some(failure.clone()),
    })
}
