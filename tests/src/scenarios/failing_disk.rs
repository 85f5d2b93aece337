//! A disk whose requests fail at the worst moments: in the middle of an image, in the boot partition, at each flush, and where a
//! healthy trial is to be recorded as good.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::proved_in_machine;
use crate::artifacts::Image;
use crate::cuts::{Reference, SECTOR};
use crate::images::{V1, V2};
use crate::lab::{Lab, NodeOptions};
use crate::loader::Loader;
use crate::node::{Expected, FRESH, Node};
use crate::runner::Test;
use crate::server::{Body, Fault};
use crate::vm::DiskFault;

pub(super) fn tests() -> Vec<Test> {
    vec![
        proved_in_machine(
            "vm/a-disk-that-fails-leaves-systemd-boot-a-whole-slot",
            |lab| fails(lab, Loader::SystemdBoot),
        ),
        proved_in_machine("vm/a-disk-that-fails-leaves-grub-a-whole-slot", |lab| {
            fails(lab, Loader::Grub)
        }),
        proved_in_machine("vm/a-disk-that-fails-leaves-uboot-a-whole-slot", |lab| {
            fails(lab, Loader::Uboot)
        }),
    ]
}

/// What is said with the kernel's word for such a request, which is ENODATA where the disk says that its medium is at fault.
const SAYS: &str = "os error";

/// Exit codes: of what may go well another time, and of what has to be changed first.
const RETRY: u32 = 6;
const CONFIGURATION: u32 = 3;

fn fails(lab: &Lab, loader: Loader) -> Result<()> {
    let options = NodeOptions {
        loader,
        ..NodeOptions::new(&V1)
    };
    let mut node = Node::start_with(lab, &options)?;
    let image = lab.artifacts_of(loader.architecture())?.image(&V2)?;
    let before = node.machine.disk().slot_digest('a')?;
    let disk = File::open(node.machine.disk().path()).context("opening the disk")?;
    let reference = Reference::new(loader, &disk)?;
    let boot = DiskFault::Writes(reference.written_with_the_slots(&disk)?);
    let [_, (_, slot)] = reference.slots().parts;
    let middle = DiskFault::Writes(vec![(slot.start + image.size / 2) / SECTOR]);

    in_the_image(&mut node, &image, &middle).context("in the middle of the image")?;
    in_the_boot_partition(&mut node, &image, &boot, place(loader))
        .context("in the boot partition")?;
    at_each_flush(&mut node, &image).context("at each flush")?;
    where_success_is_recorded(&mut node, &boot).context("where success is recorded")?;

    ensure!(
        node.machine.disk().slot_digest('a')? == before,
        "slot A, which was booted, was written to"
    );
    ensure!(
        format!("sha256:{}", node.machine.disk().slot_digest('b')?) == image.expanded_checksum,
        "slot B does not hold the image's bytes"
    );
    let results = node.results()?;
    ensure!(
        results == ["Failed", "Failed", "Failed", "Completed"],
        "the history says {results:?}"
    );
    node.power_cycles(2, &Expected::both_good('B', V2.version()))?;
    reference
        .can_be_gone_on_with(&disk)
        .context("what all of it left in the boot partition")
}

fn in_the_image(node: &mut Node, image: &Image, fault: &DiskFault) -> Result<()> {
    node.machine.fail_disk(fault)?;
    let command = node.install_command(image, "");
    node.refused(&command, RETRY, &["/dev/nvme0n1p3: write at byte", SAYS])?;
    node.machine.mend_disk()?;
    node.expect(&FRESH)
}

/// What a refusal calls the loader's data.
fn place(loader: Loader) -> &'static str {
    match loader {
        Loader::Grub | Loader::GrubBios => "GRUB's environment block",
        Loader::Uboot | Loader::UbootFile | Loader::UbootRaw => "U-Boot's environment",
        Loader::SystemdBoot | Loader::Efi => "the boot partition",
    }
}

