//! Upgrades on real firmware, loader, kernel and systemd: those that succeed and those that have to fall back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{health, in_machine, proved_in_machine};
use crate::artifacts::Image;
use crate::images::{ALONE, NO_AGENT, PANICS, STUCK, UNHEALTHY, V1, V2, V3, Variant};
use crate::lab::{Lab, NodeOptions};
use crate::loader::Loader;
use crate::node::{Expected, FRESH, Node};
use crate::runner::Test;

/// Deadline and tries that let a trial fail soon; thirty seconds are the least that slotd accepts.
const SHORT_TRIAL: &str = "boot: {panic: 2}\ntrial: {tries: 2, deadline: 30s}\n";

/// A fresh disk with a short trial.
pub(super) const fn short_trial(loader: Loader) -> NodeOptions<'static> {
    NodeOptions {
        configuration: SHORT_TRIAL,
        loader,
        ..NodeOptions::new(&V1)
    }
}

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_machine("vm/good-upgrade-from-a-to-b-and-back-to-a", good),
        proved_in_machine("vm/a-failing-health-script-rolls-back", failing_health),
        in_machine("vm/a-kernel-panic-rolls-back", panic),
        proved_in_machine(
            "vm/an-image-whose-agent-does-not-start-rolls-back",
            no_agent,
        ),
        proved_in_machine("vm/a-unit-stuck-before-sysinit-rolls-back", stuck),
        proved_in_machine(
            "vm/a-deliberate-rollback-goes-back-to-the-old-slot",
            rollback,
        ),
        proved_in_machine("vm/a-trial-with-nothing-good-to-go-back-to-stays", stays),
        proved_in_machine(
            "vm/an-image-comes-through-standard-input-over-the-network",
            standard_input,
        ),
    ]
}

fn good(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    node.expect(&FRESH)?;
    health::configure(&mut node)?;
    node.upgrade('B', &lab.artifacts()?.image(&V2)?)?;
    health::judged(&mut node)?;
    node.power_cycles(5, &Expected::both_good('B', V2.version()))?;
    // And back again, into the slot that was booted before. The image's own script says no; the machine's of that name counts.
    node.upgrade('A', &lab.artifacts()?.image(&UNHEALTHY)?)?;
    let results = node.results()?;
    ensure!(
        results == ["Completed", "Completed"],
        "the history says {results:?}"
    );
    if lab.proves() {
        node.power_cycles(1, &Expected::both_good('A', UNHEALTHY.version()))?;
    }
    Ok(())
}

/// Installs an image that must not stay, and checks that the node is back on slot A with everything as it was.
pub(super) fn falls_back(
    lab: &Lab,
    variant: &Variant,
    options: &NodeOptions<'_>,
    power_cycles: u32,
    entries: &[&str],
) -> Result<(Node, Value)> {
    let mut node = Node::start_with(lab, options)?;
    let image = lab
        .artifacts_of(options.loader.architecture())?
        .image(variant)?;
    let before = node.machine.disk().slot_digest('a')?;
    let command = node.install_command(&image, "");
    let printed = node.run_until_reboot(&command)?;
    let patience = node.machine.patience(200);
    let mut boot = node.settle(patience)?;
    if boot.slot == "b" {
        // It got as far as multi-user.target on trial, and down again.
        boot = node.settle(patience)?;
    }
    boot.expect('A', V1.version())
        .with_context(|| format!("after this output:\n{printed}"))?;
    let expected = Expected {
        booted: 'A',
        version: V1.version(),
        states: ["good", "bad"],
        entries,
    };
    node.expect(&expected)?;
    ensure!(
        node.machine.disk().slot_digest('a')? == before,
        "slot A, which was booted, was written to"
    );
    let result = node.last_result()?;
    ensure!(
        result["result"] == "RolledBack"
            && result["slot"] == "B"
            && result["version"] == variant.version(),
        "the history says {result:#}"
    );
    node.power_cycles(power_cycles, &expected)?;
    Ok((node, result))
}

fn failing_health(lab: &Lab) -> Result<()> {
    let entries = &["slotd-a.conf", "slotd-b+0-1.conf"];
    // Not a short trial: the check has to be run, however slow the machine.
    let (mut node, result) = falls_back(lab, &UNHEALTHY, &NodeOptions::new(&V1), 5, entries)?;
    let failure = &result["failure"];
    ensure!(
        failure["check"]
            .as_str()
            .is_some_and(|check| check.contains("50-app"))
            && failure["output"]
                .as_str()
                .is_some_and(|output| output.contains("port 8080")),
        "the failing check and its output are not in {result:#}"
    );
    // People see it too.
    let table = node.machine.run("slotd status")?;
    ensure!(
        table.contains("50-app"),
        "slotd status does not name the check:\n{table}"
    );
    Ok(())
}

