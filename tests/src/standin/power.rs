//! What runs on a stand-in's machine while it is switched on: a thread that is its power button, its PID 1 and its login1 at once.
//! The agent's process lives with this thread.

use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slotd::agent::BootVerdict;

use super::agent::{Launch, reboot_file};
use super::hardware::{Boot, Hardware};
use super::kubelet::Kubelet;

/// Between two looks at the machine.
const TICK: Duration = Duration::from_millis(20);

/// How long the agent may take to stop before it is killed; many times what it takes.
const STOP: Duration = Duration::from_secs(60);

/// How long an agent that died stays away, as the unit's `RestartSec=` has it, only shorter.
const RESTART: Duration = Duration::from_millis(200);

/// How long an API server that is away may hold up a shutdown: a kubelet does not wait for it either.
const WORD: Duration = Duration::from_secs(2);

/// What can be done with a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// As if the plug was pulled.
    PowerOff,
    /// The button.
    PowerOn,
    /// What an operator's `reboot` does: services stop first.
    Reboot,
    /// `kill -9` of the agent, which is started again.
    KillAgent,
    /// `systemctl stop slotd`.
    StopAgent,
    /// `systemctl start slotd`.
    StartAgent,
}

/// An order, and who hears how it went.
pub(super) type Message = (Order, Sender<Result<()>>);

/// What is known of a machine by looking at it.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// Every boot, the first one included.
    pub(super) boots: Vec<Boot>,
    /// How often the agent's process was started.
    pub(super) agent_starts: u32,
    /// The agent's process, while there is one.
    pub(super) agent: Option<u32>,
    /// What the machine failed of, if it did: a stand-in that is broken, not a node that is.
    pub(super) trouble: Option<String>,
}

/// How a machine is set up.
#[derive(Debug, Clone)]
pub(super) struct Wiring {
    /// How long a reboot takes, beside what happens in it.
    pub(super) downtime: Duration,
    /// The address of the bus, where nobody needs to listen.
    pub(super) bus: String,
    /// The program of which the agent runs; without it, this very one.
    pub(super) program: Option<PathBuf>,
    /// Where the agent's log goes.
    pub(super) log: PathBuf,
}

/// The machine while it is watched over.
pub(super) struct Power {
    hardware: Hardware,
    kubelet: Arc<Kubelet>,
    wiring: Wiring,
    seen: Arc<Mutex<Seen>>,
    on: bool,
    /// Whether the agent is to run while the machine is on.
    enabled: bool,
    agent: Option<Child>,
    /// When it is started next.
    start: Option<Instant>,
}

impl Power {
    pub(super) fn new(
        hardware: Hardware,
        kubelet: Arc<Kubelet>,
        wiring: Wiring,
        seen: Arc<Mutex<Seen>>,
    ) -> Self {
        Self {
            hardware,
            kubelet,
            wiring,
            seen,
            on: false,
            enabled: true,
            agent: None,
            start: None,
        }
    }

    /// Carries out orders, and what the machine asks for, until nobody gives any more.
    pub(super) fn run(mut self, orders: &Receiver<Message>) {
        loop {
            match orders.recv_timeout(TICK) {
                Ok((order, answer)) => {
                    // Who asked may have gone.
                    let _ = answer.send(self.carry_out(order));
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = self.tick() {
                        lock(&self.seen).trouble = Some(format!("{error:#}"));
                        self.cut();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.cut();
    }

    fn carry_out(&mut self, order: Order) -> Result<()> {
        match order {
            Order::PowerOff => self.cut(),
            Order::PowerOn => return self.power_on(),
            Order::Reboot => return self.reboot(false),
            Order::KillAgent => self.kill_agent(),
            Order::StopAgent => {
                self.enabled = false;
                self.stop_agent(false)?;
            }
            Order::StartAgent => {
                self.enabled = true;
                self.start = Some(Instant::now());
            }
        }
        Ok(())
    }

    /// One look at the machine.
    fn tick(&mut self) -> Result<()> {
        if !self.on {
            return Ok(());
        }
        self.hardware.tick()?;
        let reboot = reboot_file(self.hardware.root());
        if reboot.exists() {
            let forced = fs::read_to_string(&reboot).context("reading what reboot is asked for")?;
            return self.reboot(forced == "forced");
        }
        let run = self.hardware.run_files();
        let healthy = matches!(run.read_verdict(), Ok(Some(BootVerdict::Healthy)));
        if healthy && !run.boot_complete().exists() {
            // boot-complete.target and slotd-confirm.service.
            run.announce_boot_complete()
                .context("saying that the boot is complete")?;
        }
        self.watch_agent()
    }

    fn watch_agent(&mut self) -> Result<()> {
        if let Some(agent) = &mut self.agent {
            if agent
                .try_wait()
                .context("looking at the agent's process")?
                .is_some()
            {
                self.forget_agent();
                self.start = Some(Instant::now() + RESTART);
            }
        } else if self.enabled && self.start.is_some_and(|start| start <= Instant::now()) {
            self.start_agent()?;
        }
        Ok(())
    }

    fn power_on(&mut self) -> Result<()> {
        if self.on {
            return Ok(());
        }
        let boot = self.hardware.boot()?;
        self.on = true;
        lock(&self.seen).boots.push(boot.clone());
        if self.enabled {
            self.start_agent()?;
        }
        // The kubelet comes up beside the agent; nobody waits for it.
        self.kubelet.start(&boot);
        Ok(())
    }

    fn reboot(&mut self, forced: bool) -> Result<()> {
        self.stop_agent(forced)?;
        // A kubelet that is stopped says so, if somebody hears it.
        if !forced {
            let _ = self.kubelet.say_not_ready(WORD);
        }
        self.cut();
        std::thread::sleep(self.wiring.downtime);
        self.power_on()
    }

    /// All that runs is gone, at once.
    fn cut(&mut self) {
        self.kill_agent();
        self.start = None;
        self.on = false;
        self.kubelet.stop();
    }

    fn start_agent(&mut self) -> Result<()> {
        self.start = None;
        let child = Launch {
            root: self.hardware.root(),
            bus: &self.wiring.bus,
            program: self.wiring.program.as_deref(),
            log: &self.wiring.log,
            under: &[],
        }
        .start()?;
        let mut seen = lock(&self.seen);
        seen.agent_starts += 1;
        seen.agent = Some(child.id());
        self.agent = Some(child);
        Ok(())
    }

    /// Stops the agent as PID 1 does: asked first, and killed when it takes too long or all is forced.
    fn stop_agent(&mut self, forced: bool) -> Result<()> {
        let deadline = Instant::now() + STOP;
        if let Some(agent) = self.agent.as_mut().filter(|_| !forced) {
            if agent.try_wait()?.is_none() {
                let process = Pid::from_raw(i32::try_from(agent.id()).context("a process id")?);
                kill(process, Signal::SIGTERM).context("telling the agent to stop")?;
            }
            while agent.try_wait()?.is_none() {
                if Instant::now() > deadline {
                    self.kill_agent();
                    return Err(anyhow!("the agent did not stop and was killed"));
                }
                std::thread::sleep(TICK);
            }
        }
        self.kill_agent();
        self.start = None;
        Ok(())
    }

    fn kill_agent(&mut self) {
        if let Some(agent) = &mut self.agent {
            // It may have ended by itself.
            let _ = agent.kill();
            let _ = agent.wait();
            self.forget_agent();
            self.start = Some(Instant::now() + RESTART);
        }
    }

    fn forget_agent(&mut self) {
        self.agent = None;
        lock(&self.seen).agent = None;
    }
}

/// A poisoned lock only means that another thread died; the data are whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
