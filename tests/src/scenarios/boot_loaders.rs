//! One set of scenarios for every boot loader but systemd-boot, which has its own files, on the real loader: a good upgrade,
//! images that fall back, power cuts, a proven slot that stays proven, and both slots bad.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::upgrades::{falls_back, given_up_by_the_loader, short_trial};
use super::{in_machine, proved_in_machine};
use crate::images::{PANICS, UNHEALTHY, V1, V2, V3, WITH_UNIFIED_KERNEL};
use crate::lab::{Lab, NodeOptions};
use crate::loader::{Loader, VARIABLE_STORE};
use crate::node::{Expected, FRESH, Node};
use crate::process;
use crate::runner::Test;

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_machine("vm/uboot-upgrades-and-falls-back", |lab| {
            upgrades_and_falls_back(lab, Loader::Uboot)
        }),
        in_machine("vm/grub-upgrades-and-falls-back", |lab| {
            upgrades_and_falls_back(lab, Loader::Grub)
        }),
        proved_in_machine("vm/grub-on-a-bios-upgrades-and-falls-back", |lab| {
            upgrades_and_falls_back(lab, Loader::GrubBios)
        }),
        told(in_machine("vm/efi-upgrades-and-falls-back", |lab| {
            upgrades_and_falls_back(lab, Loader::Efi)
        })),
        proved_in_machine("vm/grub-falls-back-from-a-kernel-panic", |lab| {
            panics(lab, Loader::Grub)
        }),
        proved_in_machine("vm/grub-on-a-bios-falls-back-from-a-kernel-panic", |lab| {
            panics(lab, Loader::GrubBios)
        }),
        proved_in_machine("vm/grub-loses-power-while-it-activates", |lab| {
            loses_power(lab, Loader::Grub)
        }),
        proved_in_machine("vm/uboot-with-a-raw-pair-upgrades-and-falls-back", |lab| {
            upgrades_and_falls_back(lab, Loader::UbootRaw)
        }),
        proved_in_machine("vm/uboot-falls-back-from-a-kernel-panic", |lab| {
            panics(lab, Loader::Uboot)
        }),
        proved_in_machine(
            "vm/uboot-with-a-raw-pair-falls-back-from-a-kernel-panic",
            |lab| panics(lab, Loader::UbootRaw),
        ),
        proved_in_machine(
            "vm/uboot-takes-the-device-tree-of-the-slot-that-boots",
            device_tree,
        ),
        proved_in_machine("vm/uboot-loses-power-while-it-activates", |lab| {
            loses_power(lab, Loader::Uboot)
        }),
        proved_in_machine("vm/grub-stops-where-both-slots-are-bad", |lab| {
            stops(lab, Loader::Grub)
        }),
        proved_in_machine("vm/uboot-stops-where-both-slots-are-bad", |lab| {
            stops(lab, Loader::Uboot)
        }),
        proved_in_machine("vm/systemd-boot-starts-a-unified-kernel-image", |lab| {
            unified(lab, Loader::SystemdBoot)
        }),
        told(proved_in_machine(
            "vm/efi-starts-a-unified-kernel-image",
            |lab| unified(lab, Loader::Efi),
        )),
        told(proved_in_machine(
            "vm/efi-falls-back-from-a-kernel-panic",
            |lab| panics(lab, Loader::Efi),
        )),
        told(proved_in_machine(
            "vm/efi-loses-power-on-the-only-boot-of-a-trial",
            loses_the_only_boot,
        )),
        told(proved_in_machine(
            "vm/efi-stays-in-the-firmware-where-both-slots-are-bad",
            stays_in_the_firmware,
        )),
    ]
}

/// A machine whose firmware was told of its disk: efibootmgr wants a block device for that.
const fn told(test: Test) -> Test {
    Test {
        unavailable: crate::loopdisk::unavailable,
        ..test
    }
}

/// A node as any other, with this boot loader.
const fn with(loader: Loader) -> NodeOptions<'static> {
    NodeOptions {
        loader,
        ..NodeOptions::new(&V1)
    }
}

fn start(lab: &Lab, loader: Loader) -> Result<Node> {
    let mut node = Node::start_with(lab, &with(loader))?;
    let backend = node.loader()?["loader"]["backend"].clone();
    ensure!(
        backend == loader.backend(),
        "slotd-bootctl took the boot loader for {backend}"
    );
    node.expect(&FRESH)?;
    Ok(node)
}

