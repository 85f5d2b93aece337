//! Virtual machines that are nodes of a real cluster: kubelet, containerd and slotd in each, a control plane on this machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::artifacts::{Image, repository};
use crate::cluster::{APP, Client, ControlPlane, Workload, progress_of, wait_until_every};
use crate::images::NODE_OLD;
use crate::lab::{Lab, NodeOptions};
use crate::server::Server;
use crate::standin::{FLEET_LABEL, Observer};
use crate::vm::Machine;

/// slotd's configuration on these nodes. That their kubelet has to say that it is well is slotd's own default.
const CONFIGURATION: &str = "boot: {panic: 2}\ntrial: {tries: 2, deadline: 240s}\n";

/// The user that the manifests give the controller's rights to.
const CONTROLLER: &str = "slotd-controller";

/// Between two looks by kubectl, which takes what the machines need, too.
pub const PAUSE: Duration = Duration::from_secs(1);

/// What the pods of [`VmFleet::deploy`] belong to, and the budget for them.
pub const DEPLOYMENT: &str = "app";

const WORKLOAD: Workload<'static> = Workload {
    name: DEPLOYMENT,
    namespace: "default",
};

/// A node of the fleet.
#[derive(Debug)]
pub struct VmNode {
    /// The Node's name.
    pub name: &'static str,
    /// The machine.
    pub machine: Machine,
}

impl VmNode {
    /// Catches up with the boots that the machine has had, and returns what `slotd status` says in the one that runs.
    pub fn status(&mut self) -> Result<Value> {
        while self.machine.is_rebooting()? {
            let patience = self.machine.patience(100);
            self.machine
                .wait_for_boot_within(patience)
                .with_context(|| format!("the boot of {}", self.name))?;
        }
        self.machine.json("slotd status --output json")
    }

    /// Waits until `slotd status` satisfies this, also over reboots.
    pub fn wait_for(
        &mut self,
        what: &str,
        patience: Duration,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        wait_until_every(PAUSE, &format!("{} {what}", self.name), patience, || {
            let status = self.status()?;
            ensure!(holds(&status), "slotd status says {status:#}");
            Ok(status)
        })
    }
}

/// Nodes, their control plane, and what they are served. On the first one, which belongs to the control plane, the controller runs.
#[derive(Debug)]
pub struct VmFleet {
    // Dropped in this order: machines, then who watches, then what they are asked over.
    /// The nodes.
    pub nodes: Vec<VmNode>,
    /// Who sees what anybody could see.
    pub observer: Observer,
    /// Where images come from.
    pub server: Server,
    /// The control plane.
    pub plane: ControlPlane,
    /// How long anything may take that takes a minute on an idle machine.
    patience: Duration,
}

impl VmFleet {
    /// Starts a control plane, installs slotd's manifests, boots two nodes with an old image and waits until both are Ready and
    /// have told of their agents. `tell` hears what happens.
    pub fn start(lab: &Lab, tell: &dyn Fn(&str)) -> Result<Self> {
        let names = ["node-1", "node-2"];
        lab.artifacts()?.image(&NODE_OLD)?;
        let plane = lab.own_control_plane()?;
        tell(&format!(
            "etcd, API server, scheduler and controller manager are ready after {:.1} s",
            plane.elapsed().as_secs_f64()
        ));
        plane.install()?;
        tell("applied slotd's manifests: kubectl apply --kustomize crds/manifests");
        let observer = Observer::start(plane.admin().kubeconfig(), &format!("{FLEET_LABEL}=vm"))?;
        let mut nodes = Vec::new();
        let options = NodeOptions {
            configuration: CONFIGURATION,
            ..NodeOptions::new(&NODE_OLD)
        };
        for (index, name) in names.into_iter().enumerate() {
            let machine = lab.machine_of(name, &options)?;
            give_identity(&machine, &plane, name, index == 0)?;
            nodes.push(VmNode { name, machine });
        }
        let patience = nodes[0].machine.patience(100);
        let mut fleet = Self {
            nodes,
            observer,
            server: Server::start()?,
            plane,
            patience,
        };
        tell(
            "switching two machines on: firmware, systemd-boot, Linux, containerd, kubelet, slotd",
        );
        for node in &mut fleet.nodes {
            node.machine.power_on()?;
        }
        for node in &mut fleet.nodes {
            let boot = node.machine.wait_for_boot_within(patience)?;
            boot.expect('A', NODE_OLD.version())?;
        }
        fleet.wait_until_available()?;
        let role = "node-role.kubernetes.io/control-plane=";
        fleet.admin().run(&["label", "node", names[0], role])?;
        fleet.observer.forget();
        Ok(fleet)
    }

    /// kubectl with all rights.
    pub fn admin(&self) -> &Client {
        self.plane.admin()
    }

    /// How long anything may take that takes a minute on an idle machine.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Runs so many pods, of which the budget lets so many be missing, spread where that can be, and waits until all are Ready.
    pub fn deploy(&self, replicas: usize, may_be_missing: usize) -> Result<()> {
        let pod = json!({
            // The nodes have no other network.
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 5,
            "topologySpreadConstraints": [{
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": WORKLOAD.labels()},
            }],
            "containers": [{"name": "app", "image": APP, "imagePullPolicy": "Never"}],
        });
        WORKLOAD.deploy(self.admin(), replicas, &pod)?;
        self.set_budget(may_be_missing)?;
        wait_until_every(PAUSE, "the pods", self.patience, || {
            WORKLOAD
                .ready(self.admin(), replicas)
                .with_context(|| self.admin().run(&["get", "events"]).unwrap_or_default())
        })
    }

