//! The step: an event is looked up in the table, the record follows it, a command comes out.

use crate::follow::follow;
use crate::read;
use crate::record::{Drain, Ended, Failure, Image, Kind, Record};
use crate::table::{Event, Phase, Point, target};
use crate::world::{Observation, Slot, SlotState, StagedSlot, Verdict};

/// Seconds after which a reboot that was accepted is asked for again.
const REBOOT_PATIENCE: u64 = 120;

/// Seconds after which a history that could not be written is tried again.
const HOUSEKEEPING: u64 = 600;

/// Seconds after which a boot that could not be released from the guards of a trial is released again: they reboot it
/// a minute after the trial's deadline.
const RELEASE: u64 = 10;

/// The one thing to do now. Every command is idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Nothing until somebody asks for something.
    Rest,
    /// Nothing for so long, or until somebody asks for something.
    Wait {
        /// How long.
        seconds: u64,
    },
    /// Append a finished upgrade to the history, unless it is there.
    Report(Box<Ended>),
    /// Release a proven boot from the guards of a trial: failure actions, `kernel.panic`.
    Settle,
    /// Release a boot that is not proven and that is not left from the same guards: it is neither rebooted nor kept.
    Stay {
        /// Why it is not left, for people.
        reason: String,
    },
    /// Look at everything that can be refused before a write, and open the source.
    Preflight {
        /// The slot that would be written.
        slot: Slot,
    },
    /// Make the loader forget the slot's image.
    Invalidate {
        /// The slot.
        slot: Slot,
    },
    /// Write the image, flush it, read it back.
    Write {
        /// The slot.
        slot: Slot,
    },
    /// Look into the written slot, install what boots it, leave the marker last.
    PrepareBoot {
        /// The slot.
        slot: Slot,
    },
    /// Make what was staged unusable: the slot ends empty.
    Discard {
        /// The slot.
        slot: Slot,
    },
    /// Cordon the node and evict its pods.
    Drain(Drain),
    /// Tell the loader to try the slot. Carries the proof that its image was verified.
    Arm(StagedSlot),
    /// Take the trial back before it ran.
    Disarm {
        /// The slot.
        slot: Slot,
    },
    /// Make a good slot the one that boots.
    Select {
        /// The slot.
        slot: Slot,
    },
    /// Reboot.
    Reboot {
        /// Whatever inhibits it.
        forced: bool,
    },
    /// Run the health checks.
    RunChecks {
        /// The uptime in seconds by which they must be through.
        deadline: u64,
    },
    /// Wait until `boot-complete.target` is reached.
    AwaitBootComplete {
        /// The uptime in seconds by which it must be.
        deadline: u64,
    },
    /// Tell the loader that the slot is good.
    MarkGood {
        /// The slot.
        slot: Slot,
    },
    /// Tell the loader that the slot is bad.
    MarkBad {
        /// The slot.
        slot: Slot,
    },
}

impl Command {
    /// Whether it must not run unless the record was written: what it does to the disk or to the next
    /// boot would otherwise be forgotten by a crash. Confirming and rolling back go on without.
    #[must_use]
    pub fn needs_record(&self) -> bool {
        matches!(
            self,
            Self::Invalidate { .. }
                | Self::Write { .. }
                | Self::PrepareBoot { .. }
                | Self::Drain(_)
                | Self::Arm(_)
                | Self::Select { .. }
                | Self::Reboot { forced: false }
        )
    }
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did its work; a reboot was accepted; `boot-complete.target` was reached.
    Done,
    /// The wait is over.
    Waited,
    /// The history has this upgrade.
    Reported(u64),
    /// The image was written and read back.
    Written(Image),
    /// The slot can boot.
    Prepared {
        /// The version that the image names itself.
        version: Option<String>,
    },
    /// The checks, or the wait for `boot-complete.target`, came to a verdict.
    Verdict(Verdict),
    /// The node is cordoned, and its pods are gone or need not be waited for any longer.
    Drained,
    /// It was told to stop and left nothing half done that the record does not know of.
    Stopped,
    /// It failed, or may have: only the world knows.
    Failed(Failure),
}

