//! Everything that the agent sees and does, behind one trait: the driver above it knows no device.

use slotd_engine::{
    Drain, Ended, Failure, Image, ImageRequest, Limits, Record, Slot, StagedSlot, Upgrade, Verdict,
    World,
};
use slotd_image::{Cancel, ImageSource};

use super::lock::ChangeLock;
use crate::status::{Condition, NodeView, ProgressStatus};

/// Why an effect did not come about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was told to stop.
    Stopped,
    /// It failed.
    Failed(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What the state directory held.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The record, or an empty one.
    pub record: Record,
    /// What is to be known about how it was found.
    pub conditions: Vec<Condition>,
}

/// All effects and observations. Each effect is idempotent and durable when it returns.
pub trait Host: Send + Sync + 'static {
    /// The record as it was kept.
    fn load(&self) -> Loaded;

    /// Where nothing can be kept since it was loaded: looks again, and returns what is there if that is over.
    fn reload(&self) -> Option<Loaded>;

    /// Keeps the record: durable and whole when this returns; a crash leaves the old or the new one.
    ///
    /// # Errors
    /// When the state directory is refused or cannot be written.
    fn persist(&self, record: &Record) -> Result<(), Failure>;

    /// Appends a finished upgrade to the history, unless it is there.
    ///
    /// # Errors
    /// When the state directory is refused or cannot be written.
    fn report(&self, ended: &Ended) -> Result<(), Failure>;

    /// The configured bounds.
    fn limits(&self) -> Limits;

    /// Looks at the world.
    ///
    /// # Errors
    /// When not even the clocks and the boot id can be read. Slots and loader data that cannot be read
    /// are `None` in it.
    fn observe(&self) -> Result<World, Failure>;

    /// Slots and loader for the status document, read now.
    fn survey(&self) -> NodeView;

    /// Takes the lock that keeps others from changing slots and loader.
    ///
    /// # Errors
    /// When somebody else has it.
    fn lock(&self) -> Result<ChangeLock, Failure>;

    /// Looks at everything that can be refused before a write, and opens the source (kept for
    /// [`Host::write`]). `source` is given where it was handed in; after a restart it is opened again
    /// by the request's locator. Writes nothing to the slot.
    ///
    /// # Errors
    /// Every reason at once where there are several.
    fn preflight(
        &self,
        slot: Slot,
        request: &ImageRequest,
        source: Option<ImageSource>,
        cancel: &Cancel,
    ) -> Result<(), Trouble>;

    /// Makes the loader forget the slot's image. Keeps the proof for [`Host::write`].
    ///
    /// # Errors
    /// When the slot cannot be proven inactive, or the loader's data cannot be changed.
    fn invalidate(&self, slot: Slot) -> Result<(), Failure>;

    /// Writes the opened image and reads it back. Keeps the proof for [`Host::prepare_boot`].
    ///
    /// # Errors
    /// What went wrong; the slot holds no image then.
    fn write(
        &self,
        slot: Slot,
        request: &ImageRequest,
        cancel: &Cancel,
        progress: &(dyn Fn(ProgressStatus) + Send + Sync),
    ) -> Result<Image, Trouble>;

    /// Looks into the written slot, and installs what boots it, the marker last. Returns the image's
    /// version.
    ///
    /// # Errors
    /// What is wrong with the image, or with the place of the boot files.
    fn prepare_boot(&self, slot: Slot, upgrade: &Upgrade) -> Result<Option<String>, Failure>;

    /// Makes what was staged unusable.
    ///
    /// # Errors
    /// When the loader's data cannot be changed.
    fn discard(&self, slot: Slot) -> Result<(), Failure>;

    /// Cordons the node and evicts its pods. `say` hears what is waited for.
    ///
    /// # Errors
    /// When they were not gone in time, unless the order is to go on then.
    fn drain(
        &self,
        drain: Drain,
        cancel: &Cancel,
        say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), Trouble>;

    /// Makes the next boot a trial of the slot.
    ///
    /// # Errors
    /// When the marker does not say what the proof says, or the loader's data cannot be changed.
    fn arm(&self, slot: &StagedSlot) -> Result<(), Failure>;

    /// Takes a trial back before it ran.
    ///
    /// # Errors
    /// When the loader's data cannot be changed.
    fn disarm(&self, slot: Slot) -> Result<(), Failure>;

    /// Makes a good slot the one that boots.
    ///
    /// # Errors
    /// When the slot is not good, or the loader's data cannot be changed.
    fn select(&self, slot: Slot) -> Result<(), Failure>;

    /// Tells the loader that the slot is good.
    ///
    /// # Errors
    /// When the loader's data cannot be changed.
    fn mark_good(&self, slot: Slot) -> Result<(), Failure>;

    /// Tells the loader that the slot is bad.
    ///
    /// # Errors
    /// When the other slot is not good, or the loader's data cannot be changed.
    fn mark_bad(&self, slot: Slot) -> Result<(), Failure>;

    /// Runs the health checks until the uptime of `deadline` seconds, and publishes the verdict.
    ///
    /// # Errors
    /// When the checks could not be run, which is no verdict.
    fn run_checks(&self, deadline: u64, cancel: &Cancel) -> Result<Verdict, Trouble>;

    /// Waits for `boot-complete.target`; `false` when the uptime of `deadline` seconds came first.
    ///
    /// # Errors
    /// When it is stopped, or cannot tell those who wait that the deadline came first.
    fn await_boot_complete(&self, deadline: u64, cancel: &Cancel) -> Result<bool, Trouble>;

    /// Releases a proven boot from the guards of a trial.
    ///
    /// # Errors
    /// What could not be taken back.
    fn settle(&self) -> Result<(), Failure>;

    /// Releases a boot from the same guards that is not proven and not left: those who wait for a verdict hear that it
    /// is neither rebooted nor kept.
    ///
    /// # Errors
    /// What could not be taken back.
    fn stay(&self, reason: &str) -> Result<(), Failure>;

    /// Says to those who wait for a verdict that there is none to come.
    ///
    /// # Errors
    /// When it cannot be written.
    fn announce_no_trial(&self) -> Result<(), Failure>;

    /// Reboots; returns once that is accepted.
    ///
    /// # Errors
    /// When it is refused or inhibited.
    fn reboot(&self, forced: bool) -> Result<(), Failure>;
}
