//! `kubectl apply` moves machines: real nodes, with kubelet and containerd, in virtual machines.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::on_nodes;
use crate::cluster::wait_until_every;
use crate::images::{NODE_NEW, NODE_WITHOUT_KUBELET};
use crate::lab::Lab;
use crate::runner::Test;
use crate::vm_fleet::{DEPLOYMENT, PAUSE, VmFleet};

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_nodes(
            "nodes/the-owners-document-moves-two-nodes-and-a-bad-image-halts",
            document,
        ),
        on_nodes(
            "nodes/an-upgrade-ends-well-without-an-api-server",
            without_api_server,
        ),
        on_nodes(
            "nodes/a-power-cut-during-the-trial-boot-is-only-a-delay",
            power_cut,
        ),
    ]
}

/// Drained against a budget that first refuses; the controller's own node is one of the two; then an image whose kubelet does
/// not answer.
fn document(lab: &Lab) -> Result<()> {
    let upgrade = "my-upgrade-2";
    let mut fleet = begun(lab, upgrade, 0)?;
    let before = fleet.boots()?;
    budget_refuses(&fleet, upgrade)?;
    ensure!(
        fleet.boots()? == before && fleet.observer.least_ready_pods("default") == 2,
        "the budget was broken: {}",
        fleet.observer.log()
    );
    fleet.set_budget(1)?;
    completed(&mut fleet, upgrade)?;
    runs(&mut fleet, NODE_NEW.version(), 'B')?;
    let after = fleet.boots()?;
    ensure!(
        before.iter().all(|(name, boot)| after[name] != *boot)
            && fleet.observer.least_ready_pods("default") >= 1,
        "from {before:?} to {after:?}: {}",
        fleet.observer.log()
    );
    lab.note(format!("\n{}", fleet.tables()?));

    fleet.observer.forget();
    let bad = lab.artifacts()?.image(&NODE_WITHOUT_KUBELET)?;
    let upgrade = "without-kubelet";
    fleet.admin().apply(&fleet.document(upgrade, &bad)?)?;
    let patience = fleet.patience() * 3;
    fleet.wait_for(upgrade, "is halted", patience, |status| {
        status["phase"] == "Halted" && status["fail"] == 1
    })?;
    fleet.wait_until_available()?;
    let failed = fallen_back(&fleet, upgrade)?;
    ensure!(
        fleet.observer.ever_unavailable() == BTreeSet::from([failed.clone()]),
        "more than {failed} was touched: {}",
        fleet.observer.log()
    );
    let last = fleet.boots()?;
    ensure!(
        last.iter()
            .all(|(name, boot)| (after[name] == *boot) == (*name != failed)),
        "{failed} fell back, and {after:?} became {last:?}"
    );
    lab.note(format!("\n{}", fleet.tables()?));
    Ok(())
}

/// A fleet with two pods, of which the budget lets so many be missing, and the owner's document applied to it.
fn begun(lab: &Lab, upgrade: &str, may_be_missing: usize) -> Result<VmFleet> {
    let fleet = VmFleet::start(lab, &|_| {})?;
    fleet.deploy(2, may_be_missing)?;
    fleet.observer.forget();
    let image = lab.artifacts()?.image(&NODE_NEW)?;
    fleet.admin().apply(&fleet.document(upgrade, &image)?)?;
    Ok(fleet)
}

/// Waits until a node's drain is held up, and the node's own word names the pod and the budget.
fn budget_refuses(fleet: &VmFleet, upgrade: &str) -> Result<()> {
    wait_until_every(
        PAUSE,
        "a drain that a budget refuses",
        fleet.patience() * 2,
        || {
            let mut seen = String::new();
            for node in &fleet.nodes {
                let progress = fleet.progress(upgrade, node.name)?;
                let status = &progress["status"];
                let message = status["message"].as_str().unwrap_or_default();
                if status["phase"] == "Draining"
                    && message.contains(&format!("default/{DEPLOYMENT}-"))
                    && message.contains(&format!("budget {DEPLOYMENT}"))
                {
                    return Ok(());
                }
                seen += &format!("{}: {status:#}\n", node.name);
            }
            anyhow::bail!("{seen}")
        },
    )
}

/// Waits until an upgrade has moved both nodes, and no two were unavailable at once.
fn completed(fleet: &mut VmFleet, upgrade: &str) -> Result<()> {
    ended(fleet, upgrade)?;
    ensure!(
        fleet.observer.most_unavailable() == 1,
        "{} nodes were unavailable at once: {}",
        fleet.observer.most_unavailable(),
        fleet.observer.log()
    );
    Ok(())
}

/// Waits until an upgrade has moved both nodes.
fn ended(fleet: &mut VmFleet, upgrade: &str) -> Result<()> {
    let patience = fleet.patience() * 5;
    fleet.wait_for(upgrade, "is completed", patience, |status| {
        status["phase"] == "Completed" && status["targets"] == 2 && status["ok"] == 2
    })?;
    fleet.wait_until_available()
}

