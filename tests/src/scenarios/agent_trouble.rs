//! The agent when its cluster is in trouble: the API server away, objects and kinds that go and come back, an agent that dies.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api::installed;
use super::applied::Applied;
use super::on_stand_ins;
use super::told::{Told, schedulable};
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{Fleet, FleetOptions, Health, StandIn};

/// Many times what anything takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Requests that one agent may make in ten seconds while nothing can work: no busy loop.
const BUSY: usize = 40;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/a-node-confirms-while-the-api-server-is-away",
            confirms_alone,
        ),
        on_stand_ins(
            "cluster/a-node-rolls-back-while-the-api-server-is-away",
            rolls_back_alone,
        ),
        on_stand_ins(
            "cluster/a-node-stages-while-the-api-server-is-away-and-waits-undrained",
            waits_undrained,
        ),
        on_stand_ins(
            "cluster/an-agent-that-is-killed-in-any-phase-goes-on",
            killed,
        ),
        on_stand_ins(
            "cluster/an-agent-outlives-its-kind-and-its-node-object",
            recreated,
        ),
        on_stand_ins(
            "cluster/a-status-that-is-refused-spoils-no-other-and-is-not-written-without-end",
            refused_status,
        ),
        on_stand_ins(
            "cluster/a-node-that-can-remember-nothing-says-so-and-begins-nothing",
            forgetful,
        ),
    ]
}

fn confirms_alone(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let told = ends_alone(&fleet, Health::Healthy, "Completed")?;
    let completed = told.wait_for("Completed")?;
    ensure!(completed["currentVersion"] == "v1.1.0", "{completed:#}");
    fleet.wait_until_available()?;
    let node = fleet.node(0);
    ensure!(schedulable(node)?, "{:#}", node.object()?);
    told.delete()
}

fn rolls_back_alone(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let failing = Health::Failing {
        check: "required.d/50-app".to_owned(),
        output: "refused".to_owned(),
    };
    let told = ends_alone(&fleet, failing, "RolledBack")?;
    let back = told.wait_for("RolledBack")?;
    ensure!(
        back["failureReason"] == "HealthCheckFailed"
            && back["message"] == "health check required.d/50-app failed: refused"
            && back["currentVersion"] == "v1.0.0",
        "{back:#}"
    );
    fleet.wait_until_available()?;
    let node = fleet.node(0);
    ensure!(schedulable(node)?, "{:#}", node.object()?);
    // Down for the trial, and back: nothing was tried again when somebody could be told.
    ensure!(node.boots().len() == 3, "{:?}", node.boots());
    ensure!(node.history()?.len() == 1, "{:?}", node.history());
    told.delete()
}

/// An upgrade of the first node that comes to its end while the API server is away, from within the trial boot on until the end is
/// in the node's history. Nobody was told of it yet.
fn ends_alone<'a>(fleet: &'a Fleet<'_>, health: Health, result: &str) -> Result<Told<'a>> {
    let node = fleet.node(0);
    node.set_health("v1.1.0", Health::Waiting)?;
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(fleet, node, "v1.1.0", &from, &json!({}))?;
    wait_until("the trial boot", PATIENCE, || {
        ensure!(node.boot()?.version == "v1.1.0", "{:?}", node.boots());
        Ok(())
    })?;
    let away = fleet.plane().stop_api_server()?;
    node.set_health("v1.1.0", health)?;
    wait_until("the end, told to nobody", PATIENCE, || {
        let history = node.history()?;
        let last = history.last();
        ensure!(
            last.is_some_and(|entry| entry.result == result),
            "{history:?}"
        );
        Ok(())
    })?;
    away.end()?;
    Ok(told)
}