/// From A to B for good; then an image whose health check says no comes to A, and the node is back on B. Where all is proven,
/// power cycles take nothing from B before and after.
fn upgrades_and_falls_back(lab: &Lab, loader: Loader) -> Result<()> {
    let mut node = start(lab, loader)?;
    node.upgrade('B', &lab.artifacts_of(loader.architecture())?.image(&V2)?)?;
    if lab.proves() {
        node.power_cycles(2, &Expected::both_good('B', V2.version()))?;
    }

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
    if lab.proves() {
        node.power_cycles(1, &expected)?;
    }
    Ok(())
}

/// Nothing of userspace runs on the trial: the loader alone gives the slot up.
fn panics(lab: &Lab, loader: Loader) -> Result<()> {
    let (mut node, result) = falls_back(lab, &PANICS, &short_trial(loader), 1, &[])?;
    given_up_by_the_loader(&result, loader.boots_of_a_trial(2))?;
    // Ten power cycles cost a proven slot nothing.
    let expected = Expected {
        booted: 'A',
        version: V1.version(),
        states: ["good", "bad"],
        entries: &[],
    };
    node.power_cycles(10, &expected)
}

/// The power goes as soon as the trial is on the disk, and again once the loader has counted it, before userspace is up; the second
/// try is confirmed.
fn loses_power(lab: &Lab, loader: Loader) -> Result<()> {
    let mut node = start(lab, loader)?;
    let v2 = lab.artifacts_of(loader.architecture())?.image(&V2)?;
    node.upgraded('B', &v2, |node| {
        let command = node.install_command(&v2, "");
        node.machine.start(&command)?;
        for left in [2, 1] {
            let deadline = Instant::now() + node.machine.patience(120);
            loop {
                // While it is written the environment is read as it was or as it is.
                let held = loader.held(node.machine.disk().path())?;
                let tries = held.and_then(|held| held.tries_left[1]);
                if tries == Some(left) {
                    break;
                }
                ensure!(
                    Instant::now() < deadline && tries.is_none_or(|tries| tries > left),
                    "slot B has {tries:?} tries, not {left}"
                );
                std::thread::sleep(Duration::from_millis(50));
            }
            node.machine.power_cut();
            node.machine.power_on()?;
        }
        Ok(String::new())
    })?;
    node.power_cycles(1, &Expected::both_good('B', V2.version()))
}

/// Both slots are given up behind slotd's back: the loader says so and stops, and once one of them is good again, starts it.
fn stops(lab: &Lab, loader: Loader) -> Result<()> {
    let mut node = Node::off(lab, &short_trial(loader))?;
    let disk = node.machine.disk().path().to_owned();
    let bad = [
        ("slotd_a_ok", "0"),
        ("slotd_a_tries", "0"),
        ("slotd_b_ok", "0"),
        ("slotd_b_tries", "0"),
    ];
    loader.set(&disk, &bad)?;
    stays_at_a_message(&mut node)?;
    loader.set(&disk, &[("slotd_a_ok", "1")])?;
    node.machine.power_on()?;
    node.machine.wait_for_boot()?.expect('A', V1.version())?;
    node.expect(&Expected {
        states: ["good", "bad"],
        ..FRESH
    })
}

/// The firmware has options of both slots, none of which it may start: it stays in its own programs; with the variables of before it
/// starts slot A.
fn stays_in_the_firmware(lab: &Lab) -> Result<()> {
    let mut node = Node::off(lab, &short_trial(Loader::Efi))?;
    let disk = node.machine.disk().path().to_owned();
    let store = node.machine.folder().join(VARIABLE_STORE);
    let before = fs::read(&store).context("reading the firmware's variables")?;
    Loader::Efi.with_firmware(
        &disk,
        "efibootmgr --quiet --delete-bootorder\n\
         efibootmgr --quiet --bootnum 0000 --inactive\n\
         efibootmgr --quiet --create-only --bootnum 0007 --disk \"$DISK\" --part 1 --label 'slotd B trial' \
         --loader '\\EFI\\slotd\\b\\linux.efi' --unicode 'slotd.slot=b slotd.trial'",
    )?;
    stays_at_a_message(&mut node)?;
    fs::write(&store, before).context("writing the firmware's variables")?;
    node.machine.power_on()?;
    node.machine.wait_for_boot()?.expect('A', V1.version())?;
    node.expect(&FRESH)
}

