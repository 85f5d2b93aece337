//! The control plane itself: that it is a real one, and that it holds nodes to what a node may do. What later scenarios show of
//! slotd in a cluster rests on this.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::in_cluster;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;

/// Many times what a controller takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_cluster(
            "cluster/the-control-plane-answers-kubectl-and-its-controllers-work",
            answers,
        ),
        in_cluster(
            "cluster/a-nodes-credential-labels-its-own-node-only",
            own_node_only,
        ),
    ]
}

fn answers(lab: &Lab) -> Result<()> {
    let admin = lab.control_plane()?.admin();
    let versions = admin.json(&["version"])?;
    let server = &versions["serverVersion"]["gitVersion"];
    ensure!(
        server
            .as_str()
            .is_some_and(|version| version.starts_with("v1.")),
        "the server's version is {server}"
    );

    // A deployment has pods only when the controller manager works, and loses them only when it collects garbage.
    let names = ["--namespace", "answers"];
    admin.run(&["create", "namespace", "answers"])?;
    wait_until("a service account in a new namespace", PATIENCE, || {
        admin.run(&[&["get", "serviceaccount", "default"], &names[..]].concat())
    })?;
    let create = [
        "create",
        "deployment",
        "two",
        "--image=none",
        "--replicas=2",
    ];
    admin.run(&[&create, &names[..]].concat())?;
    wait_until_pods(admin, &names, 2)?;
    admin.run(&[&["delete", "deployment", "two"], &names[..]].concat())?;
    wait_until_pods(admin, &names, 0)?;
    // It waits until the namespace is gone.
    admin.run(&["delete", "namespace", "answers", "--timeout=60s"])?;
    Ok(())
}

fn wait_until_pods(admin: &Client, names: &[&str], count: usize) -> Result<()> {
    wait_until(&format!("{count} pods"), PATIENCE, || {
        let pods = admin.json(&[&["get", "pods"], names].concat())?;
        let found = pods["items"].as_array().map_or(0, Vec::len);
        ensure!(found == count, "there are {found}");
        Ok(())
    })
}

fn own_node_only(lab: &Lab) -> Result<()> {
    let plane = lab.control_plane()?;
    let admin = plane.admin();
    let (own, other) = ("own-node", "other-node");
    for name in [own, other] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        admin.apply(&node.to_string())?;
    }
    let node = plane.node(own)?;
    let who = node.json(&["auth", "whoami"])?;
    let user = &who["status"]["userInfo"];
    ensure!(
        user["username"] == "system:node:own-node"
            && user["groups"] == json!(["system:nodes", "system:authenticated"]),
        "the API server takes the credential for {user}"
    );

    node.run(&["label", "node", own, "monok8s.io/slot=a"])?;
    ensure!(
        slot(admin, own)? == "a",
        "the label is {}",
        slot(admin, own)?
    );

    let patch = r#"{"metadata":{"labels":{"monok8s.io/slot":"a"}}}"#;
    let refusal = node.refusal(&["patch", "node", other, "--patch", patch])?;
    ensure!(
        refusal.contains("Forbidden") && refusal.contains("system:node:own-node"),
        "the refusal says: {refusal}"
    );
    ensure!(slot(admin, other)?.is_null(), "the other node is labelled");
    let label = "node-restriction.kubernetes.io/x=y";
    let refusal = node.refusal(&["label", "node", own, label])?;
    ensure!(
        refusal.contains("is not allowed to modify labels"),
        "the refusal says: {refusal}"
    );
    admin.run(&["delete", "node", own, other])?;
    Ok(())
}

fn slot(admin: &Client, node: &str) -> Result<Value> {
    let node = admin.json(&["get", "node", node])?;
    Ok(node["metadata"]["labels"]["monok8s.io/slot"].clone())
}
