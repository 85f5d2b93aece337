//! A boot loader in memory, for tests: the same states, rules and counting, no files.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::{
    Backend, BootOptions, Counting, LoaderState, NextBoot, PlannedChange, PreflightRequest,
    Refusal, SlotState, StagedImage, Transition,
};
use crate::error::{Error, Result};
use crate::inspect::SlotView;
use crate::proof::{InactiveSlot, InvalidatedSlot, VerifiedSlot};
use crate::rules::{Situation, verified};
use crate::slot::SlotName;
use crate::table::{Booted, SlotTable};

/// A boot loader that lives in memory. It can be booted, refuse, and fail on demand.
#[derive(Debug)]
pub struct MemoryBackend {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    situation: Situation,
    /// The slot that is preferred among good ones.
    primary: SlotName,
    refusals: Vec<Refusal>,
    fail: Option<Error>,
}

impl MemoryBackend {
    /// A loader that holds `a` and `b`, on a machine that booted `booted`; slot A is preferred.
    #[must_use]
    pub fn new(booted: Booted, a: SlotState, b: SlotState) -> Self {
        let situation = Situation {
            a,
            b,
            image_a: None,
            image_b: None,
            booted,
            restorable: None,
        };
        Self {
            inner: Mutex::new(Inner {
                situation,
                primary: SlotName::A,
                refusals: Vec::new(),
                fail: None,
            }),
        }
    }

    /// What [`Backend::preflight`] answers from now on.
    pub fn set_refusals(&self, refusals: Vec<Refusal>) {
        self.lock().refusals = refusals;
    }

    /// Makes the next transition fail with `error`, before it changes anything.
    pub fn fail_next(&self, error: Error) {
        self.lock().fail = Some(error);
    }

    /// Records an image in a slot, as if it had been staged in an earlier life.
    pub fn set_image(&self, slot: SlotName, image: Option<StagedImage>) {
        self.lock().situation.set_image(slot, image);
    }

    /// Boots the machine once: takes a try off a trial, and returns what runs now.
    pub fn boot(&self) -> NextBoot {
        let mut inner = self.lock();
        let next = inner.next();
        match &next {
            NextBoot::Slot { slot, .. } => {
                let slot = *slot;
                if let SlotState::Trial { left, done } = inner.situation.state(slot) {
                    let state = SlotState::Trial {
                        left: left.saturating_sub(1),
                        done: done.saturating_add(1),
                    };
                    inner.set_state(slot, state);
                }
                inner.situation.booted = Booted::Slot(slot);
                // A spent trial that is no longer running is bad.
                if let SlotState::Trial { left: 0, .. } = inner.situation.state(!slot) {
                    inner.set_state(!slot, SlotState::Bad);
                }
            }
            NextBoot::Foreign { .. } | NextBoot::Nothing => {
                inner.situation.booted = Booted::Neither;
            }
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is a plain assignment, so a poisoned lock holds nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state for a transition that is about to run, once it is allowed.
    fn begin(&self, transition: &Transition) -> Result<MutexGuard<'_, Inner>> {
        let mut inner = self.lock();
        if let Some(error) = inner.fail.take() {
            return Err(error);
        }
        inner.situation.allow(transition)?;
        Ok(inner)
    }
}

impl Inner {
    fn set_state(&mut self, slot: SlotName, state: SlotState) {
        match slot {
            SlotName::A => self.situation.a = state,
            SlotName::B => self.situation.b = state,
        }
    }

    fn next(&self) -> NextBoot {
        let order = [self.primary, !self.primary];
        let pick = |wanted: fn(SlotState) -> bool| {
            order
                .into_iter()
                .find(|slot| wanted(self.situation.state(*slot)))
        };
        let trial = pick(|state| matches!(state, SlotState::Trial { left: 1.., .. }));
        if let Some(slot) = trial {
            return NextBoot::Slot { slot, trial: true };
        }
        // A spent entry is started as a last resort.
        let rest = pick(|state| state == SlotState::Good)
            .or_else(|| pick(|state| state != SlotState::Empty));
        match rest {
            Some(slot) => NextBoot::Slot { slot, trial: false },
            None => NextBoot::Nothing,
        }
    }
}

impl Backend for MemoryBackend {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn state(&self) -> Result<LoaderState> {
        let inner = self.lock();
        let situation = inner.situation.clone();
        Ok(situation.loader_state(self.name(), inner.next(), Counting::Active, Vec::new()))
    }

    fn preflight(&self, _request: &PreflightRequest) -> Vec<Refusal> {
        self.lock().refusals.clone()
    }

    fn invalidate(&self, slot: InactiveSlot) -> Result<InvalidatedSlot> {
        let mut inner = self.begin(&Transition::Invalidate { slot: slot.name() })?;
        inner.set_state(slot.name(), SlotState::Empty);
        inner.situation.set_image(slot.name(), None);
        Ok(InvalidatedSlot::new(slot))
    }

    fn install_boot_files(
        &self,
        slot: &VerifiedSlot,
        view: &SlotView,
        staged: &StagedImage,
        _options: &BootOptions,
    ) -> Result<()> {
        view.kernel()?;
        let mut inner = self.begin(&Transition::InstallBootFiles {
            slot: slot.name(),
            image: staged.clone(),
            kernel: None,
            initrd: None,
        })?;
        inner.situation.set_image(slot.name(), Some(staged.clone()));
        Ok(())
    }

    fn verified(&self, table: &SlotTable, slot: SlotName) -> Result<Option<VerifiedSlot>> {
        let inner = self.lock();
        let image = inner.situation.image(slot);
        image.map(|image| verified(table, slot, image)).transpose()
    }

    fn arm(&self, slot: &VerifiedSlot, tries: u32, options: &BootOptions) -> Result<()> {
        let options = BootOptions {
            tries,
            ..options.clone()
        };
        let mut inner = self.begin(&Transition::Arm {
            slot: slot.name(),
            options,
        })?;
        inner.set_state(
            slot.name(),
            SlotState::Trial {
                left: tries,
                done: 0,
            },
        );
        inner.primary = slot.name();
        Ok(())
    }

    fn disarm(&self, slot: SlotName) -> Result<()> {
        let mut inner = self.begin(&Transition::Disarm { slot })?;
        inner.set_state(slot, SlotState::Empty);
        Ok(())
    }

    fn mark_good(&self, slot: SlotName) -> Result<()> {
        let mut inner = self.begin(&Transition::MarkGood { slot })?;
        inner.set_state(slot, SlotState::Good);
        Ok(())
    }

    fn mark_bad(&self, slot: SlotName) -> Result<()> {
        let mut inner = self.begin(&Transition::MarkBad { slot })?;
        if inner.situation.state(slot) != SlotState::Empty {
            inner.set_state(slot, SlotState::Bad);
        }
        Ok(())
    }

    fn select(&self, slot: SlotName) -> Result<()> {
        let mut inner = self.begin(&Transition::Select { slot })?;
        if let SlotState::Trial { .. } = inner.situation.state(!slot) {
            inner.set_state(!slot, SlotState::Empty);
        }
        inner.primary = slot;
        Ok(())
    }

    fn plan_sequence(&self, transitions: &[Transition]) -> Result<Vec<PlannedChange>> {
        Ok(transitions
            .iter()
            .map(|transition| PlannedChange {
                target: "memory".to_owned(),
                change: format!("{transition:?}"),
                content: None,
                why: "a boot loader in memory has one cell".to_owned(),
            })
            .collect())
    }
}
