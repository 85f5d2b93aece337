//! What goes wrong at an effect.

use slotd_engine::{Command, ErrorKind, SlotState};

use super::{Content, Node, failed, index};

/// What goes wrong at an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An error, and nothing was done, or a part of a write.
    Error(ErrorKind),
    /// It was done, but the answer is an error.
    LostAnswer,
    /// The daemon dies before it.
    DaemonBefore,
    /// The daemon dies after it.
    DaemonAfter,
    /// Power is cut before it.
    PowerBefore,
    /// Power is cut in the middle of it: see [`Node::torn`].
    PowerWithin,
    /// Power is cut after it.
    PowerAfter,
    /// Power is cut after it, and the record is gone.
    RecordLost,
    /// The record cannot be written for it.
    Unrecorded,
    /// The record was written for it, but the answer is an error.
    RecordUnanswered,
    /// It hangs, and was not done, or a part of a write, until somebody ends that: see [`Node::hang`].
    Hangs,
    /// It was done, and hangs before it could say so.
    HangsAfter,
}

pub(crate) const FAULTS: [Fault; 14] = [
    Fault::Error(ErrorKind::Retry),
    Fault::Error(ErrorKind::Unsafe),
    Fault::Error(ErrorKind::Reject),
    Fault::LostAnswer,
    Fault::DaemonBefore,
    Fault::DaemonAfter,
    Fault::PowerBefore,
    Fault::PowerWithin,
    Fault::PowerAfter,
    Fault::RecordLost,
    Fault::Unrecorded,
    Fault::RecordUnanswered,
    Fault::Hangs,
    Fault::HangsAfter,
];

/// `WatchdogSec` of slotd.service, in seconds.
const WATCHDOG: u64 = 120;

/// What the boot generator gives a trial boot beyond the agent's deadline, in seconds.
const GENERATOR_MARGIN: u64 = 60;

impl Node {
    pub(crate) fn effect(&mut self, command: &Command, fault: Option<Fault>) {
        self.effects += 1;
        self.allowed(command);
        let fault =
            fault.filter(|fault| !matches!(fault, Fault::Unrecorded | Fault::RecordUnanswered));
        if let Some(fault) = fault {
            self.strikes(fault, name(command));
        }
        match fault {
            None | Some(Fault::Unrecorded | Fault::RecordUnanswered) => {
                self.outcome = Some(self.carry_out(command));
            }
            Some(Fault::Error(kind)) => {
                self.partly(command);
                self.outcome = Some(failed(kind));
            }
            Some(Fault::LostAnswer) => {
                self.carry_out(command);
                self.outcome = Some(failed(ErrorKind::Retry));
            }
            Some(Fault::DaemonBefore) => self.daemon_restart(),
            Some(Fault::DaemonAfter) => {
                self.carry_out(command);
                self.daemon_restart();
            }
            Some(Fault::PowerBefore) => self.power_cycle(),
            Some(Fault::PowerWithin) => {
                self.torn(command);
                self.power_cycle();
            }
            Some(Fault::PowerAfter) => {
                self.carry_out(command);
                self.power_cycle();
            }
            Some(Fault::RecordLost) => {
                self.carry_out(command);
                self.stored = None;
                self.judge.unrecorded = true;
                self.power_cycle();
            }
            Some(Fault::Hangs) => {
                self.partly(command);
                self.hang();
            }
            Some(Fault::HangsAfter) => {
                self.carry_out(command);
                self.hang();
            }
        }
        self.check();
    }

    /// What a power cut in the middle leaves where that is neither all nor nothing.
    fn torn(&mut self, command: &Command) {
        self.partly(command);
        match command {
            // The entry goes first, then the marker.
            Command::Invalidate { slot } | Command::Discard { slot } => {
                self.loader[index(*slot)] = SlotState::Empty;
            }
            // On FAT the entry may be lost between its two names.
            Command::MarkGood { slot }
                if matches!(self.loader[index(*slot)], SlotState::Trial { .. }) =>
            {
                self.loader[index(*slot)] = SlotState::Empty;
            }
            _ => {}
        }
    }

    /// A write that does not come to its end has begun.
    fn partly(&mut self, command: &Command) {
        if let Command::Write { slot } = command {
            self.disk[index(*slot)] = Content::Partial;
            self.judge.verified[index(*slot)] = None;
        }
    }

    /// What hangs is ended by the service's watchdog, or on a trial boot by the generator's limit, whichever is first.
    fn hang(&mut self) {
        let limit = self.limits.trial_deadline + GENERATOR_MARGIN;
        let on_trial = matches!(self.loader[index(self.booted)], SlotState::Trial { .. });
        self.uptime += WATCHDOG;
        if on_trial && self.uptime >= limit {
            self.power_cycle();
        } else {
            self.daemon_restart();
        }
    }
}

/// Every effect by its name.
pub(crate) const EFFECTS: [&str; 17] = [
    "Report",
    "Settle",
    "Stay",
    "Preflight",
    "Invalidate",
    "Write",
    "PrepareBoot",
    "Discard",
    "Drain",
    "Arm",
    "Disarm",
    "Select",
    "Reboot",
    "RunChecks",
    "AwaitBootComplete",
    "MarkGood",
    "MarkBad",
];

pub(super) fn name(command: &Command) -> &'static str {
    match command {
        Command::Rest => "Rest",
        Command::Wait { .. } => "Wait",
        Command::Report(_) => "Report",
        Command::Settle => "Settle",
        Command::Stay { .. } => "Stay",
        Command::Preflight { .. } => "Preflight",
        Command::Invalidate { .. } => "Invalidate",
        Command::Write { .. } => "Write",
        Command::PrepareBoot { .. } => "PrepareBoot",
        Command::Discard { .. } => "Discard",
        Command::Drain(_) => "Drain",
        Command::Arm(_) => "Arm",
        Command::Disarm { .. } => "Disarm",
        Command::Select { .. } => "Select",
        Command::Reboot { .. } => "Reboot",
        Command::RunChecks { .. } => "RunChecks",
        Command::AwaitBootComplete { .. } => "AwaitBootComplete",
        Command::MarkGood { .. } => "MarkGood",
        Command::MarkBad { .. } => "MarkBad",
    }
}
