//! The record of both slots in U-Boot's environment.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::backend::{
    BootOptions, NextBoot, PlannedChange, PreflightRequest, Refusal, RefusalCode, SlotState,
};
use crate::error::{Error, Result};
use crate::facts::{FIXED_KERNELS, ImageFacts};
use crate::lock::Lock;
use crate::options::trial_announced;
use crate::record::{Arming, Loaded, Record, RecordStore};
use crate::slot::SlotName;
use crate::system::System;
use crate::table::{Booted, SlotTable};
use crate::uboot::conventions::{BootCount, Convention, DEADLINE, MACHINE_ID, Own, PANIC, Rauc};
use crate::uboot::environment::{Environment, Unfit};
use crate::uboot::storage::{Storage, Stored};

/// The lock that `fw_printenv` and `fw_setenv` take.
const LOCK: &str = "/var/lock/fw_printenv.lock";

/// Which variables hold the state of the slots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum UbootConvention {
    /// slotd's own, for the script that comes with it.
    #[default]
    Slotd,
    /// RAUC's: `BOOT_ORDER` and `BOOT_<slot>_LEFT`.
    Rauc,
    /// `bootcount`, `bootlimit` and `upgrade_available` with a variable that names the slot, as Mender has it.
    BootCount {
        /// The variable, such as `mender_boot_part`.
        variable: String,
        /// Its value for slot A, such as `2`.
        a: String,
        /// Its value for slot B, such as `3`.
        b: String,
    },
}

impl fmt::Display for UbootConvention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slotd => f.pad("slotd"),
            Self::Rauc => f.pad("rauc"),
            Self::BootCount { variable, a, b } => write!(f, "bootcount:{variable}={a},{b}"),
        }
    }
}

impl FromStr for UbootConvention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "slotd" => return Ok(Self::Slotd),
            "rauc" => return Ok(Self::Rauc),
            _ => {}
        }
        let counted = text
            .strip_prefix("bootcount:")
            .and_then(|rest| rest.split_once('='))
            .and_then(|(variable, values)| Some((variable, values.split_once(',')?)));
        match counted {
            Some((variable, (a, b))) => Ok(Self::BootCount {
                variable: variable.to_owned(),
                a: a.to_owned(),
                b: b.to_owned(),
            }),
            None => Err(format!(
                "{text:?} is no convention of U-Boot's environment: slotd, rauc, and bootcount:VARIABLE=A,B with the \
                 variable that names the slot and its values for A and B are"
            )),
        }
    }
}

impl UbootConvention {
    fn convention(&self) -> Result<Box<dyn Convention>> {
        match self {
            Self::Slotd => Ok(Box::new(Own)),
            Self::Rauc => Ok(Box::new(Rauc)),
            Self::BootCount { variable, a, b } => {
                let unusable = |text: &String| text.is_empty() || text.contains(['=', '\0', ' ']);
                if unusable(variable) || unusable(a) || unusable(b) || a == b {
                    return Err(Error::Rejected {
                        reason: format!(
                            "the slot variable {variable:?} with {a:?} for slot A and {b:?} for slot B: a name and two \
                             different values without blanks are needed"
                        ),
                    });
                }
                Ok(Box::new(BootCount {
                    variable: variable.clone(),
                    values: [a.clone(), b.clone()],
                }))
            }
        }
    }
}

/// U-Boot's environment as the place of the record. Holds no state: each call reads the environment anew.
#[derive(Debug)]
pub(crate) struct UbootStore {
    system: System,
    /// `/etc/fw_env.config`, or another file of its form, as the node names it.
    config: PathBuf,
    table: SlotTable,
    convention: Box<dyn Convention>,
}

impl UbootStore {
    /// The store of a configuration file. Nothing is read yet, so that preflight can name what is missing.
    ///
    /// # Errors
    /// When the convention's setting cannot be used.
    pub(crate) fn new(
        system: &System,
        config: &Path,
        table: &SlotTable,
        convention: &UbootConvention,
    ) -> Result<Self> {
        Ok(Self {
            system: system.clone(),
            config: config.to_owned(),
            table: table.clone(),
            convention: convention.convention()?,
        })
    }

