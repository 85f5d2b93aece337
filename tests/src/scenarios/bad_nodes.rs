//! Nodes that are not as they should be: configuration, state, loader, partitions. Each refusal names what is wrong.

use anyhow::{Context, Result, ensure};

use super::in_machine;
use crate::images::{V1, V2};
use crate::lab::{CONFIGURATION, Lab};
use crate::node::Node;
use crate::runner::Test;
use crate::server::{Body, Fault};

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_machine(
            "vm/a-loader-that-cannot-be-relied-on-is-refused-before-writing",
            loader,
        ),
        in_machine(
            "vm/slots-that-are-missing-mounted-or-the-same-are-refused",
            slots,
        ),
        in_machine(
            "vm/configuration-and-state-that-cannot-be-used-are-named",
            settings,
        ),
        in_machine(
            "vm/an-install-is-stopped-by-signal-and-not-doubled",
            interruptions,
        ),
        in_machine(
            "vm/a-device-error-in-the-middle-of-the-write-leaves-the-slot-empty",
            device_error,
        ),
    ]
}

const CONFIGURATION_ERROR: u32 = 3;
const REJECTED: u32 = 4;
const UNSAFE: u32 = 5;
const BUSY: u32 = 7;
const NOT_RUNNING: u32 = 8;

fn loader(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    let before = [
        node.machine.slot_digest('a')?,
        node.machine.slot_digest('b')?,
    ];
    let install = node.install_command(&v2, "");
    let entry = "/efi/loader/entries/0-other.conf";
    let variable =
        "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
    // What spoils it, what undoes that, and what has to be said.
    let cases = [
        (
            "mount -o remount,ro /efi",
            "mount -o remount,rw /efi",
            "/efi",
        ),
        (
            "echo 'default other*' >> /efi/loader/loader.conf",
            "sed -i /default/d /efi/loader/loader.conf",
            "default",
        ),
        (
            &format!("printf '\\007\\000\\000\\000o\\000\\000\\000' > {variable}"),
            &format!("chattr -i {variable}; rm {variable}"),
            "LoaderEntryDefault",
        ),
        (
            &format!("printf 'title other\\nsort-key aaa\\nlinux /slotd/a/linux\\n' > {entry}"),
            &format!("rm {entry}"),
            "0-other",
        ),
        (
            "head -c $(($(stat -f -c '%a * %S' /efi) - 4194304)) /dev/zero > /efi/filler",
            "rm /efi/filler",
            "/efi",
        ),
    ];
    for (spoil, mend, says) in cases {
        node.machine.run(spoil)?;
        let output = node.machine.try_run(&install)?;
        ensure!(
            [CONFIGURATION_ERROR, REJECTED, UNSAFE].contains(&output.code)
                && output.stderr.contains(says),
            "after {spoil:?}, {install:?} did this: {output:?}"
        );
        node.machine.run(mend)?;
    }
    node.machine.run("umount /efi")?;
    let output = node.machine.try_run(&install)?;
    ensure!(
        [CONFIGURATION_ERROR, UNSAFE].contains(&output.code) && output.stderr.contains("boot"),
        "without an ESP, {install:?} did this: {output:?}"
    );
    let status = node.machine.try_run("slotd-bootctl status")?;
    ensure!(
        status.code == CONFIGURATION_ERROR,
        "slotd-bootctl without an ESP: {status:?}"
    );
    node.machine.run("mount /efi")?;
    let after = [
        node.machine.slot_digest('a')?,
        node.machine.slot_digest('b')?,
    ];
    ensure!(before == after, "something was written");
    ensure!(node.machine.loader_entries()? == ["slotd-a.conf"]);

    // All of it undone, the same command goes through.
    let (boot, printed) = node.install(&v2, "")?;
    ensure!(
        boot.slot == "b" && boot.version == V2.version(),
        "ended in {boot:?}\n{printed}"
    );
    Ok(())
}

