//! What comes of a node's upgrade when its object is edited, held back or deleted, moment by moment: while it stages, while it
//! drains, on its trial boot, and afterwards.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api::installed;
use super::on_stand_ins;
use super::told::{Told, schedulable};
use crate::artifacts::Image;
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{Fleet, Health, StandIn};

/// Many times what anything takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/an-object-is-edited-and-deleted-while-its-node-stages",
            edited_and_deleted,
        ),
        on_stand_ins(
            "cluster/an-object-is-held-back-edited-and-deleted-while-its-node-drains",
            while_draining,
        ),
        on_stand_ins(
            "cluster/an-object-is-edited-while-its-trial-boot-runs",
            edited_on_trial,
        ),
        on_stand_ins(
            "cluster/an-object-is-deleted-while-its-trial-boot-runs-and-after-its-end",
            deleted_on_trial,
        ),
    ]
}

/// What `spec.image` says of a published version.
fn image(version: &str, (url, image): &(String, Image)) -> Value {
    json!({"version": version, "url": url, "checksum": image.checksum, "size": image.size})
}

/// How the upgrades of a node ended, the first one first.
fn ends(node: &StandIn) -> Result<Vec<String>> {
    Ok(node
        .history()?
        .into_iter()
        .map(|entry| entry.result)
        .collect())
}

/// Waits until the agent has nothing under way.
fn at_rest(node: &StandIn) -> Result<()> {
    let state = node.root().join("data/slotd/state.json");
    wait_until("nothing under way", PATIENCE, || {
        let bytes = std::fs::read(&state).context("reading the agent's state")?;
        let state: Value = serde_json::from_slice(&bytes)?;
        ensure!(state["record"]["at"] == "idle", "{state:#}");
        Ok(())
    })
}

/// Waits until the node takes pods again, and no mark of ours is left.
fn taken_back(node: &StandIn) -> Result<()> {
    wait_until("a cordon that is taken back", PATIENCE, || {
        ensure!(schedulable(node)?, "{:#}", node.object()?);
        Ok(())
    })
}

fn edited_and_deleted(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let node = fleet.node(0);
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({"action": "Stage"}))?;
    told.wait_for("Staged")?;
    let other = fleet.publish("v1.2.0")?;
    told.patch(&json!({"image": image("v1.2.0", &other)}))?;
    let staged = told.wait_until("staged anew", |status| {
        status["phase"] == "Staged" && status["targetVersion"] == "v1.2.0"
    })?;
    ensure!(staged["currentVersion"] == "v1.0.0", "{staged:#}");
    told.delete()?;
    at_rest(node)?;
    ensure!(node.boots().len() == 1, "{:?}", node.boots());
    // Written a moment after the record says that it is at rest.
    wait_until("both ends in the history", PATIENCE, || {
        let ends = ends(node)?;
        ensure!(ends == ["Cancelled", "Cancelled"], "{ends:?}");
        Ok(())
    })
}

