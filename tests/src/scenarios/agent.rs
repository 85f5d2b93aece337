//! The agent's cluster side, told by progress objects that were made by hand: no controller is there.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::api::installed;
use super::on_stand_ins;
use super::told::{Told, schedulable};
use crate::cluster::{Workload, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{FLEET_LABEL, Fleet, Health, PodSeen};

/// Many times what anything takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Requests that one agent may make in ten seconds, whatever goes on: a few for each phase and each look at its pods.
const BUSY: usize = 60;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/an-agent-upgrades-its-node-as-a-progress-object-says",
            upgrade,
        ),
        on_stand_ins(
            "cluster/a-budget-is-obeyed-and-named-until-the-time-is-over",
            budget,
        ),
        on_stand_ins(
            "cluster/a-rolled-back-node-says-why-and-tries-again-only-when-asked",
            rolled_back,
        ),
        on_stand_ins(
            "cluster/what-is-refused-is-rejected-before-anything-is-written",
            rejected,
        ),
    ]
}

fn upgrade(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 2)?;
    fleet.deploy("web", 4, Some(1))?;
    let node = fleet.node(0);
    wait_until("an agent's labels", PATIENCE, || {
        let metadata = &node.object()?["metadata"];
        let labels = &metadata["labels"];
        ensure!(
            labels["monok8s.io/agent"] == "true"
                && labels["monok8s.io/slot"] == "A"
                && labels["monok8s.io/version"] == "v1.0.0"
                && metadata["annotations"]["monok8s.io/version"] == "v1.0.0",
            "{metadata:#}"
        );
        Ok(())
    })?;
    fleet.observer().forget();
    let log = fleet.plane().audit_log()?;
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({"action": "Stage"}))?;
    let staged = told.wait_for("Staged")?;
    ensure!(
        staged["inactivePartition"] == "B"
            && staged["currentVersion"] == "v1.0.0"
            && staged["targetVersion"] == "v1.1.0"
            && staged["display"] == "staged",
        "{staged:#}"
    );
    ensure!(node.boots().len() == 1, "it rebooted before it was told to");
    ensure!(
        fleet.observer().most_unavailable() == 0,
        "{}",
        fleet.observer().log()
    );
    told.patch(&json!({"action": "Activate"}))?;
    let completed = told.wait_for("Completed")?;
    ensure!(
        completed["currentVersion"] == "v1.1.0"
            && completed["inactivePartition"] == "A"
            && completed["display"] == "completed"
            && completed["failureReason"].is_null()
            && !completed["completedAt"].is_null(),
        "{completed:#}"
    );
    fleet.wait_until_available()?;
    ensure!(schedulable(node)?, "{:#}", node.object()?);
    let labels = node.object()?["metadata"]["labels"].clone();
    ensure!(
        labels["monok8s.io/slot"] == "B" && labels["monok8s.io/version"] == "v1.1.0",
        "{labels}"
    );
    // Drained before it went down, with the budget kept, and nobody else touched.
    let observer = fleet.observer();
    ensure!(
        observer.ever_unavailable() == BTreeSet::from([node.name().to_owned()]),
        "{}",
        observer.log()
    );
    let least = observer.least_ready_pods(fleet.name());
    ensure!(
        least == 3,
        "{least} of 4 pods were Ready\n{}",
        observer.log()
    );
    ensure!(fleet.node(1).boots().len() == 1, "the other node rebooted");

    let user = format!("system:node:{}", node.name());
    let requests = log.requests()?.of_user(&user);
    let (writes, busiest) = (
        requests.writes(),
        requests.most_within(Duration::from_secs(10)),
    );
    lab.note(format!(
        "the agent made {} writes and {} requests, at most {busiest} in 10 s",
        writes.count(),
        requests.count()
    ));
    let evictions = writes.filter(|request| request.subresource == "eviction");
    ensure!(
        writes.count() - evictions.count() <= 14,
        "{} writes beside evictions: {:#?}",
        writes.count() - evictions.count(),
        writes.all()
    );
    ensure!(
        busiest <= BUSY,
        "{busiest} requests in 10 s: {:#?}",
        requests.all()
    );

    // What is Completed is not begun again, whatever restarts.
    node.kill_agent()?;
    node.reboot()?;
    fleet.wait_until_available()?;
    ensure!(
        told.status()?["phase"] == "Completed",
        "{:#}",
        told.status()?
    );
    ensure!(node.history()?.len() == 1, "{:?}", node.history());
    told.delete()
}

