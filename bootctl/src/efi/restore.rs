//! The option of the slot that runs, made again where the firmware has lost it: its variables were reset, or somebody
//! removed the option. From what lies on the EFI system partition, and for the slot that is booted alone.

use std::fs::File;

use super::boot_manager::{BootVariables, Role, description, program, state};
use super::changes::MadeOption;
use super::load_option::LoadOption;
use super::options;
use super::program;
use super::store::EfiStore;
use crate::backend::{BootOptions, SlotState};
use crate::error::{Error, Result};
use crate::facts::{Architecture, InspectSettings};
use crate::inspect::SlotView;
use crate::machine::machine_id;
use crate::options::trial_announced;
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;

impl EfiStore {
    /// The booted slot, where the firmware holds no option of it. A trial whose option is gone has proven nothing: the
    /// firmware goes back to the other slot, and nothing is made for it.
    pub(super) fn lost(&self, variables: &BootVariables, booted: Booted) -> Option<SlotName> {
        let slot = booted.slot()?;
        let empty = state(variables, self.esp_uuid(), slot, booted) == SlotState::Empty;
        (empty && !trial_announced(&self.system)).then_some(slot)
    }

    /// The option that `wanted` needs and the firmware lost. Nothing is written.
    ///
    /// # Errors
    /// As [`EfiStore::again`].
    pub(super) fn lost_option(
        &self,
        variables: &BootVariables,
        booted: Booted,
        wanted: &Record,
    ) -> Result<Option<MadeOption>> {
        match self.lost(variables, booted) {
            Some(slot) if wanted.state(slot) == SlotState::Good => self.again(slot).map(Some),
            _ => Ok(None),
        }
    }

    /// The option of a slot by what is known of its image: the root by the slot's partition, the image's options by its
    /// record or, where none was made, by the system that runs, and the configuration's as they were when it was staged.
    ///
    /// # Errors
    /// [`Error::Refused`] where the kernel is not on the partition or is none that the firmware starts,
    /// [`Error::ReadBack`] where kernel or initrd are not the ones that were copied for the image, [`Error::Slots`] for
    /// slots that an option cannot name.
    fn again(&self, slot: SlotName) -> Result<MadeOption> {
        let partition = self.partition(slot)?;
        self.require_kernel(slot)?;
        let record = self.markers().read(slot)?.and_then(Result::ok);
        let mut boot = record.and_then(|marker| marker.boot).unwrap_or_default();
        self.files.check(slot, &boot)?;
        if boot.cmdline.is_none() {
            let running = self.system.path("/");
            let view = SlotView::of_tree(&running, &InspectSettings::default())?;
            boot.cmdline = view.facts.cmdline;
        }
        let options = BootOptions {
            tries: 1,
            extra: boot.options.clone().unwrap_or_default(),
            machine_id: machine_id(&self.system)?,
            trial_deadline_seconds: 0,
            panic_seconds: 0,
        };
        let initrd = self.files.has_initrd(slot);
        let line = options::trial(slot, partition, initrd, &options, Some(&boot))?;
        let line = options::without_trial(&line);
        let name = description(slot, Role::Good);
        Ok(MadeOption {
            slot,
            role: Role::Good,
            option: LoadOption::new(&name, &self.esp.drive, &program(slot), &line),
        })
    }

    fn require_kernel(&self, slot: SlotName) -> Result<()> {
        let shown = format!("{} on {}", program(slot), self.esp.shown.display());
        let refused = |problem: &str| Error::Refused {
            reason: format!(
                "the firmware has no option of slot {slot}, and none is made: {shown} {problem}; copy \
                 the slot's kernel there, and its initrd beside it"
            ),
        };
        if !self.files.has_kernel(slot) {
            return Err(refused("is not there"));
        }
        let path = self.files.kernel(slot);
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        let problem = program::problem(file, Architecture::Unknown);
        match problem.map_err(Error::io("read", &path))? {
            None => Ok(()),
            Some(_) => Err(refused("is no EFI program")),
        }
    }
}
