//! The environment as a whole: one copy or a redundant pair, found by `/etc/fw_env.config`.

use std::path::{Path, PathBuf};

use crate::backend::{Problem, ProblemCode};
use crate::error::{Error, Result};
use crate::slot::SlotName;
use crate::system::System;
use crate::table::SlotTable;
use crate::uboot::choice::{FlagScheme, Flags};
use crate::uboot::config::Config;
use crate::uboot::environment::{Environment, Fault, Layout, fitting_sizes};
use crate::uboot::medium::Place;

/// Where the byte of flags is in a copy of a pair.
const FLAGS_AT: usize = 4;

/// Where the environment lies.
#[derive(Debug)]
pub(crate) struct Storage {
    /// The configuration, as the node names it.
    config: PathBuf,
    first: Place,
    second: Option<Place>,
    scheme: FlagScheme,
}

/// The environment as it was read.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) environment: Environment,
    /// Which copy counts: 0 or 1.
    current: usize,
    flags: Flags,
    /// Both copies as they lie on the medium.
    raw: [Vec<u8>; 2],
    pub(crate) problems: Vec<Problem>,
}

impl Storage {
    /// Finds the places. Nothing is written.
    ///
    /// # Errors
    /// When the configuration or a place cannot be used, or a copy lies on a slot or on the other copy.
    pub(crate) fn find(system: &System, config: &Path, table: &SlotTable) -> Result<Self> {
        let lines = Config::read(system, config)?;
        let first = Place::find(system, &lines.first)?;
        let second = lines
            .second
            .as_ref()
            .map(|line| Place::find(system, line))
            .transpose()?;
        for place in [Some(&first), second.as_ref()].into_iter().flatten() {
            if let Some(slot) = slot_under(place, table) {
                return Err(Error::malformed(
                    config,
                    format!(
                        "the copy on {} at {:#x} lies on slot {slot}, which is overwritten by updates",
                        place.shown.display(),
                        place.offset
                    ),
                ));
            }
        }
        if let Some(second) = &second {
            if first.overlaps(second) {
                let both = format!(
                    "both copies are written in one place: {} at {:#x} and {} at {:#x}",
                    first.shown.display(),
                    first.offset,
                    second.shown.display(),
                    second.offset
                );
                return Err(Error::malformed(config, both));
            }
            if first.is_flash() != second.is_flash() {
                let kinds = "one copy on flash and one elsewhere: their flags differ in kind";
                return Err(Error::malformed(config, kinds));
            }
        }
        let scheme = if first.is_flash() {
            FlagScheme::Boolean
        } else {
            FlagScheme::Incremental
        };
        Ok(Self {
            config: config.to_owned(),
            first,
            second,
            scheme,
        })
    }

    /// The places, for people.
    pub(crate) fn location(&self) -> String {
        let shown = |place: &Place| {
            if place.offset == 0 {
                place.shown.display().to_string()
            } else {
                format!("{} at {:#x}", place.shown.display(), place.offset)
            }
        };
        match &self.second {
            Some(second) => format!("{} and {}", shown(&self.first), shown(second)),
            None => shown(&self.first),
        }
    }

    fn layout(&self) -> Layout {
        match self.second {
            Some(_) => Layout::Redundant,
            None => Layout::Single,
        }
    }

    /// Reads the copies and chooses the one that counts.
    ///
    /// # Errors
    /// When no copy is good: what was found in each, and which size would have fitted.
    pub(crate) fn read(&self) -> Result<Stored> {
        let layout = self.layout();
        let bytes = self.first.read()?;
        let first = Environment::decode(&bytes, layout);
        let Some(second_place) = &self.second else {
            let (flags, environment) = first.map_err(|fault| self.nothing_good(&[fault]))?;
            let problems = self.first.can_tear().then(|| self.tearing());
            return Ok(Stored {
                environment,
                current: 0,
                flags,
                raw: [bytes, Vec::new()],
                problems: problems.into_iter().collect(),
            });
        };
        let second_bytes = second_place.read()?;
        let second = Environment::decode(&second_bytes, layout);
        let (current, (flags, environment), problem) = match (first, second) {
            (Ok(first), Ok(second)) => match self.scheme.newer(first.0, second.0) {
                0 => (0, first, None),
                _ => (1, second, None),
            },
            (Ok(first), Err(fault)) => (0, first, Some(damaged(second_place, &fault))),
            (Err(fault), Ok(second)) => (1, second, Some(damaged(&self.first, &fault))),
            (Err(first), Err(second)) => return Err(self.nothing_good(&[first, second])),
        };
        Ok(Stored {
            environment,
            current,
            flags,
            raw: [bytes, second_bytes],
            problems: problem.into_iter().collect(),
        })
    }

