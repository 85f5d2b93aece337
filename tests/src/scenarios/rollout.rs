//! The controller and its fleet: stand-ins with real agents, moved by OSUpgrades alone.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api::installed;
use super::on_stand_ins;
use super::told::schedulable;
use crate::artifacts::Image;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{Controller, FLEET_LABEL, Fleet, FleetOptions, Health, StandIn};

/// Many times what anything takes on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// API writes of agents and controller together for one node and one upgrade, evictions and Leases left out: what a storm
/// would be above. How few they are is measured by the benchmark.
const WRITES: usize = 18;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/a-roll-out-moves-five-nodes-one-after-the-other",
            one_by_one,
        ),
        on_stand_ins(
            "cluster/a-roll-out-keeps-to-two-and-to-half-of-the-targets",
            several,
        ),
        on_stand_ins(
            "cluster/a-failing-image-halts-the-roll-out-until-somebody-goes-on",
            halted,
        ),
        on_stand_ins(
            "cluster/nodes-that-are-unavailable-anyway-take-the-places",
            unavailable,
        ),
        on_stand_ins(
            "cluster/a-suspended-upgrade-and-a-held-node-wait-and-a-late-node-follows",
            waiting,
        ),
        on_stand_ins(
            "cluster/two-controllers-and-their-deaths-break-no-limit",
            two_controllers,
        ),
    ]
}

/// An OSUpgrade for a fleet.
pub(crate) struct Wish<'a> {
    admin: &'a Client,
    name: String,
}

impl<'a> Wish<'a> {
    /// Applies one for a version, with a change to its spec.
    pub(crate) fn apply(
        fleet: &'a Fleet<'_>,
        from: &(String, Image),
        change: &Value,
    ) -> Result<Self> {
        let name = format!("{}-{}", fleet.name(), from.1.version);
        let mut spec = json!({
            "version": from.1.version,
            "imageURL": from.0,
            "checksum": from.1.checksum,
            "size": from.1.size,
            "nodeSelector": {FLEET_LABEL: fleet.name()},
        });
        for (key, value) in change.as_object().context("a change is a map")? {
            spec[key] = value.clone();
        }
        let document = json!({
            "apiVersion": "monok8s.io/v1alpha1",
            "kind": "OSUpgrade",
            "metadata": {"name": name},
            "spec": spec,
        });
        fleet.admin().apply(&document.to_string())?;
        Ok(Self {
            admin: fleet.admin(),
            name,
        })
    }

    pub(crate) fn status(&self) -> Result<Value> {
        let object = self.admin.json(&["get", "osupgrade", &self.name])?;
        Ok(object["status"].clone())
    }

    /// Waits until it shows this phase and these counts; its status.
    pub(crate) fn wait_for(&self, phase: &str, targets: u64, ok: u64, fail: u64) -> Result<Value> {
        self.wait_until(
            &format!("is {phase} with {targets} targets, {ok} ok, {fail} failed"),
            |status| {
                status["phase"] == phase
                    && status["targets"] == targets
                    && status["ok"] == ok
                    && status["fail"] == fail
            },
        )
    }

    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        wait_until(&format!("{} {what}", self.name), PATIENCE, || {
            let status = self.status()?;
            ensure!(holds(&status), "its status is {status:#}");
            Ok(status)
        })
    }

    pub(crate) fn patch(&self, spec: &Value) -> Result<()> {
        let patch = json!({"spec": spec}).to_string();
        let arguments = ["--type=merge", "--patch", &patch];
        self.admin
            .run(&[&["patch", "osupgrade", &self.name][..], &arguments].concat())
            .map(drop)
    }

    /// The progress object of a node.
    pub(crate) fn progress(&self, node: &StandIn) -> Result<Value> {
        let selector = format!("--field-selector=spec.nodeName={}", node.name());
        let list = self.admin.json(&["get", "osupgradeprogress", &selector])?;
        let items = list["items"].as_array().context("a list")?;
        items
            .iter()
            .find(|object| object["spec"]["sourceRef"]["name"] == self.name.as_str())
            .cloned()
            .with_context(|| format!("{} has no progress object", node.name()))
    }

    /// Waits until a node waits for this, as the upgrade says it, and the node's progress object where there is one.
    pub(crate) fn waits(&self, node: &StandIn, reason: &str) -> Result<()> {
        wait_until(
            &format!("{} waits: {reason}", node.name()),
            PATIENCE,
            || {
                let status = self.status()?;
                let waiting = condition(&status, "Waiting")?;
                let message = waiting["message"].as_str().unwrap_or_default();
                let said = message.split("; ").any(|part| {
                    part.strip_prefix(&format!("{reason}: "))
                        .is_some_and(|names| names.split(", ").any(|name| name == node.name()))
                });
                ensure!(said && waiting["status"] == "True", "{waiting}");
                if let Ok(object) = self.progress(node) {
                    let own = condition(&object["status"], "Waiting")?;
                    ensure!(own["status"] == "True" && own["reason"] == reason, "{own}");
                }
                Ok(())
            },
        )
    }

    /// Deletes it, and waits until nothing of it is left.
    pub(crate) fn delete(&self) -> Result<()> {
        self.admin
            .run(&["delete", "osupgrade", &self.name, "--timeout=60s"])?;
        wait_until("the end of its progress objects", PATIENCE, || {
            let list = self.admin.json(&["get", "osupgradeprogress"])?;
            let left = list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|object| object["spec"]["sourceRef"]["name"] == self.name.as_str());
            ensure!(left.is_none(), "{left:#?}");
            Ok(())
        })
    }
}

