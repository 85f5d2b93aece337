//! One booted machine that goes through many checks, each with a name of its own and the same look at what it left.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::artifacts::Image;
use crate::images::V2;
use crate::lab::Lab;
use crate::node::{FRESH, Node};

/// The inactive slot of the reference disk.
pub(super) const TARGET: &str = "/dev/nvme0n1p3";

/// Settings that let a server that is not there be given up soon. One that sends has all the time that a slow machine needs.
const SHORT_PATIENCE: &str = "fetch: {connectTimeout: 2s, idleTimeout: 2s, retries: 1}\n";

/// What a check may leave of the inactive slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Not one write reached it.
    Untouched,
    /// It is empty to the loader, and its first MiB holds nothing, so that nobody takes it for an image.
    Empty,
    /// A whole image may lie in it, but it is empty to the loader.
    Forgotten,
}

/// Something that is broken for the length of a check.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault<'a> {
    /// What the check shows.
    pub(super) name: &'a str,
    /// Breaks it.
    pub(super) begin: &'a str,
    /// Mends it; runs whatever came of the check.
    pub(super) end: &'a str,
}

/// What is compared before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Devices {
    booted_writes: u64,
    target_writes: u64,
    /// Bytes of the target's first MiB that are not zero.
    target_head: u64,
}

/// The machine, and how its checks went.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) node: Node,
    name: &'static str,
    loader: Value,
    booted_digest: String,
    good: Image,
    log: PathBuf,
    lines: String,
    passed: u32,
    failed: Vec<String>,
}

impl Group {
    /// Boots a fresh reference disk whose empty slot B holds bytes that are not zero: whoever writes there is seen.
    pub(super) fn start(lab: &Lab, name: &'static str) -> Result<Self> {
        let mut node = Node::start(lab)?;
        let booted_digest = node.machine.disk().slot_digest('a')?;
        node.machine.run(&format!(
            "dd if=/dev/urandom of={TARGET} bs=1M count=4 oflag=direct status=none; mkdir -p /etc/slotd/config.d"
        ))?;
        node.write_file("/etc/slotd/config.d/10-patience.yaml", SHORT_PATIENCE)?;
        let loader = node.loader()?;
        let mut group = Self {
            node,
            name,
            loader: fit_for_comparison(loader),
            booted_digest,
            good: lab.artifacts()?.image(&V2)?,
            log: lab.folder().join("checks.log"),
            lines: String::new(),
            passed: 0,
            failed: Vec::new(),
        };
        group.restart_agent()?;
        Ok(group)
    }

    /// One check of a machine on which nothing is broken.
    pub(super) fn check(
        &mut self,
        name: &str,
        leaves: Leaves,
        check: impl FnOnce(&mut Node) -> Result<()>,
    ) -> Result<()> {
        let fault = Fault {
            name,
            begin: "",
            end: "",
        };
        self.under(&fault, leaves, check)
    }

    /// One check while something is broken. A failure is kept and the others go on; an error here means that the machine itself
    /// is lost.
    pub(super) fn under(
        &mut self,
        fault: &Fault<'_>,
        leaves: Leaves,
        check: impl FnOnce(&mut Node) -> Result<()>,
    ) -> Result<()> {
        let began = Instant::now();
        self.run(fault.begin)
            .with_context(|| format!("{}: making it so", fault.name))?;
        let before = self.devices()?;
        let mut result = check(&mut self.node);
        if result.is_ok() {
            result = self
                .devices()
                .and_then(|after| compare(&before, &after, leaves));
        }
        self.run(fault.end)
            .with_context(|| format!("{}: putting it right again", fault.name))?;
        if result.is_ok() {
            result = self.settled();
        }
        let seconds = began.elapsed().as_secs_f64();
        let line = match result {
            Ok(()) => {
                self.passed += 1;
                format!("ok      {} ({seconds:.1} s)", fault.name)
            }
            Err(error) => {
                self.failed.push(format!("{}: {error:#}", fault.name));
                format!("FAILED  {} ({seconds:.1} s): {error:#}", fault.name)
            }
        };
        println!("  {}: {line}", self.name);
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{line}");
        std::fs::write(&self.log, &self.lines)
            .with_context(|| format!("writing {}", self.log.display()))
    }

    /// Runs what breaks or mends something, where there is anything.
    fn run(&mut self, command: &str) -> Result<()> {
        if !command.is_empty() {
            self.node.machine.run(command)?;
        }
        Ok(())
    }

    /// The loader's data are what they were, the slot is empty, and the agent waits for the next request.
    fn settled(&mut self) -> Result<()> {
        // In one go: a round trip to the guest costs more than either program.
        let both = self
            .node
            .machine
            .run("slotd-bootctl status --output json && echo @@ && slotd status --output json")?;
        let (loader, status) = both.split_once("\n@@\n").context("two documents")?;
        let loader = serde_json::from_str(loader).context("the loader's document")?;
        let loader = fit_for_comparison(loader);
        ensure!(
            loader == self.loader,
            "the loader's data changed: {loader} instead of {}",
            self.loader
        );
        let status: Value = serde_json::from_str(status).context("the agent's document")?;
        let phase = status["upgrade"]["phase"].as_str().unwrap_or("none");
        ensure!(
            ["Idle", "Failed"].contains(&phase),
            "the agent did not come to rest: {phase}"
        );
        Ok(())
    }

