//! An install is stopped, and a second one is asked for while one runs.

use anyhow::{Context, Result, ensure};

use super::in_machine;
use crate::images::{V1, V2};
use crate::lab::Lab;
use crate::node::Node;
use crate::runner::Test;
use crate::server::{Body, Fault};

pub(super) fn tests() -> Vec<Test> {
    vec![in_machine(
        "vm/an-install-is-stopped-by-signal-and-not-doubled",
        interruptions,
    )]
}

/// The exit code of what cannot be done while something else runs.
const BUSY: u32 = 7;

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
    node.refused(&second, BUSY, &["upgrade 1", "staging"])?;

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
