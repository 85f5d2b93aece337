//! A fleet of stand-ins in the control plane that tests share.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::agent::KUBECONFIG;
use super::background::Background;
use super::bus;
use super::hardware::Hardware;
use super::image::StandInImage;
use super::kubelet::{self, Identity, Kubelet};
use super::node::{STATE, StandIn};
use super::observer::Observer;
use super::pods;
use super::power::Wiring;
use crate::artifacts::Image;
use crate::cluster::{Client, ControlPlane, Service, Workload, wait_until};
use crate::lab::Lab;
use crate::server::Server;

/// The label by which the Nodes of a fleet are known; its value is the fleet's name.
pub const FLEET_LABEL: &str = "lab.slotd/fleet";

const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";

/// How long anything may take that takes seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// How a fleet is set up.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// How many nodes it has.
    pub nodes: usize,
    /// How many of them, the first ones, belong to the control plane.
    pub control_plane_nodes: usize,
    /// What they run at first.
    pub version: String,
    /// The version that their kubelets say they have.
    pub kubelet_version: String,
    /// How long a reboot takes, beside what happens in it.
    pub downtime: Duration,
    /// Documents of slotd's configuration, `config.d/NAME.yaml` each.
    pub configuration: Vec<(String, String)>,
    /// Whether each node has a bus on which its agent is asked, beside what the cluster asks of it.
    pub buses: bool,
    /// The lab's program in another build, of which the agents run; without it, this very program.
    pub program: Option<PathBuf>,
}

impl FleetOptions {
    /// As usual, but images come no faster than this, such as `512KiB` a second.
    pub fn slowly(rate: &str) -> Self {
        Self {
            configuration: vec![(
                "50-slowly".to_owned(),
                format!("fetch: {{rateLimit: {rate}}}\n"),
            )],
            ..Self::default()
        }
    }
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            nodes: 5,
            control_plane_nodes: 0,
            version: "v1.0.0".to_owned(),
            kubelet_version: "v1.36.0".to_owned(),
            downtime: Duration::from_millis(300),
            configuration: Vec::new(),
            buses: false,
            program: None,
        }
    }
}

/// Nodes with agents, their kubelets' part, and an observer who sees what anybody could see of them. Its namespace, in which its
/// workloads run, is called as it is. All of it goes with it.
#[derive(Debug)]
pub struct Fleet<'a> {
    name: String,
    // Dropped in this order, after what `drop` does: machines, then what speaks for them, then what they are asked over.
    nodes: Vec<StandIn>,
    _kubelets: Background,
    observer: Observer,
    _buses: Vec<Service>,
    server: Server,
    images: PathBuf,
    plane: &'a ControlPlane,
}

impl<'a> Fleet<'a> {
    /// Starts so many nodes with all else as usual, and waits until all are Ready.
    pub fn start(lab: &'a Lab, nodes: usize) -> Result<Self> {
        let options = FleetOptions {
            nodes,
            ..FleetOptions::default()
        };
        Self::start_with(lab, &options)
    }

    /// Starts a fleet, and waits until all of its nodes are Ready.
    pub fn start_with(lab: &'a Lab, options: &FleetOptions) -> Result<Self> {
        static FLEETS: AtomicU32 = AtomicU32::new(1);
        let began = Instant::now();
        let plane = lab.control_plane()?;
        let name = format!("fleet-{}", FLEETS.fetch_add(1, Ordering::Relaxed));
        let images = lab.folder().join("images");
        fs::create_dir_all(&images).with_context(|| format!("creating {}", images.display()))?;
        let first = StandInImage::make(&images, &options.version)?;
        let observer =
            Observer::start(plane.admin().kubeconfig(), &format!("{FLEET_LABEL}={name}"))?;
        plane.admin().run(&["create", "namespace", &name])?;

        let mut builder = Builder {
            lab,
            plane,
            fleet: &name,
            options,
            image: &first,
            kubelets: Vec::new(),
            buses: Vec::new(),
        };
        let nodes = (0..options.nodes)
            .map(|index| builder.node(index))
            .collect::<Result<Vec<StandIn>>>()?;
        let Builder {
            kubelets, buses, ..
        } = builder;
        let user = plane.user("lab:kubelets", Some("system:masters"))?;
        let kubelets = start_kubelets(user.kubeconfig(), kubelets)?;
        let fleet = Self {
            name,
            nodes,
            _kubelets: kubelets,
            observer,
            _buses: buses,
            server: Server::start()?,
            images,
            plane,
        };
        for node in &fleet.nodes {
            node.power_on()?;
        }
        fleet.wait_until_available()?;
        fleet.observer.forget();
        lab.note(format!(
            "{} nodes were Ready after {:.1} s",
            options.nodes,
            began.elapsed().as_secs_f64()
        ));
        Ok(fleet)
    }