    fn devices(&mut self) -> Result<Devices> {
        let text = self.node.machine.run(&format!(
            "cat /sys/class/block/nvme0n1p2/stat /sys/class/block/nvme0n1p3/stat; \
             dd if={TARGET} bs=1M count=1 iflag=direct status=none | tr -d '\\000' | wc -c"
        ))?;
        let lines: Vec<&str> = text.lines().collect();
        let [booted, target, head] = lines.as_slice() else {
            bail!("the devices' counters are {text:?}");
        };
        Ok(Devices {
            booted_writes: writes(booted)?,
            target_writes: writes(target)?,
            target_head: head.trim().parse().context("counting bytes")?,
        })
    }

    /// Starts the agent anew, with the configuration as it is now, and waits until it takes requests.
    pub(super) fn restart_agent(&mut self) -> Result<()> {
        restart_agent(&mut self.node)
    }

    /// What was refused did no harm: a good image is staged as ever. Then the sum of all checks.
    pub(super) fn finish(mut self) -> Result<()> {
        let began = Instant::now();
        let good = self.good.clone();
        let command = self.node.install_command(&good, "--stage-only");
        let patience = self.node.machine.patience(120);
        let output = self.node.machine.try_run_within(&command, patience)?;
        ensure!(
            output.code == 0,
            "a good image is not staged any more: {output:?}"
        );
        let loader = self.node.loader()?;
        ensure!(
            loader["loader"]["staged"] == "B",
            "the good image is not staged in slot B: {loader:#}"
        );
        self.node.expect(&FRESH)?;
        self.node.machine.run("sync")?;
        ensure!(
            format!("sha256:{}", self.node.machine.disk().slot_digest('b')?)
                == good.expanded_checksum,
            "slot B does not hold the good image's bytes"
        );
        ensure!(
            self.node.machine.disk().slot_digest('a')? == self.booted_digest,
            "slot A, which was booted, was written to"
        );
        println!(
            "  {}: {} checks passed, {} failed; then a good image was staged ({:.1} s)",
            self.name,
            self.passed,
            self.failed.len(),
            began.elapsed().as_secs_f64()
        );
        ensure!(
            self.failed.is_empty(),
            "{} of {} checks failed:\n{}",
            self.failed.len(),
            self.failed.len() + self.passed as usize,
            self.failed.join("\n")
        );
        Ok(())
    }
}

/// Starts the agent anew and waits until it takes requests.
pub(super) fn restart_agent(node: &mut Node) -> Result<()> {
    node.machine.run("systemctl restart slotd.service")?;
    wait_until_ready(node)
}

/// Waits until the agent has looked at the node: before that, it says that it is starting.
pub(super) fn wait_until_ready(node: &mut Node) -> Result<()> {
    wait_for(node, "the agent takes requests", |node| {
        // There is no such upgrade, and only a running agent knows.
        let answer = node.machine.try_run("slotd cancel 999999")?;
        Ok(answer.code == 4)
    })
}

/// Waits until a look at the node is satisfied.
pub(in crate::scenarios) fn wait_for(
    node: &mut Node,
    what: &str,
    mut look: impl FnMut(&mut Node) -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + node.machine.patience(30);
    while !look(node)? {
        ensure!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn compare(before: &Devices, after: &Devices, leaves: Leaves) -> Result<()> {
    ensure!(
        after.booted_writes == 0,
        "{} writes reached slot A, which is booted",
        after.booted_writes
    );
    match leaves {
        Leaves::Untouched => ensure!(
            before == after,
            "slot B was written to, though this was known before: {before:?}, then {after:?}"
        ),
        Leaves::Empty => ensure!(
            after.target_head == 0,
            "the first MiB of slot B holds {} bytes that are not zero",
            after.target_head
        ),
        Leaves::Forgotten => {}
    }
    Ok(())
}

/// Completed writes and discards, by Documentation/block/stat.rst.
fn writes(line: &str) -> Result<u64> {
    let fields: Vec<u64> = line
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| format!("{line:?} is no stat of a block device"))?;
    match (fields.get(4), fields.get(11)) {
        (Some(writes), Some(discards)) => Ok(writes + discards),
        _ => bail!("{line:?} is too short"),
    }
}

/// The document without what says nothing of the loader: a look into a slot leaves its device set read-only.
fn fit_for_comparison(mut document: Value) -> Value {
    if let Some(slots) = document["slots"].as_array_mut() {
        for slot in slots {
            slot["readOnly"] = Value::Null;
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use super::{Devices, Leaves, compare, writes};

    #[test]
    fn writes_and_discards_are_read_from_the_kernels_line() {
        let line = "  100  2 3 4 17 6 7 8 9 10 11 5 13 14 15 16 17";
        assert_eq!(writes(line).unwrap(), 22);
        assert!(writes("1 2 3").is_err());
    }

    #[test]
    fn a_write_to_the_wrong_slot_and_a_head_that_is_left_are_seen() {
        let devices = |booted_writes, target_writes, target_head| Devices {
            booted_writes,
            target_writes,
            target_head,
        };
        let before = devices(0, 4, 9);
        compare(&before, &before, Leaves::Untouched).unwrap();
        compare(&before, &devices(0, 50, 0), Leaves::Empty).unwrap();
        assert!(compare(&before, &devices(0, 5, 9), Leaves::Untouched).is_err());
        assert!(compare(&before, &devices(0, 4, 8), Leaves::Untouched).is_err());
        assert!(compare(&before, &devices(0, 50, 1), Leaves::Empty).is_err());
        assert!(compare(&before, &devices(1, 4, 9), Leaves::Untouched).is_err());
    }
}
