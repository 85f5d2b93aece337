//! What an agent hears while it cannot speak of its own Node.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::api::installed;
use super::applied::Applied;
use super::on_stand_ins;
use super::told::Told;
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{Fleet, FleetOptions};

/// Many times what anything takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(90);

pub(super) fn tests() -> Vec<Test> {
    vec![on_stand_ins(
        "cluster/a-cancel-is-heard-while-the-own-node-refuses-its-labels",
        refused_labels,
    )]
}

/// Nobody with a node's credential changes a Node any more.
const REFUSAL: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: lab-no-labels}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [''], apiVersions: [v1], operations: [UPDATE], resources: [nodes]}
  validations:
  - {expression: \"!request.userInfo.username.startsWith('system:node:')\", message: the lab wants no labels}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: lab-no-labels}
spec: {policyName: lab-no-labels, validationActions: [Deny]}
";

const KINDS: &str =
    "validatingadmissionpolicybinding/lab-no-labels validatingadmissionpolicy/lab-no-labels";

fn refused_labels(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 1,
            buses: true,
            ..FleetOptions::slowly("256KiB")
        },
    )?;
    let node = fleet.node(0);
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({"action": "Stage"}))?;
    told.wait_for("Downloading")?;
    let refusal = Applied::new(admin, REFUSAL, KINDS)?;
    let own = fleet.plane().node(node.name())?;
    // Another one each time: what changes nothing is not asked for.
    let mut labels = 0..;
    wait_until("Nodes that take no labels", PATIENCE, || {
        let label = format!("lab.slotd/x={}", labels.next().unwrap_or(0));
        own.refusal(&["label", "--overwrite", "node", node.name(), &label])?;
        Ok(())
    })?;
    // An object that goes makes the agent look at its Node, whose label is to be put back then.
    admin.run(&["label", "node", node.name(), "monok8s.io/slot-"])?;
    told.delete()?;
    wait_until("an agent that cannot label its Node", PATIENCE, || {
        let status = node.bus().status()?;
        let unreachable = status["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["type"] == "ClusterUnreachable"));
        ensure!(unreachable, "{status:#}");
        Ok(())
    })?;
    wait_until("the end of what is not wanted any more", PATIENCE, || {
        let history = node.history()?;
        let cancelled = history
            .last()
            .is_some_and(|entry| entry.result == "Cancelled");
        ensure!(cancelled, "{history:?}");
        Ok(())
    })?;
    drop(refusal);
    fleet.wait_until_available()
}
