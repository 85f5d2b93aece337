//! The record of both slots in the firmware's boot manager.

use uuid::Uuid;

use super::boot_manager::{
    BootVariables, Role, description, foreign_first, option_name, program, record,
};
use super::changes::{Change, MadeOption, Step, steps};
use super::files::{BootFiles, FOLDER};
use super::load_option::LoadOption;
use super::place::Esp;
use super::planning::{simulate, started};
use super::variables::{Unusable, Variables};
use super::{options, preflight};
use crate::backend::{
    Counting, NextBoot, PlannedChange, PreflightRequest, ProblemCode, Refusal, SlotState,
};
use crate::error::{Error, Result};
use crate::facts::ImageFacts;
use crate::inspect::SlotView;
use crate::lock::Lock;
use crate::markers::Markers;
use crate::record::{Arming, Copied, Loaded, Record, RecordStore};
use crate::slot::SlotName;
use crate::system::System;
use crate::table::Booted;

/// Boot variables and the EFI system partition that slotd's options name. Every call reads the variables anew.
#[derive(Debug)]
pub(crate) struct EfiStore {
    pub(crate) system: System,
    pub(crate) variables: Variables,
    pub(crate) esp: Esp,
    pub(crate) files: BootFiles,
    /// PARTUUIDs of the slots.
    pub(crate) partitions: [Option<Uuid>; 2],
    pub(crate) booted: Booted,
    pub(crate) usr_slots: bool,
}

/// Why slots that hold `/usr` are not armed.
pub(crate) const USR_SLOTS: &str =
    "the slots hold /usr only, and options of this backend name the root, not /usr";

impl EfiStore {
    /// The boot variables, where there are any.
    pub(crate) fn read(&self) -> Result<BootVariables> {
        match Variables::unusable(&self.system)? {
            None | Some(Unusable::ReadOnly) => BootVariables::read(&self.variables),
            Some(unusable) => Err(Error::NoLoader {
                problem: unusable.message(),
            }),
        }
    }

    pub(crate) fn esp_uuid(&self) -> Uuid {
        self.esp.drive.signature
    }

    /// The records of which verified image each slot holds.
    pub(super) fn markers(&self) -> Markers {
        Markers::at(&self.system, self.esp.shown.join(FOLDER))
    }

    /// The partition that an option names as a slot's root.
    ///
    /// # Errors
    /// [`Error::Slots`] where it cannot name one.
    pub(super) fn partition(&self, slot: SlotName) -> Result<Uuid> {
        if self.usr_slots {
            return Err(Error::Slots {
                problem: USR_SLOTS.to_owned(),
            });
        }
        let [a, b] = self.partitions;
        let partition = match slot {
            SlotName::A => a,
            SlotName::B => b,
        };
        partition.ok_or_else(|| Error::Slots {
            problem: format!("slot {slot} has no partition UUID that an option could name as root"),
        })
    }

    fn trial_option(&self, arming: &Arming<'_>) -> Result<MadeOption> {
        let slot = arming.slot;
        let partition = self.partition(slot)?;
        let initrd = self.files.has_initrd(slot);
        let line = options::trial(slot, partition, initrd, arming.options, arming.boot)?;
        let name = description(slot, Role::Trial);
        Ok(MadeOption {
            slot,
            role: Role::Trial,
            option: LoadOption::new(&name, &self.esp.drive, &program(slot), &line),
        })
    }

    fn steps(
        &self,
        variables: &BootVariables,
        booted: Booted,
        wanted: &Record,
        arming: Option<&Arming<'_>>,
    ) -> Result<Vec<Step>> {
        let trial = arming.map(|arming| self.trial_option(arming)).transpose()?;
        let lost = self.lost_option(variables, booted, wanted)?;
        let made: Vec<MadeOption> = trial.into_iter().chain(lost).collect();
        steps(variables, self.esp_uuid(), booted, wanted, &made)
    }

    /// One variable, durable and read back when it returns.
    fn apply(&self, change: &Change) -> Result<()> {
        #[cfg(test)]
        super::tests::cuts::cut_before(change)?;
        let bytes = |numbers: &[u16]| -> Vec<u8> {
            numbers
                .iter()
                .flat_map(|number| number.to_le_bytes())
                .collect()
        };
        match change {
            Change::Option { number, option } => self
                .variables
                .write(&option_name(*number), &option.render()),
            Change::RemoveOption { number } => self.variables.remove(&option_name(*number)),
            Change::Order(order) if order.is_empty() => self.variables.remove("BootOrder"),
            Change::Order(order) => self.variables.write("BootOrder", &bytes(order)),
            Change::Next(None) => self.variables.remove("BootNext"),
            Change::Next(Some(next)) => self.variables.write("BootNext", &bytes(&[*next])),
        }
    }
}

