//! Which variables hold the state of the slots, and what the script that reads them does. Pure.

mod bootcount;
mod own;
mod rauc;

use std::fmt;

use crate::backend::{Counting, NextBoot, Problem, ProblemCode, SlotState};
use crate::error::{Error, Result};
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;
use crate::uboot::environment::Environment;

pub(crate) use bootcount::BootCount;
pub(crate) use own::Own;
pub(crate) use rauc::Rauc;

/// The machine's id, which the script passes on.
pub(crate) const MACHINE_ID: &str = "slotd_machine_id";
/// Seconds that a trial has to prove itself, in decimal: they go to the command line as they are.
pub(crate) const DEADLINE: &str = "slotd_deadline";
/// Seconds from a panic to the reboot on a trial boot, in decimal.
pub(crate) const PANIC: &str = "slotd_panic";

/// Boots given to the trial that was armed last, in hexadecimal: what [`SlotState::Trial`]'s `done` is counted from.
const TRIES: &str = "slotd_tries";

/// What the variables say.
#[derive(Debug)]
pub(crate) struct Meaning {
    pub(crate) record: Record,
    pub(crate) counting: Counting,
    pub(crate) problems: Vec<Problem>,
}

/// A set of variables and the script that counts in them.
pub(crate) trait Convention: fmt::Debug + Send + Sync {
    /// Whether any of the variables that say something of the slots is set.
    fn knows(&self, environment: &Environment) -> bool;

    /// What the variables say.
    ///
    /// # Errors
    /// The problem as text, with the variable, where they say nothing that can be used.
    fn read(&self, environment: &Environment, booted: Booted) -> Result<Meaning, String>;

    /// The variables of a record, in order; an empty value removes one.
    ///
    /// # Errors
    /// For a record that these variables cannot hold.
    fn variables(&self, wanted: &Record) -> Result<Vec<(String, String)>>;

    /// What the script starts.
    fn next(&self, record: &Record) -> NextBoot;

    /// The record after it has done so.
    fn start(&self, record: &Record) -> Record {
        let mut record = *record;
        if let NextBoot::Slot { slot, trial: true } = self.next(&record) {
            record.take_try(slot);
        }
        record
    }

    /// Most boots of a trial.
    fn max_tries(&self) -> u32;

    /// Whether the script announces a trial with the machine's id and what the trial was armed with.
    fn announces(&self) -> bool {
        false
    }
}

/// Whether the script counts, as far as the booted slot's state shows it.
fn seen_counting(record: &Record, booted: Booted) -> (Counting, Option<Problem>) {
    let state = booted.slot().map(|slot| (slot, record.state(slot)));
    match state {
        Some((slot, SlotState::Trial { done: 0, .. })) => {
            let message = format!(
                "the trial of slot {slot} runs, and U-Boot's script took no try for it: nothing would end a trial that \
                 fails; is it the script of this convention, and can it write the environment?"
            );
            let code = ProblemCode::CountingInactive;
            (Counting::Inactive, Some(Problem { code, message }))
        }
        Some((_, SlotState::Trial { .. })) => (Counting::Active, None),
        _ => (Counting::Unknown, None),
    }
}

/// A number as `setexpr` writes it: hexadecimal without `0x`, which is accepted.
fn hexadecimal(environment: &Environment, name: &str) -> Result<Option<u32>, String> {
    let Some(text) = environment.text(name) else {
        return Ok(None);
    };
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match u32::from_str_radix(digits, 16) {
        Ok(number) if !digits.starts_with('+') => Ok(Some(number)),
        _ => Err(format!("{name}={text} is no hexadecimal number")),
    }
}

/// What a variable of a slot is called: `name("slotd_", A, "_ok")`.
fn lower(prefix: &str, slot: SlotName, suffix: &str) -> String {
    format!("{prefix}{}{suffix}", slot.lower())
}

fn cannot_hold(what: &str, wanted: &Record) -> Error {
    Error::Rejected {
        reason: format!(
            "{what} cannot hold slot A {}, slot B {}",
            wanted.a, wanted.b
        ),
    }
}

/// What slotd itself remembers of a slot where the script's own variables cannot tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memo {
    Good,
    Trial,
    Bad,
    Empty,
}

impl Memo {
    fn name(slot: SlotName) -> String {
        lower("slotd_", slot, "_state")
    }

    fn read(environment: &Environment, slot: SlotName) -> Result<Option<Self>, String> {
        let name = Self::name(slot);
        match environment.text(&name) {
            None => Ok(None),
            Some("good") => Ok(Some(Self::Good)),
            Some("trial") => Ok(Some(Self::Trial)),
            Some("bad") => Ok(Some(Self::Bad)),
            Some("empty") => Ok(Some(Self::Empty)),
            Some(other) => Err(format!("{name}={other} is none of good, trial, bad, empty")),
        }
    }

    fn of(state: SlotState) -> &'static str {
        match state {
            SlotState::Good => "good",
            SlotState::Trial { .. } => "trial",
            SlotState::Bad => "bad",
            SlotState::Empty => "empty",
        }
    }
}

/// That a slot which was given up, or emptied, would be started all the same.
fn started_nonetheless(slot: SlotName, state: SlotState) -> Problem {
    Problem {
        code: ProblemCode::ForeignDefault,
        message: format!(
            "slot {slot} is {state}, but U-Boot's variables were changed so that it can be started"
        ),
    }
}

#[cfg(test)]
mod tests;