/// What to keep and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The record, to be written durably first where it changed.
    pub record: Record,
    /// The command.
    pub command: Command,
    /// The row of the table that was taken; `None` where nothing led on.
    pub event: Option<Event>,
}

/// The next step. `outcome` is that of the last command; `None` after a start of any kind.
#[must_use]
pub fn next(record: &Record, seen: &Observation, outcome: Option<&Outcome>) -> Step {
    let mut record = record.clone();
    if let Some(Outcome::Reported(id)) = outcome {
        record.unreported.retain(|ended| ended.id != *id);
    }
    let Some((event, to)) = read::event(&record, seen, outcome)
        .and_then(|event| target(record.at, event.event).map(|to| (event, to)))
    else {
        return stay(record, seen, outcome);
    };
    let taken = event.event;
    follow(&mut record, seen, outcome, event, to);
    let command = command(&record, seen);
    Step {
        record,
        command,
        event: Some(taken),
    }
}

/// Nothing happened that leads on: the point's command again, after a pause where it just failed.
fn stay(mut record: Record, seen: &Observation, outcome: Option<&Outcome>) -> Step {
    if record.at.is_rest() {
        let command = match (outcome, rest(&record, seen)) {
            (Some(Outcome::Failed(_)), Command::Settle | Command::Stay { .. }) => {
                Command::Wait { seconds: RELEASE }
            }
            (Some(Outcome::Failed(_)), _) => Command::Wait {
                seconds: HOUSEKEEPING,
            },
            (_, command) => command,
        };
        return waiting(record, command);
    }
    let seconds = match outcome {
        Some(Outcome::Done) if matches!(record.at, Point::Restart | Point::Return) => {
            REBOOT_PATIENCE
        }
        Some(Outcome::Failed(failure)) => {
            note(&mut record, failure);
            backoff(&record)
        }
        Some(Outcome::Done) => backoff(&record),
        _ if blind(&record, seen) => backoff(&record),
        _ => {
            let command = command(&record, seen);
            return waiting(record, command);
        }
    };
    if let Some(upgrade) = &mut record.upgrade {
        upgrade.tries = upgrade.tries.saturating_add(1);
    }
    waiting(record, Command::Wait { seconds })
}

fn waiting(record: Record, command: Command) -> Step {
    Step {
        record,
        command,
        event: None,
    }
}

/// Keeps what a retried command stumbled over, but never in place of a health check's verdict.
fn note(record: &mut Record, failure: &Failure) {
    let judged = matches!(record.at, Point::GiveUp | Point::Return);
    if let Some(upgrade) = &mut record.upgrade
        && !judged
        && upgrade.ending.is_none()
    {
        upgrade.failure = Some(failure.clone());
    }
}

/// 1, 2, 4 … 60 seconds.
fn backoff(record: &Record) -> u64 {
    let tries = record.upgrade.as_ref().map_or(0, |upgrade| upgrade.tries);
    1_u64.checked_shl(tries.min(6)).unwrap_or(60).min(60)
}

/// Whether the point's command depends on something that cannot be seen now.
fn blind(record: &Record, seen: &Observation) -> bool {
    let Some(upgrade) = &record.upgrade else {
        return false;
    };
    match record.phase() {
        // Without the loader's data there is no proof that the image is there.
        Phase::Activating if record.at == Point::Arm && seen.world.loader.is_none() => true,
        // Another boot of the old slot: what became of the trial is in the loader's data only.
        Phase::Activating | Phase::Confirming => {
            seen.world.booted != Some(upgrade.target)
                && (seen.world.loader.is_none() || seen.world.booted.is_none())
                && read::rebooted(upgrade, seen)
        }
        _ => false,
    }
}

