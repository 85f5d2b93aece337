//! Which transition is allowed in which state: one rule set for every backend. Pure.

use crate::backend::{
    Counting, LoaderState, NextBoot, Problem, Refusal, RefusalCode, SlotState, StagedImage,
    Transition,
};
use crate::error::{Error, Result};
use crate::proof::{ReadBack, VerifiedSlot};
use crate::slot::SlotName;
use crate::table::{Booted, SlotTable};

/// What the rules look at.
#[derive(Debug, Clone)]
pub(crate) struct Situation {
    pub(crate) a: SlotState,
    pub(crate) b: SlotState,
    pub(crate) image_a: Option<StagedImage>,
    pub(crate) image_b: Option<StagedImage>,
    pub(crate) booted: Booted,
    /// The slot whose entry the loader lost, and that marking it good makes one for.
    pub(crate) restorable: Option<SlotName>,
}

impl Situation {
    pub(crate) fn state(&self, slot: SlotName) -> SlotState {
        match slot {
            SlotName::A => self.a,
            SlotName::B => self.b,
        }
    }

    pub(crate) fn image(&self, slot: SlotName) -> Option<&StagedImage> {
        match slot {
            SlotName::A => self.image_a.as_ref(),
            SlotName::B => self.image_b.as_ref(),
        }
    }

    pub(crate) fn set_image(&mut self, slot: SlotName, image: Option<StagedImage>) {
        match slot {
            SlotName::A => self.image_a = image,
            SlotName::B => self.image_b = image,
        }
    }

    fn is_booted(&self, slot: SlotName) -> bool {
        self.booted == Booted::Slot(slot)
    }

    /// Whether a transition is allowed. Every backend asks this before it changes anything.
    pub(crate) fn allow(&self, transition: &Transition) -> Result<()> {
        match transition {
            Transition::Invalidate { slot } => self.invalidate(*slot),
            Transition::InstallBootFiles { slot, .. } => self.install_boot_files(*slot),
            Transition::Arm { slot, options } => self.arm(*slot, options.tries),
            // The loader asks nobody.
            Transition::TrialBoot { .. } => Ok(()),
            Transition::Disarm { slot } => self.disarm(*slot),
            Transition::MarkGood { slot } => self.mark_good(*slot),
            Transition::MarkBad { slot } => self.mark_bad(*slot),
            Transition::Select { slot } => self.select(*slot),
        }
    }

    /// What every backend answers to [`crate::Backend::state`], with what is its own to say.
    pub(crate) fn loader_state(
        self,
        backend: &str,
        next: NextBoot,
        counting: Counting,
        problems: Vec<Problem>,
    ) -> LoaderState {
        LoaderState {
            backend: backend.to_owned(),
            a: self.a,
            b: self.b,
            staged: self.staged(),
            trial_boot: self.trial_boot(),
            image_a: self.image_a,
            image_b: self.image_b,
            next,
            counting,
            problems,
        }
    }

    /// Why overwriting `slot` would leave a failed trial without anything good to go back to.
    pub(crate) fn fallback(&self, slot: SlotName) -> Option<Refusal> {
        let other = self.state(!slot);
        if other == SlotState::Good {
            return None;
        }
        let (code, problem) = if self.state(slot) == SlotState::Good {
            (
                RefusalCode::LastGoodSlot,
                format!("slot {slot} is the only good one"),
            )
        } else {
            (
                RefusalCode::NoFallback,
                "a failed trial would have nothing to fall back to".to_owned(),
            )
        };
        Some(Refusal {
            code,
            message: format!("{problem}: slot {} is {other}", !slot),
        })
    }

    /// The slot that holds a verified image and is not good. Where both do, the one not booted.
    fn staged(&self) -> Option<(SlotName, StagedImage)> {
        let mut slots = SlotName::BOTH;
        slots.sort_by_key(|slot| self.is_booted(*slot));
        slots.into_iter().find_map(|slot| {
            let image = self.image(slot)?;
            (self.state(slot) != SlotState::Good).then(|| (slot, image.clone()))
        })
    }

