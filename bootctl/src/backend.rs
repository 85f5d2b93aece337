//! What every boot loader backend offers: one state model, and transitions that are planned by the
//! same code that executes them.

mod refusal;
mod state;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::inspect::SlotView;
use crate::proof::{InactiveSlot, InvalidatedSlot, VerifiedSlot};
use crate::slot::SlotName;
use crate::table::SlotTable;

pub use refusal::{PreflightRequest, Refusal, RefusalCode, require_no_refusals};
pub use state::{Counting, LoaderState, NextBoot, Problem, ProblemCode, SlotState, StagedImage};

/// What an entry's kernel command line is made of besides the image's own part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootOptions {
    /// Boots that a trial gets.
    pub tries: u32,
    /// Kernel options from the configuration.
    pub extra: String,
    /// The machine's id, one for both slots: 32 hexadecimal digits.
    pub machine_id: String,
    /// Seconds that a trial boot gets to prove itself.
    pub trial_deadline_seconds: u64,
    /// `panic=`: seconds after which a panicked kernel reboots.
    pub panic_seconds: u32,
}

/// A change of the loader's state, for [`Backend::plan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// Forget the slot's image before it is overwritten.
    Invalidate {
        /// The slot.
        slot: SlotName,
    },
    /// Copy the image's kernel and initrd, and record the image.
    InstallBootFiles {
        /// The slot.
        slot: SlotName,
        /// What will be recorded.
        image: StagedImage,
        /// Size of the kernel in bytes where it is known.
        kernel: Option<u64>,
        /// Size of the initrd in bytes where it is known.
        initrd: Option<u64>,
    },
    /// Make the next boot a trial of the slot.
    Arm {
        /// The slot.
        slot: SlotName,
        /// How.
        options: BootOptions,
    },
    /// The boot loader starts the armed slot and takes a try off it. Not something slotd does: it
    /// stands in a sequence so that what comes after the boot can be planned too.
    TrialBoot {
        /// The slot.
        slot: SlotName,
    },
    /// Take an armed trial back.
    Disarm {
        /// The slot.
        slot: SlotName,
    },
    /// Record that the slot is proven.
    MarkGood {
        /// The slot.
        slot: SlotName,
    },
    /// Record that the slot is given up.
    MarkBad {
        /// The slot.
        slot: SlotName,
    },
    /// Make a good slot the primary one.
    Select {
        /// The slot.
        slot: SlotName,
    },
}

/// `transitions` with the boots between them: what is marked after it was armed was booted in between.
pub(crate) fn with_trial_boots(transitions: &[Transition]) -> Vec<Transition> {
    let mut armed = None;
    let mut sequence = Vec::new();
    for transition in transitions {
        match transition {
            Transition::Arm { slot, .. } => armed = Some(*slot),
            Transition::TrialBoot { .. } => armed = None,
            Transition::MarkGood { slot } | Transition::MarkBad { slot }
                if armed == Some(*slot) =>
            {
                sequence.push(Transition::TrialBoot { slot: *slot });
                armed = None;
            }
            _ => {}
        }
        sequence.push(transition.clone());
    }
    sequence
}

/// One write, rename or removal that a transition would do, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedChange {
    /// The file or variable.
    pub target: String,
    /// What happens to it.
    pub change: String,
    /// The text of a file that is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// What for.
    pub why: String,
}

/// A boot loader that slotd can drive.
///
/// Every transition is idempotent, leaves at least one good slot selectable at every instant if
/// there was one, is durable when it returns, and is read back before it returns.
pub trait Backend: fmt::Debug + Send + Sync {
    /// The backend's name, as in the configuration.
    fn name(&self) -> &'static str;

    /// The directory, file or device of the loader's data, for people.
    fn location(&self) -> String;