fn panic(lab: &Lab) -> Result<()> {
    let entries = &["slotd-a.conf", "slotd-b+0-2.conf"];
    let (_, result) = falls_back(lab, &PANICS, &short_trial(Loader::SystemdBoot), 5, entries)?;
    given_up_by_the_loader(&result, 2)
}

fn no_agent(lab: &Lab) -> Result<()> {
    let entries = &["slotd-a.conf", "slotd-b+0-2.conf"];
    let (_, result) = falls_back(
        lab,
        &NO_AGENT,
        &short_trial(Loader::SystemdBoot),
        1,
        entries,
    )?;
    given_up_by_the_loader(&result, 2)
}

/// No trial boot got as far as a verdict: the reason is the loader's, after all tries.
pub(super) fn given_up_by_the_loader(result: &Value, tries: u32) -> Result<()> {
    let failure = &result["failure"];
    let tries = if tries == 1 {
        "1 try".to_owned()
    } else {
        format!("{tries} tries")
    };
    let reason = format!(
        "the boot loader gave slot B up after {tries} without a verdict of its own: no agent there reported"
    );
    ensure!(
        failure["reason"] == reason.as_str() && failure["check"].is_null(),
        "the history says {result:#}"
    );
    Ok(())
}

fn stuck(lab: &Lab) -> Result<()> {
    let entries = &["slotd-a.conf", "slotd-b+0-1.conf"];
    let (_, result) = falls_back(lab, &STUCK, &short_trial(Loader::SystemdBoot), 1, entries)?;
    // The agent did start, waited for basic.target until the deadline, and says what that still waited for.
    let failure = &result["failure"];
    ensure!(
        failure["reason"] == "not proven healthy within 30 seconds of boot"
            && failure["check"] == "unit basic.target"
            && failure["output"]
                .as_str()
                .is_some_and(|output| output.contains("stuck.service")),
        "the history says {result:#}"
    );
    Ok(())
}

fn rollback(lab: &Lab) -> Result<()> {
    let mut node = Node::start(lab)?;
    node.upgrade('B', &lab.artifacts()?.image(&V2)?)?;
    let b = node.machine.disk().slot_digest('b')?;
    node.run_until_reboot("slotd rollback")?;
    let patience = node.machine.patience(120);
    node.settle(patience)?.expect('A', V1.version())?;
    node.expect(&Expected::both_good('A', V1.version()))?;
    ensure!(
        node.machine.disk().slot_digest('b')? == b,
        "slot B, which was booted, was written to"
    );
    let result = node.last_result()?;
    ensure!(
        result["kind"] == "rollback" && result["result"] == "RolledBack" && result["slot"] == "A",
        "the history says {result:#}"
    );
    node.power_cycles(1, &Expected::both_good('A', V1.version()))?;
    flash(&mut node, &lab.artifacts()?.image(&V3)?)
}

/// The way of a rescue system on a running one: slot B is written without the daemon, and the very command that this prints makes
/// the next boot its trial, which the agent there takes for its own.
fn flash(node: &mut Node, image: &Image) -> Result<()> {
    let a = node.machine.disk().slot_digest('a')?;
    node.machine.run("systemctl stop slotd.service")?;
    let url = node.server.serve_file(&image.path);
    let command = format!("slotd flash {url} --checksum {}", image.checksum);
    let patience = node.machine.patience(120);
    let output = node.machine.try_run_within(&command, patience)?;
    ensure!(output.code == 0, "{command:?}: {output:?}");
    let loader = node.loader()?["loader"].clone();
    ensure!(
        loader["staged"] == "B" && loader["next"]["slot"] == "A",
        "after flashing, slotd-bootctl status says {loader:#}"
    );
    let activation = output
        .stderr
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("slotd-bootctl activate B "))
        .with_context(|| format!("{command:?} names no next command:\n{}", output.stderr))?;
    node.machine.run(activation)?;
    let next = node.loader()?["loader"]["next"].clone();
    ensure!(
        next["slot"] == "B" && next["trial"] == true,
        "after {activation:?} the next boot is {next}"
    );
    node.machine.start("systemctl reboot")?;
    node.settle(patience)?.expect('B', &image.version)?;
    node.expect(&Expected::both_good('B', &image.version))?;
    ensure!(
        node.machine.disk().slot_digest('a')? == a,
        "slot A, which was booted, was written to"
    );
    ensure!(
        format!("sha256:{}", node.machine.disk().slot_digest('b')?) == image.expanded_checksum,
        "slot B does not hold the image's bytes"
    );
    let result = node.last_result()?;
    ensure!(
        result["kind"] == "adopted"
            && result["result"] == "Completed"
            && result["slot"] == "B"
            && result["failure"].is_null(),
        "the history says {result:#}"
    );
    Ok(())
}

