//! What a roll-out obeys beside its limit: the control plane's guard, one upgrade for each node, a node that is held.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api::installed;
use super::on_stand_ins;
use super::told::schedulable;
use super::wish::{Wish, condition, places_given_back, run_version};
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{Controller, FLEET_LABEL, Fleet, FleetOptions};

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/a-cluster-of-one-node-is-upgraded-and-waits-for-nobody",
            single,
        ),
        on_stand_ins(
            "cluster/control-plane-nodes-go-one-at-a-time-whatever-the-percentage",
            control_plane,
        ),
        on_stand_ins(
            "cluster/of-two-upgrades-the-younger-has-the-nodes-that-both-match",
            overlapping,
        ),
        on_stand_ins(
            "cluster/one-progress-object-that-is-suspended-holds-its-node-alone",
            one_suspended,
        ),
        on_stand_ins(
            "cluster/a-malformed-checksum-is-rejected-and-no-node-hears-of-it",
            malformed_checksum,
        ),
        on_stand_ins(
            "cluster/how-to-drain-and-what-is-allowed-are-handed-on-to-the-nodes",
            handed_on,
        ),
    ]
}

/// Its only node is of the control plane and goes away itself; nobody but the agent is there to go on.
fn single(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let options = FleetOptions {
        nodes: 1,
        control_plane_nodes: 1,
        ..FleetOptions::default()
    };
    let fleet = Fleet::start_with(lab, &options)?;
    let mut controller = Controller::start(lab, "controller")?;
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    wish.wait_until("has a node on its way", |status| {
        status["phase"] == "RollingOut"
    })?;
    // The controller goes down with its node.
    fleet
        .observer()
        .wait_for("the node is drained", super::wish::PATIENCE, |moment| {
            !moment.unavailable.is_empty()
        })?;
    controller.kill()?;
    fleet.wait_until_available()?;
    let _controller = Controller::start(lab, "controller")?;
    wish.wait_for("Completed", 1, 1, 0)?;
    run_version(&fleet, "v1.1.0")?;
    wish.delete()
}

fn control_plane(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let options = FleetOptions {
        nodes: 5,
        control_plane_nodes: 3,
        ..FleetOptions::default()
    };
    let fleet = Fleet::start_with(lab, &options)?;
    let _controller = Controller::start(lab, "controller")?;
    fleet.observer().forget();
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(
        &fleet,
        &from,
        &json!({"rollout": {"maxUnavailable": "100%", "maxStaging": "100%"}}),
    )?;
    wish.wait_for("Completed", 5, 5, 0)?;
    run_version(&fleet, "v1.1.0")?;
    let guarded: BTreeSet<&str> = fleet.nodes()[..3].iter().map(|node| node.name()).collect();
    let observer = fleet.observer();
    let most = observer
        .moments()
        .iter()
        .map(|moment| {
            let away = moment.unavailable.iter();
            away.filter(|name| guarded.contains(name.as_str())).count()
        })
        .max();
    // The workers need not wait for one another, nor for them.
    ensure!(
        most == Some(1) && observer.most_unavailable() >= 2,
        "{most:?} of {guarded:?} at once: {}",
        observer.log()
    );
    wish.delete()
}

/// The older one says so for each node that it lost, and does not come back to it.
fn overlapping(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 3)?;
    let _controller = Controller::start(lab, "controller")?;
    let shared = fleet.node(2);
    admin.run(&["label", "node", shared.name(), "lab.slotd/site=edge"])?;
    // Held before anything begins, so that nothing of the older upgrade is on its way there.
    let older_image = fleet.publish("v1.1.0")?;
    let older = Wish::apply(&fleet, &older_image, &json!({"suspend": true}))?;
    older.waits(shared, "Suspended")?;
    let younger_image = fleet.publish("v1.2.0")?;
    let younger = Wish::apply(
        &fleet,
        &younger_image,
        &json!({"nodeSelector": {FLEET_LABEL: fleet.name(), "lab.slotd/site": "edge"}}),
    )?;
    younger.wait_for("Completed", 1, 1, 0)?;
    older.patch(&json!({"suspend": false}))?;
    older.wait_for("Completed", 2, 2, 0)?;
    older.waits(shared, "Superseded")?;
    ensure!(
        shared.boot()?.version == "v1.2.0" && shared.boots().len() == 2,
        "{:?}",
        shared.boots()
    );
    // The younger one gone, the older one has the node again, whose version it does not lower.
    younger.delete()?;
    older.wait_until("counts the node again", |status| status["targets"] == 3)?;
    ensure!(
        shared.boots().len() == 2,
        "{} went back: {:?}",
        shared.name(),
        shared.boots()
    );
    older.delete()
}

