//! What the engine is told about the world: slots, the boot loader's data, clocks, requests.

use std::fmt;
use std::ops::Not;

use serde::{Deserialize, Serialize};

use crate::record::{Drain, Failure, ImageRequest, Task, Upgrade};

/// One of the two bootable root partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Slot {
    /// Slot A.
    A,
    /// Slot B.
    B,
}

impl Not for Slot {
    type Output = Self;

    /// The other slot.
    fn not(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
        })
    }
}

/// The SHA-256 of an image, 64 lower-case hex digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    /// Takes 64 hex digits, with or without `sha256:` in front, in either case; `None` for anything else.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let hex = match text.get(..7) {
            Some(prefix) if prefix.eq_ignore_ascii_case("sha256:") => text.get(7..)?,
            _ => text,
        };
        let valid = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        valid.then(|| Self(hex.to_ascii_lowercase()))
    }

    /// The 64 hex digits.
    #[must_use]
    pub fn as_hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// What the boot loader's own data hold of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Proven.
    Good,
    /// Being tried.
    Trial {
        /// Boots left.
        left: u32,
        /// Boots done.
        done: u32,
    },
    /// Given up.
    Bad,
    /// Holds no image that the loader could start.
    Empty,
}

/// What the checks of a trial boot found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All required checks passed.
    Healthy,
    /// A required check failed.
    Unhealthy {
        /// The name of the check.
        check: String,
        /// What it printed.
        output: String,
    },
    /// The deadline passed first.
    Late {
        /// The check that was still waited for, if one was.
        check: Option<String>,
        /// What is known of it.
        output: String,
    },
}

/// What somebody asks of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stage an image, and activate it unless it says `stage_only`.
    Install(ImageRequest),
    /// The same while another upgrade is under way: that one is stopped first (its target was edited).
    Retarget(ImageRequest),
    /// Activate the staged image.
    Activate {
        /// How the node is drained first; `None` where it is not.
        drain: Option<Drain>,
    },
    /// Stop draining: the image stays staged.
    Hold,
    /// The staged image is for this task from now on, such as a later attempt of the same: the image stays staged, and a
    /// drain for the former one stops.
    Renew(Task),
    /// Go back to the other slot deliberately.
    Rollback {
        /// The version in that slot, to be shown.
        version: Option<String>,
    },
    /// Stop the upgrade of this id.
    Cancel(u64),
}

/// The configured bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How often a staging is begun before it counts as failed.
    pub staging_attempts: u32,
    /// The trial boots that the loader is told to grant.
    pub tries: u32,
    /// Seconds since the kernel started by which a trial boot must be proven.
    pub trial_deadline: u64,
}

impl Default for Limits {
    /// The defaults of the design: three attempts, three tries, ten minutes.
    fn default() -> Self {
        Self {
            staging_attempts: 3,
            tries: 3,
            trial_deadline: 600,
        }
    }
}

/// The node as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// The slot that this boot runs from; `None` when it runs from neither (rescue system).
    pub booted: Option<Slot>,
    /// What the boot loader's data say of A and B; `None` while they cannot be read.
    pub loader: Option<[SlotState; 2]>,
    /// Why slots or loader data cannot be read, where they cannot.
    pub trouble: Option<Failure>,
    /// The slot that the loader would start next, where that is known.
    pub next_boot: Option<Slot>,
    /// The digest of the expanded image that was written to A and B and read back, by what was left beside the boot
    /// loader's data then; `None` where nothing tells.
    pub images: [Option<Digest>; 2],
    /// The kernel's boot id: another one means another boot.
    pub boot_id: String,
    /// Seconds since the kernel started (monotonic).
    pub uptime: u64,
    /// Wall clock, seconds since 1970. Only shown and kept, never compared.
    pub now: u64,
    /// Whether this boot was already released from the trial's guards (see `Command::Settle`).
    pub settled: bool,
}

/// What a step is decided by, seen before each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The node.
    pub world: World,
    /// A request that waits to be taken.
    pub request: Option<Request>,
    /// The configured bounds.
    pub limits: Limits,
}

impl World {
    /// What the loader holds of a slot; `None` while its data cannot be read.
    #[must_use]
    pub fn state(&self, slot: Slot) -> Option<SlotState> {
        self.loader.map(|[a, b]| match slot {
            Slot::A => a,
            Slot::B => b,
        })
    }

    /// The digest of the image in a slot, where that is known.
    #[must_use]
    pub fn image(&self, slot: Slot) -> Option<&Digest> {
        let [a, b] = &self.images;
        match slot {
            Slot::A => a.as_ref(),
            Slot::B => b.as_ref(),
        }
    }

    /// The proof that this slot runs and that the loader's own data call it good.
    #[must_use]
    pub fn proven(&self, slot: Slot) -> Option<ProvenSlot> {
        let good = self.booted == Some(slot) && self.state(slot) == Some(SlotState::Good);
        good.then_some(ProvenSlot(slot))
    }

    /// The proof that the image of this upgrade lies complete and verified in its target.
    #[must_use]
    pub fn staged_for(&self, upgrade: &Upgrade) -> Option<StagedSlot> {
        let slot = upgrade.target;
        let image = upgrade.image.as_ref()?;
        let lies = self.image(slot) == Some(&image.digest);
        (lies && self.state(slot)? != SlotState::Good).then(|| StagedSlot {
            slot,
            digest: image.digest.clone(),
        })
    }
}

/// A slot that runs and that the boot loader calls good. Only a look at the world makes one, and only
/// with one is success reported (promise 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvenSlot(Slot);

impl ProvenSlot {
    /// The slot.
    #[must_use]
    pub fn slot(self) -> Slot {
        self.0
    }
}

/// A slot whose image was read back and whose digest is the one that the upgrade wrote. Only a
/// look at the world makes one, and only with one is a trial armed (promise 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedSlot {
    slot: Slot,
    digest: Digest,
}

impl StagedSlot {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The digest of the expanded image in it.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.digest
    }
}