/// What is due at rest.
fn rest(record: &Record, seen: &Observation) -> Command {
    // First: a history that cannot be written must not keep a proven boot under the guards of a trial.
    let proven = seen
        .world
        .booted
        .and_then(|slot| seen.world.proven(slot))
        .is_some();
    if proven && !seen.world.settled {
        return Command::Settle;
    }
    if let Some(reason) = stays(record, seen).filter(|_| !seen.world.settled) {
        return Command::Stay { reason };
    }
    if let Some(ended) = record.unreported.first() {
        return Command::Report(Box::new(ended.clone()));
    }
    // A trial that nobody remembers could hide behind unreadable loader data: that this boot is none is never
    // said before they were read, however late that is.
    if seen.world.loader.is_none() {
        let early = seen.world.uptime < seen.limits.trial_deadline;
        return Command::Wait {
            seconds: if early { 30 } else { 300 },
        };
    }
    Command::Rest
}

/// Why a slot runs that is not good, although nothing is under way that confirms or leaves it; `None` where that is
/// not so.
fn stays(record: &Record, seen: &Observation) -> Option<String> {
    let slot = seen.world.booted?;
    if !matches!(
        seen.world.state(slot)?,
        SlotState::Trial { .. } | SlotState::Bad
    ) {
        return None;
    }
    let ended = record
        .upgrade
        .as_ref()
        .filter(|upgrade| upgrade.target == slot);
    let failure = ended.and_then(|upgrade| upgrade.failure.as_ref());
    Some(failure.map_or_else(
        || format!("slot {slot} was given up, and the boot loader started it all the same"),
        |failure| failure.reason.clone(),
    ))
}

/// Whether the loader's data show a trial that was not started yet.
fn armed(record: &Record, seen: &Observation) -> bool {
    let state = record
        .upgrade
        .as_ref()
        .and_then(|upgrade| seen.world.state(upgrade.target));
    matches!(state, Some(SlotState::Trial { done: 0, .. }))
}

/// The command of the point where the record stands.
fn command(record: &Record, seen: &Observation) -> Command {
    let Some(upgrade) = &record.upgrade else {
        return rest(record, seen);
    };
    let slot = upgrade.target;
    let deadline = seen.limits.trial_deadline;
    match record.at {
        Point::Idle | Point::Completed | Point::RolledBack | Point::Failed => rest(record, seen),
        Point::Preflight => Command::Preflight { slot },
        Point::Invalidate => Command::Invalidate { slot },
        Point::Write => Command::Write { slot },
        Point::PrepareBoot => Command::PrepareBoot { slot },
        Point::Discard => Command::Discard { slot },
        // Kept as staged first; the next step activates.
        Point::Staged if read::activates(upgrade, seen) => Command::Wait { seconds: 0 },
        Point::Staged => Command::Rest,
        // Armed before a restart: while the node is drained, somebody may still hold it back.
        Point::Drain if armed(record, seen) => Command::Disarm { slot },
        Point::Drain => match upgrade.drain {
            Some(drain) => Command::Drain(drain),
            // Nobody drains without having been asked to; a record that says so was not written by us.
            None => Command::Rest,
        },
        Point::Arm => match seen.world.staged_for(upgrade) {
            Some(proof) if seen.world.state(!slot) == Some(SlotState::Good) => Command::Arm(proof),
            // The loader's data cannot be read now; without the proof and a fallback nothing is armed.
            _ => Command::Wait {
                seconds: backoff(record),
            },
        },
        Point::Disarm if upgrade.kind == Kind::Rollback => Command::Select { slot: !slot },
        Point::Disarm => Command::Disarm { slot },
        Point::Select => Command::Select { slot },
        Point::Restart => Command::Reboot { forced: false },
        Point::Return => Command::Reboot { forced: true },
        Point::Check => Command::RunChecks { deadline },
        Point::AwaitBootComplete => Command::AwaitBootComplete { deadline },
        Point::Bless => Command::MarkGood { slot },
        Point::GiveUp => Command::MarkBad { slot },
    }
}
