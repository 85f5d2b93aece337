//! The record of both slots in the environment block.

use std::path::Path;

use super::convention::{ANNOUNCED, Convention, Decoded, GrubConvention};
use super::environment::Environment;
use super::file::BlockFile;
use super::layout::{NoPlace, Variable, lay_out};
use super::preflight;
use crate::backend::{
    Counting, NextBoot, PlannedChange, PreflightRequest, Problem, ProblemCode, Refusal, SlotState,
};
use crate::block::command_line;
use crate::error::{Error, Result};
use crate::facts::ImageFacts;
use crate::lock::Lock;
use crate::options::{SLOT_OPTION, TRIAL_OPTION};
use crate::record::{Arming, Loaded, Record, RecordStore};
use crate::system::System;
use crate::table::{Booted, SlotTable};

/// What RAUC's script does otherwise than slotd's.
const RAUC_PROMISES: &str = "RAUC's script takes a slot's one try on every boot, of a proven slot, too: until slotd has \
    given it back (mark-good), a power cycle passes to the other slot, and once both have none left the script gives \
    both theirs back and starts its first menu entry. A trial gets one boot, and is not announced to the kernel and to \
    userspace (slotd.trial, panic=)";

/// GRUB's record: a file and what its variables mean.
#[derive(Debug)]
pub(crate) struct GrubStore {
    pub(super) system: System,
    pub(super) file: BlockFile,
    pub(super) convention: Convention,
    pub(super) booted: Booted,
    /// Whether the slots hold `/usr`, not the root.
    pub(super) usr_slots: bool,
}

impl GrubStore {
    pub(crate) fn new(
        system: &System,
        table: &SlotTable,
        file: BlockFile,
        convention: Convention,
    ) -> Self {
        Self {
            system: system.clone(),
            file,
            convention,
            booted: table.booted,
            usr_slots: table.hold_usr(),
        }
    }

    /// Whether the command line has this option, or one that begins like it.
    pub(super) fn announced(&self, option: &str) -> Result<bool> {
        let words = command_line(&self.system)?;
        Ok(words
            .iter()
            .any(|word| word == option || (option.ends_with('=') && word.starts_with(option))))
    }

    fn decode(&self, environment: &Environment, booted: Booted) -> Result<Decoded> {
        let trial_boot = self.announced(TRIAL_OPTION)?;
        let get = |name: &str| environment.get(name);
        Ok(self.convention.decode(get, booted, trial_boot))
    }

    fn counting(&self, record: &Record, booted: Booted) -> Result<Counting> {
        if self.convention.kind == GrubConvention::Rauc {
            return Ok(Counting::EveryBoot);
        }
        let Some(slot) = booted.slot() else {
            return Ok(Counting::Unknown);
        };
        // The script starts no trial without having taken a try off it.
        if matches!(record.state(slot), SlotState::Trial { left: 1.., done: 0 }) {
            return Ok(Counting::Inactive);
        }
        Ok(if self.announced(SLOT_OPTION)? {
            Counting::Active
        } else {
            Counting::Unknown
        })
    }

    fn problems(
        &self,
        environment: &Environment,
        decoded: &Decoded,
        missing: bool,
    ) -> Vec<Problem> {
        let place = self.file.shown().display();
        let mut found = Vec::new();
        let mut say = |code, message| found.push(Problem { code, message });
        if !decoded.known {
            let what = if missing {
                "is missing or empty"
            } else {
                "holds no slot's state"
            };
            say(
                ProblemCode::Unreadable,
                format!(
                    "{place} {what}: the running slot counts as proven, the other one as empty, until the next change \
                     writes it"
                ),
            );
        }
        if environment.is_damaged() {
            say(
                ProblemCode::Unreadable,
                format!(
                    "{place} ends with a newline behind its padding, so that grub-editenv refuses every change of it as \
                     too small; the next change repairs it"
                ),
            );
        }
        for odd in &decoded.odd {
            say(ProblemCode::Unreadable, format!("{place}: {odd}"));
        }
        if self.convention.kind == GrubConvention::Rauc {
            say(ProblemCode::PromiseNotKept, RAUC_PROMISES.to_owned());
        }
        for slot in &decoded.used_up {
            say(
                ProblemCode::PromiseNotKept,
                format!(
                    "slot {slot} is proven, but has no try left until the running slot is marked good"
                ),
            );
        }
        found
    }

    /// The blocks that have to be written one after the other, for what lies there.
    pub(super) fn blocks(
        &self,
        environment: &Environment,
        raw: &[u8],
        variables: &[Variable],
    ) -> Result<Vec<Vec<u8>>> {
        let reserve = self.convention.reserve();
        lay_out(environment, raw, variables, reserve).map_err(|problem| match problem {
            NoPlace::TooSmall { .. } => Error::Io {
                action: "put slotd's variables into",
                path: self.file.shown().to_owned(),
                source: std::io::Error::new(std::io::ErrorKind::StorageFull, problem.to_string()),
            },
            NoPlace::Inconsistent(_) => Error::malformed(self.file.shown(), problem.to_string()),
        })
    }