    /// Whether this boot is a trial.
    fn trial_boot(&self) -> bool {
        self.booted
            .slot()
            .is_some_and(|slot| matches!(self.state(slot), SlotState::Trial { .. }))
    }

    fn invalidate(&self, slot: SlotName) -> Result<()> {
        if self.is_booted(slot) {
            return Err(refused(format!(
                "slot {slot} is booted and cannot be overwritten"
            )));
        }
        if self.state(slot) == SlotState::Good && self.state(!slot) != SlotState::Good {
            return Err(refused(format!(
                "slot {slot} is the only good one (slot {} is {}); overwriting it would leave \
                 nothing to fall back to",
                !slot,
                self.state(!slot)
            )));
        }
        Ok(())
    }

    fn install_boot_files(&self, slot: SlotName) -> Result<()> {
        if self.state(slot) != SlotState::Empty {
            return Err(refused(format!(
                "slot {slot} is {}, its boot files are only replaced once it is invalidated",
                self.state(slot)
            )));
        }
        Ok(())
    }

    fn arm(&self, slot: SlotName, tries: u32) -> Result<()> {
        if tries == 0 {
            return Err(rejected("a trial needs at least one boot".to_owned()));
        }
        if self.is_booted(slot) {
            return Err(refused(format!("slot {slot} is booted")));
        }
        if self.state(slot) == SlotState::Good {
            return Err(rejected(format!(
                "slot {slot} is good already; select it instead"
            )));
        }
        if self.image(slot).is_none() {
            return Err(rejected(format!("slot {slot} holds no verified image")));
        }
        if self.state(!slot) != SlotState::Good {
            return Err(refused(format!(
                "slot {} is {}, so a failed trial of slot {slot} could not fall back to it",
                !slot,
                self.state(!slot)
            )));
        }
        Ok(())
    }

    fn disarm(&self, slot: SlotName) -> Result<()> {
        match self.state(slot) {
            SlotState::Good => Err(rejected(format!(
                "slot {slot} is good, there is no trial to take back"
            ))),
            SlotState::Trial { .. } if self.is_booted(slot) => Err(refused(format!(
                "the trial of slot {slot} is running; mark it good or bad"
            ))),
            _ => Ok(()),
        }
    }

    fn mark_good(&self, slot: SlotName) -> Result<()> {
        match self.state(slot) {
            SlotState::Good => Ok(()),
            SlotState::Empty if self.is_booted(slot) && self.restorable == Some(slot) => Ok(()),
            SlotState::Empty => Err(rejected(format!(
                "the boot loader knows no image in slot {slot}"
            ))),
            SlotState::Trial { .. } | SlotState::Bad if self.is_booted(slot) => Ok(()),
            SlotState::Trial { .. } | SlotState::Bad => Err(refused(format!(
                "slot {slot} is not booted; only the running system can be proven good"
            ))),
        }
    }

    fn mark_bad(&self, slot: SlotName) -> Result<()> {
        match self.state(slot) {
            SlotState::Bad | SlotState::Empty => Ok(()),
            _ if self.state(!slot) == SlotState::Good => Ok(()),
            _ => Err(refused(format!(
                "slot {} is {}, so slot {slot} cannot be given up",
                !slot,
                self.state(!slot)
            ))),
        }
    }

    fn select(&self, slot: SlotName) -> Result<()> {
        if self.state(slot) != SlotState::Good {
            return Err(rejected(format!(
                "slot {slot} is {}, only a good slot can be selected",
                self.state(slot)
            )));
        }
        if self.is_booted(!slot) && self.trial_boot() {
            return Err(refused(format!(
                "the trial of slot {} is running; mark it good or bad first",
                !slot
            )));
        }
        Ok(())
    }
}

/// The proof that an image recorded in a slot is worth, if the slot is inactive.
pub(crate) fn verified(
    table: &SlotTable,
    slot: SlotName,
    image: &StagedImage,
) -> Result<VerifiedSlot> {
    let proof = ReadBack::of_marker(image)?;
    Ok(VerifiedSlot::from_marker(table.inactive(slot)?, proof))
}

fn refused(reason: String) -> Error {
    Error::Refused { reason }
}

fn rejected(reason: String) -> Error {
    Error::Rejected { reason }
}
