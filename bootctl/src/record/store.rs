//! What each loader with a record brings: where the record is, and how the loader goes by it.

use std::fmt;

use super::Record;
use crate::backend::{
    BootOptions, Counting, NextBoot, PlannedChange, PreflightRequest, Problem, Refusal, SlotState,
};
use crate::error::Result;
use crate::facts::ImageFacts;
use crate::inspect::SlotView;
use crate::lock::Lock;
use crate::marker::{BootRecord, FileRecord};
use crate::slot::SlotName;
use crate::table::Booted;

/// A record as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) record: Record,
    pub(crate) counting: Counting,
    /// What is odd, and what the loader's script cannot keep.
    pub(crate) problems: Vec<Problem>,
}

/// What a trial is armed with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arming<'a> {
    /// The slot.
    pub(crate) slot: SlotName,
    /// Deadline, machine id, extra options.
    pub(crate) options: &'a BootOptions,
    /// The image's part of a boot entry.
    pub(crate) boot: Option<&'a BootRecord>,
}

/// Boot files that were copied; nothing where the loader reads them in the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copied {
    pub(crate) kernel: FileRecord,
    pub(crate) initrd: Option<FileRecord>,
}

/// One boot loader's record: how it is read, committed and understood.
pub(crate) trait RecordStore: fmt::Debug + Send + Sync {
    /// The backend's name, as in the configuration.
    fn name(&self) -> &'static str;

    /// The file or device of the record, for people.
    fn location(&self) -> String;

    /// Waits until no other program changes the record.
    fn lock(&self) -> Result<Lock>;

    /// Reads the record. A slot with no boots left is on its last one if it is `booted`, and bad if it is not.
    fn load(&self, booted: Booted) -> Result<Loaded>;

    /// Writes a record in one commit, and reads it back. Where the loader's data says so already, nothing is written.
    ///
    /// Durable when it returns. A crash in the middle leaves the old record or the new one, whole.
    fn commit(&self, booted: Booted, wanted: &Record, arming: Option<Arming<'_>>) -> Result<()>;

    /// What [`RecordStore::commit`] would change where the record is `before`, by the same code.
    fn plan(
        &self,
        booted: Booted,
        before: &Record,
        wanted: &Record,
        arming: Option<Arming<'_>>,
    ) -> Result<Vec<PlannedChange>>;

    /// What the loader would start by its rules.
    fn next(&self, record: &Record) -> NextBoot {
        record.first_startable()
    }

    /// The record after the loader has started that.
    fn start(&self, record: &Record) -> Record {
        let mut record = *record;
        if let NextBoot::Slot { slot, .. } = self.next(&record) {
            record.take_try(slot);
        }
        record
    }

    /// Every reason why the record cannot be changed, a real write test among them that leaves nothing behind.
    fn refusals(&self, request: &PreflightRequest) -> Vec<Refusal>;

    /// Most boots that the loader can give a trial.
    fn max_tries(&self) -> u32;

    /// Whether the loader can pass options of the configuration to the kernel.
    fn takes_options(&self) -> bool {
        false
    }

    /// Whether the loader's data says anything of a slot. A loader whose data is there for something else is not the one
    /// that drives them.
    ///
    /// # Errors
    /// When it cannot be read.
    fn knows_slots(&self) -> Result<bool> {
        let record = self.load(Booted::Neither)?.record;
        Ok(SlotName::BOTH
            .iter()
            .any(|slot| record.state(*slot) != SlotState::Empty))
    }

    /// Whether a trial's command line says that it is one ([`crate::TRIAL_OPTION`]).
    fn announces_trials(&self) -> bool {
        true
    }

    /// The booted slot, where the loader's data speaks of it no more and can be made to again: by
    /// [`RecordStore::commit`], once the slot is wanted good.
    ///
    /// # Errors
    /// When the loader's data cannot be read.
    fn restorable(&self, _booted: Booted) -> Result<Option<SlotName>> {
        Ok(None)
    }

    /// Whether the loader could start what lies in the slot.
    fn check_image(&self, facts: &ImageFacts) -> Result<()>;

    /// Copies boot files out of the slot, where the loader does not read them there. Durable when it returns: kernel and
    /// initrd as they were read back, for [`RecordStore::commit`] to compare them with when it arms.
    fn install(&self, _slot: SlotName, _view: &SlotView) -> Result<Copied> {
        Ok(Copied::default())
    }

    /// Removes what [`RecordStore::install`] copied. Durable when it returns.
    fn remove_boot_files(&self, _slot: SlotName) -> Result<()> {
        Ok(())
    }

    /// What both would change, in words; empty where there is nothing to copy.
    fn planned_boot_files(&self, _slot: SlotName, _remove: bool) -> Vec<PlannedChange> {
        Vec::new()
    }
}
