//! slotd's boot script in a real U-Boot, without an operating system: the slots hold kernels that are none, so that each power-on
//! tries all that may be started and ends at the message. What it counts is read from outside, by U-Boot's tools for Linux.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::discovery::rig;
use super::in_machine;
use crate::artifacts::{self, repository};
use crate::lab::Lab;
use crate::loader::{Architecture, Held, Loader};
use crate::process;
use crate::runner::Test;
use crate::vm::{Machine, Setup};

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_machine("vm/uboot-script-counts-trials-in-files", |lab| {
            counts(lab, Loader::Uboot)
        }),
        in_machine("vm/uboot-script-counts-trials-in-one-file", |lab| {
            counts(lab, Loader::UbootFile)
        }),
        in_machine("vm/uboot-script-counts-trials-in-a-raw-pair", |lab| {
            counts(lab, Loader::UbootRaw)
        }),
    ]
}

fn counts(lab: &Lab, loader: Loader) -> Result<()> {
    artifacts::ensure_arm64_packages()?;
    let disk = disk(lab, loader)?;
    let mut machine = Machine::new(Setup {
        variables: None,
        disk,
        folder: lab.folder().join("machine"),
        acceleration: lab.acceleration_of(Architecture::Arm64)?,
        processors: 1,
        memory: 256,
        forwards: Vec::new(),
        disks: Vec::new(),
        loader,
        recorded: false,
        disk_rate: None,
    })?;
    let path = machine.disk().path().to_owned();

    // Both proven: nothing is counted, nothing is written.
    let before = fs::read(&path).context("reading a disk")?;
    ensure!(started(&mut machine)? == ["A (good)", "B (good)"]);
    ensure!(
        fs::read(&path).context("reading a disk")? == before,
        "a boot of a proven slot wrote to the disk"
    );

    // Two tries, and a variable that is nobody's business.
    let trial = [
        ("slotd_order", "B A"),
        ("slotd_b_ok", "0"),
        ("slotd_b_tries", "2"),
        ("slotd_tries", "2"),
        ("somebody", "else's, with spaces"),
    ];
    loader.set(&path, &trial)?;
    for left in [1, 0] {
        let said = started(&mut machine)?;
        ensure!(
            said == [format!("B (trial) {left}").as_str(), "A (good)"],
            "with {left} tries left U-Boot says {said:?}"
        );
        let expected = Held {
            states: ["good", if left > 0 { "trial" } else { "bad" }],
            first: 'B',
            tries_left: [None, Some(left)],
        };
        let held = loader.held(&path)?;
        ensure!(
            held.as_ref() == Some(&expected),
            "{held:?} is held, not {expected:?}"
        );
        ensure!(
            loader.variable(&path, "somebody")?.as_deref() == Some("else's, with spaces"),
            "the script dropped a variable that it does not know"
        );
    }
    // Spent, and A stays what it is, however often the machine is switched on.
    ensure!(started(&mut machine)? == ["A (good)"]);
    ensure!(started(&mut machine)? == ["A (good)"]);

    loader.set(&path, &[("slotd_a_ok", "0")])?;
    ensure!(started(&mut machine)?.is_empty(), "a bad slot was started");
    Ok(())
}

/// Switches the machine on, waits until U-Boot gives up, and returns what it said that it starts.
fn started(machine: &mut Machine) -> Result<Vec<String>> {
    let mut starts = Vec::new();
    machine.power_on()?;
    let patience = machine.patience(60);
    machine.wait_for_console("word that no slot can be started", patience, |line| {
        if let Some(rest) = line.trim().strip_prefix("slotd: starting slot ") {
            starts.push(rest.to_owned());
        }
        line.contains("slotd: no slot can be started").then_some(())
    })?;
    machine.power_cut();
    Ok(starts)
}

/// A disk whose slots hold what U-Boot reads and nothing that boots.
fn disk(lab: &Lab, loader: Loader) -> Result<PathBuf> {
    let folder = lab.folder();
    let tree = folder.join("tree");
    rig::write(&tree, "usr/lib/os-release", "IMAGE_VERSION=\"v1\"\n")?;
    rig::write(&tree, "boot/vmlinuz-0", "no kernel at all\n")?;
    symlink("vmlinuz-0", tree.join("boot/vmlinuz")).context("linking a kernel")?;
    let image = folder.join("image.ext4");
    process::run("mke2fs", |command| {
        command
            .args(["-q", "-t", "ext4", "-d"])
            .arg(&tree)
            .arg(&image)
            .arg("16M")
    })?;
    let disk = folder.join("reference.img");
    let slots = ["A", "B"].map(|slot| format!("--slot={slot}={}", image.display()));
    make(lab, &disk, loader, &slots)?;
    Ok(disk)
}

fn make(lab: &Lab, disk: &Path, loader: Loader, slots: &[String]) -> Result<()> {
    process::output_with_errors(&lab.programs()?.join("slotd-mkimage"), |command| {
        command
            .args(["disk", "--arch", "arm64", "--recipe"])
            .arg(repository().join("image/recipe"))
            .args(loader.disk_arguments())
            .arg("--units")
            .arg(repository().join("systemd"))
            .args(["--slot-size", "32MiB", "--data-size", "32MiB"])
            .args(slots)
            .arg("--output")
            .arg(disk)
    })
    .map(drop)
}
