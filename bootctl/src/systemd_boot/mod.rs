//! systemd-boot: Boot Loader Specification entries with counters in their file names.
//!
//! A trial wins by sort order alone: our entries share `sort-key` and `machine-id`, and the newest
//! install sequence (`version`) comes first. The loader counts a trial down by renaming its entry,
//! and passes to the older slot once none is left. Confirming is one rename.

mod arming;
mod changes;
mod esp;
mod extended;
mod find;
mod leftovers;
mod precedence;
mod preflight;
mod problems;
mod snapshot;
mod surroundings;
mod transitions;
mod uki;
mod verdict;

use std::io::Read;

use self::changes::{BootSource, FileChange, Step};
use self::esp::Esp;
pub use self::find::EspSetting;
use self::snapshot::{Snapshot, slot_path};
use self::transitions::Circumstances;
use crate::backend::{
    Backend, BootOptions, LoaderState, PlannedChange, PreflightRequest, Refusal, StagedImage,
    Transition, with_trial_boots,
};
use crate::efivar::LoaderVariables;
use crate::error::{Error, Result};
use crate::inspect::SlotView;
use crate::proof::{InactiveSlot, InvalidatedSlot, VerifiedSlot};
use crate::rules::verified;
use crate::slot::SlotName;
use crate::system::System;
use crate::table::{Booted, SlotTable};

/// The systemd-boot backend. Holds no state of its own: every call reads the partition anew.
#[derive(Debug)]
pub struct SystemdBoot {
    system: System,
    esp: Esp,
    booted: Booted,
    partitions: [Option<uuid::Uuid>; 2],
    usr_slots: bool,
}

impl SystemdBoot {
    /// Opens the boot loader's data. Nothing is written.
    ///
    /// # Errors
    /// [`Error::NoLoader`] where no EFI system partition with systemd-boot's layout is mounted.
    pub fn open(system: &System, table: &SlotTable, setting: &EspSetting) -> Result<Self> {
        Ok(Self {
            system: system.clone(),
            esp: find::find(system, table, setting)?,
            booted: table.booted,
            partitions: [table.a.uuid, table.b.uuid],
            usr_slots: table.hold_usr(),
        })
    }

    fn circumstances(&self) -> Result<Circumstances> {
        Ok(Circumstances {
            booted: self.booted,
            partitions: self.partitions,
            usr_slots: self.usr_slots,
            variables: LoaderVariables::read(&self.system)?,
        })
    }

    /// Plans a transition on what is there now, applies it, and reads it back.
    fn run(&self, transition: &Transition) -> Result<()> {
        self.run_with(
            |circumstances, snapshot| transitions::steps(circumstances, snapshot, transition),
            &|_| {
                Err(Error::Internal(
                    "a transition without an image copies boot files".to_owned(),
                ))
            },
        )
    }

    fn run_with(
        &self,
        plan: impl FnOnce(&Circumstances, &Snapshot) -> Result<Vec<Step>>,
        open: &esp::OpenSource<'_>,
    ) -> Result<()> {
        let _lock = self.esp.lock()?;
        let circumstances = self.circumstances()?;
        let mut expected = self.esp.read()?;
        let steps = plan(&circumstances, &expected)?;
        let mut copied = Vec::new();
        for mut step in steps {
            if let FileChange::WriteMarker { marker, .. } = &mut step.change {
                **marker = Snapshot::complete_marker(marker, &copied);
            }
            tracing::debug!(change = ?step.change, why = %step.why, "boot loader data");
            if let Some((source, record)) = self.esp.apply(&step, open)? {
                copied.push((source, record));
                if let FileChange::Copy { size, .. } = &mut step.change {
                    *size = Some(record.size);
                }
            }
            expected.apply(&step.change);
        }
        self.read_back(&expected)
    }

    /// Applies only the first changes of a transition, as a power cut would.
    #[cfg(test)]
    pub(crate) fn run_cut(&self, transition: &Transition, changes: usize) -> Result<()> {
        let steps = transitions::steps(&self.circumstances()?, &self.esp.read()?, transition)?;
        for step in steps.iter().take(changes) {
            self.esp
                .apply(step, &|_| Err(Error::Internal("no image".to_owned())))?;
        }
        Ok(())
    }

    /// Whether the partition says what was written.
    fn read_back(&self, expected: &Snapshot) -> Result<()> {
        let found = self.esp.read()?;
        let differs = expected
            .files
            .iter()
            .find(|(path, content)| found.files.get(*path) != Some(content))
            .map(|(path, _)| path)
            .or_else(|| {
                found
                    .files
                    .keys()
                    .find(|path| !expected.files.contains_key(*path))
            });
        match differs {
            None => Ok(()),
            Some(path) => Err(Error::ReadBack {
                path: self.esp.root.join(path),
                problem: match (expected.files.get(path), found.files.get(path)) {
                    (Some(_), None) => "it is missing".to_owned(),
                    (None, _) => "it should not be there".to_owned(),
                    (Some(_), Some(_)) => "its content differs".to_owned(),
                },
            }),
        }
    }
}

