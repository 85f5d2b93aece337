//! A process that is stopped for a while, and knows nothing of it afterwards.

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A stopped process. It goes on when this goes.
#[derive(Debug)]
pub struct Paused(Pid);

impl Paused {
    /// Stops a process.
    pub fn process(id: u32) -> Result<Self> {
        let process = Pid::from_raw(i32::try_from(id).context("a process id")?);
        kill(process, Signal::SIGSTOP).context("stopping a process for a while")?;
        Ok(Self(process))
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Err(error) = kill(self.0, Signal::SIGCONT) {
            eprintln!("lab: a process cannot go on: {error}");
        }
    }
}
