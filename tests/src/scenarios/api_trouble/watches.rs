//! Watches whose version is too old: what was missed is listed anew.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::PATIENCE;
use crate::cluster::{AuditLog, Paused, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::scenarios::api::installed;
use crate::scenarios::on_stand_ins;
use crate::scenarios::told::Told;
use crate::scenarios::wish::{Wish, run_version};
use crate::standin::{Controller, Fleet, USER};

pub(super) fn tests() -> Vec<Test> {
    vec![on_stand_ins(
        "cluster/watches-that-are-too-old-are-begun-anew-and-miss-nothing",
        too_old,
    )]
}

/// How often somebody listed progress objects: a watch that breaks off goes on where it was, and only one that is too old (410) lists
/// again.
fn lists(log: &AuditLog, user: &str) -> Result<usize> {
    let requests = log.requests()?.of_user(user);
    let lists = requests.filter(|request| {
        request.verb == "list" && request.resource == "osupgradeprogresses" && request.code == 200
    });
    Ok(lists.count())
}

fn too_old(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 2)?;
    let controller = Controller::start(lab, "controller")?;
    let from = fleet.publish("v1.1.0")?;
    let other = json!({"kubernetes.io/hostname": fleet.node(1).name()});
    let wish = Wish::apply(
        &fleet,
        &from,
        &json!({"suspend": true, "nodeSelector": other}),
    )?;
    wish.waits(fleet.node(1), "Suspended")?;
    // Two that were made by hand for the first node, of which the younger one comes first for as long as it is there.
    let node = fleet.node(0);
    let suspended = json!({"suspend": true});
    let stays = Told::apply(&fleet, node, "v1.1.0", &from, &suspended)?;
    stays.wait_for("Pending")?;
    let mut goes = Told::document(node, "v1.1.0", &from, &suspended)?;
    let name = format!("{}-goes", node.name());
    goes["metadata"]["name"] = json!(name);
    admin.apply(&goes.to_string())?;
    stays.wait_until("comes second", |status| {
        status["message"] == "another object for this node comes first"
    })?;
    let agents = fleet.nodes().iter().map(|node| {
        let process = node.agent().context("no agent runs")?;
        Paused::process(process)
    });
    let mut paused = agents.collect::<Result<Vec<Paused>>>()?;
    paused.push(Paused::process(
        controller.process().context("no controller")?,
    )?);

    // Nobody sees any of this happen: no connection lasts on which it would wait for who is paused, and an API server that starts
    // after it has none of it to tell of.
    fleet.plane().stop_api_server()?.end()?;
    wish.patch(&json!({"suspend": false}))?;
    stays.patch(&json!({"suspend": false}))?;
    admin.run(&["delete", "osupgradeprogress", &name])?;
    fleet.plane().stop_api_server()?.end()?;
    // What comes after its start is what its watches begin with.
    admin.run(&["label", "node", fleet.node(0).name(), "lab.slotd/late=yes"])?;
    let log = fleet.plane().audit_log()?;
    drop(paused);

    wish.wait_for("Completed", 1, 1, 0)?;
    stays.wait_for("Completed")?;
    run_version(&fleet, "v1.1.0")?;
    for user in fleet
        .nodes()
        .iter()
        .map(|node| format!("system:node:{}", node.name()))
        .chain([USER.to_owned()])
    {
        let lists = lists(&log, &user)?;
        ensure!((1..=4).contains(&lists), "{user} listed {lists} times");
    }
    let vain = log
        .requests()?
        .filter(|request| request.code == 404 && request.user.starts_with("system:node:"));
    ensure!(
        vain.count() == 0,
        "what is gone was written to: {:#?}",
        vain.all()
    );
    wait_until("no more than was asked for", PATIENCE, || {
        for node in fleet.nodes() {
            let history = node.history()?;
            ensure!(history.len() == 1, "{history:?}");
        }
        Ok(())
    })?;
    stays.delete()?;
    wish.delete()
}
