//! One stand-in, as a test handles it.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use slotd::status::HistoryEntry;

use super::agent::KUBECONFIG;
use super::bus::Bus;
use super::hardware::{Boot, Hardware};
use super::health::{Health, HealthFile};
use super::kubelet::Kubelet;
use super::power::{Message, Order, Power, Seen, Wiring, lock};
use crate::cluster::Client;

/// How long anything may take that takes moments.
const PATIENCE: Duration = Duration::from_secs(60);

/// A pod as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodSeen {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it is about to be deleted.
    pub leaving: bool,
}

/// A node of a fleet. Switched off when it goes.
#[derive(Debug)]
pub struct StandIn {
    name: String,
    root: PathBuf,
    log: PathBuf,
    bus: String,
    admin: Client,
    kubelet: Arc<Kubelet>,
    seen: Arc<Mutex<Seen>>,
    orders: Option<Sender<Message>>,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// Puts a machine under a power button; it is switched off.
    pub(super) fn new(
        name: String,
        hardware: Hardware,
        kubelet: Arc<Kubelet>,
        wiring: Wiring,
        admin: Client,
    ) -> Result<Self> {
        let root = hardware.root().to_owned();
        let (log, bus) = (wiring.log.clone(), wiring.bus.clone());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let power = Power::new(hardware, Arc::clone(&kubelet), wiring, Arc::clone(&seen));
        let (orders, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || power.run(&receiver))
            .with_context(|| format!("starting the thread of {name}"))?;
        Ok(Self {
            name,
            root,
            log,
            bus,
            admin,
            kubelet,
            seen,
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// The Node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder that is its root directory: `efi`, `data/slotd`, `etc/slotd/config.yaml` and so on lie there.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The kubelet's kubeconfig, which is the agent's credential.
    pub fn credential(&self) -> PathBuf {
        self.root.join(KUBECONFIG)
    }

    /// The log of the agent's processes, one after the other.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Every boot so far.
    pub fn boots(&self) -> Vec<Boot> {
        lock(&self.seen).boots.clone()
    }

    /// The boot that runs, or ran last.
    pub fn boot(&self) -> Result<Boot> {
        let last = lock(&self.seen).boots.last().cloned();
        last.with_context(|| format!("{} was never switched on", self.name))
    }

    /// How often the agent's process was started.
    pub fn agent_starts(&self) -> u32 {
        lock(&self.seen).agent_starts
    }

    /// The process id of the agent, while it runs.
    pub fn agent(&self) -> Option<u32> {
        lock(&self.seen).agent
    }

    /// Says how a version of the system behaves on this node from now on.
    pub fn set_health(&self, version: &str, health: Health) -> Result<()> {
        HealthFile::of(&self.root)
            .set(version, health)
            .with_context(|| format!("saying how {version} is on {}", self.name))
    }

    /// Pulls the plug: what was in memory is gone, and nobody is told.
    pub fn power_off(&self) -> Result<()> {
        self.order(Order::PowerOff)
    }

    /// Switches on; returns when the loader has chosen and the agent's process is started.
    pub fn power_on(&self) -> Result<()> {
        self.order(Order::PowerOn)
    }

    /// Reboots as an operator does, with the agent told to stop and the node NotReady first.
    pub fn reboot(&self) -> Result<()> {
        self.order(Order::Reboot)
    }

    /// Kills the agent's process, which is started again soon.
    pub fn kill_agent(&self) -> Result<()> {
        self.order(Order::KillAgent)
    }

    /// Stops the agent's service, and leaves it stopped, over reboots too.
    pub fn stop_agent(&self) -> Result<()> {
        self.order(Order::StopAgent)
    }

    /// Starts the agent's service.
    pub fn start_agent(&self) -> Result<()> {
        self.order(Order::StartAgent)
    }

    /// The kubelet says that the node is not Ready, over reboots too; returns when the API server has heard it.
    pub fn say_not_ready(&self) -> Result<()> {
        self.kubelet.be_unwell(true, PATIENCE)
    }

    /// The kubelet says that the node is Ready again; returns when the API server has heard it.
    pub fn say_ready(&self) -> Result<()> {
        self.kubelet.be_unwell(false, PATIENCE)
    }

    /// The kubelet dies: nothing is said of the node any more, and its pods are as they are.
    pub fn stop_kubelet(&self) {
        self.kubelet.hold(true);
    }

    /// Starts the kubelet, which makes the Node object where there is none.
    pub fn start_kubelet(&self) {
        self.kubelet.hold(false);
    }

    /// Waits until the API server has heard all that the kubelet has to say.
    pub fn wait_until_heard(&self) -> Result<()> {
        self.kubelet
            .heard(PATIENCE)
            .with_context(|| format!("the kubelet of {}", self.name))
    }

    /// Pods that are deleted stay as they are until [`StandIn::let_pods_end`].
    pub fn keep_pods_ending(&self) {
        self.kubelet.let_pods_end(false);
    }

    /// Pods that are deleted come to their end, as at first.
    pub fn let_pods_end(&self) {
        self.kubelet.let_pods_end(true);
    }

    /// The Node object.
    pub fn object(&self) -> Result<Value> {
        self.admin.json(&["get", "node", &self.name])
    }

    /// The pods that are bound to the node, sorted.
    pub fn pods(&self) -> Result<Vec<PodSeen>> {
        let selector = format!("spec.nodeName={}", self.name);
        let list = self.admin.json(&[
            "get",
            "pods",
            "--all-namespaces",
            "--field-selector",
            &selector,
        ])?;
        let items = list["items"].as_array().context("a list of pods")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut pods: Vec<PodSeen> = items
            .iter()
            .map(|pod| PodSeen {
                namespace: text(&pod["metadata"]["namespace"]),
                name: text(&pod["metadata"]["name"]),
                ready: pod["status"]["conditions"]
                    .as_array()
                    .is_some_and(|conditions| {
                        conditions.iter().any(|condition| {
                            condition["type"] == "Ready" && condition["status"] == "True"
                        })
                    }),
                leaving: !pod["metadata"]["deletionTimestamp"].is_null(),
            })
            .collect();
        pods.sort();
        Ok(pods)
    }

    /// The upgrades that ended on this node, as its agent has kept them.
    pub fn history(&self) -> Result<Vec<HistoryEntry>> {
        let history =
            slotd::agent::read_history(&self.root.join(STATE)).context("reading the history")?;
        Ok(history.entries)
    }

    /// The agent's bus, where the fleet has buses.
    pub fn bus(&self) -> Bus<'_> {
        Bus::at(&self.bus)
    }

    /// An error when the machine itself is broken, which no test means to see.
    pub fn sound(&self) -> Result<()> {
        match &lock(&self.seen).trouble {
            Some(trouble) => bail!("{}: {trouble}", self.name),
            None => Ok(()),
        }
    }

    fn order(&self, order: Order) -> Result<()> {
        let gone = || anyhow!("the thread of {} is gone", self.name);
        let (sender, answer) = channel();
        let orders = self.orders.as_ref().with_context(gone)?;
        orders.send((order, sender)).map_err(|_| gone())?;
        answer
            .recv()
            .map_err(|_| gone())?
            .with_context(|| format!("{order:?} of {}", self.name))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("lab: the thread of {} had panicked", self.name);
        }
    }
}

/// Where the agent keeps its state, below the node's root.
pub(super) const STATE: &str = "data/slotd";
