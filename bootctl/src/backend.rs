//! What every boot loader backend offers: one state model, and transitions that are planned by the
//! same code that executes them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::inspect::SlotView;
use crate::proof::{InactiveSlot, InvalidatedSlot, VerifiedSlot};
use crate::slot::SlotName;
use crate::table::SlotTable;

/// What the boot loader holds of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum SlotState {
    /// Proven: booted without counting.
    Good,
    /// Being tried.
    Trial {
        /// Boots left.
        left: u32,
        /// Boots begun.
        done: u32,
    },
    /// Given up: its tries are spent, or it was marked.
    Bad,
    /// The loader knows no image in it.
    Empty,
}

impl fmt::Display for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.pad("good"),
            Self::Trial { left, done } => {
                f.pad(&format!("trial ({left} boots left, {done} begun)"))
            }
            Self::Bad => f.pad("bad"),
            Self::Empty => f.pad("empty"),
        }
    }
}

/// What was verified in a slot, as recorded beside its boot files. Written last when a slot is
/// prepared and removed before a slot is overwritten, so its presence means that the slot holds
/// exactly this image.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StagedImage {
    /// SHA-256 of the expanded image as it was read back from the slot, 64 hexadecimal digits.
    pub expanded_sha256: String,
    /// Size of the expanded image in bytes.
    pub expanded_size: u64,
    /// The checksum under which the image was published, if one was given (`sha256:…`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// The image's version, from the image or from the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When it was staged, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged_at: Option<String>,
}

/// Whether the loader counts the boots of trial entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Counting {
    /// The loader says that it can, or was seen doing it.
    Active,
    /// It was seen not to count: a trial would never end.
    Inactive,
    /// It did not start this system, so it said nothing.
    Unknown,
}

/// What the loader would start next, by the model of its rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum NextBoot {
    /// One of our slots.
    Slot {
        /// Which.
        slot: SlotName,
        /// The state in which it is started.
        trial: bool,
    },
    /// An entry that is not slotd's.
    Foreign {
        /// The entry's id.
        id: String,
    },
    /// No entry at all: the loader shows its menu or returns to the firmware.
    Nothing,
}

impl fmt::Display for NextBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot { slot, trial: false } => write!(f, "slot {slot}"),
            Self::Slot { slot, trial: true } => write!(f, "slot {slot}, on trial"),
            Self::Foreign { id } => write!(f, "{id}, which is not slotd's"),
            Self::Nothing => f.write_str("nothing: no entry can be started"),
        }
    }
}

/// Something an operator should know of the loader's data, that stops nothing by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// A word for programs.
    pub code: ProblemCode,
    /// The explanation for people.
    pub message: String,
}

/// Kinds of [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ProblemCode {
    /// The loader did not count this trial boot.
    CountingInactive,
    /// A plain and a counted file of one entry, or files that may share their clusters with others.
    Leftovers,
    /// An entry, marker or variable cannot be understood.
    Unreadable,
    /// A default set elsewhere, or an entry that is not ours, comes before the slots.
    ForeignDefault,
    /// Neither slot is good.
    NoGoodSlot,
    /// The place of the loader's data is not writable.
    NotWritable,
}

/// What the boot loader's own data says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoaderState {
    /// The backend's name.
    pub backend: String,
    /// Slot A.
    pub a: SlotState,
    /// Slot B.
    pub b: SlotState,
    /// The image recorded in slot A, if its marker is there.
    pub image_a: Option<StagedImage>,
    /// The image recorded in slot B, if its marker is there.
    pub image_b: Option<StagedImage>,
    /// The slot that holds a verified image and is not good (yet): staged, on trial, or bad.
    pub staged: Option<(SlotName, StagedImage)>,
    /// Whether this boot is a trial boot of the booted slot, by the loader's word.
    pub trial_boot: bool,
    /// What would be started next.
    pub next: NextBoot,
    /// Whether trial boots are counted.
    pub counting: Counting,
    /// What an operator should know.
    pub problems: Vec<Problem>,
}

impl LoaderState {
    /// The state of one slot.
    #[must_use]
    pub fn slot(&self, slot: SlotName) -> SlotState {
        match slot {
            SlotName::A => self.a,
            SlotName::B => self.b,
        }
    }

    /// The image recorded in one slot.
    #[must_use]
    pub fn image(&self, slot: SlotName) -> Option<&StagedImage> {
        match slot {
            SlotName::A => self.image_a.as_ref(),
            SlotName::B => self.image_b.as_ref(),
        }
    }
}

/// What an installation is about to need of the boot loader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreflightRequest {
    /// The slot that will be overwritten.
    pub slot: SlotName,
    /// Bytes of kernel and initrd that will be installed; estimated from the other slot's where
    /// unknown.
    pub boot_files: Option<u64>,
    /// Extra kernel options from the configuration, checked for ones that slotd sets itself.
    pub extra: String,
}

/// One reason why an installation or activation cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// A word for programs.
    pub code: RefusalCode,
    /// The explanation for people: what, where, and what to do.
    pub message: String,
}

impl Refusal {
    /// What a caller should make of it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.code {
            RefusalCode::NoSpace
            | RefusalCode::ReadOnly
            | RefusalCode::LoaderDataMissing
            | RefusalCode::ReservedOption
            | RefusalCode::UnsupportedLayout
            | RefusalCode::CountingUnsupported => ErrorKind::Configuration,
            RefusalCode::Unreadable
            | RefusalCode::DefaultSet
            | RefusalCode::OneShotSet
            | RefusalCode::ForeignEntryFirst
            | RefusalCode::NoFallback
            | RefusalCode::LastGoodSlot => ErrorKind::Unsafe,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Kinds of [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RefusalCode {
    /// The place of the loader's data is not there or not mounted.
    LoaderDataMissing,
    /// It cannot be written.
    ReadOnly,
    /// It has no room for the boot files.
    NoSpace,
    /// Something in it cannot be read.
    Unreadable,
    /// A default entry was set by someone else, which the loader starts before any trial.
    DefaultSet,
    /// A one-shot entry is set for the next boot.
    OneShotSet,
    /// An entry that is not slotd's sorts before its entries.
    ForeignEntryFirst,
    /// The loader says that it cannot count boots, or was seen not to.
    CountingUnsupported,
    /// There is no good slot that a failed trial could fall back to.
    NoFallback,
    /// The slot to be overwritten is the only good one.
    LastGoodSlot,
    /// The configuration sets a kernel option that is slotd's to set.
    ReservedOption,
    /// The slots are of a kind that this backend's entries cannot start.
    UnsupportedLayout,
}

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

/// Turns refusals into one error that lists them all; `Ok` without any.
///
/// # Errors
/// [`Error::Refused`] with every reason.
pub fn require_no_refusals(refusals: &[Refusal]) -> Result<()> {
    if refusals.is_empty() {
        return Ok(());
    }
    let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    Err(Error::Refused {
        reason: reasons.join("; "),
    })
}
