//! The Kubernetes half: real agents on stand-ins and a real controller, at a real API server.

mod crowd;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;

use super::{mebibytes, meter};
use crate::build;
use crate::cluster::{AuditLog, Requests, wait_until};
use crate::lab::Lab;
use crate::scenarios::wish::{Wish, places};
use crate::standin::{Controller, Fleet, FleetOptions};
pub use crowd::Crowd;

/// Upgrades of the whole fleet, one after the other.
const UPGRADES: usize = 5;
/// Nodes of the fleet.
const NODES: usize = 5;
/// Pods on the fleet's nodes, and how many of them its budget lets be missing.
const PODS: (usize, usize) = (10, 2);
/// How long nothing may be written before all counts as said.
const QUIET: Duration = Duration::from_secs(3);
/// How long agents are left alone before their memory is read.
const IDLE: Duration = Duration::from_secs(15);
/// Many times what anything takes.
const PATIENCE: Duration = Duration::from_secs(180);

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Cluster {
    /// API writes.
    pub writes: Writes,
    /// Seconds from the start of `kubectl apply` of an OSUpgrade until an agent asks the image server, of each upgrade.
    pub first_request: Vec<f64>,
    /// Most anonymous memory of an agent that has nothing to do and a watch open, after upgrades, in bytes.
    pub idle_agent: u64,
    /// The controller with many objects.
    pub crowd: Crowd,
}

/// API writes, from the API server's audit log.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct Writes {
    /// Upgrades of one node that they were made for.
    pub upgrades: usize,
    /// The agents', evictions left out.
    pub agents: usize,
    /// The controller's, renewals of its Lease left out.
    pub controller: usize,
    /// The agents' requests for evictions, refused ones included.
    pub evictions: usize,
    /// Writes of the controller's Lease.
    pub leases: usize,
}

impl Writes {
    /// Writes for one upgrade of one node.
    pub fn each(&self) -> f64 {
        (self.agents + self.controller) as f64 / self.upgrades as f64
    }

    fn add(&mut self, requests: &Requests) {
        let (agent, controller) = ("system:node:", "slotd-controller");
        let writes = requests.writes();
        let is_eviction = |subresource: &str| subresource == "eviction";
        let count = |user: &str, evictions: bool| {
            let of = writes.filter(|request| {
                request.user.starts_with(user) && is_eviction(&request.subresource) == evictions
            });
            of.count()
        };
        self.agents += count(agent, false);
        self.evictions += count(agent, true);
        self.controller += count(controller, false);
        self.leases += requests
            .of_user(controller)
            .filter(|request| request.is_write() && request.resource == "leases")
            .count();
    }
}