    /// Writes an environment in place of the one that was read. Durable and read back when it returns.
    ///
    /// Of a pair, the copy that does not count is written, with flags that make it count: a crash in the middle leaves
    /// the old environment, or the new one, whole. A single copy is written as [`Place::write`] has it.
    ///
    /// # Errors
    /// When the variables do not fit, before anything was written; when the medium fails.
    pub(crate) fn write(&self, stored: &Stored, environment: &Environment) -> Result<()> {
        let [first, second] = &stored.raw;
        match &self.second {
            None => self
                .first
                .write(first, &self.encode(environment, Flags(0))?, true)?,
            Some(second_place) => {
                let new = self.encode(environment, self.scheme.next(stored.flags))?;
                let (old, target, target_bytes) = if stored.current == 0 {
                    (&self.first, second_place, second)
                } else {
                    (second_place, &self.first, first)
                };
                target.write(target_bytes, &new, false)?;
                if let Some(retired) = self.scheme.retired() {
                    old.write_flags(FLAGS_AT, retired.0)?;
                }
            }
        }
        let found = self.read()?.environment;
        if found == *environment || found.variables().eq(environment.variables()) {
            return Ok(());
        }
        Err(Error::ReadBack {
            path: self.location().into(),
            problem: "the copy that counts is not the one that was written".to_owned(),
        })
    }

    /// The bytes of a copy, so that what does not fit is found before a write.
    pub(crate) fn encode(&self, environment: &Environment, flags: Flags) -> Result<Vec<u8>> {
        environment
            .encode(self.layout(), flags)
            .map_err(|unfit| Error::Rejected {
                reason: format!("{}: {unfit}", self.location()),
            })
    }

    /// A write that changes nothing, where the next change would be written: of a pair the copy that does not count, the
    /// other one is only looked at. Only under the lock, as what was read is written. A crash in the middle leaves what
    /// there was, and of a medium that tears a sector the copy that counts, where there are two.
    pub(crate) fn test_write(&self, stored: &Stored) -> Result<()> {
        let Some(second) = &self.second else {
            return self.first.test_write(true);
        };
        let (counts, other) = if stored.current == 0 {
            (&self.first, second)
        } else {
            (second, &self.first)
        };
        other.test_write(false)?;
        counts.may_write()
    }

    fn nothing_good(&self, faults: &[Fault]) -> Error {
        let places = [Some(&self.first), self.second.as_ref()];
        let mut found = Vec::new();
        for (place, fault) in places.into_iter().flatten().zip(faults) {
            let mut text = format!(
                "{} at {:#x}, {:#x} bytes: {fault}",
                place.shown.display(),
                place.offset,
                place.size
            );
            let fitting = place.read_beyond().unwrap_or_default();
            for (size, layout) in fitting_sizes(&fitting) {
                let form = match layout {
                    Layout::Single => "a single copy",
                    Layout::Redundant => "a copy of a redundant pair",
                };
                text.push_str(&format!(", but {size:#x} bytes would be {form}"));
            }
            found.push(text);
        }
        Error::malformed(
            &self.config,
            format!(
                "no good U-Boot environment where it says: {}. Nothing is written, as that would lose U-Boot's own \
                 variables: correct the file, or run `saveenv` in U-Boot once",
                found.join("; ")
            ),
        )
    }

    fn tearing(&self) -> Problem {
        Problem {
            code: ProblemCode::PromiseNotKept,
            message: format!(
                "the environment has a single copy, {}, which a power cut during a change can leave unreadable, so \
                 that U-Boot starts with its built-in variables; a redundant pair does not have this",
                self.location()
            ),
        }
    }
}

fn damaged(place: &Place, fault: &Fault) -> Problem {
    Problem {
        code: ProblemCode::Unreadable,
        message: format!(
            "the copy of the environment on {} at {:#x} is damaged ({fault}); the next change writes it anew",
            place.shown.display(),
            place.offset
        ),
    }
}

/// The slot that a copy lies on.
fn slot_under(place: &Place, table: &SlotTable) -> Option<SlotName> {
    let (device, start) = place.on_disk()?;
    let end = start.saturating_add(u64::try_from(place.size).unwrap_or(u64::MAX));
    SlotName::BOTH.into_iter().find(|slot| {
        let slot = table.get(*slot);
        slot.disk == device.disk && start < slot.start.saturating_add(slot.size) && slot.start < end
    })
}

#[cfg(test)]
mod tests;