/// Each time the node takes pods again, and was not restarted, before anything else happens to it.
fn while_draining(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    fleet.deploy("web", 1, None)?;
    let node = fleet.node(0);
    // Pods that are evicted stay on their way out, so that every drain lasts until it is stopped.
    node.keep_pods_ending();
    let draining = |told: &Told<'_>| -> Result<()> {
        told.wait_for("Draining")?;
        wait_until("a cordon with our mark", PATIENCE, || {
            let object = node.object()?;
            let mark = object["metadata"]["annotations"]["monok8s.io/cordoned-by"].as_str();
            ensure!(
                object["spec"]["unschedulable"] == true
                    && mark.is_some_and(|mark| mark.starts_with("slotd/")),
                "{object:#}"
            );
            Ok(())
        })
    };
    let untouched = || -> Result<()> {
        taken_back(node)?;
        ensure!(
            node.boots().len() == 1,
            "it was restarted: {:?}",
            node.boots()
        );
        Ok(())
    };
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
    draining(&told)?;

    // Held back: what is staged stays.
    told.patch(&json!({"suspend": true}))?;
    let held = told.wait_for("Staged")?;
    ensure!(held["targetVersion"] == "v1.1.0", "{held:#}");
    untouched()?;
    told.patch(&json!({"suspend": false}))?;
    draining(&told)?;

    // Another image: staged anew, and with the approval for the first one gone.
    let other = fleet.publish("v1.2.0")?;
    told.patch(&json!({"image": image("v1.2.0", &other), "action": "Stage"}))?;
    let staged = told.wait_until("staged anew", |status| {
        status["phase"] == "Staged" && status["targetVersion"] == "v1.2.0"
    })?;
    ensure!(staged["currentVersion"] == "v1.0.0", "{staged:#}");
    untouched()?;
    told.patch(&json!({"action": "Activate"}))?;
    draining(&told)?;

    told.delete()?;
    at_rest(node)?;
    untouched()?;
    wait_until("both ends in the history", PATIENCE, || {
        let ends = ends(node)?;
        ensure!(ends == ["Cancelled", "Cancelled"], "{ends:?}");
        Ok(())
    })?;

    // And none of it is in the way of the next one.
    node.let_pods_end();
    let told = Told::apply(&fleet, node, "v1.2.0", &other, &json!({}))?;
    told.wait_for("Completed")?;
    fleet.wait_until_available()?;
    started(node, 2)?;
    told.delete()
}

/// An error unless the node was started so many times in all, and takes pods.
fn started(node: &StandIn, boots: usize) -> Result<()> {
    ensure!(node.boots().len() == boots, "{:?}", node.boots());
    taken_back(node)
}

/// The first node runs v1.1.0 on trial, whose health is not known yet: its object, and where the image is.
fn on_trial<'a>(fleet: &'a Fleet<'_>) -> Result<(Told<'a>, (String, Image))> {
    let node = fleet.node(0);
    node.set_health("v1.1.0", Health::Waiting)?;
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(fleet, node, "v1.1.0", &from, &json!({}))?;
    told.wait_for("Confirming")?;
    Ok((told, from))
}

fn edited_on_trial(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let node = fleet.node(0);
    let (told, _) = on_trial(&fleet)?;
    let other = fleet.publish("v1.2.0")?;
    told.patch(&json!({"image": image("v1.2.0", &other)}))?;
    // What runs is confirmed first.
    std::thread::sleep(Duration::from_secs(2));
    let status = told.status()?;
    ensure!(
        status["phase"] == "Confirming" && status["targetVersion"] == "v1.1.0",
        "{status:#}"
    );
    node.set_health("v1.1.0", Health::Healthy)?;
    let completed = told.wait_until("is through with both", |status| {
        status["phase"] == "Completed" && status["targetVersion"] == "v1.2.0"
    })?;
    ensure!(completed["currentVersion"] == "v1.2.0", "{completed:#}");
    fleet.wait_until_available()?;
    ensure!(schedulable(node)?, "{:#}", node.object()?);
    ensure!(node.history()?.len() == 2, "{:?}", node.history());
    told.delete()
}

fn deleted_on_trial(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let node = fleet.node(0);
    let (told, from) = on_trial(&fleet)?;
    told.delete()?;
    // What runs is confirmed first, although nobody asks for it any more.
    node.set_health("v1.1.0", Health::Healthy)?;
    wait_until("the confirmation, told to nobody", PATIENCE, || {
        let ends = ends(node)?;
        ensure!(ends == ["Completed"], "{ends:?}");
        Ok(())
    })?;
    fleet.wait_until_available()?;
    taken_back(node)?;

    // What is Completed is not undone by the end of its object: whoever asks for it again finds it there.
    for _ in 0..2 {
        let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
        let completed = told.wait_for("Completed")?;
        ensure!(completed["currentVersion"] == "v1.1.0", "{completed:#}");
        told.delete()?;
    }
    ensure!(
        ends(node)? == ["Completed"],
        "it began anew: {:?}",
        ends(node)?
    );
    started(node, 2)
}