/// Long enough that the health script, which takes the good slot away, has run on a slow machine.
const STAYS: &str = "boot: {panic: 2}\ntrial: {tries: 2, deadline: 120s}\n";

/// The gate's failure action and the timeout of `boot-complete.target` would reboot it: both have to be taken away.
fn stays(lab: &Lab) -> Result<()> {
    let mut node = Node::start_with(
        lab,
        &NodeOptions {
            configuration: STAYS,
            ..short_trial(Loader::SystemdBoot)
        },
    )?;
    let image = lab.artifacts()?.image(&ALONE)?;
    let command = node.install_command(&image, "");
    let printed = node.run_until_reboot(&command)?;
    let patience = node.machine.patience(300);
    let boot = node.settle(patience)?;
    boot.expect('B', ALONE.version())
        .with_context(|| format!("after this output:\n{printed}"))?;
    let result = node.last_result()?;
    ensure!(result["result"] == "Failed", "the history says {result:#}");
    // Deadline and everything that was set behind it have passed by then, in this very boot.
    let deadline = Instant::now() + node.machine.patience(400);
    loop {
        let seen = node
            .machine
            .run("cat /proc/sys/kernel/random/boot_id; cut -d. -f1 /proc/uptime")?;
        let (id, up) = seen.split_once('\n').context("a boot id and seconds")?;
        ensure!(id == boot.id, "the machine rebooted");
        if up.trim().parse::<u64>()? > 120 + 60 + 60 {
            break;
        }
        ensure!(Instant::now() < deadline, "the clock stands still at {up}");
        std::thread::sleep(Duration::from_secs(1));
    }
    let entries = node.machine.disk().loader_entries()?;
    ensure!(
        entries == ["slotd-a+0-3.conf", "slotd-b+1-1.conf"],
        "the ESP holds {entries:?}: B must not be blessed"
    );
    let units =
        "systemctl is-active boot-complete.target slotd-confirm.service systemd-bless-boot.service";
    let active = node.machine.try_run(units)?;
    ensure!(
        active.stdout.lines().all(|state| state != "active"),
        "{units} says {}",
        active.stdout
    );
    ensure!(
        node.machine.run("cat /proc/sys/kernel/panic")?.trim() == "0",
        "a panic would reboot it still"
    );
    Ok(())
}

fn standard_input(lab: &Lab) -> Result<()> {
    let port = free_port()?;
    let mut node = Node::start_with(
        lab,
        &NodeOptions {
            forwards: &[(port, 2222)],
            ..NodeOptions::new(&V1)
        },
    )?;
    let v2 = lab.artifacts()?.image(&V2)?;
    node.upgraded('B', &v2, |node| {
        // The image is pushed into the guest once something listens there.
        let path = v2.path.clone();
        let push = std::thread::spawn(move || push_image(port, &path));
        let printed = node.run_until_reboot(&format!(
            "nc -l -N 2222 </dev/null | slotd install - --checksum {}",
            v2.checksum
        ))?;
        push.join().ok().context("the sender died")??;
        Ok(printed)
    })?;
    node.power_cycles(1, &Expected::both_good('B', V2.version()))
}

/// A port of this machine's loopback that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener
        .local_addr()
        .context("looking for a free port")?
        .port())
}

/// Sends a file to a guest that may not listen yet: QEMU accepts for it, and closes at once when nobody does.
fn push_image(port: u16, path: &std::path::Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut file = std::fs::File::open(path).context("opening the image")?;
        let mut stream =
            std::net::TcpStream::connect(("127.0.0.1", port)).context("connecting to the guest")?;
        let sent = std::io::copy(&mut file, &mut stream)
            .and_then(|_| stream.shutdown(std::net::Shutdown::Write));
        match sent {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error).context("sending the image");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}