fn slots(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    let before = node.machine.slot_digest('a')?;
    let stage = node.install_command(&v2, "--stage-only");
    let patience = node.machine.patience(120);
    let output = node.machine.try_run_within(&stage, patience)?;
    ensure!(output.code == 0, "{stage:?}: {output:?}");

    // A mounted slot is not written to, whoever mounted it.
    node.machine
        .run("mkdir -p /run/slot && mount -o ro,noload /dev/nvme0n1p3 /run/slot")?;
    let staged = node.machine.slot_digest('b')?;
    let again = node.install_command(&v2, "--stage-only --allow-same-version");
    let output = node.machine.try_run_within(&again, patience)?;
    ensure!(
        output.code != 0 && output.stderr.contains("nvme0n1p3"),
        "{again:?} onto a mounted slot: {output:?}"
    );
    ensure!(
        node.machine.slot_digest('b')? == staged,
        "the mounted slot was written to"
    );
    node.machine.run("umount /run/slot")?;

    let pairs = [
        ("/dev/nvme0n1p2", "/dev/nvme0n1p2", "same"),
        ("PARTLABEL=root-a", "PARTLABEL=root-c", "root-c"),
        ("PARTLABEL=root-a", "/dev/nvme0n1p9", "nvme0n1p9"),
    ];
    for (a, b, says) in pairs {
        let command = format!("slotd-bootctl --slot-a {a} --slot-b {b} status");
        node.refused(&command, CONFIGURATION_ERROR, &[says])?;
        node.write_file("/run/slots.yaml", &format!("slots: {{a: {a}, b: {b}}}\n"))?;
        node.machine.run(
            "mkdir -p /run/root/etc/slotd && mv /run/slots.yaml /run/root/etc/slotd/config.yaml",
        )?;
        let url = node.server.serve_file(&v2.path);
        let flash = format!(
            "slotd --config-root /run/root flash {url} --slot B --checksum {}",
            v2.checksum
        );
        node.refused(&flash, CONFIGURATION_ERROR, &[says])?;
    }
    // The booted slot cannot even be asked for.
    let url = node.server.serve_file(&v2.path);
    let flash = format!("slotd flash {url} --slot A --checksum {}", v2.checksum);
    let output = node.machine.try_run(&flash)?;
    ensure!(
        [REJECTED, UNSAFE].contains(&output.code) && output.stderr.contains("booted"),
        "{output:?}"
    );
    ensure!(
        node.machine.slot_digest('a')? == before,
        "slot A, which was booted, was written to"
    );

    // A label that two partitions of the disk carry tells nothing.
    node.machine
        .run("sfdisk --no-reread --no-tell-kernel --part-label /dev/nvme0n1 4 root-b")?;
    node.refused("slotd-bootctl status", CONFIGURATION_ERROR, &["root-b"])?;
    node.machine
        .run("sfdisk --no-reread --no-tell-kernel --part-label /dev/nvme0n1 4 data")?;
    node.machine
        .run("sfdisk --no-reread --no-tell-kernel --part-label /dev/nvme0n1 3 other")?;
    node.refused("slotd-bootctl status", CONFIGURATION_ERROR, &["root-a"])?;
    node.machine
        .run("sfdisk --no-reread --no-tell-kernel --part-label /dev/nvme0n1 3 root-b")?;
    node.machine.run("slotd-bootctl status")?;
    node.power_cycles(1, 'A', V1.version())
}

fn settings(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let before = [
        node.machine.slot_digest('a')?,
        node.machine.slot_digest('b')?,
    ];
    for (text, says) in [
        (
            "boot: {panic: 2}\ntrails: {tries: 2}\n",
            ["config.yaml:2", "trails"],
        ),
        ("trial:\n  tries: many\n", ["config.yaml:2", "tries"]),
    ] {
        node.write_file("/etc/slotd/config.yaml", text)?;
        node.refused("slotd config show", CONFIGURATION_ERROR, &says)?;
        node.machine.try_run("systemctl restart slotd.service")?;
        let journal = node
            .machine
            .run("journalctl -b -u slotd.service -n 20 -o cat --no-pager")?;
        ensure!(
            journal.contains(says[0]),
            "the journal does not say {:?}:\n{journal}",
            says[0]
        );
        node.refused("slotd status", NOT_RUNNING, &[])?;
    }
    node.write_file("/etc/slotd/config.yaml", CONFIGURATION)?;
    restart(&mut node)?;

    // A state directory on the slot itself, and one that cannot be written to.
    for (directory, says) in [("/opt/slotd", "/opt/slotd"), ("/proc/slotd", "/proc/slotd")] {
        let text = format!("{CONFIGURATION}stateDirectory: {directory}\n");
        node.write_file("/etc/slotd/config.yaml", &text)?;
        node.machine.try_run("systemctl restart slotd.service")?;
        let status = node.machine.try_run("slotd status")?;
        let journal = node
            .machine
            .run("journalctl -b -u slotd.service -n 20 -o cat --no-pager")?;
        ensure!(
            status.stdout.contains(says) || status.stderr.contains(says) || journal.contains(says),
            "{directory}: {status:?}\n{journal}"
        );
    }
    node.write_file("/etc/slotd/config.yaml", CONFIGURATION)?;
    restart(&mut node)?;

    let state = "/var/lib/slotd/state.json";
    for (text, says) in [
        ("", "empty"),
        ("{\"version\": 1, \"min_rea", state),
        (
            "{\"version\": 99, \"min_reader\": 99, \"record\": {}}",
            "99",
        ),
    ] {
        node.machine.run("systemctl stop slotd.service")?;
        node.write_file(state, text)?;
        node.machine.try_run("systemctl start slotd.service")?;
        let status = node.machine.try_run("slotd status")?;
        let journal = node
            .machine
            .run("journalctl -b -u slotd.service -n 20 -o cat --no-pager")?;
        let seen = format!("{}{}{journal}", status.stdout, status.stderr);
        ensure!(
            seen.contains(state) && seen.contains(says),
            "with {text:?} as state nobody says {says:?}:\n{seen}"
        );
        // Nothing is lost: what could not be read is still there, under one name or another.
        if !text.is_empty() {
            let kept = node.machine.run(&format!("cat {state}*"))?;
            ensure!(
                kept.contains(text),
                "the state that could not be read is gone: {kept}"
            );
        }
        node.machine
            .run(&format!("systemctl stop slotd.service; rm -f {state}*"))?;
        restart(&mut node)?;
    }

    node.machine.run("systemctl stop slotd.service")?;
    node.refused("slotd status", NOT_RUNNING, &["not running"])?;
    node.refused("slotd activate", NOT_RUNNING, &["not running"])?;
    let after = [
        node.machine.slot_digest('a')?,
        node.machine.slot_digest('b')?,
    ];
    ensure!(before == after, "something was written");
    node.power_cycles(1, 'A', V1.version())
}

