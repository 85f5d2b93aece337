//! One set of scenarios for every boot loader but systemd-boot, which has its own files, on the real loader: a good upgrade,
//! images that fall back, power cuts, a proven slot that stays proven, and both slots bad.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::upgrades::{falls_back, given_up_by_the_loader, short_trial};
use super::{in_machine, proved_in_machine};
use crate::images::{PANICS, UNHEALTHY, V1, V2};
use crate::lab::{Lab, NodeOptions};
use crate::loader::Loader;
use crate::node::{Expected, Node};
use crate::runner::Test;

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_machine("vm/grub-upgrades-and-falls-back", |lab| {
            upgrades_and_falls_back(lab, Loader::Grub)
        }),
        in_machine("vm/grub-on-a-bios-upgrades-and-falls-back", |lab| {
            upgrades_and_falls_back(lab, Loader::GrubBios)
        }),
        proved_in_machine("vm/grub-falls-back-from-a-kernel-panic", |lab| {
            panics(lab, Loader::Grub)
        }),
        proved_in_machine("vm/grub-on-a-bios-falls-back-from-a-kernel-panic", |lab| {
            panics(lab, Loader::GrubBios)
        }),
        proved_in_machine("vm/grub-loses-power-while-it-activates", |lab| {
            loses_power(lab, Loader::Grub)
        }),
        proved_in_machine("vm/uboot-upgrades-and-falls-back", |lab| {
            upgrades_and_falls_back(lab, Loader::Uboot)
        }),
        proved_in_machine("vm/uboot-with-a-raw-pair-upgrades-and-falls-back", |lab| {
            upgrades_and_falls_back(lab, Loader::UbootRaw)
        }),
        proved_in_machine("vm/uboot-falls-back-from-a-kernel-panic", |lab| {
            panics(lab, Loader::Uboot)
        }),
        proved_in_machine("vm/grub-stops-where-both-slots-are-bad", |lab| {
            stops(lab, Loader::Grub)
        }),
    ]
}

fn start(lab: &Lab, loader: Loader) -> Result<Node> {
    let options = NodeOptions {
        loader,
        ..NodeOptions::new(&V1)
    };
    let mut node = Node::start_with(lab, &options)?;
    let backend = node.loader()?["loader"]["backend"].clone();
    ensure!(
        backend == loader.backend(),
        "slotd-bootctl took the boot loader for {backend}"
    );
    node.expect(&fresh())?;
    Ok(node)
}

const fn fresh() -> Expected<'static> {
    Expected {
        booted: 'A',
        version: V1.version(),
        states: ["good", "empty"],
        entries: &[],
    }
}

/// From A to B for good, where ten power cycles take nothing from it; then an image whose health check says no comes to A, and
/// the node is back on B.
fn upgrades_and_falls_back(lab: &Lab, loader: Loader) -> Result<()> {
    let mut node = start(lab, loader)?;
    node.upgrade('B', &lab.artifacts_of(loader.architecture())?.image(&V2)?)?;
    node.power_cycles(2, &Expected::both_good('B', V2.version()))?;

    let image = lab.artifacts_of(loader.architecture())?.image(&UNHEALTHY)?;
    let before = node.machine.disk().slot_digest('b')?;
    let command = node.install_command(&image, "");
    let printed = node.run_until_reboot(&command)?;
    let patience = node.machine.patience(200);
    let mut boot = node.settle(patience)?;
    if boot.slot == "a" {
        // It got as far as multi-user.target on trial, and down again.
        boot = node.settle(patience)?;
    }
    boot.expect('B', V2.version())
        .with_context(|| format!("after this output:\n{printed}"))?;
    let expected = Expected {
        booted: 'B',
        version: V2.version(),
        states: ["bad", "good"],
        entries: &[],
    };
    node.expect(&expected)?;
    ensure!(
        node.machine.disk().slot_digest('b')? == before,
        "slot B, which was booted, was written to"
    );
    let result = node.last_result()?;
    ensure!(
        result["result"] == "RolledBack"
            && result["slot"] == "A"
            && result["failure"]["check"]
                .as_str()
                .is_some_and(|check| check.contains("50-app")),
        "the history says {result:#}"
    );
    node.power_cycles(1, &expected)
}

/// Nothing of userspace runs on the trial: the loader alone gives the slot up.
fn panics(lab: &Lab, loader: Loader) -> Result<()> {
    let (mut node, result) = falls_back(lab, &PANICS, loader, 1, &[])?;
    given_up_by_the_loader(&result)?;
    // Ten power cycles cost a proven slot nothing.
    let expected = Expected {
        booted: 'A',
        version: V1.version(),
        states: ["good", "bad"],
        entries: &[],
    };
    node.power_cycles(10, &expected)
}

/// The power goes once the loader has counted the trial, before userspace is up; the second try is confirmed.
fn loses_power(lab: &Lab, loader: Loader) -> Result<()> {
    let mut node = start(lab, loader)?;
    let v2 = lab.artifacts_of(loader.architecture())?.image(&V2)?;
    node.upgraded('B', &v2, |node| {
        let command = node.install_command(&v2, "");
        let deadline = Instant::now() + node.machine.patience(120);
        node.machine.start(&command)?;
        loop {
            // While it is written the environment is read as it was or as it is.
            let held = loader.held(node.machine.disk().path())?;
            if held.is_some_and(|held| held.tries_left[1] == Some(1)) {
                break;
            }
            ensure!(Instant::now() < deadline, "no trial boot began");
            std::thread::sleep(Duration::from_millis(50));
        }
        node.machine.power_cut();
        node.machine.power_on()?;
        Ok(String::new())
    })?;
    node.power_cycles(1, &Expected::both_good('B', V2.version()))
}

/// Both slots are marked bad behind slotd's back: the loader says so and stops, and once one of them is good again, starts it.
fn stops(lab: &Lab, loader: Loader) -> Result<()> {
    let mut node = Node::off(lab, &short_trial(loader))?;
    let disk = node.machine.disk().path().to_owned();
    loader.set(&disk, &[("slotd_a_ok", "0"), ("slotd_a_tries", "0")])?;
    node.machine.power_on()?;
    let patience = node.machine.patience(60);
    node.machine
        .wait_for_console("word that no slot can be started", patience, |line| {
            line.contains("slotd: NEITHER SLOT CAN BE STARTED")
                .then_some(())
        })?;
    // It stays there: no reset loop.
    let quiet = Instant::now() + Duration::from_secs(15);
    while Instant::now() < quiet {
        ensure!(
            !node.machine.is_rebooting()?,
            "the loader reset the machine instead of stopping"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    node.machine.power_cut();
    loader.set(&disk, &[("slotd_a_ok", "1")])?;
    node.machine.power_on()?;
    node.machine.wait_for_boot()?.expect('A', V1.version())?;
    node.expect(&fresh())
}