/// The condition of this type.
pub(crate) fn condition<'a>(status: &'a Value, kind: &str) -> Result<&'a Value> {
    let conditions = status["conditions"].as_array();
    conditions
        .and_then(|all| all.iter().find(|one| one["type"] == kind))
        .with_context(|| format!("no condition {kind} in {status:#}"))
}

/// The places as they are held.
pub(crate) fn places(admin: &Client) -> Result<Value> {
    let map = admin.json(&[
        "get",
        "configmap",
        "slotd-places",
        "--namespace=kube-system",
    ])?;
    Ok(map["data"].clone())
}

/// An error unless every node runs this version, and takes pods.
pub(crate) fn run_version(fleet: &Fleet<'_>, version: &str) -> Result<()> {
    for node in fleet.nodes() {
        let boot = node.boot()?;
        ensure!(boot.version == version, "{}: {boot:?}", node.name());
        ensure!(schedulable(node)?, "{:#}", node.object()?);
        node.sound()?;
    }
    Ok(())
}

fn one_by_one(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 5,
            control_plane_nodes: 1,
            ..FleetOptions::default()
        },
    )?;
    let _controller = Controller::start(lab, "controller")?;
    fleet.deploy("web", 10, Some(2))?;
    fleet.observer().forget();
    let log = fleet.plane().audit_log()?;
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    let status = wish.wait_for("Completed", 5, 5, 0)?;
    ensure!(
        status["resolved"]["version"] == "v1.1.0" && status["observedGeneration"] == 1,
        "{status:#}"
    );
    run_version(&fleet, "v1.1.0")?;
    let observer = fleet.observer();
    ensure!(observer.most_unavailable() == 1, "{}", observer.log());
    let least = observer.least_ready_pods(fleet.name());
    ensure!(
        least >= 8,
        "{least} of 10 pods were Ready\n{}",
        observer.log()
    );
    wait_until("no place held", PATIENCE, || {
        let places = places(admin)?;
        let held = places.as_object().is_some_and(|places| !places.is_empty());
        ensure!(!held, "{places:#}");
        Ok(())
    })?;
    for node in fleet.nodes() {
        let object = wish.progress(node)?;
        ensure!(
            object["status"]["phase"] == "Completed" && object["metadata"]["finalizers"].is_null(),
            "{object:#}"
        );
    }
    let table = admin.run(&["get", "osupgrades"])?;
    lab.note(table.trim().to_owned());

    let requests = log.requests()?.filter(|request| {
        request.user == "slotd-controller" || request.user.starts_with("system:node:")
    });
    let writes = requests
        .writes()
        .filter(|request| request.subresource != "eviction");
    let each = writes.count().div_ceil(5);
    lab.note(format!(
        "{each} API writes for each node, {:?} in all",
        writes.by_kind()
    ));
    ensure!(
        each <= WRITES,
        "{each} writes for each node: {:#?}",
        writes.all()
    );
    wish.delete()
}

fn several(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 5)?;
    let _controller = Controller::start(lab, "controller")?;
    for (version, limit) in [("v1.1.0", json!(2)), ("v1.2.0", json!("50%"))] {
        fleet.observer().forget();
        let from = fleet.publish(version)?;
        let wish = Wish::apply(
            &fleet,
            &from,
            &json!({"rollout": {"maxUnavailable": limit}}),
        )?;
        wish.wait_for("Completed", 5, 5, 0)?;
        run_version(&fleet, version)?;
        let observer = fleet.observer();
        ensure!(
            observer.most_unavailable() == 2,
            "{limit}: {}",
            observer.log()
        );
        wish.delete()?;
    }
    Ok(())
}