/// Restarts the agent and waits until it answers.
fn restart(node: &mut Node) -> Result<()> {
    node.machine
        .run("systemctl reset-failed slotd.service; systemctl restart slotd.service")?;
    let deadline = std::time::Instant::now() + node.machine.patience(20);
    while node.machine.try_run("slotd status")?.code != 0 {
        ensure!(
            std::time::Instant::now() < deadline,
            "the agent does not answer"
        );
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    Ok(())
}

fn interruptions(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    let before = node.machine.slot_digest('a')?;
    let length = std::fs::metadata(&v2.path)
        .context("the image's size")?
        .len();
    node.server.serve(
        "/stall",
        Body::File(v2.path.clone()),
        Fault::StallAt(length / 2),
    );
    let url = node.server.guest_url("/stall");
    let stalled = format!("slotd install {url} --checksum {}", v2.checksum);
    node.machine.run(&format!("{stalled} --no-wait"))?;
    node.wait_until_written(64 << 20)?;

    let second = node.install_command(&v2, "");
    node.refused(&second, BUSY, &["/stall"])?;

    // SIGTERM while bytes move: the agent stops in good time and leaves a slot that cannot be selected.
    node.machine
        .run("timeout 30 systemctl stop slotd.service")?;
    let result = node
        .machine
        .run("systemctl show --property Result --value slotd.service")?;
    ensure!(
        result.trim() == "success",
        "slotd.service ended with {result}"
    );
    let loader = node.loader()?;
    ensure!(
        loader["slots"][1]["state"] == "empty",
        "slot B is {}",
        loader["slots"][1]
    );
    node.machine.run("systemctl start slotd.service")?;
    node.machine.run("slotd cancel || true")?;
    restart(&mut node)?;
    let entries = node.machine.loader_entries()?;
    ensure!(entries == ["slotd-a.conf"], "the ESP holds {entries:?}");
    ensure!(
        node.machine.slot_digest('a')? == before,
        "slot A, which was booted, was written to"
    );
    node.power_cycles(1, 'A', V1.version())
}

fn device_error(lab: &Lab) -> Result<()> {
    let mut node = Node::off(lab, &V1, CONFIGURATION, &[])?;
    let v2 = lab.artifacts()?.image(&V2)?;
    // A sector in the middle of slot B that takes no write.
    node.machine.fail_writes_to_slot('b', 96 << 20)?;
    node.machine.power_on()?;
    node.machine.wait_for_boot()?;
    let before = node.machine.slot_digest('a')?;
    let command = node.install_command(&v2, "");
    let patience = node.machine.patience(120);
    let output = node.machine.try_run_within(&command, patience)?;
    ensure!(
        output.code != 0 && output.stderr.contains("nvme0n1p3") && output.stderr.contains("byte"),
        "{command:?}: {output:?}"
    );
    let loader = node.loader()?;
    ensure!(
        loader["slots"][1]["state"] == "empty",
        "slot B is {}",
        loader["slots"][1]
    );
    ensure!(node.machine.loader_entries()? == ["slotd-a.conf"]);
    ensure!(
        node.machine.slot_digest('a')? == before,
        "slot A, which was booted, was written to"
    );
    let result = node.last_result()?;
    ensure!(result["result"] == "Failed", "the history says {result:#}");
    node.power_cycles(1, 'A', V1.version())
}
