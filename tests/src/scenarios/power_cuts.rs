//! The plug is pulled at the worst moments.

use anyhow::{Result, ensure};

use super::in_machine;
use crate::images::{V1, V2};
use crate::lab::Lab;
use crate::node::{Expected, Node};
use crate::runner::Test;
use crate::server::{Body, Fault};

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_machine(
            "vm/a-power-cut-while-writing-leaves-the-old-slot",
            while_writing,
        ),
        in_machine(
            "vm/a-power-cut-after-staging-keeps-what-was-staged",
            after_staging,
        ),
        in_machine(
            "vm/a-power-cut-during-the-trial-boot-costs-one-try",
            during_the_trial,
        ),
    ]
}

/// Slot A runs, and nothing is staged.
const UNTOUCHED: Expected<'static> = Expected {
    booted: 'A',
    version: V1.version(),
    states: ["good", "empty"],
    entries: &["slotd-a.conf"],
};

fn while_writing(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    let before = node.machine.slot_digest('a')?;
    // All but the end arrives, then nothing: the cut surely falls into the write.
    let length = std::fs::metadata(&v2.path)?.len();
    node.server.serve(
        "/stall",
        Body::File(v2.path.clone()),
        Fault::StallAt(length / 2),
    );
    let url = node.server.guest_url("/stall");
    node.machine
        .start(&format!("slotd install {url} --checksum {}", v2.checksum))?;
    node.wait_until_written(64 << 20)?;
    node.machine.power_cut();
    ensure!(
        node.machine.slot_digest('a')? == before,
        "slot A, which was booted, was written to"
    );

    node.machine.power_on()?;
    let boot = node.machine.wait_for_boot()?;
    ensure!(
        boot.slot == "a" && boot.version == V1.version(),
        "booted {boot:?}"
    );
    // Whatever the agent makes of the interrupted upgrade, B must not become bootable by it.
    let loader = node.loader()?;
    ensure!(
        loader["slots"][1]["state"] == "empty",
        "slot B is {}",
        loader["slots"][1]
    );
    let entries = node.machine.loader_entries()?;
    ensure!(entries == UNTOUCHED.entries, "the ESP holds {entries:?}");
    node.power_cycles(1, 'A', V1.version())?;

    // The node is as good as before: the same image goes through.
    node.machine.run("slotd cancel || true")?;
    let (boot, printed) = node.install(&v2, "")?;
    ensure!(
        boot.slot == "b" && boot.version == V2.version(),
        "ended in {boot:?}\n{printed}"
    );
    // The cut left nothing behind that the next upgrade did not clear away.
    let files = crate::esp::list(node.machine.disk(), "/loader/entries")?;
    ensure!(
        files == ["slotd-a.conf", "slotd-b.conf"],
        "the ESP holds {files:?}"
    );
    Ok(())
}

fn after_staging(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    let before = node.machine.slot_digest('a')?;
    let command = node.install_command(&v2, "--stage-only");
    let patience = node.machine.patience(120);
    let output = node.machine.try_run_within(&command, patience)?;
    ensure!(output.code == 0, "{command:?}: {output:?}");
    let boot = node.machine.power_cycle()?;
    ensure!(
        boot.slot == "a" && boot.version == V1.version(),
        "booted {boot:?}"
    );
    ensure!(
        node.machine.loader_entries()? == ["slotd-a.conf"],
        "staging changed the next boot"
    );
    let status = node.status()?;
    ensure!(
        status["upgrade"]["phase"] == "Staged",
        "slotd status says {status:#}"
    );

    node.run_until_reboot("slotd activate")?;
    let patience = node.machine.patience(120);
    let boot = node.settle(patience)?;
    ensure!(
        boot.slot == "b" && boot.version == V2.version(),
        "ended in {boot:?}"
    );
    node.expect(&Expected {
        booted: 'B',
        version: V2.version(),
        states: ["good", "good"],
        entries: &["slotd-a.conf", "slotd-b.conf"],
    })?;
    ensure!(
        node.machine.slot_digest('a')? == before,
        "slot A, which was booted, was written to"
    );
    node.power_cycles(1, 'B', V2.version())
}

fn during_the_trial(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    let command = node.install_command(&v2, "");
    let patience = node.machine.patience(120);
    node.machine.start(&command)?;
    // The loader has counted once its entry is renamed; userspace is not up yet.
    let deadline = std::time::Instant::now() + patience;
    while !node
        .machine
        .loader_entries()?
        .contains(&"slotd-b+1-1.conf".to_owned())
    {
        ensure!(std::time::Instant::now() < deadline, "no trial boot began");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    node.machine.power_cut();
    node.machine.power_on()?;
    let boot = node.settle(patience)?;
    ensure!(
        boot.slot == "b" && boot.version == V2.version(),
        "ended in {boot:?}"
    );
    node.expect(&Expected {
        booted: 'B',
        version: V2.version(),
        states: ["good", "good"],
        entries: &["slotd-a.conf", "slotd-b.conf"],
    })?;
    let result = node.last_result()?;
    ensure!(
        result["result"] == "Completed",
        "the history says {result:#}"
    );
    node.power_cycles(1, 'B', V2.version())
}