    /// The variables of a record, and those that the script announces a trial with: anew where one is armed, else as they
    /// are.
    fn variables(
        &self,
        environment: &Environment,
        wanted: &Record,
        arming: Option<Arming<'_>>,
    ) -> Vec<Variable> {
        let mut variables = self.convention.encode(wanted);
        // RAUC's script passes nothing of slotd's on.
        if self.convention.kind == GrubConvention::Slotd {
            let armed = arming.map(|arming| {
                [
                    arming.options.machine_id.clone(),
                    arming.options.trial_deadline_seconds.to_string(),
                    arming.options.panic_seconds.to_string(),
                ]
                .map(String::into_bytes)
            });
            let values = match armed {
                Some(values) => values.map(Some),
                None => ANNOUNCED.map(|(name, _)| environment.get(name)),
            };
            let names = ANNOUNCED.map(|(name, _)| name.to_owned());
            variables.extend(names.into_iter().zip(values));
        }
        variables
    }

    /// Whether every variable has its value, and the loader can change them.
    fn holds(environment: &Environment, variables: &[Variable]) -> bool {
        !environment.is_damaged()
            && variables
                .iter()
                .all(|(name, value)| environment.get(name) == *value)
    }
}

impl RecordStore for GrubStore {
    fn name(&self) -> &'static str {
        "grub"
    }

    fn location(&self) -> String {
        let path = self.file.resolved();
        let path = path.as_deref().unwrap_or(self.file.shown());
        path.display().to_string()
    }

    fn lock(&self) -> Result<Lock> {
        // Its directory: the file itself may have to be made.
        Lock::of(&self.file.directory()?)
    }

    fn load(&self, booted: Booted) -> Result<Loaded> {
        let content = self.file.read()?;
        let decoded = self.decode(&content.environment, booted)?;
        let counting = self.counting(&decoded.record, booted)?;
        let mut problems = self.problems(&content.environment, &decoded, content.raw.is_none());
        if counting == Counting::Inactive {
            problems.push(Problem {
                code: ProblemCode::CountingInactive,
                message: "this trial boot took no try: it was not started by slotd's script"
                    .to_owned(),
            });
        }
        Ok(Loaded {
            record: decoded.record,
            counting,
            problems,
        })
    }

    fn commit(&self, _booted: Booted, wanted: &Record, arming: Option<Arming<'_>>) -> Result<()> {
        let content = self.file.read()?;
        let variables = self.variables(&content.environment, wanted, arming);
        if Self::holds(&content.environment, &variables) {
            return Ok(());
        }
        match content.raw {
            Some(raw) => {
                let blocks = self.blocks(&content.environment, &raw, &variables)?;
                self.file.write(&raw, &blocks)
            }
            None => {
                let fresh = content.environment;
                let blocks = self.blocks(&fresh, fresh.bytes(), &variables)?;
                let block = blocks.last().map_or(fresh.bytes(), Vec::as_slice);
                self.file.create(block)
            }
        }
    }

    fn plan(
        &self,
        booted: Booted,
        before: &Record,
        wanted: &Record,
        arming: Option<Arming<'_>>,
    ) -> Result<Vec<PlannedChange>> {
        let environment = self.file.read()?.environment;
        let wished = self.variables(&environment, wanted, arming);
        let mut held = self.variables(&environment, before, None);
        // Where the plan begins, what is really there counts.
        if self.decode(&environment, booted)?.record == *before {
            for (name, value) in &mut held {
                *value = environment.get(name);
            }
        }
        let changes: Vec<String> = wished
            .into_iter()
            .zip(held)
            .filter(|((_, new), (_, old))| new != old)
            .map(|((name, new), _)| match new {
                Some(value) => format!("{name}={}", String::from_utf8_lossy(&value)),
                None => format!("no {name}"),
            })
            .collect();
        Ok((!changes.is_empty())
            .then(|| PlannedChange {
                target: self.location(),
                change: format!("set in place: {}", changes.join(", ")),
                content: None,
                why: format!(
                    "slot {} first; A {}, B {}",
                    wanted.first, wanted.a, wanted.b
                ),
            })
            .into_iter()
            .collect())
    }

    fn start(&self, record: &Record) -> Record {
        let mut record = *record;
        let NextBoot::Slot { slot: next, .. } = self.next(&record) else {
            return record;
        };
        record.take_try(next);
        if matches!(record.state(!next), SlotState::Trial { left: 0, .. }) {
            // Spent, and not what runs.
            record.set(!next, SlotState::Bad);
        }
        record
    }

    fn refusals(&self, _request: &PreflightRequest) -> Vec<Refusal> {
        preflight::refusals(self)
    }

    fn max_tries(&self) -> u32 {
        self.convention.kind.max_tries()
    }

    /// Whether the block holds any variable of the convention: whether a script that knows slots goes by it.
    fn knows_slots(&self) -> Result<bool> {
        let environment = self.file.read()?.environment;
        Ok(self.convention.is_in(|name| environment.get(name)))
    }

    fn announces_trials(&self) -> bool {
        self.convention.kind == GrubConvention::Slotd
    }

    fn check_image(&self, facts: &ImageFacts) -> Result<()> {
        if facts.kernel.is_some() {
            return Ok(());
        }
        Err(Error::Image {
            device: Path::new("the slot").to_owned(),
            problem: "no kernel in /boot or /usr/lib/modules, where GRUB's script looks for it"
                .to_owned(),
        })
    }
}
