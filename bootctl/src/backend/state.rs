//! What the boot loader's own data says of both slots, in the words of one model.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::slot::SlotName;

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
    /// Of every boot, of proven slots, too: a proven slot has to be marked good again after each boot.
    EveryBoot,
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
    /// The slot that runs has no entry in the loader's data any more.
    EntryLost,
    /// Neither slot is good.
    NoGoodSlot,
    /// The place of the loader's data is not writable.
    NotWritable,
    /// The loader's own script keeps a promise less: what it is stands in the message.
    PromiseNotKept,
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
