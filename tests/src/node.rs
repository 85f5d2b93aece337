//! A machine with slotd on it: what an operator types, and what there is to see of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::artifacts::Image;
use crate::images::V1;
use crate::lab::{Lab, NodeOptions};
use crate::server::Server;
use crate::vm::{Boot, End, Machine, Output, quote};

/// A running machine and the server that its images come from.
#[derive(Debug)]
pub struct Node {
    /// The machine.
    pub machine: Machine,
    /// The image server.
    pub server: Server,
}

/// What a settled node is expected to look like, from every side.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The slot that runs.
    pub booted: char,
    /// The version that runs.
    pub version: &'a str,
    /// States of slots A and B, as `slotd status` and `slotd-bootctl status` name them.
    pub states: [&'a str; 2],
    /// File names of our boot entries on the ESP, sorted, where systemd-boot is the loader.
    pub entries: &'a [&'a str],
}

/// Slot A runs v1, and B holds nothing: the fresh reference disk.
pub const FRESH: Expected<'static> = Expected {
    booted: 'A',
    version: V1.version(),
    states: ["good", "empty"],
    entries: &["slotd-a.conf"],
};

impl<'a> Expected<'a> {
    /// Both slots are proven, and this one runs.
    pub const fn both_good(booted: char, version: &'a str) -> Self {
        Self {
            booted,
            version,
            states: ["good", "good"],
            entries: &["slotd-a.conf", "slotd-b.conf"],
        }
    }
}

impl Node {
    /// Boots a fresh reference disk with v1 in slot A.
    pub fn start(lab: &Lab) -> Result<Self> {
        Self::start_with(lab, &NodeOptions::new(&V1))
    }

    /// The same with what these options say.
    pub fn start_with(lab: &Lab, options: &NodeOptions<'_>) -> Result<Self> {
        let mut node = Self::off(lab, options)?;
        node.machine.power_on()?;
        let boot = node.machine.wait_for_boot()?;
        boot.expect('A', options.variant.version())
            .context("the fresh disk")?;
        Ok(node)
    }

    /// A machine that is still off.
    pub fn off(lab: &Lab, options: &NodeOptions<'_>) -> Result<Self> {
        Ok(Self {
            machine: lab.machine_of("machine", options)?,
            server: Server::start()?,
        })
    }

    /// The command that installs an image from the image server.
    pub fn install_command(&self, image: &Image, options: &str) -> String {
        let url = self.server.serve_file(&image.path);
        format!(
            "slotd install {url} --checksum {} {options}",
            image.checksum
        )
    }

    /// Does something that upgrades the node to an image in `slot` and ends in a reboot, and waits until it has settled there for
    /// good. Then from every side: the boot, the loader's files, both programs, the history, the image's bytes in its slot, and that
    /// nothing was written to the slot that ran before. `act` returns what was printed on the way.
    pub fn upgraded(
        &mut self,
        slot: char,
        image: &Image,
        act: impl FnOnce(&mut Self) -> Result<String>,
    ) -> Result<()> {
        let other = if slot == 'A' { 'b' } else { 'a' };
        let before = self.machine.disk().slot_digest(other)?;
        let printed = act(self)?;
        let patience = self.machine.patience(120);
        let boot = self.settle(patience)?;
        boot.expect(slot, &image.version)
            .with_context(|| format!("after this output:\n{printed}"))?;
        self.expect(&Expected::both_good(slot, &image.version))?;
        ensure!(
            self.machine.disk().slot_digest(other)? == before,
            "slot {other}, which was booted, was written to"
        );
        ensure!(
            format!("sha256:{}", self.machine.disk().slot_digest(slot)?) == image.expanded_checksum,
            "slot {slot} does not hold the image's bytes"
        );
        let result = self.last_result()?;
        ensure!(
            result["result"] == "Completed"
                && result["slot"] == slot.to_string()
                && result["version"] == image.version,
            "the history says {result:#}"
        );
        Ok(())
    }