/// Before an upgrade it is refused, and nothing is written to the slot; once the slot is being written, it fails.
fn in_the_boot_partition(
    node: &mut Node,
    image: &Image,
    fault: &DiskFault,
    place: &str,
) -> Result<()> {
    node.machine.fail_disk(fault)?;
    let command = node.install_command(image, "");
    let refusal = format!("{place} cannot be written");
    node.refused(&command, CONFIGURATION, &[&refusal, SAYS])?;
    node.machine.mend_disk()?;
    sound(node)?;
    fails_from_the_middle_on(node, image, fault)?;
    node.machine.mend_disk()?;
    sound(node)
}

/// The upgrade has failed, and after a power cycle all is as it was: what the kernel could not write it may have kept in memory.
fn sound(node: &mut Node) -> Result<()> {
    let result = node.last_result()?;
    ensure!(result["result"] == "Failed", "the history says {result:#}");
    node.machine.power_cycle()?.expect('A', V1.version())?;
    node.expect(&FRESH)
}

/// Lets requests fail once a part of the image was written, and waits until the upgrade has failed for it.
fn fails_from_the_middle_on(node: &mut Node, image: &Image, fault: &DiskFault) -> Result<()> {
    let length = std::fs::metadata(&image.path)?.len();
    // Some seconds for all of it.
    node.server.serve(
        "/slow",
        Body::File(image.path.clone()),
        Fault::Slow(length / 10),
    );
    let url = node.server.guest_url("/slow");
    node.machine.run(&format!(
        "slotd install --no-wait {url} --checksum {}",
        image.checksum
    ))?;
    node.wait_until_written(16 << 20)?;
    node.machine.fail_disk(fault)?;
    let patience = node.machine.patience(120);
    let upgrade = wait_for_phase(node, patience, &["Failed"])?;
    let reason = upgrade["failure"]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains(SAYS), "slotd status says {upgrade:#}");
    Ok(())
}

/// Each flush fails from the middle of the image on, also those of the file system with the agent's record: nothing leads to a
/// trial. With the next power cycle the disk is whole, and the upgrade is begun anew.
fn at_each_flush(node: &mut Node, image: &Image) -> Result<()> {
    fails_from_the_middle_on(node, image, &DiskFault::Flushes)?;
    ensure!(
        told(node, "RecordNotKept")?,
        "nothing is said of the record that cannot be kept"
    );
    ensure!(
        node.loader()?["loader"]["next"]["slot"] == "A",
        "the next boot is not slot A"
    );
    node.machine.power_cut();
    node.machine.power_on()?;
    node.machine.wait_for_boot()?.expect('A', V1.version())
}

/// Whether the status has such a condition.
fn told(node: &mut Node, condition: &str) -> Result<bool> {
    let status = node.status()?;
    let conditions = status["conditions"].as_array();
    Ok(conditions.is_some_and(|all| all.iter().any(|own| own["type"] == condition)))
}

/// The upgrade that was begun anew goes through to its trial, which cannot be recorded as good until the disk is whole again.
fn where_success_is_recorded(node: &mut Node, fault: &DiskFault) -> Result<()> {
    let patience = node.machine.patience(120);
    node.machine
        .wait_for_console("the trial's kernel", patience, |line| {
            line.contains("@@USERSPACE slot=b").then_some(())
        })?;
    node.machine.fail_disk(fault)?;
    node.machine.wait_for_boot()?.expect('B', V2.version())?;
    let deadline = Instant::now() + patience;
    while !told(node, "RecordingFailed")? {
        let phase = node.status()?["upgrade"]["phase"].take();
        ensure!(
            phase == "Confirming" && Instant::now() < deadline,
            "the upgrade is {phase}"
        );
        std::thread::sleep(Duration::from_millis(300));
    }
    node.machine.mend_disk()?;
    wait_for_phase(node, patience, &["Completed"]).map(drop)
}

/// The upgrade that the status shows, once it is in one of these phases.
fn wait_for_phase(node: &mut Node, patience: Duration, phases: &[&str]) -> Result<Value> {
    let deadline = Instant::now() + patience;
    loop {
        let upgrade = node.status()?["upgrade"].take();
        if phases.iter().any(|phase| upgrade["phase"] == *phase) {
            return Ok(upgrade);
        }
        ensure!(Instant::now() < deadline, "slotd status says {upgrade:#}");
        std::thread::sleep(Duration::from_millis(300));
    }
}