fn one_suspended(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 2)?;
    let _controller = Controller::start(lab, "controller")?;
    let from = fleet.publish("v1.1.0")?;
    // Both stage, so that both have an object; none goes further while the upgrade is suspended afterwards.
    let wish = Wish::apply(&fleet, &from, &json!({"rollout": {"maxStaging": 2}}))?;
    let held = fleet.node(1);
    crate::cluster::wait_until("an object for it", super::wish::PATIENCE, || {
        wish.progress(held)
    })?;
    let object = wish.progress(held)?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let suspend = |value: bool| {
        let patch = json!({"spec": {"suspend": value}}).to_string();
        admin.run(&[
            "patch",
            "osupgradeprogress",
            name,
            "--type=merge",
            "--patch",
            &patch,
        ])
    };
    suspend(true)?;
    wish.wait_until("has the other node through", |status| status["ok"] == 1)?;
    wish.waits(held, "Suspended")?;
    ensure!(held.boots().len() == 1, "{:?}", held.boots());
    suspend(false)?;
    wish.wait_for("Completed", 2, 2, 0)?;
    run_version(&fleet, "v1.1.0")?;
    wish.delete()
}

fn malformed_checksum(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let _controller = Controller::start(lab, "controller")?;
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({"checksum": "sha256:..."}))?;
    let rejected = wish.wait_until("is Rejected", |status| status["phase"] == "Rejected")?;
    let resolved = condition(&rejected, "Resolved")?;
    ensure!(
        resolved["status"] == "False"
            && resolved["reason"] == "InvalidChecksum"
            && rejected["resolved"].is_null(),
        "{rejected:#}"
    );
    let objects = admin.run(&["get", "osupgradeprogress", "--output=name"])?;
    ensure!(objects.is_empty(), "there are {objects}");
    ensure!(fleet.node(0).boots().len() == 1, "{:?}", fleet.node(0));
    // Mended, it goes on.
    wish.patch(&json!({"checksum": from.1.checksum}))?;
    wish.wait_for("Completed", 1, 1, 0)?;
    wish.ensure_events(&[
        ("Rejected", "Warning", "checksum"),
        ("Completed", "Normal", "v1.1.0"),
    ])?;
    wish.delete()
}

/// A budget that lets no pod go, first obeyed until the time is over, and then overridden by who asks for that.
fn handed_on(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 3)?;
    let _controller = Controller::start(lab, "controller")?;
    fleet.deploy("web", 6, Some(0))?;
    for node in fleet.nodes() {
        ensure!(!node.pods()?.is_empty(), "{} has no pods", node.name());
    }
    // One that is no target, and is counted apart.
    let bare = format!("{}-bare", fleet.name());
    let document = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": bare, "labels": {FLEET_LABEL: fleet.name()}},
    });
    admin.apply(&document.to_string())?;
    let from = fleet.publish("v0.9.0")?;
    let drain = json!({"timeout": "5s", "onTimeout": "Abort"});
    let wish = Wish::apply(
        &fleet,
        &from,
        &json!({"policy": {"allowDowngrade": true}, "rollout": {"drain": drain}}),
    )?;
    let halted = wish.wait_for("Halted", 3, 0, 1)?;
    let failed = condition(&halted, "NodesFailed")?;
    let without = condition(&halted, "NodesWithoutAgent")?;
    ensure!(
        failed["reason"] == "DrainTimeout"
            && without["status"] == "True"
            && without["message"] == "nodes that match and have no agent, and are no targets: 1",
        "{halted:#}"
    );
    places_given_back(admin)?;
    for node in fleet.nodes() {
        ensure!(node.boots().len() == 1, "{node:?} was restarted");
        ensure!(schedulable(node)?, "{:#}", node.object()?);
    }
    let told = |drain: &Value| -> Result<usize> {
        let list = admin.json(&["get", "osupgradeprogress"])?;
        let objects = list["items"].as_array().context("a list")?;
        let told = |spec: &Value| spec["allowDowngrade"] == true && spec["drain"] == *drain;
        Ok(objects.iter().filter(|one| told(&one["spec"])).count())
    };
    ensure!(told(&drain)? == 1, "{} objects say so", told(&drain)?);

    let drain = json!({"timeout": "1s", "onTimeout": "Force"});
    wish.patch(&json!({"attempt": 1, "rollout": {"drain": drain}}))?;
    wish.wait_for("Completed", 3, 3, 0)?;
    run_version(&fleet, "v0.9.0")?;
    ensure!(told(&drain)? == 3, "{} objects say so", told(&drain)?);
    places_given_back(admin)?;
    admin.run(&["delete", "node", &bare])?;
    wish.delete()
}