fn halted(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 3)?;
    let _controller = Controller::start(lab, "controller")?;
    for node in fleet.nodes() {
        let failing = Health::Failing {
            check: "required.d/50-app".to_owned(),
            output: "refused".to_owned(),
        };
        node.set_health("v1.1.0", failing)?;
    }
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    let status = wish.wait_for("Halted", 3, 0, 1)?;
    let text = status["conditions"].to_string();
    ensure!(
        text.contains("required.d/50-app") && text.contains(fleet.name()),
        "the conditions do not name node and reason: {status:#}"
    );
    fleet.wait_until_available()?;
    let tried: BTreeSet<&str> = fleet
        .nodes()
        .iter()
        .filter(|node| node.boots().len() > 1)
        .map(StandIn::name)
        .collect();
    ensure!(tried.len() == 1, "{tried:?} were tried");
    for node in fleet
        .nodes()
        .iter()
        .filter(|node| !tried.contains(node.name()))
    {
        wish.waits(node, "Halted")?;
    }

    // Mended, and asked anew.
    for node in fleet.nodes() {
        node.set_health("v1.1.0", Health::Healthy)?;
    }
    wish.patch(&json!({"attempt": 1}))?;
    wish.wait_for("Completed", 3, 3, 0)?;
    run_version(&fleet, "v1.1.0")?;
    ensure!(
        fleet.observer().most_unavailable() == 1,
        "{}",
        fleet.observer().log()
    );
    wish.delete()
}

fn unavailable(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 3)?;
    let _controller = Controller::start(lab, "controller")?;
    let (sick, cordoned, well) = (fleet.node(0), fleet.node(1), fleet.node(2));
    sick.say_not_ready()?;
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    wish.waits(well, "NoPlace")?;
    wish.waits(sick, "NotReady")?;
    ensure!(well.boots().len() == 1, "{:?}", well.boots());
    // Ready again, and another one is cordoned by somebody: that one counts instead.
    admin.run(&["cordon", cordoned.name()])?;
    sick.say_ready()?;
    wish.waits(well, "NoPlace")?;
    ensure!(well.boots().len() == 1, "{:?}", well.boots());
    admin.run(&["uncordon", cordoned.name()])?;
    wish.wait_for("Completed", 3, 3, 0)?;
    run_version(&fleet, "v1.1.0")?;
    wish.delete()
}

fn waiting(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 3)?;
    let _controller = Controller::start(lab, "controller")?;
    let (held, late) = (fleet.node(0), fleet.node(1));
    admin.run(&[
        "annotate",
        "node",
        held.name(),
        "monok8s.io/hold=looked at by Ann",
    ])?;
    let label = format!("{FLEET_LABEL}-");
    admin.run(&["label", "node", late.name(), &label])?;
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({"suspend": true}))?;
    wish.waits(fleet.node(2), "Suspended")?;
    wish.patch(&json!({"suspend": false}))?;
    wish.wait_until("has one node through", |status| status["ok"] == 1)?;
    wish.waits(held, "Held")?;
    ensure!(
        held.boots().len() == 1 && late.boots().len() == 1,
        "{:?}",
        held.boots()
    );
    admin.run(&["annotate", "node", held.name(), "monok8s.io/hold-"])?;
    wish.wait_for("Completed", 2, 2, 0)?;
    // It joins after the end.
    let label = format!("{FLEET_LABEL}={}", fleet.name());
    admin.run(&["label", "node", late.name(), &label])?;
    wish.wait_for("Completed", 3, 3, 0)?;
    run_version(&fleet, "v1.1.0")?;
    wish.delete()
}

fn two_controllers(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 4)?;
    let mut first = Controller::start(lab, "one")?;
    let mut second = Controller::start(lab, "two")?;
    fleet.observer().forget();
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({"rollout": {"maxUnavailable": 2}}))?;
    for done in 1..=3 {
        wish.wait_until("goes on", |status| status["ok"].as_u64() >= Some(done))?;
        // Killed, not told to stop: whatever was about to be written is lost, and the Lease runs out by itself.
        let dying = if done % 2 == 1 {
            &mut first
        } else {
            &mut second
        };
        dying.kill()?;
        *dying = Controller::start(lab, if done % 2 == 1 { "one" } else { "two" })?;
    }
    wish.wait_for("Completed", 4, 4, 0)?;
    run_version(&fleet, "v1.1.0")?;
    let observer = fleet.observer();
    ensure!(observer.most_unavailable() <= 2, "{}", observer.log());
    for node in fleet.nodes() {
        ensure!(
            node.boots().len() == 2,
            "{}: {:?}",
            node.name(),
            node.boots()
        );
    }
    wish.delete()
}
