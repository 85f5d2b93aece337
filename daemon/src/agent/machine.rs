//! What the agent asks of the rest of the machine: health checks and reboots.

use std::time::Instant;

use slotd_engine::{Drain, Failure, Verdict};
use slotd_image::Cancel;

use super::host::Trouble;

/// The file of the state directory in which a machine keeps, from the reboot into a trial until the trial has ended, which
/// units had failed before. One version of the system writes it and another one reads it.
pub const FAILED_BEFORE: &str = "failed-before.json";

/// The health checks and the reboot of a machine.
pub trait Machine: Send + Sync + 'static {
    /// Runs the health checks until `deadline`. Blocks; returns soon after `cancel` was raised, with
    /// any verdict.
    fn run_checks(&self, deadline: Instant, cancel: &Cancel) -> Verdict;

    /// Keeps which units fail now: they do not count against the trial that is about to be booted; and whether a kubelet is
    /// configured, which is asked then too. Where that cannot be kept, no failed unit counts. A machine without units has
    /// nothing to keep.
    fn remember_failed_units(&self) {}

    /// Forgets them: they belong to one trial alone, and another one is not to be held to them.
    fn forget_failed_units(&self) {}

    /// Reboots; forced means whatever inhibits it. Returns once that is accepted.
    ///
    /// # Errors
    /// When it is refused or inhibited.
    fn reboot(&self, forced: bool) -> Result<(), Failure>;

    /// Has PID 1 read its units anew, so that generators look at the loader's data again.
    ///
    /// # Errors
    /// When PID 1 does not.
    fn reload_units(&self) -> Result<(), Failure>;
}

/// Moves a node's pods away before it reboots.
pub trait Drainer: Send + Sync + 'static {
    /// Cordons the node and evicts its pods, until they are gone. Blocks; `say` hears what is waited for. What was
    /// cordoned stays so when this returns, whatever it returns; a crash in the middle leaves it cordoned as well.
    ///
    /// # Errors
    /// When they were not gone in time, unless the order is to go on then; when `cancel` was raised.
    fn drain(
        &self,
        drain: Drain,
        cancel: &Cancel,
        say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), Trouble>;
}
