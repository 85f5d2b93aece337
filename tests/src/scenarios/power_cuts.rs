//! The plug is pulled at the worst moments.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::refusals::wait_for;
use super::{in_machine, proved_in_machine};
use crate::images::{V1, V2};
use crate::lab::Lab;
use crate::node::{Expected, FRESH, Node};
use crate::runner::Test;
use crate::server::{Body, Fault};
use crate::vm::Boot;

pub(super) fn tests() -> Vec<Test> {
    vec![
        proved_in_machine(
            "vm/a-power-cut-while-writing-leaves-the-old-slot",
            while_writing,
        ),
        proved_in_machine(
            "vm/a-power-cut-after-staging-keeps-what-was-staged",
            after_staging,
        ),
        in_machine(
            "vm/a-power-cut-during-the-trial-boot-costs-one-try",
            during_the_trial,
        ),
    ]
}

fn while_writing(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    let before = node.machine.disk().slot_digest('a')?;
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
        node.machine.disk().slot_digest('a')? == before,
        "slot A, which was booted, was written to"
    );

    node.machine.power_on()?;
    node.machine.wait_for_boot()?.expect('A', V1.version())?;
    // The agent begins the interrupted upgrade anew by itself, and does not get further; B must not become bootable by it.
    node.expect(&FRESH)?;
    begun_anew(&mut node, 2)?;
    node.power_cycles(1, &FRESH)?;
    begun_anew(&mut node, 3)?;

    // The node is as good as before: the same image goes through.
    node.machine.run("slotd cancel")?;
    let result = node.last_result()?;
    ensure!(
        result["id"] == 1
            && result["kind"] == "install"
            && result["result"] == "Cancelled"
            && result["slot"] == "B"
            && result["failure"].is_null(),
        "the history says {result:#}"
    );
    node.upgrade('B', &v2)?;
    // The cut left nothing behind that the next upgrade did not clear away.
    let files = crate::esp::list(node.machine.disk().path(), "/loader/entries")?;
    ensure!(
        files == ["slotd-a.conf", "slotd-b.conf"],
        "the ESP holds {files:?}"
    );
    let results = node.results()?;
    ensure!(
        results == ["Cancelled", "Completed"],
        "the history says {results:?}"
    );
    Ok(())
}

/// The agent stages the first upgrade, which it has begun so many times.
fn begun_anew(node: &mut Node, attempt: u32) -> Result<()> {
    let status = node.status()?;
    let upgrade = &status["upgrade"];
    ensure!(
        upgrade["id"] == 1
            && upgrade["phase"] == "Staging"
            && upgrade["attempt"] == attempt
            && upgrade["source"] == node.server.guest_url("/stall"),
        "slotd status says {upgrade:#}"
    );
    Ok(())
}

fn after_staging(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    node.upgraded('B', &v2, |node| {
        let command = node.install_command(&v2, "--stage-only");
        let patience = node.machine.patience(120);
        let output = node.machine.try_run_within(&command, patience)?;
        ensure!(output.code == 0, "{command:?}: {output:?}");
        let boot = node.machine.power_cycle()?;
        boot.expect('A', V1.version())?;
        ensure!(
            node.machine.disk().loader_entries()? == ["slotd-a.conf"],
            "staging changed the next boot"
        );
        let status = node.status()?;
        ensure!(
            status["upgrade"]["phase"] == "Staged",
            "slotd status says {status:#}"
        );
        let loader = node.loader()?;
        ensure!(
            loader["loader"]["staged"] == "B",
            "slotd-bootctl status says {loader:#}"
        );
        activate_behind_an_inhibitor(node, &boot)
    })?;
    node.power_cycles(1, &Expected::both_good('B', V2.version()))
}

/// Holds an inhibitor, and says so in a file once it is held.
const HOLDER: &str = "systemd-run --quiet --unit=holder systemd-inhibit --what=shutdown --mode=block --who=backup --why=nightly \
    sh -c 'echo held >/run/held; exec sleep 1000'";

/// `slotd activate` while somebody holds an inhibitor: the reboot waits for its end, and meanwhile the status names the holder.
/// Returns the reason that it gave, once the holder was told to end.
fn activate_behind_an_inhibitor(node: &mut Node, boot: &Boot) -> Result<String> {
    node.machine.run(HOLDER)?;
    wait_for(node, "the inhibitor is held", |node| {
        Ok(node.machine.try_run("test -s /run/held")?.code == 0)
    })?;
    node.machine
        .run("systemd-run --quiet --unit=activate slotd activate")?;
    let mut reason = String::new();
    wait_for(node, "slotd status says why it does not reboot", |node| {
        let status = node.status()?;
        let upgrade = &status["upgrade"];
        reason = upgrade["failure"]["reason"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        Ok(upgrade["phase"] == "Activating" && upgrade["step"] == "reboot" && !reason.is_empty())
    })?;
    ensure!(
        reason.starts_with("the reboot is inhibited: ")
            && reason.contains("Operation inhibited by \"backup\"")
            && reason.contains("reason is \"nightly\""),
        "slotd status says that it does not reboot because {reason:?}"
    );
    let next = node.loader()?["loader"]["next"].clone();
    ensure!(
        next["slot"] == "B" && next["trial"] == true,
        "the next boot is {next}"
    );
    let id = node.machine.run("cat /proc/sys/kernel/random/boot_id")?;
    ensure!(id.trim() == boot.id, "the machine rebooted all the same");
    // The machine goes down at the next try, which may be under the command.
    node.machine.start("systemctl stop holder.service")?;
    Ok(reason)
}

fn during_the_trial(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    let v2 = lab.artifacts()?.image(&V2)?;
    node.upgraded('B', &v2, |node| {
        let command = node.install_command(&v2, "");
        let deadline = Instant::now() + node.machine.patience(120);
        node.machine.start(&command)?;
        // The loader has counted once its entry is renamed; userspace is not up yet.
        let counted = "slotd-b+1-1.conf".to_owned();
        while !node.machine.disk().loader_entries()?.contains(&counted) {
            ensure!(Instant::now() < deadline, "no trial boot began");
            std::thread::sleep(Duration::from_millis(50));
        }
        node.machine.power_cut();
        node.machine.power_on()?;
        Ok(String::new())
    })?;
    node.power_cycles(1, &Expected::both_good('B', V2.version()))
}