/// Both nodes run this version from this slot: by the kubelet's word, by the firmware's and loader's, and by slotd's.
fn runs(fleet: &mut VmFleet, version: &str, slot: char) -> Result<()> {
    for node in &mut fleet.nodes {
        let object = fleet.plane.admin().json(&["get", "node", node.name])?;
        let info = &object["status"]["nodeInfo"];
        ensure!(
            info["kubeletVersion"] == version,
            "{} says {info:#}",
            node.name
        );
        let labels = &object["metadata"]["labels"];
        ensure!(
            labels["monok8s.io/version"] == version
                && labels["monok8s.io/slot"] == slot.to_string(),
            "{} has the labels {labels:#}",
            node.name
        );
        let status = node.status()?;
        ensure!(
            status["lastResult"]["result"] == "Completed"
                && status["booted"] == slot.to_string()
                && status["slots"]
                    .as_array()
                    .is_some_and(|slots| slots.iter().all(|slot| slot["state"] == "good")),
            "{} says {status:#}",
            node.name
        );
    }
    Ok(())
}

/// The one node that took the image back, because its kubelet did not answer.
fn fallen_back(fleet: &VmFleet, upgrade: &str) -> Result<String> {
    let mut failed = Vec::new();
    for node in &fleet.nodes {
        let Ok(progress) = fleet.progress(upgrade, node.name) else {
            continue;
        };
        let status = progress["status"].clone();
        if status["phase"] == "RolledBack" {
            let reason = status["failureReason"].as_str().unwrap_or_default();
            let message = status["message"].as_str().unwrap_or_default();
            ensure!(
                format!("{reason} {message}").contains("kubelet")
                    && status["currentVersion"] == NODE_NEW.version(),
                "{} says {status:#}",
                node.name
            );
            failed.push(node.name.to_owned());
        } else {
            ensure!(
                progress["spec"]["action"] != "Activate"
                    && (status["phase"] == "Pending" || status["phase"].is_null()),
                "{} was touched: {progress:#}",
                node.name
            );
        }
    }
    ensure!(failed.len() == 1, "{failed:?} fell back");
    failed.pop().context("nobody")
}

/// The API server is away while the first node stages, and again from its last eviction until after the confirmation.
fn without_api_server(lab: &Lab) -> Result<()> {
    let upgrade = "without-api-server";
    let mut fleet = begun(lab, upgrade, 1)?;
    let patience = fleet.patience();
    let first = wait_until_every(PAUSE, "a node that writes", patience, || {
        let writing = fleet.nodes.iter().position(|node| {
            fleet
                .progress(upgrade, node.name)
                .is_ok_and(|progress| progress["status"]["phase"] == "Downloading")
        });
        writing.context("none writes")
    })?;
    let outage = fleet.plane.stop_api_server()?;
    let node = &mut fleet.nodes[first];
    node.wait_for("has staged", patience, |status| {
        status["upgrade"]["phase"] == "Staged"
    })?;
    outage.end()?;

    let node = &mut fleet.nodes[first];
    node.wait_for("is drained", patience * 2, |status| {
        status["upgrade"]["phase"] == "Activating"
    })?;
    let outage = fleet.plane.stop_api_server()?;
    let node = &mut fleet.nodes[first];
    let status = node.wait_for("is confirmed", patience * 3, |status| {
        status["upgrade"]["phase"] == "Completed"
    })?;
    ensure!(
        status["booted"] == "B",
        "{} confirmed something else: {status:#}",
        node.name
    );
    outage.end()?;
    ended(&mut fleet, upgrade)?;
    ensure!(
        fleet.observer.most_taken_down() == 1,
        "two nodes were taken down at once: {}",
        fleet.observer.log()
    );
    runs(&mut fleet, NODE_NEW.version(), 'B')
}

/// The plug is pulled while the new system is on trial: it is tried again, and nobody else goes meanwhile.
fn power_cut(lab: &Lab) -> Result<()> {
    let upgrade = "power-cut";
    let mut fleet = begun(lab, upgrade, 1)?;
    let patience = fleet.patience();
    let first = fleet.first(upgrade)?;
    let node = &mut fleet.nodes[first];
    let boot = node.machine.wait_for_boot_within(patience * 3)?;
    boot.expect('B', NODE_NEW.version())?;
    let status = node.status()?;
    ensure!(
        status["upgrade"]["phase"] == "Confirming",
        "{} says {status:#}",
        node.name
    );
    let boot = node.machine.power_cycle()?;
    boot.expect('B', NODE_NEW.version())?;
    completed(&mut fleet, upgrade)?;
    runs(&mut fleet, NODE_NEW.version(), 'B')
}
