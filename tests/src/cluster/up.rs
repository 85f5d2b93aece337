//! `lab up`: a control plane to play with, with nodes in it or without.

use std::os::fd::AsFd;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use serde_json::json;

use super::{ControlPlane, Options, Program, Programs};
use crate::lab::Lab;
use crate::standin::{Controller, Fleet, StandIn};

/// Starts a control plane, with so many stand-ins for nodes and a controller where there are any, says how to use it, and
/// ends it, in order, at Ctrl-C.
pub fn run(lab: &Lab, nodes: usize) -> Result<()> {
    if nodes > 0 {
        return with_nodes(lab, nodes);
    }
    let programs = Programs::provide(&Program::CONTROL_PLANE)?;
    let mut plane = ControlPlane::start(lab.folder(), &programs, Options { audit: true })?;
    say(&plane);
    println!("\nCtrl-C ends it");
    until_told(|| plane.alive())
}

fn with_nodes(lab: &Lab, nodes: usize) -> Result<()> {
    let plane = lab.control_plane()?;
    plane.install()?;
    let fleet = Fleet::start(lab, nodes)?;
    let _controller = Controller::start(lab, "controller")?;
    fleet.deploy("web", nodes.saturating_mul(2), Some(1))?;
    let (url, image) = fleet.publish("v1.1.0")?;
    let document = lab.folder().join("osupgrade.yaml");
    let upgrade = json!({
        "apiVersion": "monok8s.io/v1alpha1",
        "kind": "OSUpgrade",
        "metadata": {"name": "my-upgrade"},
        "spec": {
            "version": "v1.1.0",
            "imageURL": url,
            "checksum": image.checksum,
            "size": image.size,
            "nodeSelector": {},
        },
    });
    std::fs::write(&document, format!("{upgrade:#}\n"))
        .with_context(|| format!("writing {}", document.display()))?;
    say(plane);
    println!(
        "\n{nodes} nodes run v1.0.0 (stand-ins: real agents, loop disks for slots), and a controller waits. Move them:\n\n\
         kubectl apply -f {}\n\
         kubectl get osupgrades,osupgradeprogresses,nodes -w\n\nCtrl-C ends it",
        document.display()
    );
    until_told(|| fleet.nodes().iter().try_for_each(StandIn::sound))
}

/// Says how the control plane is reached.
fn say(plane: &ControlPlane) {
    println!(
        "Kubernetes at {} is ready after {:.1} s; logs and the audit log are in {}\n",
        plane.url(),
        plane.elapsed().as_secs_f64(),
        plane.folder().display()
    );
    say_environment(plane);
}

/// Says what to set in a shell so that `kubectl` is one that speaks with the control plane.
pub(crate) fn say_environment(plane: &ControlPlane) {
    println!("export KUBECONFIG={}", plane.admin().kubeconfig().display());
    if let Some(folder) = plane.admin().program().parent() {
        println!("export PATH={}:$PATH", folder.display());
    }
}

/// Waits for Ctrl-C, or until something has ended that should not.
pub(crate) fn until_told(mut alive: impl FnMut() -> Result<()>) -> Result<()> {
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
        alive()?;
    }
    Ok(())
}
