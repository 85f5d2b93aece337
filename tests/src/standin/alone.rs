//! A stand-in that belongs to no cluster and has no life of its own: nothing but its agent's process moves between two looks of its
//! test, which also says under what that process runs.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use slotd::agent::BootVerdict;
use slotd::status::HistoryEntry;
use slotd_bootctl::SlotName;

use super::agent::{Launch, reboot_file};
use super::bus::{self, Bus};
use super::hardware::{Boot, Hardware};
use super::health::{Health, HealthFile};
use super::image::StandInImage;
use super::node::STATE;
use crate::cluster::Service;

/// Between two looks at the machine.
const TICK: Duration = Duration::from_millis(10);

/// What a look at the machine shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// The agent is at work, or at rest.
    Working,
    /// The agent's process is gone, and how it ended.
    Died(ExitStatus),
    /// The agent asks for a reboot.
    RebootAsked,
}

/// The machine. Switched off when it goes.
#[derive(Debug)]
pub struct Alone {
    hardware: Hardware,
    address: String,
    log: PathBuf,
    agent: Option<Child>,
    boots: Vec<Boot>,
    // After the agent, which speaks over it.
    _bus: Service,
}

impl Alone {
    /// Makes a machine, switched off, whose slot A is good and holds this image, in a folder of its own.
    pub fn create(root: &Path, image: &StandInImage) -> Result<Self> {
        let hardware = Hardware::create(root, image)?;
        let configuration = root.join("etc/slotd/config.yaml");
        let text = format!("stateDirectory: {}\n", root.join(STATE).display());
        fs::create_dir_all(root.join("etc/slotd"))
            .and_then(|()| fs::write(&configuration, text))
            .with_context(|| format!("writing {}", configuration.display()))?;
        let name = root.file_name().context("a folder's name")?;
        let address = format!(
            "unix:abstract=slotd-lab-{}-{}",
            std::process::id(),
            name.display()
        );
        let bus = bus::start(&address, root)?;
        Ok(Self {
            hardware,
            address,
            log: root.with_extension("log"),
            agent: None,
            boots: Vec::new(),
            _bus: bus,
        })
    }

    /// Puts a proven image into slot B, as an earlier upgrade leaves it.
    pub fn put_fallback(&self, image: &StandInImage) -> Result<()> {
        self.hardware.put_fallback(image)
    }

    /// The folder that is its root directory.
    pub fn root(&self) -> &Path {
        self.hardware.root()
    }

    /// Where its agent keeps its state.
    pub fn state(&self) -> PathBuf {
        self.root().join(STATE)
    }

    /// The log of the agent's processes, one after the other.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The address of the agent's bus.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The agent's bus.
    pub fn bus(&self) -> Bus<'_> {
        Bus::at(&self.address)
    }

    /// Every boot so far.
    pub fn boots(&self) -> &[Boot] {
        &self.boots
    }

    /// The upgrades that ended here, as the agent has kept them.
    pub fn history(&self) -> Result<Vec<HistoryEntry>> {
        let history = slotd::agent::read_history(&self.state()).context("reading the history")?;
        Ok(history.entries)
    }

    /// Whether the agent is done with this boot: all that an upgrade leaves to do was done.
    pub fn settled(&self) -> bool {
        self.hardware.run_files().settled().exists()
    }

    /// Says how a version of the system behaves here from now on.
    pub fn set_health(&self, version: &str, health: Health) -> Result<()> {
        HealthFile::of(self.root())
            .set(version, health)
            .with_context(|| format!("saying how {version} is"))
    }

    /// Switches the machine off and on: the loader chooses. No agent runs yet.
    pub fn power_cycle(&mut self) -> Result<&Boot> {
        self.kill_agent();
        let boot = self.hardware.boot()?;
        self.boots.push(boot);
        self.boots.last().context("a boot")
    }

    /// Starts the agent under a command, or under none.
    pub fn start_agent(&mut self, under: &[String]) -> Result<()> {
        self.kill_agent();
        let agent = Launch {
            root: self.hardware.root(),
            bus: &self.address,
            program: None,
            log: &self.log,
            under,
        }
        .start()?;
        self.agent = Some(agent);
        Ok(())
    }

    /// Starts one more agent beside the one that runs, and waits until it has ended; how, and what it said.
    pub fn run_another_agent(&self) -> Result<(ExitStatus, String)> {
        let log = self.log.with_extension("other.log");
        let mut agent = Launch {
            root: self.hardware.root(),
            bus: &self.address,
            program: None,
            log: &log,
            under: &[],
        }
        .start()?;
        let status = agent.wait().context("waiting for an agent")?;
        let said = fs::read_to_string(&log).context("reading a log")?;
        Ok((status, said))
    }

    /// The lock of whoever changes slots or the loader's data.
    pub fn change_lock(&self) -> PathBuf {
        self.hardware.run_files().lock()
    }

    /// The device of a slot.
    pub fn device(&self, slot: SlotName) -> &Path {
        self.hardware.device(slot)
    }

    /// One look, in which the rest of the machine does its part: its clock goes on, and a healthy boot is complete.
    pub fn look(&mut self) -> Result<Sight> {
        self.hardware.tick()?;
        if let Some(agent) = &mut self.agent
            && let Some(status) = agent.try_wait().context("looking at the agent's process")?
        {
            self.agent = None;
            return Ok(Sight::Died(status));
        }
        if reboot_file(self.root()).exists() {
            return Ok(Sight::RebootAsked);
        }
        let run = self.hardware.run_files();
        let healthy = matches!(run.read_verdict(), Ok(Some(BootVerdict::Healthy)));
        if healthy && !run.boot_complete().exists() {
            run.announce_boot_complete()
                .context("saying that the boot is complete")?;
        }
        Ok(Sight::Working)
    }

    /// Looks until `done` says that it is; an agent that ends meanwhile is an error.
    pub fn wait(
        &mut self,
        what: &str,
        patience: Duration,
        mut done: impl FnMut(&Self, Sight) -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let sight = self.look()?;
            if let Sight::Died(status) = sight {
                bail!("the agent ended ({status}) before {what}");
            }
            if done(self, sight)? {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "waited in vain: {what}");
            std::thread::sleep(TICK);
        }
    }

    /// `kill -9`, of whatever it runs under as well.
    pub fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            if let Ok(group) = i32::try_from(agent.id()) {
                // It may have ended by itself.
                let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
            }
            let _ = agent.wait();
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

/// Whether a process was ended by `kill -9`.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::SIGKILL as i32)
}