fn budget(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    fleet.deploy("web", 1, Some(0))?;
    let node = fleet.node(0);
    let left_alone = left_alone(&fleet)?;
    let from = fleet.publish("v1.1.0")?;
    let change = json!({"drain": {"timeout": "30s"}});
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &change)?;
    let says = |status: &Value, words: &str| {
        let message = status["message"].as_str().unwrap_or_default();
        message.contains(&format!("pod {}/web-", fleet.name())) && message.contains(words)
    };
    let named = |status: &Value| says(status, "budget web needs");
    told.wait_until("names pod and budget while it drains", |status| {
        status["phase"] == "Draining" && named(status)
    })?;
    ensure!(!schedulable(node)?, "it drains without a cordon");
    let failed = told.wait_for("Failed")?;
    ensure!(
        failed["failureReason"] == "DrainTimeout" && named(&failed),
        "{failed:#}"
    );
    // The end is told once the cordon is taken back.
    ensure!(schedulable(node)?, "{:#}", node.object()?);
    ensure!(node.boots().len() == 1, "it rebooted undrained");
    let as_before = |pod: &PodSeen| !pod.leaving && (pod.ready || left_alone.contains(&pod.name));
    ensure!(node.pods()?.iter().all(as_before), "{:?}", node.pods());

    // With two budgets for a pod, the API server evicts it for none.
    let other = Workload {
        name: "web-too",
        namespace: fleet.name(),
    };
    other.set_budget_of(
        admin,
        &Workload {
            name: "web",
            ..other
        },
        1,
    )?;
    told.patch(&json!({"attempt": 1, "drain": {"timeout": "10s"}}))?;
    let failed = told.wait_until("failed again", |status| {
        status["attempt"] == 1 && status["phase"] == "Failed"
    })?;
    ensure!(
        failed["failureReason"] == "DrainTimeout"
            && says(&failed, "more than one PodDisruptionBudget"),
        "{failed:#}"
    );
    ensure!(
        schedulable(node)? && node.boots().len() == 1,
        "{:#}",
        node.object()?
    );

    // An operator who wants it all the same says so.
    told.patch(&json!({"attempt": 2, "drain": {"timeout": "5s", "onTimeout": "Force"}}))?;
    told.wait_until("is through", |status| {
        status["attempt"] == 2 && status["phase"] == "Completed"
    })?;
    fleet.wait_until_available()?;
    ensure!(
        schedulable(node)? && node.boots().len() == 2,
        "{:#}",
        node.object()?
    );
    let pods = node.pods()?;
    let stay = |name: &String| pods.iter().any(|pod| pod.name == *name && !pod.leaving);
    ensure!(left_alone.iter().all(stay), "of {left_alone:?}: {pods:?}");
    told.delete()
}

/// Runs a DaemonSet's pod and one that is over on the fleet's only node: their names.
fn left_alone(fleet: &Fleet<'_>) -> Result<BTreeSet<String>> {
    let admin = fleet.admin();
    let (node, namespace) = (fleet.node(0), fleet.name());
    let container = json!([{"name": "app", "image": "lab/none"}]);
    let labels = json!({"app": "everywhere"});
    let spec = json!({"nodeSelector": {FLEET_LABEL: namespace}, "containers": container});
    let everywhere = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "everywhere", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    });
    let over = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "over", "namespace": namespace},
        "spec": {"nodeName": node.name(), "restartPolicy": "Never", "containers": container},
    });
    for document in [everywhere, over] {
        admin.apply(&document.to_string())?;
    }
    let names = wait_until("both pods", PATIENCE, || {
        let pods = node.pods()?;
        let ready = |pod: &&PodSeen| pod.ready && !pod.name.starts_with("web-");
        let names: BTreeSet<String> = pods
            .iter()
            .filter(ready)
            .map(|pod| pod.name.clone())
            .collect();
        ensure!(names.len() == 2, "{pods:?}");
        Ok(names)
    })?;
    admin.run(&[
        "patch",
        "pod",
        "over",
        "--namespace",
        namespace,
        "--subresource=status",
        "--type=merge",
        r#"--patch={"status":{"phase":"Succeeded"}}"#,
    ])?;
    Ok(names)
}

fn rolled_back(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let node = fleet.node(0);
    let failing = Health::Failing {
        check: "required.d/50-app".to_owned(),
        output: "refused".to_owned(),
    };
    node.set_health("v1.1.0", failing)?;
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
    let back = told.wait_for("RolledBack")?;
    ensure!(
        back["failureReason"] == "HealthCheckFailed"
            && back["message"] == "health check required.d/50-app failed: refused"
            && back["currentVersion"] == "v1.0.0",
        "{back:#}"
    );
    fleet.wait_until_available()?;
    ensure!(schedulable(node)?, "{:#}", node.object()?);
    node.reboot()?;
    fleet.wait_until_available()?;
    ensure!(node.history()?.len() == 1, "{:?}", node.history());
    told.delete()?;

    // Another object for the same image is refused by what the node remembers; a raised attempt is not.
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
    let refused = told.wait_for("Rejected")?;
    ensure!(refused["failureReason"] == "FailedBefore", "{refused:#}");
    node.set_health("v1.1.0", Health::Healthy)?;
    told.patch(&json!({"attempt": 1}))?;
    told.wait_until("is through", |status| {
        status["attempt"] == 1 && status["phase"] == "Completed"
    })?;
    told.delete()
}

fn rejected(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let node = fleet.node(0);
    let from = fleet.publish("v0.9.0")?;
    let before = node.boot()?;
    let mut checksum = from.1.checksum.clone();
    checksum.truncate(20);
    let image = json!({"version": "v1.1.0", "url": from.0, "checksum": checksum});
    for (version, change, reason) in [
        ("v0.9.0", json!({}), "Downgrade"),
        ("v1.1.0", json!({"image": image}), "InvalidChecksum"),
    ] {
        let told = Told::apply(&fleet, node, version, &from, &change)?;
        let status = told.wait_for("Rejected")?;
        ensure!(status["failureReason"] == reason, "{status:#}");
        told.delete()?;
    }
    // An image that is another version than it is said to be fails before it is activated.
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
    let status = told.wait_for("Failed")?;
    ensure!(status["failureReason"] == "VersionMismatch", "{status:#}");
    told.delete()?;
    // Another Node of that name was meant.
    let other = json!({"nodeUID": "00000000-0000-0000-0000-000000000000"});
    let told = Told::apply(&fleet, node, "v0.9.0", &from, &other)?;
    // Allowed by name.
    let allowed = json!({"allowDowngrade": true});
    ensure!(told.status()?.is_null(), "{:#}", told.status()?);
    told.delete()?;
    let told = Told::apply(&fleet, node, "v0.9.0", &from, &allowed)?;
    told.wait_for("Completed")?;
    ensure!(
        before.version == "v1.0.0" && node.boot()?.version == "v0.9.0",
        "{:?}",
        node.boots()
    );
    told.delete()
}