    /// The value of [`FLEET_LABEL`] on its nodes, and the name of its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All nodes.
    pub fn nodes(&self) -> &[StandIn] {
        &self.nodes
    }

    /// A node by its place, from 0; a fleet that has no such node is a mistake in the test.
    pub fn node(&self, index: usize) -> &StandIn {
        &self.nodes[index]
    }

    /// Who sees what anybody could see.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// The control plane.
    pub fn plane(&self) -> &'a ControlPlane {
        self.plane
    }

    /// kubectl with all rights.
    pub fn admin(&self) -> &'a Client {
        self.plane.admin()
    }

    /// The server of images, with its faults.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Makes the image of a version, publishes it, and returns its URL and what there is to know of it.
    pub fn publish(&self, version: &str) -> Result<(String, Image)> {
        let image = StandInImage::make(&self.images, version)?;
        Ok((image.publish(&self.server), image.image))
    }

    /// Runs so many pods of a Deployment on the fleet's nodes, with a disruption budget that lets so many be missing where one is
    /// given, and waits until all are Ready.
    pub fn deploy(&self, name: &str, replicas: usize, may_be_missing: Option<usize>) -> Result<()> {
        let workload = Workload {
            name,
            namespace: &self.name,
        };
        let pod = json!({
            "nodeSelector": {FLEET_LABEL: self.name},
            "containers": [{"name": "app", "image": "lab/none"}],
        });
        self.wait_until_pods_may_come()?;
        workload.deploy(self.admin(), replicas, &pod)?;
        if let Some(missing) = may_be_missing {
            workload.set_budget(self.admin(), missing)?;
        }
        wait_until("the pods of a deployment", PATIENCE, || {
            workload.ready(self.admin(), replicas)
        })
    }

    /// Waits until no node keeps pods away for having been not Ready: the taint goes somewhat later than that, and until then
    /// all pods would come to the other nodes.
    fn wait_until_pods_may_come(&self) -> Result<()> {
        let label = format!("{FLEET_LABEL}={}", self.name);
        wait_until("nodes that take pods", PATIENCE, || {
            let list = self.admin().json(&["get", "nodes", "--selector", &label])?;
            let nodes = list["items"].as_array().context("a list of nodes")?;
            let tainted = nodes.iter().find(|node| {
                node["spec"]["taints"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|taint| taint["key"] == "node.kubernetes.io/not-ready")
            });
            ensure!(tainted.is_none(), "{:#}", tainted.unwrap_or(&list)["spec"]);
            Ok(())
        })
    }

    /// Waits until every node is Ready and schedulable, as the observer sees it.
    pub fn wait_until_available(&self) -> Result<()> {
        for node in &self.nodes {
            node.sound()?;
            node.wait_until_heard()?;
        }
        let what = "all nodes are available";
        self.observer
            .wait_for(what, PATIENCE, |moment| moment.unavailable.is_empty())
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        let names: Vec<String> = self
            .nodes
            .drain(..)
            .map(|node| node.name().to_owned())
            .collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        if names.is_empty() {
            return;
        }
        let options = ["--ignore-not-found", "--wait=false"];
        let namespace = ["delete", "namespace", &self.name];
        let mut nodes = vec!["delete", "node"];
        nodes.append(&mut names.clone());
        let mut leases = vec!["delete", "lease", "--namespace", "kube-node-lease"];
        leases.append(&mut names);
        for mut command in [namespace.to_vec(), nodes, leases] {
            command.extend(options);
            // A later test meets none of it: it has names of its own.
            if let Err(error) = self.admin().run(&command) {
                eprintln!("lab: {} is left behind: {error:#}", self.name);
            }
        }
    }
}

