//! Loaders that hold the state of both slots in one small record: GRUB's environment block, U-Boot's environment, the
//! attributes of a partition table, EFI variables.
//!
//! What a record looks like is a [`RecordStore`]'s business. Rules, transitions, markers, preflight and plans are the
//! same for all of them, and stand here: a transition is one commit of a new record.

mod slots;
mod store;

pub(crate) use self::slots::Record;
pub(crate) use self::store::{Arming, Copied, Loaded, RecordStore};
use crate::backend::{
    Backend, BootOptions, LoaderState, PlannedChange, PreflightRequest, Problem, ProblemCode,
    Refusal, RefusalCode, SlotState, StagedImage, Transition, with_trial_boots,
};
use crate::error::{Error, Result};
use crate::inspect::SlotView;
use crate::marker::{BootRecord, Marker};
use crate::markers::Markers;
use crate::options::{reserved, unannounced_trials};
use crate::proof::{InactiveSlot, InvalidatedSlot, VerifiedSlot};
use crate::rules::{Situation, verified};
use crate::slot::SlotName;
use crate::table::{Booted, SlotTable};

/// The backend of a loader with a record. Holds no state of its own: every call reads the record anew.
#[derive(Debug)]
pub(crate) struct RecordBackend<S> {
    store: S,
    markers: Markers,
    booted: Booted,
}

impl<S: RecordStore> RecordBackend<S> {
    pub(crate) fn new(store: S, markers: Markers, booted: Booted) -> Self {
        Self {
            store,
            markers,
            booted,
        }
    }

    /// Whether the loader's data says anything of a slot.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn speaks_of_slots(&self) -> Result<bool> {
        self.store.knows_slots()
    }

    /// Why what is recorded of the slots' images cannot be taken back or replaced: in a rescue system the place of the
    /// records is the rescue's own until the node's is mounted there, and a record that stays would claim another image.
    fn records_elsewhere(&self) -> Option<Refusal> {
        (self.booted == Booted::Neither && !self.markers.is_there()).then(|| Refusal {
            code: RefusalCode::LoaderDataMissing,
            message: format!(
                "the records of the slots' images are not at {}: mount what the node has there",
                self.markers.folder().display()
            ),
        })
    }

    /// The markers that can be understood, and what is wrong with the others.
    fn images(&self) -> Result<([Option<Marker>; 2], Vec<Problem>)> {
        let mut problems = Vec::new();
        let mut found = [None, None];
        for (place, slot) in found.iter_mut().zip(SlotName::BOTH) {
            match self.markers.read(slot)? {
                None => {}
                Some(Ok(marker)) => *place = Some(marker),
                Some(Err(problem)) => problems.push(Problem {
                    code: ProblemCode::Unreadable,
                    message: format!("the record of the image in slot {slot}: {problem}"),
                }),
            }
        }
        Ok((found, problems))
    }

    fn situation(&self, record: &Record, booted: Booted) -> Result<(Situation, Vec<Problem>)> {
        let ([a, b], problems) = self.images()?;
        let situation = Situation {
            a: record.a,
            b: record.b,
            image_a: a.map(|marker| marker.image),
            image_b: b.map(|marker| marker.image),
            booted,
            restorable: self.store.restorable(booted)?,
        };
        Ok((situation, problems))
    }

    fn tries(&self, transition: &Transition) -> u32 {
        match transition {
            Transition::Arm { options, .. } => options.tries.min(self.store.max_tries()),
            _ => 0,
        }
    }

    fn after(&self, record: Record, transition: &Transition) -> Record {
        let tries = self.tries(transition);
        record.after(transition, tries, |record| self.store.start(record))
    }

    /// Plans a transition on what is there now, and commits it.
    fn run(&self, transition: &Transition) -> Result<()> {
        let _lock = self.store.lock()?;
        self.run_locked(transition)
    }

    fn run_locked(&self, transition: &Transition) -> Result<()> {
        let record = self.store.load(self.booted)?.record;
        let (situation, _) = self.situation(&record, self.booted)?;
        situation.allow(transition)?;
        let wanted = self.after(record, transition);
        let marker = match transition {
            Transition::Arm { slot, .. } => self.markers.read(*slot)?.and_then(Result::ok),
            _ => None,
        };
        tracing::debug!(?transition, ?record, ?wanted, "boot loader data");
        self.store
            .commit(self.booted, &wanted, arming(transition, marker.as_ref()))?;
        let found = self.store.load(self.booted)?.record;
        if found.agrees_with(&wanted) {
            return Ok(());
        }
        Err(Error::ReadBack {
            path: self.store.location().into(),
            problem: format!("it says {found:?}, not {wanted:?}"),
        })
    }
}

fn arming<'a>(transition: &'a Transition, marker: Option<&'a Marker>) -> Option<Arming<'a>> {
    match transition {
        Transition::Arm { slot, options } => Some(Arming {
            slot: *slot,
            options,
            boot: marker.and_then(|marker| marker.boot.as_ref()),
        }),
        _ => None,
    }
}

impl<S: RecordStore> Backend for RecordBackend<S> {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn location(&self) -> String {
        self.store.location()
    }

