//! Requests that come while an upgrade is under way, and an agent that is stopped in the middle of one.

use anyhow::{Result, ensure};

use super::group::{Group, Leaves, TARGET, wait_for, wait_until_ready};
use super::images::{MIB, STAGE, Small, serve};
use crate::node::Node;
use crate::server::Fault;

pub(super) fn check(group: &mut Group, small: &Small) -> Result<()> {
    while_one_runs(group, small)?;
    table_changed(group, small)?;
    terminated(group, small)
}

/// Begins an installation in the background that stalls half way, and waits until bytes reached the slot.
fn stalled(node: &mut Node, small: &Small) -> Result<()> {
    let length = std::fs::metadata(&small.zstd.path)?.len();
    let url = serve(node, &small.zstd, Fault::StallAt(length / 2));
    node.machine.run(&format!(
        "rm -f /run/first.code; setsid sh -c 'slotd install {url} --checksum {} {STAGE} >/run/first.out 2>&1; \
         echo $? >/run/first.code' >/dev/null 2>&1 &",
        small.zstd.checksum
    ))?;
    wait_for(node, "half of the image is written", |node| {
        let status = node.status()?;
        let written = status["upgrade"]["progress"]["bytesWritten"].as_u64();
        Ok(written.is_some_and(|bytes| bytes >= 8 * MIB))
    })
}

/// The exit code and the words of the installation in the background.
fn first_one(node: &mut Node) -> Result<(String, String)> {
    wait_for(node, "the first installation returns", |node| {
        Ok(node.machine.try_run("test -s /run/first.code")?.code == 0)
    })?;
    let code = node.machine.run("cat /run/first.code")?;
    let text = node.machine.run("cat /run/first.out")?;
    Ok((code.trim().to_owned(), text))
}

/// A server that is slow is waited for in these.
fn patient(group: &mut Group, patient: bool) -> Result<()> {
    let path = "/etc/slotd/config.d/30-patient.yaml";
    if patient {
        group.node.write_file(path, "fetch: {idleTimeout: 60s}\n")?;
    } else {
        group.node.machine.run(&format!("rm {path}"))?;
    }
    group.restart_agent()
}

fn while_one_runs(group: &mut Group, small: &Small) -> Result<()> {
    patient(group, true)?;
    group.check(
        "install while one runs, then cancelled",
        Leaves::Empty,
        |node| {
            stalled(node, small)?;
            let id = node.status()?["upgrade"]["id"].to_string();
            let says = &[format!("upgrade {id} is under way"), "Staging".to_owned()];
            let says: Vec<&str> = says.iter().map(String::as_str).collect();
            for command in [
                format!(
                    "slotd install {} --checksum {} {STAGE}",
                    node.server.guest_url("/other"),
                    small.zstd.checksum
                ),
                "slotd rollback".to_owned(),
            ] {
                // A rollback is refused for the empty slot first.
                let code = if command == "slotd rollback" { 5 } else { 7 };
                let says: &[&str] = if code == 7 {
                    &says
                } else {
                    &["slot B is empty"]
                };
                node.refused(&command, code, says)?;
            }
            // `slotd flash` needs no agent, and may not come between.
            let flash = format!(
                "slotd flash {} --checksum {}",
                node.server.guest_url("/small.ext4.zst"),
                small.zstd.checksum
            );
            node.refused(&flash, 7, &["another slotd"])?;
            node.machine.run("slotd cancel")?;
            let (code, text) = first_one(node)?;
            ensure!(
                code == "4" && text.contains("cancelled"),
                "the cancelled installation ended with {code}:\n{text}"
            );
            Ok(())
        },
    )
}

/// Somebody gives the staged slot's partition another name: the next boot stays as it is, and what is wrong with the table is said.
fn table_changed(group: &mut Group, small: &Small) -> Result<()> {
    group.check(
        "the partition table changes between staging and activation",
        Leaves::Forgotten,
        |node| {
            let url = serve(node, &small.zstd, Fault::None);
            let stage = format!(
                "slotd install {url} --checksum {} {STAGE}",
                small.zstd.checksum
            );
            node.machine.run(&stage)?;
            let named = |name: &str| {
                format!(
                    "sfdisk --quiet --no-reread --no-tell-kernel --force --part-label /dev/nvme0n1 3 {name}"
                )
            };
            node.machine.run(&named("spare"))?;
            // It may be put right again, so that is waited for.
            node.machine
                .run("setsid slotd activate >/run/activate.out 2>&1 </dev/null &")?;
            wait_for(node, "the table's fault is said", |node| {
                let text = node.machine.try_run("slotd status")?.stdout;
                Ok(text.contains("spare") && text.contains("root-a/root-b"))
            })?;
            // It says how the upgrade ended, which is not by being taken back where the loader cannot be reached.
            node.machine.try_run("slotd cancel")?;
            wait_for(node, "the end of it", |node| {
                let phase = node.status()?["upgrade"]["phase"].take();
                Ok(phase == "Failed" || phase == "Idle")
            })?;
            node.machine.run(&named("root-b"))?;
            // What could not be taken back then is by the next upgrade.
            node.machine.run(&stage)?;
            node.machine.run("slotd cancel").map(drop)
        },
    )
}

/// The agent is stopped in the middle of a write: it goes at once, the slot is empty, and started again it begins anew by itself.
fn terminated(group: &mut Group, small: &Small) -> Result<()> {
    group.check(
        "SIGTERM in the middle of the write",
        Leaves::Forgotten,
        |node| {
            stalled(node, small)?;
            node.machine
                .run("kill -TERM $(systemctl show --property=MainPID --value slotd.service)")?;
            wait_for(node, "the agent ends", |node| {
                let state = node.machine.try_run("systemctl is-active slotd.service")?;
                Ok(state.stdout.trim() == "inactive")
            })?;
            let (code, text) = first_one(node)?;
            ensure!(
                code == "8" && text.contains("daemon went away"),
                "the client of the stopped agent ended with {code}:\n{text}"
            );
            let loader = node.loader()?;
            ensure!(
                loader["slots"][1]["state"] == "empty",
                "slot B is not empty once the agent was stopped: {loader:#}"
            );
            let head = node.machine.run(&format!(
                "dd if={TARGET} bs=1M count=1 iflag=direct status=none | tr -d '\\000' | wc -c"
            ))?;
            ensure!(
                head.trim() == "0",
                "the first MiB of slot B holds {head} bytes"
            );
            serve(node, &small.zstd, Fault::None);
            node.machine.run("systemctl start slotd.service")?;
            wait_until_ready(node)?;
            wait_for(node, "the agent stages the image by itself", |node| {
                Ok(node.status()?["upgrade"]["phase"] == "Staged")
            })?;
            node.machine.run("slotd cancel").map(drop)
        },
    )?;
    patient(group, false)
}