/// Makes the nodes of a fleet.
struct Builder<'a> {
    lab: &'a Lab,
    plane: &'a ControlPlane,
    fleet: &'a str,
    options: &'a FleetOptions,
    image: &'a StandInImage,
    kubelets: Vec<(Identity, Arc<Kubelet>)>,
    buses: Vec<Service>,
}

impl Builder<'_> {
    fn node(&mut self, index: usize) -> Result<StandIn> {
        let name = format!("{}-{index}", self.fleet);
        let root = self.lab.folder().join(&name);
        let hardware = Hardware::create(&root, self.image)?;
        self.configure(&root, &name)?;
        let kubelet = Arc::new(Kubelet::new());
        self.kubelets
            .push((self.identity(&name, index), Arc::clone(&kubelet)));
        // Names in the abstract namespace may be as long as folders are, and leave nothing.
        let bus = format!("unix:abstract=slotd-lab-{}-{name}", std::process::id());
        if self.options.buses {
            self.buses.push(bus::start(&bus, &root)?);
        }
        let wiring = Wiring {
            downtime: self.options.downtime,
            bus,
            program: self.options.program.clone(),
            log: self.lab.folder().join(format!("{name}.log")),
        };
        StandIn::new(name, hardware, kubelet, wiring, self.plane.admin().clone())
    }

    fn identity(&self, name: &str, index: usize) -> Identity {
        let mut labels = BTreeMap::from([
            (FLEET_LABEL.to_owned(), self.fleet.to_owned()),
            ("kubernetes.io/hostname".to_owned(), name.to_owned()),
            ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ]);
        if index < self.options.control_plane_nodes {
            labels.insert(CONTROL_PLANE_LABEL.to_owned(), String::new());
        }
        Identity {
            name: name.to_owned(),
            labels,
            kubelet_version: self.options.kubelet_version.clone(),
        }
    }

    /// What an installer leaves on a node: slotd's configuration, and the kubelet's credential, which lies where it does on any
    /// node, below the stand-in's root.
    fn configure(&self, root: &Path, name: &str) -> Result<()> {
        let credential = root.join(KUBECONFIG);
        let configuration = format!("stateDirectory: {}\n", root.join(STATE).display());
        let kubeconfig = fs::read_to_string(self.plane.node(name)?.kubeconfig())
            .context("reading a node's kubeconfig")?;
        let mut files = vec![
            (credential, kubeconfig),
            (root.join("etc/slotd/config.yaml"), configuration),
        ];
        for (name, text) in &self.options.configuration {
            let path = root.join(format!("etc/slotd/config.d/{name}.yaml"));
            files.push((path, text.clone()));
        }
        for (path, text) in files {
            let folder = path.parent().context("a file without a folder")?;
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&path, text))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

fn start_kubelets(
    kubeconfig: &Path,
    kubelets: Vec<(Identity, Arc<Kubelet>)>,
) -> Result<Background> {
    Background::start("kubelets", kubeconfig, move |client| async move {
        let wishes = kubelets
            .iter()
            .map(|(identity, kubelet)| (identity.name.clone(), kubelet.wish()))
            .collect();
        let all = kubelets
            .into_iter()
            .map(|(identity, kubelet)| kubelet::keep(client.clone(), identity, kubelet));
        tokio::join!(
            futures_util::future::join_all(all),
            pods::keep(client.clone(), wishes)
        );
    })
}
