//! The kubelet's part of a stand-in: its Node object, kept Ready as long as the kubelet runs, and its Lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::hardware::Boot;

/// How often the Lease is renewed; the controller manager gives a node up that is silent for 20 s.
const RENEWAL: Duration = Duration::from_secs(4);

/// Before the next try where the API server does not answer or refuses.
const RETRY: Duration = Duration::from_millis(250);

/// The name by which the writes are known.
pub(super) const MANAGER: &str = "kubelet";

/// What a node is called, and what stays as it is.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) kubelet_version: String,
}

/// What the kubelet is to do and to say.
#[derive(Debug, Clone, Default)]
pub(super) struct Wish {
    /// Counts up with each change.
    number: u64,
    /// Whether the kubelet's process runs at all.
    pub(super) running: bool,
    /// Kept stopped by the test, whatever the machine does.
    held: bool,
    /// Not Ready by the test's will, whatever the machine does.
    unwell: bool,
    /// About to be stopped.
    stopping: bool,
    /// Whether pods that are deleted come to their end.
    pub(super) pods_end: bool,
    /// Starts of the kubelet, each of which makes the Node object where there is none.
    starts: u64,
    boot_id: String,
    version: String,
}

impl Wish {
    /// Whether the kubelet works, so that pods can.
    pub(super) fn works(&self) -> bool {
        self.running && !self.held
    }

    fn ready(&self) -> bool {
        !self.unwell && !self.stopping
    }
}

/// How far the API server has heard of it.
#[derive(Debug, Default)]
struct Progress {
    written: u64,
    trouble: Option<String>,
}

/// The kubelet of one node, as its machine and the tests see it.
#[derive(Debug)]
pub(super) struct Kubelet {
    wish: watch::Sender<Wish>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Kubelet {
    pub(super) fn new() -> Self {
        let wish = Wish {
            pods_end: true,
            ..Wish::default()
        };
        Self {
            wish: watch::Sender::new(wish),
            progress: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// What it is to do, now and whenever that changes.
    pub(super) fn wish(&self) -> watch::Receiver<Wish> {
        self.wish.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut Wish)) -> u64 {
        let mut number = 0;
        self.wish.send_modify(|wish| {
            change(wish);
            wish.number += 1;
            number = wish.number;
        });
        number
    }

    /// The machine came up with this boot.
    pub(super) fn start(&self, boot: &Boot) {
        self.change(|wish| {
            wish.running = true;
            wish.stopping = false;
            wish.starts += 1;
            wish.boot_id.clone_from(&boot.boot_id);
            wish.version.clone_from(&boot.version);
        });
    }

    /// The machine is off.
    pub(super) fn stop(&self) {
        self.change(|wish| wish.running = false);
    }

    /// The machine goes down in order, which a kubelet says before.
    pub(super) fn say_not_ready(&self, patience: Duration) -> Result<()> {
        let number = self.change(|wish| wish.stopping = true);
        self.wait_for(number, patience)
    }

    /// The kubelet dies, or comes back, on a machine that goes on.
    pub(super) fn hold(&self, held: bool) {
        self.change(|wish| {
            if wish.held && !held {
                wish.starts += 1;
            }
            wish.held = held;
        });
    }

    /// The kubelet says that the node is not Ready, or that it is again.
    pub(super) fn be_unwell(&self, unwell: bool, patience: Duration) -> Result<()> {
        let number = self.change(|wish| wish.unwell = unwell);
        self.wait_for(number, patience)
    }

    /// Whether deleted pods come to their end from now on.
    pub(super) fn let_pods_end(&self, end: bool) {
        self.change(|wish| wish.pods_end = end);
    }

    /// Waits until the API server has heard all that was said so far.
    pub(super) fn heard(&self, patience: Duration) -> Result<()> {
        let number = self.wish.borrow().number;
        self.wait_for(number, patience)
    }

    fn wait_for(&self, number: u64, patience: Duration) -> Result<()> {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let (progress, _) = self
            .changed
            .wait_timeout_while(progress, patience, |progress| progress.written < number)
            .unwrap_or_else(PoisonError::into_inner);
        if progress.written >= number {
            return Ok(());
        }
        let trouble = progress.trouble.clone();
        bail!(
            "the API server has not heard of it after {} s: {}",
            patience.as_secs(),
            trouble.unwrap_or_else(|| "no answer yet".to_owned())
        );
    }

    fn record(&self, number: u64, result: &Result<()>) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(()) => {
                progress.written = number;
                progress.trouble = None;
            }
            Err(error) => progress.trouble = Some(format!("{error:#}")),
        }
        self.changed.notify_all();
    }
}

