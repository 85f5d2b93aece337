//! `lab up`: a control plane to play with.

use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use super::{ControlPlane, Options, Program, Programs};

/// Starts a control plane in `folder`, says how to use it, and ends it, in order, at Ctrl-C.
pub fn run(folder: &Path) -> Result<()> {
    let programs = Programs::provide(&Program::CONTROL_PLANE)?;
    let mut plane = ControlPlane::start(folder, &programs, Options { audit: true })?;
    let kubectl = programs.path(Program::Kubectl)?;
    println!(
        "Kubernetes at {} is ready after {:.1} s; logs and the audit log are in {}\n",
        plane.url(),
        plane.elapsed().as_secs_f64(),
        plane.folder().display()
    );
    println!("export KUBECONFIG={}", plane.admin().kubeconfig().display());
    if let Some(folder) = kubectl.parent() {
        println!("export PATH={}:$PATH", folder.display());
    }
    println!("\nCtrl-C ends it");
    // Only now: what is started inherits which signals are blocked.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("blocking signals")?;
    let asked = SignalFd::new(&signals).context("waiting for signals")?;
    let second = PollTimeout::from(1000_u16);
    while poll(&mut [PollFd::new(asked.as_fd(), PollFlags::POLLIN)], second)
        .context("waiting for signals")?
        == 0
    {
        plane.alive()?;
    }
    Ok(())
}
