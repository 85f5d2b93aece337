//! The reference disk without slotd's doing: that its loader counts, falls back and keeps what is good. What later scenarios show
//! of slotd rests on this.

use anyhow::{Context, Result, ensure};

use super::proved_in_machine;
use crate::esp;
use crate::images::V1;
use crate::lab::Lab;
use crate::node::{FRESH, Node};
use crate::runner::Test;

pub(super) fn tests() -> Vec<Test> {
    vec![
        proved_in_machine(
            "vm/the-reference-disk-counts-down-and-falls-back",
            counts_and_falls_back,
        ),
        proved_in_machine(
            "vm/systemd-boot-keeps-a-proven-slot-and-starts-a-spent-one-as-a-last-resort",
            last_resort,
        ),
    ]
}

/// Ten power cycles take nothing from a proven slot. Where both slots are spent, systemd-boot starts one of them all the same, and
/// the system that comes up stays.
fn last_resort(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    node.power_cycles(10, &FRESH)?;
    node.machine.power_cut();
    let disk = node.machine.disk().path().to_owned();
    let entry = esp::read(&disk, "/loader/entries/slotd-a.conf")?;
    esp::write(&disk, "/loader/entries/slotd-a+0-3.conf", &entry)?;
    let other = entry
        .replace("version 1", "version 0")
        .replace("slotd.slot=a", "slotd.slot=b");
    esp::write(&disk, "/loader/entries/slotd-b+0-2.conf", &other)?;
    esp::remove(&disk, "/loader/entries/slotd-a.conf")?;
    node.machine.power_on()?;
    let boot = node.machine.wait_for_boot()?;
    boot.expect('A', V1.version())?;
    let status = node.loader()?;
    ensure!(
        status["slots"][0]["booted"] == true
            && status["loader"]["problems"]
                .to_string()
                .contains("noGoodSlot"),
        "slotd-bootctl status says {status:#}"
    );
    // Once all is up nothing has rebooted it.
    let patience = node.machine.patience(60);
    node.machine
        .try_run_within("systemctl is-system-running --wait", patience)?;
    let id = node.machine.run("cat /proc/sys/kernel/random/boot_id")?;
    ensure!(id.trim() == boot.id, "the machine rebooted");
    Ok(())
}

fn counts_and_falls_back(lab: &Lab) -> Result<()> {
    let mut machine = lab.machine("machine")?;
    let entry = esp::read(machine.disk().path(), "/loader/entries/slotd-a.conf")?;
    // Slot B with a root that does not exist: its kernel panics.
    let root = entry
        .split(' ')
        .find(|word| word.starts_with("root="))
        .context("the entry has no root=")?;
    let trial = entry
        .replace(root, "root=PARTLABEL=nothing-there")
        .replace("version 1", "version 2")
        .replace("panic=10", "panic=1")
        .replace("slotd.slot=a", "slotd.slot=b");
    esp::write(
        machine.disk().path(),
        "/loader/entries/slotd-b+2.conf",
        &trial,
    )?;
    let before = machine.disk().slot_digest('a')?;

    machine.power_on()?;
    for left in [1, 0] {
        machine.wait_for_console("kernel panic", machine.patience(40), |line| {
            line.contains("Unable to mount root fs").then_some(())
        })?;
        let name = format!("slotd-b+{left}-{}.conf", 2 - left);
        ensure!(
            machine.disk().loader_entries()?.contains(&name),
            "{name} is not on the ESP"
        );
    }
    let boot = machine.wait_for_boot()?;
    boot.expect('A', V1.version())?;
    ensure!(
        machine.disk().loader_entries()? == ["slotd-a.conf", "slotd-b+0-2.conf"],
        "the ESP holds {:?}",
        machine.disk().loader_entries()?
    );

    // What the recipe promises.
    let mounts = machine.run("cat /proc/mounts")?;
    ensure!(
        mounts
            .lines()
            .any(|line| line.starts_with("/dev/") && line.contains(" / ext4 ro")),
        "{mounts}"
    );
    ensure!(
        mounts.contains(" /var/lib/slotd ext4 rw") && mounts.contains(" /efi vfat rw"),
        "{mounts}"
    );
    machine.run("echo kept > /var/lib/slotd/kept; ! touch /usr/x")?;
    let id = machine.run("cat /etc/machine-id")?;
    ensure!(
        entry.contains(&format!("machine-id {}", id.trim())),
        "the machine id is {id}"
    );

    // How far the agent's unit is shut off, by systemd's own measure from 0.0 to 10.0.
    let analysis = machine.run("systemd-analyze security --no-pager slotd.service")?;
    let exposure = analysis
        .split_once("Overall exposure level for slotd.service: ")
        .and_then(|(_, rest)| rest.split(' ').next())
        .with_context(|| format!("no figure in\n{analysis}"))?;
    lab.note(format!(
        "systemd-analyze security slotd.service: {exposure}"
    ));
    ensure!(exposure.parse::<f64>()? <= 4.0, "{analysis}");

    // PID 1 would leave a job out to break one. Its first words show that the journal begins early enough.
    let journal = machine.run(
        "journalctl --boot --no-pager --output cat | grep -i -e 'ordering cycle' -e 'running in system mode'",
    )?;
    ensure!(
        journal.contains("running in system mode")
            && !journal.to_lowercase().contains("ordering cycle"),
        "the journal says\n{journal}"
    );

    let again = machine.reboot()?;
    ensure!(again.slot == "a" && again.id != boot.id, "booted {again:?}");
    ensure!(machine.run("cat /var/lib/slotd/kept /etc/machine-id")? == format!("kept\n{id}"));
    let failed = machine.run("systemctl --failed --no-legend --plain")?;
    ensure!(failed.is_empty(), "units failed:\n{failed}");
    ensure!(
        machine.disk().slot_digest('a')? == before,
        "the booted slot was written to"
    );
    Ok(())
}