    /// The upgrade as an operator does it: `slotd install` of an image from the image server.
    pub fn upgrade(&mut self, slot: char, image: &Image) -> Result<()> {
        let command = self.install_command(image, "");
        self.upgraded(slot, image, |node| node.run_until_reboot(&command))
    }

    /// Runs a command that ends in a reboot and returns what it printed until then.
    pub fn run_until_reboot(&mut self, command: &str) -> Result<String> {
        let mut printed = Vec::new();
        let patience = self.machine.patience(120);
        // Through a pipe it prints lines instead of a bar.
        let piped =
            format!("({command}; echo $? > /run/lab.code) 2>&1 | cat; exit $(cat /run/lab.code)");
        let end = self
            .machine
            .stream_until_reboot(&piped, patience, |piece| printed.extend_from_slice(piece))?;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        match end {
            // A client may return just before the machine goes down.
            End::Reboot | End::Exit(0) => Ok(printed),
            End::Exit(code) => {
                // A summary has only the first line.
                let last = printed.lines().next_back().unwrap_or("nothing");
                bail!(
                    "{last:?} was said last, and {command:?} ended with {code} instead of a reboot:\n{printed}"
                )
            }
        }
    }

    /// Waits until a boot reached multi-user.target in which no upgrade is under way any more.
    pub fn settle(&mut self, patience: Duration) -> Result<Boot> {
        let deadline = Instant::now() + patience;
        let mut boot = self.machine.wait_for_boot_within(patience)?;
        loop {
            let output = self.machine.try_run("slotd status --output json");
            let upgrade = output.as_ref().ok().and_then(|output| {
                let mut status: Value = serde_json::from_str(&output.stdout).ok()?;
                Some(status["upgrade"].take())
            });
            let upgrade = upgrade.unwrap_or_default();
            match upgrade["phase"].as_str() {
                Some("Activating" | "Confirming" | "Draining" | "Staging") | None => {}
                // On its way to its trial, unless no more than this was asked for.
                Some("Staged") if upgrade["stageOnly"] == false => {}
                Some(_) => return Ok(boot),
            }
            if Instant::now() > deadline {
                bail!("the node did not settle: {output:?}");
            }
            if output.is_err() {
                // The machine went down under the command.
                boot = self.machine.wait_for_boot_within(patience)?;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// `slotd status --output json`.
    pub fn status(&mut self) -> Result<Value> {
        self.machine.json("slotd status --output json")
    }

    /// `slotd-bootctl status --output json`.
    pub fn loader(&mut self) -> Result<Value> {
        self.machine.json("slotd-bootctl status --output json")
    }

    /// The entries of `slotd history --output json`, the latest last. Waits until the result that the status shows is among them:
    /// the agent puts the node in order first.
    pub fn history(&mut self) -> Result<Vec<Value>> {
        let deadline = Instant::now() + self.machine.patience(20);
        loop {
            let last = self.status()?["lastResult"]["id"].clone();
            let document = self.machine.json("slotd history --output json")?;
            let entries = document
                .as_array()
                .with_context(|| format!("the history is no list: {document}"))?;
            if last.is_null() || entries.iter().any(|entry| entry["id"] == last) {
                return Ok(entries.clone());
            }
            ensure!(
                Instant::now() < deadline,
                "upgrade {last} has ended and is not in the history: {document:#}"
            );
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// How each upgrade of the history ended, the latest last.
    pub fn results(&mut self) -> Result<Vec<Value>> {
        let entries = self.history()?;
        Ok(entries
            .iter()
            .map(|entry| entry["result"].clone())
            .collect())
    }

    /// The latest entry of the history.
    pub fn last_result(&mut self) -> Result<Value> {
        self.history()?.pop().context("the history is empty")
    }

    /// Runs a command that has to fail with this code and say all of this.
    pub fn refused(&mut self, command: &str, code: u32, says: &[&str]) -> Result<Output> {
        let patience = self.machine.patience(120);
        let output = self.machine.try_run_within(command, patience)?;
        let text = format!("{}{}", output.stdout, output.stderr);
        ensure!(
            output.code == code,
            "{command:?} ended with {} instead of {code}:\n{text}",
            output.code
        );
        for word in says {
            ensure!(
                text.to_lowercase().contains(&word.to_lowercase()),
                "{command:?} does not say {word:?}:\n{text}"
            );
        }
        Ok(output)
    }

    /// Compares what the node shows with what is expected: the loader's files from outside, both programs' documents from inside.
    pub fn expect(&mut self, expected: &Expected<'_>) -> Result<()> {
        let status = self.status()?;
        let loader = self.loader()?;
        let letter = expected.booted.to_ascii_uppercase().to_string();
        for (program, document) in [("slotd status", &status), ("slotd-bootctl status", &loader)] {
            ensure!(
                document["booted"] == letter.as_str(),
                "{program} says that {} is booted, not {letter}",
                document["booted"]
            );
            for (index, state) in expected.states.iter().enumerate() {
                ensure!(
                    document["slots"][index]["state"] == *state,
                    "{program} shows slot {} as {}, not {state}\n{document:#}",
                    ["A", "B"][index],
                    document["slots"][index]["state"]
                );
            }
        }
        let next = &loader["loader"]["next"];
        ensure!(
            next["slot"] == letter.as_str() && next["trial"] == false,
            "the next boot is {next}, not slot {letter}"
        );
        let booted = status["slots"]
            .as_array()
            .and_then(|slots| slots.iter().find(|slot| slot["booted"] == true));
        let version = booted.map(|slot| &slot["version"]);
        ensure!(
            version.is_some_and(|version| *version == expected.version),
            "slotd status shows version {version:?}, not {}",
            expected.version
        );
        self.expect_from_outside(expected)
    }

    /// What the loader's own files say, by its own tool.
    fn expect_from_outside(&self, expected: &Expected<'_>) -> Result<()> {
        let disk = self.machine.disk();
        if let Some(held) = self.machine.loader().held(disk.path())? {
            ensure!(
                held.states == expected.states && held.next() == Some(expected.booted),
                "the loader holds {held:?}, not {expected:?}"
            );
            return Ok(());
        }
        let entries = disk.loader_entries()?;
        ensure!(
            entries == expected.entries,
            "the ESP holds {entries:?}, not {:?}",
            expected.entries
        );
        Ok(())
    }

    /// Cuts the power and switches on again, so many times. All but the last are cut anew as soon as userspace begins: the loader has
    /// counted by then, if it counts, and nothing has confirmed. Each has to start the expected slot, the last one has to come up with
    /// the expected version, and after it everything else is as expected, too.
    pub fn power_cycles(&mut self, count: u32, expected: &Expected<'_>) -> Result<()> {
        for cycle in 1..count {
            let slot = self.machine.power_cycle_into_userspace()?;
            ensure!(
                slot.eq_ignore_ascii_case(&expected.booted.to_string()),
                "power cycle {cycle} started slot {slot}, not {}",
                expected.booted
            );
        }
        let boot = self.machine.power_cycle()?;
        boot.expect(expected.booted, expected.version)
            .context("the last power cycle")?;
        self.expect(expected)
            .with_context(|| format!("after {count} power cycles"))
    }

    /// Waits until so many bytes of slot B are there, seen from outside.
    pub fn wait_until_written(&self, bytes: u64) -> Result<()> {
        let deadline = Instant::now() + self.machine.patience(60);
        while self.machine.disk().slot_bytes_used('b')? < bytes {
            ensure!(
                Instant::now() < deadline,
                "nothing is being written to slot B"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Writes a text to a file of the guest.
    pub fn write_file(&mut self, path: &str, text: &str) -> Result<()> {
        self.machine
            .run(&format!("printf %s {} > {path}", quote(text)))
            .map(drop)
    }
}