impl RecordStore for EfiStore {
    fn name(&self) -> &'static str {
        "efi"
    }

    fn location(&self) -> String {
        self.system
            .absolute(self.variables.directory())
            .display()
            .to_string()
    }

    fn lock(&self) -> Result<Lock> {
        // The variables' own file system is the kernel's; the boot files' is on the medium, and one for all programs.
        Lock::of(&self.esp.root)
    }

    fn load(&self, booted: Booted) -> Result<Loaded> {
        let variables = self.read()?;
        let problems = self.problems(&variables, booted)?;
        let ignored = problems
            .iter()
            .any(|problem| problem.code == ProblemCode::CountingInactive);
        let counting = match variables.current {
            _ if ignored => Counting::Inactive,
            Some(_) => Counting::Active,
            None => Counting::Unknown,
        };
        Ok(Loaded {
            record: record(&variables, self.esp_uuid(), booted),
            counting,
            problems,
        })
    }

    fn commit(&self, booted: Booted, wanted: &Record, arming: Option<Arming<'_>>) -> Result<()> {
        if let Some(arming) = &arming
            && let Some(boot) = arming.boot
        {
            self.files.check(arming.slot, boot)?;
        }
        let steps = self.steps(&self.read()?, booted, wanted, arming.as_ref())?;
        for step in steps {
            tracing::debug!(change = ?step.change, why = %step.why, "boot variable");
            self.apply(&step.change)?;
        }
        Ok(())
    }

    fn plan(
        &self,
        booted: Booted,
        before: &Record,
        wanted: &Record,
        arming: Option<Arming<'_>>,
    ) -> Result<Vec<PlannedChange>> {
        let mut variables = self.read()?;
        // What earlier transitions of a sequence left.
        for slot in SlotName::BOTH {
            simulate(&mut variables, &self.esp.drive, slot, before, booted)?;
        }
        if let Some(slot) = started(before, wanted) {
            let why = format!("the firmware starts the trial of slot {slot}");
            let change = Change::Next(None);
            return Ok(vec![Step { change, why }.planned()]);
        }
        let steps = self.steps(&variables, booted, wanted, arming.as_ref())?;
        Ok(steps.iter().map(Step::planned).collect())
    }

    fn next(&self, record: &Record) -> NextBoot {
        let armed = SlotName::BOTH
            .into_iter()
            .find(|slot| matches!(record.state(*slot), SlotState::Trial { left: 1.., .. }));
        if let Some(slot) = armed {
            return NextBoot::Slot { slot, trial: true };
        }
        // What cannot be read was an error where the record was.
        let variables = self.read().unwrap_or_default();
        let own = variables.own(self.esp_uuid());
        let foreign = |number: u16| NextBoot::Foreign {
            id: variables.name_of(number),
        };
        if let Some(next) = variables.next
            && variables.options.contains_key(&next)
        {
            match own.is(next) {
                None => return foreign(next),
                Some((slot, Role::Good)) => return NextBoot::Slot { slot, trial: false },
                Some((_, Role::Trial)) => {}
            }
        }
        if let Some((number, _)) = foreign_first(&variables, self.esp_uuid()) {
            return foreign(number);
        }
        let good = [record.first, !record.first]
            .into_iter()
            .find(|slot| record.state(*slot) == SlotState::Good);
        match good {
            Some(slot) => NextBoot::Slot { slot, trial: false },
            None => NextBoot::Nothing,
        }
    }

    fn start(&self, record: &Record) -> Record {
        let mut record = *record;
        for slot in SlotName::BOTH {
            if let SlotState::Trial { left: 1.., done } = record.state(slot) {
                let done = done.saturating_add(1);
                record.set(slot, SlotState::Trial { left: 0, done });
                // BootNext is gone, and BootOrder has the other one.
                record.first = !slot;
            }
        }
        record
    }

    fn refusals(&self, request: &PreflightRequest) -> Vec<Refusal> {
        preflight::refusals(self, request)
    }

    fn max_tries(&self) -> u32 {
        1
    }

    fn takes_options(&self) -> bool {
        true
    }

    fn restorable(&self, booted: Booted) -> Result<Option<SlotName>> {
        Ok(self.lost(&self.read()?, booted))
    }

    fn check_image(&self, facts: &ImageFacts) -> Result<()> {
        // What the kernel is, is looked at when it is copied.
        match facts.kernel.as_ref().or(facts.unified.as_ref()) {
            Some(_) => Ok(()),
            None => Err(Error::Rejected {
                reason:
                    "the image has no kernel at /usr/lib/modules/*/vmlinuz or /boot/vmlinuz-*, \
                         and no unified one beside it, that the firmware could start"
                        .to_owned(),
            }),
        }
    }

    fn install(&self, slot: SlotName, view: &SlotView) -> Result<Copied> {
        self.files.install(slot, view)
    }

    fn remove_boot_files(&self, slot: SlotName) -> Result<()> {
        self.files.remove(slot)
    }

    fn planned_boot_files(&self, slot: SlotName, remove: bool) -> Vec<PlannedChange> {
        self.files.planned(slot, remove)
    }
}