    fn storage(&self) -> Result<Storage> {
        Storage::find(&self.system, &self.config, &self.table)
    }

    fn understood(&self, stored: &Stored, booted: Booted) -> Result<Loaded> {
        let meaning = self
            .convention
            .read(&stored.environment, booted)
            .map_err(|problem| Error::malformed(&self.config, problem))?;
        let mut record = meaning.record;
        // A trial whose variables were lost while it ran has proven nothing yet.
        if let Some(slot) = booted.slot()
            && self.convention.announces()
            && !self.convention.knows(&stored.environment)
            && trial_announced(&self.system)
        {
            record.set(slot, SlotState::Trial { left: 0, done: 1 });
        }
        let mut problems = meaning.problems;
        problems.extend(stored.problems.iter().cloned());
        Ok(Loaded {
            record,
            counting: meaning.counting,
            problems,
        })
    }

    fn applied(
        &self,
        environment: &Environment,
        wanted: &Record,
        arming: Option<Arming<'_>>,
    ) -> Result<Environment> {
        let mut environment = environment.clone();
        let mut variables = self.convention.variables(wanted)?;
        if let Some(Arming { options, .. }) = arming.filter(|_| self.convention.announces()) {
            variables.extend([
                (MACHINE_ID.to_owned(), options.machine_id.clone()),
                (
                    DEADLINE.to_owned(),
                    options.trial_deadline_seconds.to_string(),
                ),
                (PANIC.to_owned(), options.panic_seconds.to_string()),
            ]);
        }
        for (name, value) in variables {
            environment
                .set(&name, &value)
                .map_err(|unfit| self.unfit(&unfit))?;
        }
        Ok(environment)
    }

    fn unfit(&self, unfit: &Unfit) -> Error {
        Error::Rejected {
            reason: format!("{}: {unfit}", self.config.display()),
        }
    }

    /// Whether a trial's variables, the most there are, still fit.
    fn room(&self, storage: &Storage, stored: &Stored) -> Result<()> {
        let trial = SlotState::Trial {
            left: self.convention.max_tries(),
            done: 0,
        };
        for slot in SlotName::BOTH {
            let mut record = Record {
                a: SlotState::Good,
                b: SlotState::Good,
                first: slot,
            };
            record.set(slot, trial);
            let options = BootOptions {
                tries: self.convention.max_tries(),
                extra: String::new(),
                machine_id: "0".repeat(32),
                trial_deadline_seconds: u64::from(u32::MAX),
                panic_seconds: u32::MAX,
            };
            let arming = Arming {
                slot,
                options: &options,
                boot: None,
            };
            let environment = self.applied(&stored.environment, &record, Some(arming))?;
            storage.encode(&environment, crate::uboot::choice::Flags(0))?;
        }
        Ok(())
    }
}