impl Cluster {
    /// The median of [`Self::first_request`].
    pub fn median_first_request(&self) -> f64 {
        let mut seconds = self.first_request.clone();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub(super) fn print(&self) {
        let writes = &self.writes;
        println!(
            "API writes: {:.1} for each node and upgrade in a fleet of {NODES} ({} of agents, {} of the controller in {}; apart from them \
             {} evictions, {} of the Lease)",
            writes.each(),
            writes.agents,
            writes.controller,
            writes.upgrades,
            writes.evictions,
            writes.leases
        );
        println!(
            "kubectl apply to the first byte asked for: {:.2} s, the median of {}",
            self.median_first_request(),
            self.first_request.len()
        );
        println!(
            "idle agent with a watch open: {:.1} MiB anonymous (slotd's service on a stand-in, release build)",
            mebibytes(self.idle_agent)
        );
        println!(
            "slotd controller with {} progress objects: {:.1} MiB anonymous, {:.1} MiB at most",
            self.crowd.objects,
            mebibytes(self.crowd.settled),
            mebibytes(self.crowd.most)
        );
    }
}

/// The programs that are measured, in release builds as a node has them.
struct Programs {
    /// `slotd`, of which the controller runs.
    slotd: PathBuf,
    /// The lab's own program, in which slotd's service runs on a machine that is a folder.
    agent: PathBuf,
}

/// Measures a small fleet, then the controller with many objects.
pub(super) fn measure(lab: &Lab) -> Result<Cluster> {
    let programs = Programs {
        slotd: lab.programs()?.join("slotd"),
        agent: build::own("lab")?,
    };
    lab.control_plane()?.install()?;
    let (writes, first_request, idle_agent) = fleet(lab, &programs)?;
    Ok(Cluster {
        writes,
        first_request,
        idle_agent,
        crowd: crowd::measure(lab, &programs.slotd)?,
    })
}

/// Upgrades of a small fleet.
fn fleet(lab: &Lab, programs: &Programs) -> Result<(Writes, Vec<f64>, u64)> {
    eprintln!("lab: {UPGRADES} upgrades of {NODES} stand-ins");
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: NODES,
            program: Some(programs.agent.clone()),
            ..FleetOptions::default()
        },
    )?;
    let log = fleet.plane().audit_log()?;
    let _controller = Controller::start_program(lab, "controller", &programs.slotd)?;
    wait_until("a controller leads", PATIENCE, || {
        let written = log.requests()?.of_user("slotd-controller");
        ensure!(written.writes().count() > 0 || leads(&written), "none does");
        Ok(())
    })?;
    fleet.deploy("web", PODS.0, Some(PODS.1))?;
    let mut writes = Writes::default();
    let mut first = Vec::new();
    for round in 1..=UPGRADES {
        let from = fleet.publish(&format!("v1.{round}.0"))?;
        quiet(&log)?;
        let log = fleet.plane().audit_log()?;
        let asked = fleet.server().requests().len();
        let began = Instant::now();
        let wish = Wish::apply(&fleet, &from, &json!({}))?;
        let nodes = u64::try_from(NODES)?;
        wish.wait_for("Completed", nodes, nodes, 0)?;
        wait_until("no place is held", PATIENCE, || {
            let places = places(fleet.admin())?;
            let held = places.as_object().is_some_and(|places| !places.is_empty());
            ensure!(!held, "{places:#}");
            Ok(())
        })?;
        quiet(&log)?;
        let requests = fleet.server().requests();
        let request = requests.get(asked).context("nobody asked for the image")?;
        let seconds = request.received.duration_since(began).as_secs_f64();
        eprintln!("lab: round {round}: asked for after {seconds:.2} s");
        first.push(seconds);
        writes.upgrades += NODES;
        writes.add(&log.requests()?);
        wish.delete()?;
    }
    std::thread::sleep(IDLE);
    let mut idle = 0;
    for node in fleet.nodes() {
        node.sound()?;
        let process = node.agent().context("an agent does not run")?;
        idle = idle.max(anonymous(process)?);
    }
    Ok((writes, first, idle))
}

/// Whether the Lease was written.
fn leads(requests: &Requests) -> bool {
    let leases = requests.filter(|request| request.is_write() && request.resource == "leases");
    leases.count() > 0
}

/// Waits until agents and controller have had nothing to write for some time.
fn quiet(log: &AuditLog) -> Result<()> {
    let count = || -> Result<usize> {
        let ours = log.requests()?.writes().filter(|request| {
            request.user == "slotd-controller" || request.user.starts_with("system:node:")
        });
        Ok(ours.count())
    };
    let mut before = count()?;
    let mut since = Instant::now();
    wait_until("nothing is written", PATIENCE, || {
        let now = count()?;
        if now != before {
            before = now;
            since = Instant::now();
        }
        ensure!(since.elapsed() >= QUIET, "{now} writes");
        Ok(())
    })
}

/// Anonymous memory of a process that has to run.
fn anonymous(process: u32) -> Result<u64> {
    let bytes = meter::anonymous_of_tree(process);
    ensure!(bytes > 0, "process {process} is gone");
    Ok(bytes)
}

/// Reads the memory of a running controller.
fn memory(controller: &Controller, program: &Path) -> Result<u64> {
    let process = controller
        .process()
        .with_context(|| format!("{} does not run", program.display()))?;
    anonymous(process)
}

#[cfg(test)]
mod tests {
    use super::Writes;
    use crate::cluster::{ApiRequest, Requests};

    #[test]
    fn evictions_leases_reads_and_other_users_are_no_writes_of_an_upgrade() {
        let request = |user: &str, verb: &str, resource: &str, subresource: &str| ApiRequest {
            user: user.to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: String::new(),
            name: String::new(),
            code: 200,
            received: "2026-12-01T10:00:00Z".parse().unwrap(),
        };
        let (agent, controller) = ("system:node:a", "slotd-controller");
        let mut writes = Writes {
            upgrades: 2,
            ..Writes::default()
        };
        writes.add(&Requests::of(vec![
            request(agent, "patch", "nodes", ""),
            request(agent, "get", "nodes", ""),
            request(agent, "create", "pods", "eviction"),
            request(controller, "patch", "osupgrades", "status"),
            request(controller, "create", "events", ""),
            request(controller, "patch", "leases", ""),
            request(controller, "get", "leases", ""),
            request("lab:kubelets", "patch", "nodes", "status"),
        ]));
        let expected = Writes {
            upgrades: 2,
            agents: 1,
            controller: 2,
            evictions: 1,
            leases: 1,
        };
        assert_eq!(writes, expected);
        assert!((writes.each() - 1.5).abs() < 1e-9);
    }
}