/// Does what is wished, for as long as somebody may wish for something.
pub(super) async fn keep(client: Client, identity: Identity, kubelet: Arc<Kubelet>) {
    let mut wish = kubelet.wish();
    let mut writer = Writer {
        nodes: Api::all(client.clone()),
        leases: Api::namespaced(client, "kube-node-lease"),
        identity,
        starts: 0,
        said: None,
    };
    loop {
        let now = wish.borrow_and_update().clone();
        let result = writer.act(&now).await;
        kubelet.record(now.number, &result);
        let pause = if result.is_ok() { RENEWAL } else { RETRY };
        tokio::select! {
            changed = wish.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The status as it was written last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    ready: bool,
    boot_id: String,
    version: String,
}

struct Writer {
    nodes: Api<Node>,
    leases: Api<Lease>,
    identity: Identity,
    starts: u64,
    said: Option<Said>,
}

impl Writer {
    async fn act(&mut self, wish: &Wish) -> Result<()> {
        if !wish.works() {
            return Ok(());
        }
        if self.starts != wish.starts {
            self.register().await?;
            self.starts = wish.starts;
            self.said = None;
        }
        let say = Said {
            ready: wish.ready(),
            boot_id: wish.boot_id.clone(),
            version: wish.version.clone(),
        };
        if self.said.as_ref() != Some(&say) || !self.shown(say.ready).await? {
            let status = json!({"status": self.status(&say)});
            self.nodes
                .patch_status(
                    &self.identity.name,
                    &PatchParams::default(),
                    &Patch::Strategic(status),
                )
                .await
                .context("saying how the node is")?;
            self.said = Some(say);
        }
        self.renew().await
    }

    /// Whether the Node shows what was said. The controller manager writes there that a kubelet is silent, and what a kubelet finds
    /// there it puts right.
    async fn shown(&self, ready: bool) -> Result<bool> {
        let node = self.nodes.get_opt(&self.identity.name).await;
        let Some(node) = node.context("reading the Node object")? else {
            // Somebody deleted it; a kubelet makes none but when it starts.
            return Ok(true);
        };
        let conditions = node.status.and_then(|status| status.conditions);
        let wanted = if ready { "True" } else { "False" };
        Ok(conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == wanted))
    }

    /// Makes the Node object unless it is there.
    async fn register(&self) -> Result<()> {
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.identity.name, "labels": self.identity.labels},
        });
        let node = serde_json::from_value(node).context("the Node object")?;
        match self.nodes.create(&PostParams::default(), &node).await {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error).context("making the Node object"),
        }
    }

    fn status(&self, say: &Said) -> Value {
        let now = Timestamp::now().to_string();
        let condition = |kind: &str, holds: bool, reason: &str| {
            json!({
                "type": kind,
                "status": if holds { "True" } else { "False" },
                "reason": reason,
                "message": "said by the lab",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            })
        };
        let reason = if say.ready {
            "KubeletReady"
        } else {
            "KubeletNotReady"
        };
        let resources = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        json!({
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": self.identity.name},
            ],
            "capacity": resources,
            "allocatable": resources,
            "conditions": [
                condition("Ready", say.ready, reason),
                condition("MemoryPressure", false, "KubeletHasSufficientMemory"),
                condition("DiskPressure", false, "KubeletHasNoDiskPressure"),
                condition("PIDPressure", false, "KubeletHasSufficientPID"),
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": say.boot_id,
                "containerRuntimeVersion": "lab://1",
                "kernelVersion": "6.1.0",
                "kubeProxyVersion": "",
                "kubeletVersion": self.identity.kubelet_version,
                "machineID": "0123456789abcdef0123456789abcdef",
                "operatingSystem": "linux",
                "osImage": format!("stand-in {}", say.version),
                "systemUUID": self.identity.name,
            },
        })
    }

    async fn renew(&self) -> Result<()> {
        let name = &self.identity.name;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": 12,
                "renewTime": format!("{:.6}", Timestamp::now()),
            },
        });
        let parameters = PatchParams::apply(MANAGER).force();
        self.leases
            .patch(name, &parameters, &Patch::Apply(lease))
            .await
            .context("renewing the node's Lease")?;
        Ok(())
    }
}