    fn state(&self) -> Result<LoaderState> {
        let loaded = self.store.load(self.booted)?;
        let (situation, unreadable) = self.situation(&loaded.record, self.booted)?;
        let mut problems = loaded.problems;
        problems.extend(unreadable);
        if !self.store.announces_trials() {
            problems.push(unannounced_trials(self.markers.system()));
        }
        if [situation.a, situation.b]
            .iter()
            .all(|state| *state != SlotState::Good)
        {
            problems.push(Problem {
                code: ProblemCode::NoGoodSlot,
                message: "neither slot is good".to_owned(),
            });
        }
        let next = self.store.next(&loaded.record);
        Ok(situation.loader_state(self.name(), next, loaded.counting, problems))
    }

    fn preflight(&self, request: &PreflightRequest) -> Vec<Refusal> {
        let mut found = self.store.refusals(request);
        let situation = self
            .store
            .load(self.booted)
            .and_then(|loaded| self.situation(&loaded.record, self.booted));
        match situation {
            Ok((situation, _)) => found.extend(situation.fallback(request.slot)),
            Err(error) => {
                let message = error.chain();
                // The store may have said so already.
                if !found.iter().any(|refusal| refusal.message == message) {
                    found.push(Refusal {
                        code: RefusalCode::Unreadable,
                        message,
                    });
                }
            }
        }
        if let Some(refusal) = self.records_elsewhere() {
            found.push(refusal);
        } else if let Err(error) = self.markers.test_write() {
            found.push(Refusal::not_writable(
                "the place of the slots' records",
                &error,
            ));
        }
        found.extend(reserved(&request.extra));
        if !request.extra.is_empty() && !self.store.takes_options() {
            found.push(Refusal {
                code: RefusalCode::ReservedOption,
                message: format!(
                    "boot.options is set, but {} gets its kernel options from its own script and \
                     from the image; set them there",
                    self.name()
                ),
            });
        }
        found
    }

    fn invalidate(&self, slot: InactiveSlot) -> Result<InvalidatedSlot> {
        let _lock = self.store.lock()?;
        let name = slot.name();
        if let Some(refusal) = self.records_elsewhere() {
            return Err(Error::Refused {
                reason: refusal.message,
            });
        }
        // First what the loader starts, then what is claimed of the slot, then what is only in the way.
        self.run_locked(&Transition::Invalidate { slot: name })?;
        self.markers.remove(name)?;
        self.store.remove_boot_files(name)?;
        Ok(InvalidatedSlot::new(slot))
    }

    fn install_boot_files(
        &self,
        slot: &VerifiedSlot,
        view: &SlotView,
        staged: &StagedImage,
        options: &BootOptions,
    ) -> Result<()> {
        self.store.check_image(&view.facts)?;
        let _lock = self.store.lock()?;
        let slot = slot.name();
        let record = self.store.load(self.booted)?.record;
        let (situation, _) = self.situation(&record, self.booted)?;
        situation.allow(&Transition::InstallBootFiles {
            slot,
            image: staged.clone(),
            kernel: None,
            initrd: None,
        })?;
        // The record must not speak of files that are being replaced.
        self.markers.remove(slot)?;
        let copied = self.store.install(slot, view)?;
        let boot = BootRecord {
            title: view.facts.pretty_name().map(str::to_owned),
            cmdline: view.facts.cmdline.clone(),
            options: Some(options.extra.clone()).filter(|extra| !extra.is_empty()),
            kernel: copied.kernel,
            initrd: copied.initrd,
            ..BootRecord::default()
        };
        let marker = Marker {
            image: staged.clone(),
            boot: Some(boot),
        };
        self.markers.write(slot, &marker)
    }

    fn verified(&self, table: &SlotTable, slot: SlotName) -> Result<Option<VerifiedSlot>> {
        match self.markers.read(slot)? {
            None => Ok(None),
            Some(Ok(marker)) => verified(table, slot, &marker.image).map(Some),
            Some(Err(problem)) => Err(Error::Rejected {
                reason: format!("the record of the image in slot {slot}: {problem}"),
            }),
        }
    }

    fn arm(&self, slot: &VerifiedSlot, tries: u32, options: &BootOptions) -> Result<()> {
        let options = BootOptions {
            tries,
            ..options.clone()
        };
        self.run(&Transition::Arm {
            slot: slot.name(),
            options,
        })
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
        let mut record = self.store.load(self.booted)?.record;
        let (mut situation, _) = self.situation(&record, self.booted)?;
        let mut changes = Vec::new();
        for transition in with_trial_boots(planned) {
            situation.allow(&transition)?;
            let wanted = self.after(record, &transition);
            if let Transition::TrialBoot { slot } = transition {
                situation.booted = Booted::Slot(slot);
            }
            let booted = situation.booted;
            let arming = arming(&transition, None);
            let mut commit = self.store.plan(booted, &record, &wanted, arming)?;
            match &transition {
                Transition::TrialBoot { slot } => {
                    for change in &mut commit {
                        change.why =
                            format!("done by the loader: it starts slot {slot} and takes a try");
                    }
                }
                Transition::Invalidate { slot } => {
                    commit.extend(self.markers.planned_removal(*slot)?);
                    commit.extend(self.store.planned_boot_files(*slot, true));
                    situation.set_image(*slot, None);
                }
                Transition::InstallBootFiles { slot, image, .. } => {
                    commit.extend(self.store.planned_boot_files(*slot, false));
                    commit.push(self.markers.planned_write(*slot));
                    situation.set_image(*slot, Some(image.clone()));
                }
                _ => {}
            }
            changes.extend(commit);
            record = wanted;
            situation.a = record.a;
            situation.b = record.b;
        }
        Ok(changes)
    }
}
