//! Objects that go and come back under their names in the midst of a roll-out: another upgrade, another Node.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::PATIENCE;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::scenarios::api::installed;
use crate::scenarios::on_stand_ins;
use crate::scenarios::wish::{Wish, places_given_back, run_version};
use crate::standin::{Controller, Fleet, Health, StandIn};

const VERSION: &str = "v1.1.0";

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/an-upgrade-that-is-made-anew-under-its-name-breaks-no-limit",
            upgrade,
        ),
        on_stand_ins(
            "cluster/a-node-that-is-made-anew-under-its-name-is-brought-along",
            node,
        ),
    ]
}

/// A roll-out whose first node is on trial, and that node.
fn on_trial<'a>(fleet: &'a Fleet<'_>) -> Result<(Wish<'a>, &'a StandIn)> {
    for node in fleet.nodes() {
        node.set_health(VERSION, Health::Waiting)?;
    }
    let wish = Wish::apply(fleet, &fleet.publish(VERSION)?, &json!({}))?;
    let node = wait_until("a node on trial", PATIENCE, || {
        let mut nodes = fleet.nodes().iter();
        let node = nodes.find(|node| node.boots().len() == 2);
        node.ok_or_else(|| anyhow::anyhow!("none reboots"))
    })?;
    Ok((wish, node))
}

fn all_well(fleet: &Fleet<'_>) -> Result<()> {
    let mut nodes = fleet.nodes().iter();
    nodes.try_for_each(|node| node.set_health(VERSION, Health::Healthy))
}

/// Every node is through, each rebooted once, and nothing is held any more.
fn through(fleet: &Fleet<'_>, wish: &Wish<'_>, admin: &Client) -> Result<()> {
    wish.wait_for("Completed", 3, 3, 0)?;
    run_version(fleet, VERSION)?;
    for node in fleet.nodes() {
        let boots = node.boots();
        ensure!(boots.len() == 2, "{}: {boots:?}", node.name());
    }
    places_given_back(admin)?;
    let observer = fleet.observer();
    ensure!(observer.most_unavailable() == 1, "{}", observer.log());
    Ok(())
}

fn uid(object: &Value) -> Value {
    object["metadata"]["uid"].clone()
}

fn upgrade(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 3)?;
    let _controller = Controller::start(lab, "controller")?;
    fleet.observer().forget();
    let (wish, trial) = on_trial(&fleet)?;
    // Somebody does not wait for the node on trial, takes our finalizers off, and makes the upgrade anew at once.
    let name = format!("{}-{VERSION}", fleet.name());
    let before = admin.json(&["get", "osupgrade", &name])?;
    let object = wish.progress(trial)?;
    let object = object["metadata"]["name"].as_str().unwrap_or_default();
    admin.run(&["delete", "osupgrade", &name, "--wait=false"])?;
    let bare = r#"--patch={"metadata":{"finalizers":null}}"#;
    admin.run(&["patch", "osupgradeprogress", object, "--type=merge", bare])?;
    admin.run(&["patch", "osupgrade", &name, "--type=merge", bare])?;
    wait_until("the end of the first upgrade", PATIENCE, || {
        let now = admin.run(&[
            "get",
            "osupgrade",
            &name,
            "--ignore-not-found",
            "--output=name",
        ])?;
        ensure!(now.is_empty(), "{now}");
        Ok(())
    })?;
    let wish = Wish::apply(&fleet, &fleet.publish(VERSION)?, &json!({}))?;
    let now = admin.json(&["get", "osupgrade", &name])?;
    ensure!(uid(&before) != uid(&now), "it is the same upgrade");
    // The node on trial counts, whosever it was, and nobody else goes before it is back.
    for other in fleet
        .nodes()
        .iter()
        .filter(|node| node.name() != trial.name())
    {
        wish.waits(other, "NoPlace")?;
    }
    all_well(&fleet)?;
    through(&fleet, &wish, admin)?;
    wish.delete()
}

fn node(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 3)?;
    let _controller = Controller::start(lab, "controller")?;
    fleet.observer().forget();
    let (wish, trial) = on_trial(&fleet)?;
    recreate(&fleet, trial)?;
    all_well(&fleet)?;
    through(&fleet, &wish, admin)?;

    // One that is at rest: nothing happens on it by which its agent would hear of it, but that its object goes.
    let node = fleet.node(1);
    recreate(&fleet, node)?;
    wait_until("an agent that notices the new Node", PATIENCE, || {
        let labels = &node.object()?["metadata"]["labels"];
        ensure!(labels["monok8s.io/agent"] == "true", "{labels:#}");
        Ok(())
    })?;
    through(&fleet, &wish, admin)?;
    wish.delete()
}

/// Deletes a Node, and lets its kubelet make it anew.
fn recreate(fleet: &Fleet<'_>, node: &StandIn) -> Result<()> {
    let before = uid(&node.object()?);
    fleet.admin().run(&["delete", "node", node.name()])?;
    node.stop_kubelet();
    node.start_kubelet();
    node.wait_until_heard()?;
    ensure!(before != uid(&node.object()?), "it is the same Node");
    Ok(())
}