/// Neither slot can be started: the loader stops where a person sees why, and is in no reset loop. The machine is off then.
fn stays_at_a_message(node: &mut Node) -> Result<()> {
    let message = node.machine.loader().stops_with().context("a message")?;
    node.machine.power_on()?;
    let patience = node.machine.patience(90);
    node.machine
        .wait_for_console("word that no slot can be started", patience, |line| {
            line.contains(message).then_some(())
        })?;
    let quiet = Instant::now() + Duration::from_secs(15);
    while Instant::now() < quiet {
        ensure!(
            !node.machine.is_rebooting()?,
            "something was started instead of stopping"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    node.machine.power_cut();
    Ok(())
}

/// The power goes in the trial's only boot: the firmware has forgotten it by then, and starts the good slot.
fn loses_the_only_boot(lab: &Lab) -> Result<()> {
    let mut node = start(lab, Loader::Efi)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    let command = node.install_command(&v2, "");
    node.machine.start(&command)?;
    let patience = node.machine.patience(120);
    node.machine
        .wait_for_console("start of the trial", patience, |line| {
            (line.contains("BdsDxe: starting") && line.contains("slotd B trial")).then_some(())
        })?;
    node.machine.power_cut();
    node.machine.power_on()?;
    let patience = node.machine.patience(120);
    node.settle(patience)?.expect('A', V1.version())?;
    let expected = Expected {
        booted: 'A',
        version: V1.version(),
        states: ["good", "bad"],
        entries: &[],
    };
    node.expect(&expected)?;
    given_up_by_the_loader(&node.last_result()?, 1)?;
    node.power_cycles(1, &expected)?;
    // What was given up once is tried anew when it is asked for.
    node.upgrade('B', &v2)?;
    node.power_cycles(1, &Expected::both_good('B', V2.version()))
}

/// The next image is started by systemd's stub, which hands the options on that slotd gave it, and one with a plain kernel replaces it.
fn unified(lab: &Lab, loader: Loader) -> Result<()> {
    let mut node = start(lab, loader)?;
    node.upgrade('B', &lab.artifacts()?.image(&WITH_UNIFIED_KERNEL)?)?;
    let stub = node
        .machine
        .run("cat /sys/firmware/efi/efivars/StubInfo-* | tr -d '\\0'")?;
    // Behind four bytes of attributes.
    ensure!(
        stub.contains("systemd-stub "),
        "slot B was started by {stub:?}"
    );
    let both = Expected::both_good('B', WITH_UNIFIED_KERNEL.version());
    node.power_cycles(1, &both)?;
    node.upgrade('A', &lab.artifacts()?.image(&V3)?)?;
    node.power_cycles(1, &Expected::both_good('A', V3.version()))
}

/// Slot A has a device tree of its own, which is this board's under another name; the next image has none, and U-Boot's own
/// is taken.
fn device_tree(lab: &Lab) -> Result<()> {
    const NAME: &str = "board of slot A";
    let loader = Loader::Uboot;
    let mut node = Node::off(lab, &with(loader))?;
    let tree = node.machine.device_tree()?;
    process::run("fdtput", |command| {
        command
            .arg("-t")
            .arg("s")
            .arg(&tree)
            .args(["/", "model", NAME])
    })?;
    node.machine.disk().add_to_slot('a', &tree, "/boot/dtb")?;
    node.machine.power_on()?;
    node.machine.wait_for_boot()?.expect('A', V1.version())?;
    let model = |node: &mut Node| -> Result<String> {
        let text = node.machine.run("tr -d '\\0' </proc/device-tree/model")?;
        Ok(text.trim().to_owned())
    };
    let of_a = model(&mut node)?;
    ensure!(of_a == NAME, "slot A runs with the device tree of {of_a:?}");
    node.upgrade('B', &lab.artifacts_of(loader.architecture())?.image(&V2)?)?;
    let of_b = model(&mut node)?;
    // hw/arm/virt.c of QEMU.
    ensure!(
        of_b == "linux,dummy-virt",
        "slot B runs with the device tree of {of_b:?}"
    );
    Ok(())
}