impl Backend for SystemdBoot {
    fn name(&self) -> &'static str {
        "systemd-boot"
    }

    fn location(&self) -> String {
        self.system.absolute(&self.esp.root).display().to_string()
    }

    /// A rescue system has another one than the slots' entries, and entries that do not share theirs do not sort by
    /// version.
    fn machine_id(&self) -> Result<Option<String>> {
        let snapshot = self.esp.read()?;
        let mut entries = SlotName::BOTH
            .into_iter()
            .flat_map(|slot| snapshot.slot_entries(slot));
        Ok(entries.find_map(|entry| entry.text.machine_id))
    }

    fn state(&self) -> Result<LoaderState> {
        let circumstances = self.circumstances()?;
        let snapshot = self.esp.read()?;
        let situation = circumstances.situation(&snapshot);
        let next = circumstances.next(&snapshot);
        let counting = preflight::counting_of(&circumstances, &snapshot);
        let problems = problems::problems(
            &self.system,
            &self.esp,
            &circumstances,
            &snapshot,
            &next,
            counting,
        );
        Ok(situation.loader_state(self.name(), next, counting, problems))
    }

    fn preflight(&self, request: &PreflightRequest) -> Vec<Refusal> {
        match self.circumstances() {
            Ok(circumstances) => {
                preflight::refusals(&self.system, &self.esp, &circumstances, request)
            }
            Err(error) => vec![Refusal {
                code: crate::backend::RefusalCode::Unreadable,
                message: error.chain(),
            }],
        }
    }

    fn invalidate(&self, slot: InactiveSlot) -> Result<InvalidatedSlot> {
        self.run(&Transition::Invalidate { slot: slot.name() })?;
        Ok(InvalidatedSlot::new(slot))
    }

    fn install_boot_files(
        &self,
        slot: &VerifiedSlot,
        view: &SlotView,
        staged: &StagedImage,
        _options: &BootOptions,
    ) -> Result<()> {
        // Asked before anything is written.
        view.efi_program()?;
        let slot = slot.name();
        self.run_with(
            |circumstances, snapshot| {
                circumstances.allow(
                    snapshot,
                    &Transition::InstallBootFiles {
                        slot,
                        image: staged.clone(),
                        kernel: None,
                        initrd: None,
                    },
                )?;
                Ok(transitions::install_from(
                    snapshot,
                    slot,
                    &view.facts,
                    staged,
                ))
            },
            &|source| -> Result<Box<dyn Read + '_>> {
                match source {
                    BootSource::Kernel => view.efi_program(),
                    BootSource::Initrd => match view.initrd() {
                        Some(initrd) => Ok(Box::new(initrd)),
                        None => Err(Error::Internal("an initrd that is not there".to_owned())),
                    },
                }
            },
        )
    }

    fn verified(&self, table: &SlotTable, slot: SlotName) -> Result<Option<VerifiedSlot>> {
        match self.esp.read()?.marker(slot) {
            None => Ok(None),
            Some(Ok(marker)) => verified(table, slot, &marker.image).map(Some),
            Some(Err(problem)) => Err(Error::Malformed {
                path: self.esp.root.join(slot_path(slot, "image.json")),
                problem,
            }),
        }
    }

    fn arm(&self, slot: &VerifiedSlot, tries: u32, options: &BootOptions) -> Result<()> {
        let slot = slot.name();
        let options = BootOptions {
            tries,
            ..options.clone()
        };
        // The boot files may have been damaged since they were installed.
        if let Some(Ok(marker)) = self.esp.read()?.marker(slot)
            && let Some(boot) = marker.boot
        {
            self.esp.compare(&slot_path(slot, "linux"), boot.kernel)?;
            if let Some(initrd) = boot.initrd {
                self.esp.compare(&slot_path(slot, "initrd"), initrd)?;
            }
        }
        self.run(&Transition::Arm { slot, options })
    }

    fn disarm(&self, slot: SlotName) -> Result<()> {
        self.run(&Transition::Disarm { slot })
    }

    fn mark_good(&self, slot: SlotName) -> Result<()> {
        self.run(&Transition::MarkGood { slot })
    }

    fn mark_bad(&self, slot: SlotName) -> Result<()> {
        self.run(&Transition::MarkBad { slot })
    }

    fn select(&self, slot: SlotName) -> Result<()> {
        self.run(&Transition::Select { slot })
    }

    fn plan_sequence(&self, planned: &[Transition]) -> Result<Vec<PlannedChange>> {
        let mut circumstances = self.circumstances()?;
        let mut snapshot = self.esp.read()?;
        let root = self.esp.root.display().to_string();
        let mut changes = Vec::new();
        for transition in with_trial_boots(planned) {
            let steps = transitions::steps(&circumstances, &snapshot, &transition)?;
            if let Transition::TrialBoot { slot } = transition {
                circumstances.booted = Booted::Slot(slot);
            }
            changes.extend(steps.iter().map(|step| step.planned(&root)));
            snapshot = transitions::after(&snapshot, &steps);
        }
        Ok(changes)
    }
}