impl RecordStore for UbootStore {
    fn name(&self) -> &'static str {
        "uboot"
    }

    fn location(&self) -> String {
        match self.storage() {
            Ok(storage) => storage.location(),
            Err(_) => self.config.display().to_string(),
        }
    }

    fn lock(&self) -> Result<Lock> {
        let path = self.system.path(LOCK);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Error::io("make directory", folder))?;
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        Lock::of_file(file, &path)
    }

    fn load(&self, booted: Booted) -> Result<Loaded> {
        self.understood(&self.storage()?.read()?, booted)
    }

    fn commit(&self, _booted: Booted, wanted: &Record, arming: Option<Arming<'_>>) -> Result<()> {
        let storage = self.storage()?;
        let stored = storage.read()?;
        let environment = self.applied(&stored.environment, wanted, arming)?;
        if environment == stored.environment {
            return Ok(());
        }
        storage.write(&stored, &environment)
    }

    fn plan(
        &self,
        booted: Booted,
        before: &Record,
        wanted: &Record,
        arming: Option<Arming<'_>>,
    ) -> Result<Vec<PlannedChange>> {
        let storage = self.storage()?;
        let stored = storage.read()?;
        let base = if self.understood(&stored, booted)?.record == *before {
            stored.environment.clone()
        } else {
            self.applied(&stored.environment, before, None)?
        };
        let after = self.applied(&base, wanted, arming)?;
        let change = difference(&base, &after);
        if change.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![PlannedChange {
            target: storage.location(),
            change: change.join(", "),
            content: None,
            why: why(before, wanted),
        }])
    }

    fn next(&self, record: &Record) -> NextBoot {
        self.convention.next(record)
    }

    fn start(&self, record: &Record) -> Record {
        self.convention.start(record)
    }

    fn refusals(&self, _request: &PreflightRequest) -> Vec<Refusal> {
        let refusal = |code, error: &Error| Refusal {
            code,
            message: error.chain(),
        };
        let storage = match self.storage() {
            Ok(storage) => storage,
            Err(error) => {
                let code = match &error {
                    Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                        RefusalCode::LoaderDataMissing
                    }
                    Error::Malformed { .. } => RefusalCode::UnsupportedLayout,
                    _ => RefusalCode::Unreadable,
                };
                return vec![refusal(code, &error)];
            }
        };
        // What is read is written to try it: nobody may change it in between.
        let _lock = match self.lock() {
            Ok(lock) => lock,
            Err(error) => return vec![Refusal::not_writable("U-Boot's environment", &error)],
        };
        let stored = match storage.read() {
            Ok(stored) => stored,
            // Nothing is written where nothing was understood, not even to try.
            Err(error) => return vec![refusal(RefusalCode::Unreadable, &error)],
        };
        let mut found = Vec::new();
        if let Err(error) = self.room(&storage, &stored) {
            found.push(refusal(RefusalCode::NoSpace, &error));
        }
        if let Err(error) = storage.test_write(&stored) {
            found.push(Refusal::not_writable("U-Boot's environment", &error));
        }
        found
    }

    fn max_tries(&self) -> u32 {
        self.convention.max_tries()
    }

    /// Whether the environment says anything of the slots. Where it does not, [`RecordStore::load`] assumes that the
    /// booted slot is proven.
    fn knows_slots(&self) -> Result<bool> {
        let stored = self.storage()?.read()?;
        Ok(self.convention.knows(&stored.environment))
    }

    fn announces_trials(&self) -> bool {
        self.convention.announces()
    }

    fn check_image(&self, facts: &ImageFacts) -> Result<()> {
        let problem = if facts.fixed_kernel.is_some() {
            return Ok(());
        } else if self.convention.announces() {
            let [first, second] = FIXED_KERNELS;
            format!(
                "no kernel at {first} or {second}, where U-Boot's script looks for it; a symlink to the kernel is enough"
            )
        } else if facts.kernel.is_some() {
            // Where another system's script looks for it is not known.
            return Ok(());
        } else {
            "no kernel was found in it".to_owned()
        };
        Err(Error::Image {
            device: PathBuf::from("the slot"),
            problem,
        })
    }
}

/// The variables that differ, in words.
fn difference(before: &Environment, after: &Environment) -> Vec<String> {
    let changed = after.variables().filter_map(|(name, value)| {
        let set = before.text(&name) != Some(value.as_str());
        set.then(|| format!("set {name}={value}"))
    });
    let removed = before
        .variables()
        .filter_map(|(name, _)| after.get(&name).is_none().then(|| format!("remove {name}")));
    changed.chain(removed).collect()
}

fn why(before: &Record, wanted: &Record) -> String {
    let mut words = Vec::new();
    for slot in SlotName::BOTH {
        let (old, new) = (before.state(slot), wanted.state(slot));
        if old != new {
            words.push(format!("slot {slot} was {old} and is then {new}"));
        }
    }
    if before.first != wanted.first {
        words.push(format!("slot {} is preferred", wanted.first));
    }
    if words.is_empty() {
        words.push("what the script has counted is put back".to_owned());
    }
    words.join("; ")
}

#[cfg(test)]
mod tests;