    /// The machine id that the slots' entries share, where entries hold one.
    ///
    /// # Errors
    /// When the entries cannot be read.
    fn machine_id(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Reads the loader's own data.
    ///
    /// # Errors
    /// When it cannot be read at all; what is merely odd is in [`LoaderState::problems`].
    fn state(&self) -> Result<LoaderState>;

    /// Every reason at once why an installation into a slot cannot go on. Empty means go. Includes
    /// a real write test beside the loader's data, which leaves nothing behind.
    fn preflight(&self, request: &PreflightRequest) -> Vec<Refusal>;

    /// Makes the loader forget the slot: its entries first, then the marker, then boot files.
    ///
    /// Durable when it returns. After a crash in the middle the slot is empty or as before, to the
    /// loader; calling again finishes.
    ///
    /// # Errors
    /// Refused where the slot is the only good one.
    fn invalidate(&self, slot: InactiveSlot) -> Result<InvalidatedSlot>;

    /// Copies kernel and initrd under temporary names, syncs and renames them, and writes the
    /// marker last. The next boot is not changed.
    ///
    /// Durable when it returns. After a crash in the middle there is no marker; the slot is empty.
    ///
    /// # Errors
    /// When the image has no kernel, or the boot files cannot be written.
    fn install_boot_files(
        &self,
        slot: &VerifiedSlot,
        view: &SlotView,
        staged: &StagedImage,
        options: &BootOptions,
    ) -> Result<()>;

    /// The proof that `slot` was verified before, from its marker; `None` without one.
    ///
    /// # Errors
    /// When the marker cannot be read, or `slot` is not inactive.
    fn verified(&self, table: &SlotTable, slot: SlotName) -> Result<Option<VerifiedSlot>>;

    /// [`Backend::verified`] for the slot that is not booted; where neither is, for the one that
    /// [`LoaderState::staged`] names.
    ///
    /// # Errors
    /// As [`Backend::verified`] and [`Backend::state`].
    fn staged(&self, table: &SlotTable) -> Result<Option<VerifiedSlot>> {
        let slot = match table.booted {
            crate::table::Booted::Slot(booted) => !booted,
            crate::table::Booted::Neither => match self.state()?.staged {
                Some((slot, _)) => slot,
                None => return Ok(None),
            },
        };
        self.verified(table, slot)
    }

    /// Makes the next boot a trial of the slot, with `tries` boots: one atomic commit.
    ///
    /// Durable when it returns. After a crash in the middle the trial is armed or not.
    ///
    /// # Errors
    /// Refused where no good slot is left to fall back to.
    fn arm(&self, slot: &VerifiedSlot, tries: u32, options: &BootOptions) -> Result<()>;

    /// Takes a trial back before it ran; the slot stays staged.
    ///
    /// # Errors
    /// Refused while the trial runs, and for a good slot.
    fn disarm(&self, slot: SlotName) -> Result<()>;

    /// Records that the booted slot is proven: one commit, of one rename where nothing stands in its way.
    ///
    /// Durable when it returns. After a crash in the middle the trial goes on or the slot is good; on FAT it may, at
    /// worst, have lost its entry, and the other slot is booted.
    ///
    /// # Errors
    /// Refused for a slot that is neither booted nor good already, and without an entry.
    fn mark_good(&self, slot: SlotName) -> Result<()>;

    /// Records that a slot is given up.
    ///
    /// # Errors
    /// Refused where the other slot is not good.
    fn mark_bad(&self, slot: SlotName) -> Result<()>;

    /// Makes a good slot the one that is booted next and from then on.
    ///
    /// # Errors
    /// Rejected for a slot that is not good.
    fn select(&self, slot: SlotName) -> Result<()>;

    /// What `transitions` would change, one after the other, by the code that executes them. A trial
    /// that is armed and then marked is booted in between.
    ///
    /// # Errors
    /// As the transition itself, where that is known from the loader's data alone.
    fn plan_sequence(&self, transitions: &[Transition]) -> Result<Vec<PlannedChange>>;

    /// What one transition would change now.
    ///
    /// # Errors
    /// As the transition itself, where that is known from the loader's data alone.
    fn plan(&self, transition: &Transition) -> Result<Vec<PlannedChange>> {
        self.plan_sequence(std::slice::from_ref(transition))
    }
}