fn waits_undrained(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 1,
            buses: true,
            ..FleetOptions::slowly("512KiB")
        },
    )?;
    fleet.deploy("web", 1, None)?;
    let node = fleet.node(0);
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
    told.wait_for("Downloading")?;
    let away = fleet.plane().stop_api_server()?;
    wait_until("a node that waits undrained", PATIENCE, || {
        let status = node.bus().status()?;
        let unreachable = status["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["type"] == "ClusterUnreachable"));
        ensure!(
            status["upgrade"]["phase"] == "Staged"
                && status["upgrade"]["message"] == "waits for the cluster to activate it"
                && unreachable,
            "{status:#}"
        );
        Ok(())
    })?;
    ensure!(
        node.boots().len() == 1,
        "it rebooted undrained: {:?}",
        node.boots()
    );
    away.end()?;
    told.wait_for("Completed")?;
    fleet.wait_until_available()?;
    wait_until("a status without trouble", PATIENCE, || {
        let status = node.bus().status()?;
        ensure!(status["conditions"] == json!([]), "{status:#}");
        Ok(())
    })?;
    told.delete()
}

fn killed(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 1,
            ..FleetOptions::slowly("1MiB")
        },
    )?;
    let node = fleet.node(0);
    let mut number = 0;
    for phase in ["Downloading", "Staged", "Draining", "Confirming"] {
        number += 1;
        let version = format!("v1.{number}.0");
        let from = fleet.publish(&version)?;
        let action = if phase == "Staged" {
            "Stage"
        } else {
            "Activate"
        };
        if phase == "Draining" {
            // It keeps the node draining until the agent was killed.
            fleet.deploy("web", 1, None)?;
            node.keep_pods_ending();
        }
        if phase == "Confirming" {
            node.set_health(&version, Health::Waiting)?;
        }
        let told = Told::apply(&fleet, node, &version, &from, &json!({"action": action}))?;
        told.wait_for(phase)?;
        let starts = node.agent_starts();
        node.kill_agent()?;
        wait_until("another agent", PATIENCE, || {
            ensure!(
                node.agent_starts() > starts,
                "the agent was started {starts} times"
            );
            Ok(())
        })?;
        match phase {
            "Staged" => told.patch(&json!({"action": "Activate"}))?,
            "Draining" => {
                ensure!(!schedulable(node)?, "the cordon was lost with the agent");
                node.let_pods_end();
            }
            "Confirming" => node.set_health(&version, Health::Healthy)?,
            _ => {}
        }
        let completed = told.wait_for("Completed")?;
        ensure!(completed["currentVersion"] == version, "{completed:#}");
        fleet.wait_until_available()?;
        ensure!(schedulable(node)?, "{:#}", node.object()?);
        told.delete()?;
    }
    let results: Vec<String> = node
        .history()?
        .into_iter()
        .map(|entry| entry.result)
        .collect();
    ensure!(results == ["Completed"; 4], "{results:?}");
    node.sound()
}

fn recreated(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let node = fleet.node(0);
    let kind = "crd/osupgradeprogresses.monok8s.io";
    admin.run(&["delete", kind])?;
    let log = fleet.plane().audit_log()?;
    // An agent that starts without the kind waits for it.
    node.kill_agent()?;
    // The Node comes back under its name as another one, without labels.
    admin.run(&["delete", "node", node.name()])?;
    node.stop_kubelet();
    node.start_kubelet();
    node.wait_until_heard()?;
    wait_until("labels on the new Node", PATIENCE, || {
        let labels = &node.object()?["metadata"]["labels"];
        ensure!(labels["monok8s.io/agent"] == "true", "{labels:#}");
        Ok(())
    })?;
    let user = format!("system:node:{}", node.name());
    let busiest = log
        .requests()?
        .of_user(&user)
        .most_within(Duration::from_secs(10));
    ensure!(busiest <= BUSY, "{busiest} requests in 10 s");
    installed(lab)?;
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
    told.wait_for("Completed")?;
    told.delete()?;

    // Once more, behind the back of an agent that runs on: an object for the new Node is for it, one for the old one is not.
    let uid = |node: &StandIn| -> Result<Value> { Ok(node.object()?["metadata"]["uid"].clone()) };
    let old = uid(node)?;
    admin.run(&["delete", "node", node.name()])?;
    node.stop_kubelet();
    node.start_kubelet();
    node.wait_until_heard()?;
    let from = fleet.publish("v1.2.0")?;
    for (uid, phase) in [(uid(node)?, "Completed"), (old, "")] {
        let told = Told::apply(&fleet, node, "v1.2.0", &from, &json!({"nodeUID": uid}))?;
        if phase.is_empty() {
            ensure!(told.status()?.is_null(), "{:#}", told.status()?);
        } else {
            told.wait_for(phase)?;
        }
        told.delete()?;
    }
    Ok(())
}