    /// Sets how many pods the budget lets be missing.
    pub fn set_budget(&self, may_be_missing: usize) -> Result<()> {
        WORKLOAD.set_budget(self.admin(), may_be_missing)
    }

    /// Publishes an image and returns the owner's document, as it is among the examples, with this image in it.
    pub fn document(&self, name: &str, image: &Image) -> Result<String> {
        let path = repository().join("crds/manifests/examples/osupgrade.yaml");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        // Its head speaks of the checksum that is missing.
        let (_, mut text) = text
            .split_once("\napiVersion")
            .map(|(head, body)| (head, format!("apiVersion{body}")))
            .context("the example begins otherwise")?;
        let url = self.server.serve_file(&image.path);
        for (what, by) in [
            ("my-upgrade-2", name),
            ("v1.35.3", &image.version),
            ("https://updates.example.com/monok8s-1.2.3.img.zst", &url),
            ("\"sha256:...\"", &format!("{:?}", image.checksum)),
        ] {
            ensure!(text.contains(what), "{what} is not in {}", path.display());
            text = text.replacen(what, by, 1);
        }
        Ok(text)
    }

    /// The status of an upgrade.
    pub fn status(&self, upgrade: &str) -> Result<Value> {
        let object = self.admin().json(&["get", "osupgrade", upgrade])?;
        Ok(object["status"].clone())
    }

    /// The progress object of a node for an upgrade.
    pub fn progress(&self, upgrade: &str, node: &str) -> Result<Value> {
        progress_of(self.admin(), upgrade, node)
    }

    /// Waits until an upgrade has chosen the node that goes first, and returns its place among the nodes.
    pub fn first(&self, upgrade: &str) -> Result<usize> {
        wait_until_every(PAUSE, "a node that goes first", self.patience, || {
            let activated = self.nodes.iter().position(|node| {
                self.progress(upgrade, node.name)
                    .is_ok_and(|progress| progress["spec"]["action"] == "Activate")
            });
            activated.with_context(|| format!("none has a place: {:#?}", self.status(upgrade)))
        })
    }

    /// Which boot each node runs in, by its kubelet's word.
    pub fn boots(&self) -> Result<BTreeMap<String, String>> {
        let list = self.admin().json(&["get", "nodes"])?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let nodes = list["items"].as_array().context("a list of nodes")?;
        Ok(nodes
            .iter()
            .map(|node| {
                let boot = &node["status"]["nodeInfo"]["bootID"];
                (text(&node["metadata"]["name"]), text(boot))
            })
            .collect())
    }

    /// Waits until an upgrade's status satisfies this.
    pub fn wait_for(
        &mut self,
        upgrade: &str,
        what: &str,
        patience: Duration,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = Instant::now() + patience;
        loop {
            let status = self.status(upgrade);
            if let Ok(status) = &status
                && holds(status)
            {
                return Ok(status.clone());
            }
            ensure!(
                Instant::now() < deadline,
                "waited {} s in vain: {upgrade} {what}; its status is {status:#?}\n{}",
                patience.as_secs(),
                self.tables().unwrap_or_default()
            );
            self.plane.alive()?;
            std::thread::sleep(PAUSE);
        }
    }

    /// What an operator looks at.
    pub fn tables(&self) -> Result<String> {
        let kinds = "osupgrades,osupgradeprogress,nodes";
        self.admin().run(&["get", kinds])
    }

    /// Waits until every node is Ready and schedulable and has told of its agent.
    pub fn wait_until_available(&self) -> Result<()> {
        let labels = format!("{FLEET_LABEL}=vm,monok8s.io/agent=true");
        wait_until_every(PAUSE, "all nodes with their agents", self.patience, || {
            let list = self
                .admin()
                .json(&["get", "nodes", "--selector", &labels])?;
            let count = list["items"].as_array().map_or(0, Vec::len);
            ensure!(count == self.nodes.len(), "{count} nodes have an agent");
            Ok(())
        })?;
        self.observer
            .wait_for("all nodes are available", self.patience, |moment| {
                moment.unavailable.is_empty()
            })
    }
}

/// Puts on a machine's data partition what an installer leaves there: the kubelet's credential, which slotd uses, too, and on
/// the controller's node the controller's own.
fn give_identity(
    machine: &Machine,
    plane: &ControlPlane,
    name: &str,
    controls: bool,
) -> Result<()> {
    let user = format!("system:node:{name}");
    let kubelet = plane.guest_kubeconfig(&user, Some("system:nodes"))?;
    let variables = format!("NODE_NAME={name}\nNODE_LABELS={FLEET_LABEL}=vm\n");
    let authority = plane.authority();
    let controller = plane.guest_kubeconfig(CONTROLLER, None)?;
    let mut files = vec![
        ("etc-kubernetes/kubelet.conf", kubelet.as_str()),
        ("etc-kubernetes/kubelet.env", &variables),
        ("etc-kubernetes/pki/ca.crt", &authority),
    ];
    if controls {
        files.push(("etc-slotd/controller.kubeconfig", &controller));
    }
    machine.disk().add_to_data(&files)
}