/// What the API server refuses for some objects of a node.
const REFUSAL: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-status}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [monok8s.io]
        apiVersions: [v1alpha1]
        operations: [UPDATE]
        resources: [osupgradeprogresses/status]
  validations:
    - expression: "!object.metadata.name.contains('-refused-')"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-status}
spec:
  policyName: no-status
  validationActions: [Deny]
"#;

fn refused_status(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let kinds = "validatingadmissionpolicybinding/no-status validatingadmissionpolicy/no-status";
    let _refusal = Applied::new(admin, REFUSAL, kinds)?;
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 1,
            ..FleetOptions::slowly("512KiB")
        },
    )?;
    let node = fleet.node(0);
    let from = fleet.publish("v1.1.0")?;
    for number in 0..3 {
        let mut document = Told::document(node, "v1.1.0", &from, &json!({"suspend": true}))?;
        document["metadata"]["name"] = json!(format!("{}-refused-{number}", node.name()));
        fleet.admin().apply(&document.to_string())?;
    }
    let made = Instant::now();
    // A policy is in force some moments after it was made.
    let own = fleet.plane().node(node.name())?;
    let name = format!("{}-refused-0", node.name());
    let mut message = 0..;
    wait_until("a status that is refused", PATIENCE, || {
        let status =
            json!({"status": {"message": message.next().map(|number| number.to_string())}});
        own.refusal(&[
            "patch",
            "osupgradeprogress",
            &name,
            "--subresource=status",
            "--type=merge",
            "--patch",
            &status.to_string(),
        ])
    })?;
    // The youngest object comes first, and its age is known to the second.
    wait_until("a later second", PATIENCE, || {
        ensure!(made.elapsed() > Duration::from_secs(1), "{made:?}");
        Ok(())
    })?;
    let log = fleet.plane().audit_log()?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({"action": "Stage"}))?;
    told.wait_for("Staged")?;
    let user = format!("system:node:{}", node.name());
    let requests = log.requests()?.of_user(&user);
    ensure!(
        requests
            .filter(|request| request.code == 403 || request.code == 422)
            .count()
            > 0,
        "nothing was refused: {:#?}",
        requests.all()
    );
    let busiest = requests.most_within(Duration::from_secs(10));
    lab.note(format!("at most {busiest} requests in 10 s"));
    ensure!(busiest <= BUSY, "{busiest} requests in 10 s");
    admin
        .run(&["delete", "osupgradeprogress", "--all"])
        .map(drop)
}

fn forgetful(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let node = fleet.node(0);
    let path = node.root().join("data/slotd/state.json");
    // As if a much later release had run here.
    let state = json!({"version": 1000, "min_reader": 1000, "record": {}});
    std::fs::create_dir_all(path.parent().context("the state has a folder")?)?;
    std::fs::write(&path, state.to_string())?;
    let starts = node.agent_starts();
    node.kill_agent()?;
    wait_until("another agent", PATIENCE, || {
        ensure!(node.agent_starts() > starts, "{starts} starts");
        Ok(())
    })?;
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
    told.wait_until("says why it waits", |status| {
        let message = status["message"].as_str().unwrap_or_default();
        status["phase"] == "Pending" && message.contains("needs a reader of version 1000")
    })?;
    ensure!(node.boots().len() == 1, "{:?}", node.boots());
    told.delete()
}
