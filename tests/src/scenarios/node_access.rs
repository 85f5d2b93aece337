//! What a node's credential may do, tried from the attacker's side: to the objects of slotd, to Nodes, and to pods.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api::{installed, progress, upgrade};
use super::in_cluster;
use crate::artifacts::repository;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;

/// Many times what the API server takes to know a new kind or policy.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_cluster(
            "cluster/a-node-writes-the-status-of-its-own-progress-only",
            own_status_only,
        ),
        in_cluster(
            "cluster/a-node-may-do-what-the-manifests-say-and-no-more",
            rights,
        ),
        in_cluster(
            "cluster/a-node-touches-no-roll-out-no-place-and-no-other-node",
            own_objects_only,
        ),
        in_cluster("cluster/a-node-evicts-its-own-pods-only", own_pods_only),
    ]
}

fn own_status_only(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let (own, other) = ("status-own", "status-other");
    for name in [own, other] {
        // Named like their nodes.
        admin.apply(&progress(name, name).to_string())?;
    }
    admin.apply(&upgrade().to_string())?;
    let node = lab.control_plane()?.node(own)?;
    let write = |name: &str, patch: &str| {
        let patch = format!("--patch={patch}");
        ["patch", "osupgradeprogress", name, "--type=merge", &patch].map(str::to_owned)
    };
    let status = r#"{"status":{"phase":"Downloading","display":"downloading 10%","percent":10}}"#;
    let of_status = |name: &str, patch: &str| {
        [
            &write(name, patch)[..],
            &["--subresource=status".to_owned()],
        ]
        .concat()
    };

    // What it may: see its own by the field, and say how far it is.
    let seen = node.run(&[
        "get",
        "osupgradeprogress",
        "--field-selector=spec.nodeName=status-own",
        "--output=name",
    ])?;
    ensure!(
        seen.trim() == "osupgradeprogress.monok8s.io/status-own",
        "the field selector shows {seen:?}"
    );
    node.run(&of_status(own, status))?;
    let shown = admin.run(&["get", "osupgradeprogress", own])?;
    ensure!(
        shown.contains("downloading 10%"),
        "the STATUS column shows\n{shown}"
    );

    // What it may not: another's status. The policy is in force some time after it was made.
    wait_until("the refusal of another node's status", PATIENCE, || {
        let said = node.refusal(&of_status(other, status))?;
        ensure!(
            said.contains(
                "only the node status-other may write this status, not system:node:status-own"
            ),
            "kubectl says {said}"
        );
        Ok(())
    })?;
    let untouched = r#"{"status":null}"#;
    admin.run(&of_status(other, untouched))?;
    ensure!(
        node.refusal(&of_status(other, status))?
            .contains("only the node status-other"),
        "the refusal does not last"
    );
    let objects = admin.json(&["get", "osupgradeprogress", other])?;
    ensure!(
        objects["status"].is_null(),
        "the other's status is {}",
        objects["status"]
    );
    // Its own orders: neither directly nor through the status.
    let order = r#"{"spec":{"action":"Activate"}}"#;
    ensure!(node.refusal(&write(own, order))?.contains("forbidden"));
    node.run(&of_status(own, order))?;
    let object = admin.json(&["get", "osupgradeprogress", own])?;
    ensure!(
        object["spec"]["action"] == "Stage",
        "the order became {}",
        object["spec"]
    );
    // Nor objects of its own making, the roll-out, or its places.
    for arguments in [
        &["delete", "osupgradeprogress", own][..],
        &[
            "create",
            "--filename",
            &repository()
                .join("crds/manifests/examples/osupgradeprogress.yaml")
                .display()
                .to_string(),
        ],
        &["get", "osupgrade", "wrong"],
        &["delete", "osupgrade", "wrong"],
        &[
            "get",
            "configmap",
            "slotd-places",
            "--namespace=kube-system",
        ],
    ] {
        let said = node.refusal(arguments)?;
        ensure!(
            said.to_lowercase().contains("forbidden"),
            "kubectl {arguments:?} as a node says {said}"
        );
    }
    admin.run(&["delete", "osupgrades,osupgradeprogresses", "--all"])?;
    Ok(())
}

/// What `kubectl auth can-i --list` prints of slotd's kinds: the kind, and what may be done with it.
fn rights(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let node = lab.control_plane()?.node("rights")?;
    let listed = node.run(&["auth", "can-i", "--list"])?;
    let ours: BTreeSet<String> = listed
        .lines()
        .filter(|line| line.contains("monok8s.io"))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "osupgradeprogresses.monok8s.io [] [] [get list watch]",
        "osupgradeprogresses.monok8s.io/status [] [] [get patch update]",
    ];
    ensure!(
        ours == expected.map(str::to_owned).into(),
        "a node may do {ours:#?}"
    );
    Ok(())
}

/// Requests as an attacker makes them: by themselves, without the reading that kubectl does before it changes something.
struct Attacker<'a> {
    lab: &'a Lab,
    node: Client,
}

impl Attacker<'_> {
    /// An error unless this request is forbidden to the node for the reason that is named.
    fn forbidden(
        &self,
        verb: &str,
        path: &str,
        document: Option<&Value>,
        reason: &str,
    ) -> Result<()> {
        let said = self.node.refusal(&self.request(verb, path, document)?)?;
        ensure!(
            said.contains("(Forbidden)") && said.contains(reason),
            "kubectl {verb} --raw {path} as a node says {said}"
        );
        Ok(())
    }

    fn request(&self, verb: &str, path: &str, document: Option<&Value>) -> Result<Vec<String>> {
        let mut arguments = vec![verb.to_owned(), "--raw".to_owned(), path.to_owned()];
        if let Some(document) = document {
            let file = self.lab.folder().join("request.json");
            fs::write(&file, document.to_string()).context("writing a request")?;
            arguments.push("--filename".to_owned());
            arguments.push(file.display().to_string());
        }
        Ok(arguments)
    }
}

fn own_objects_only(lab: &Lab) -> Result<()> {
    const UPGRADES: &str = "/apis/monok8s.io/v1alpha1/osupgrades";
    const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
    let admin = installed(lab)?;
    let (own, other) = ("objects-own", "objects-other");
    for name in [own, other] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        admin.apply(&node.to_string())?;
    }
    let attacker = Attacker {
        lab,
        node: lab.control_plane()?.node(own)?,
    };

    // A roll-out, its status, and the places that it holds.
    admin.apply(&upgrade().to_string())?;
    let mut stored = admin.json(&["get", "osupgrade", "wrong"])?;
    stored["spec"]["version"] = json!("v1.35.4");
    stored["status"] = json!({"phase": "Completed"});
    let one = format!("{UPGRADES}/wrong");
    let status = format!("{one}/status");
    let mut new = upgrade();
    new["metadata"]["name"] = json!("objects-new");
    attacker.forbidden("create", UPGRADES, Some(&new), "cannot create resource")?;
    attacker.forbidden("replace", &one, Some(&stored), "cannot update resource")?;
    attacker.forbidden(
        "replace",
        &status,
        Some(&stored),
        r#"cannot update resource "osupgrades/status""#,
    )?;
    attacker.forbidden("delete", &one, None, "cannot delete resource")?;
    let kept = admin.json(&["get", "osupgrade", "wrong"])?;
    ensure!(
        kept["spec"]["version"] == "v1.35.3" && kept["status"].is_null(),
        "the upgrade became {kept:#}"
    );
    let places = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "slotd-places", "namespace": "kube-system"},
        "data": {"uid": "{}"},
    });
    let held = format!("{CONFIG_MAPS}/slotd-places");
    attacker.forbidden("create", CONFIG_MAPS, Some(&places), r#""configmaps""#)?;
    attacker.forbidden("replace", &held, Some(&places), r#""configmaps""#)?;
    attacker.forbidden("delete", &held, None, r#""configmaps""#)?;

    // Another Node: neither a cordon nor what an agent says of its own.
    let mut cordoned = admin.json(&["get", "node", other])?;
    cordoned["spec"]["unschedulable"] = json!(true);
    let mut annotated = admin.json(&["get", "node", other])?;
    annotated["metadata"]["annotations"]["monok8s.io/version"] = json!("v9.9.9");
    let path = format!("/api/v1/nodes/{other}");
    for document in [cordoned, annotated] {
        attacker.forbidden(
            "replace",
            &path,
            Some(&document),
            r#"node "objects-own" is not allowed to modify node "objects-other""#,
        )?;
    }
    let kept = admin.json(&["get", "node", other])?;
    ensure!(
        kept["spec"]["unschedulable"].is_null()
            && kept["metadata"]["annotations"]["monok8s.io/version"].is_null(),
        "the other Node became {kept:#}"
    );
    // Its own one it cordons and annotates.
    attacker.node.run(&["cordon", own])?;
    attacker
        .node
        .run(&["annotate", "node", own, "monok8s.io/version=v1.0.0"])?;
    let changed = admin.json(&["get", "node", own])?;
    ensure!(
        changed["spec"]["unschedulable"] == true
            && changed["metadata"]["annotations"]["monok8s.io/version"] == "v1.0.0",
        "its own Node is {changed:#}"
    );
    admin.run(&["delete", "osupgrade/wrong"])?;
    admin.run(&["delete", "node", own, other]).map(drop)
}

fn own_pods_only(lab: &Lab) -> Result<()> {
    const NAMESPACE: &str = "node-access";
    let admin = installed(lab)?;
    let (own, other) = ("pods-own", "pods-other");
    admin.run(&["create", "namespace", NAMESPACE])?;
    wait_until("a service account in a new namespace", PATIENCE, || {
        admin.run(&["get", "serviceaccount", "default", "--namespace", NAMESPACE])
    })?;
    for (node, pods) in [(own, ["evicted", "deleted"]), (other, ["kept", "kept-too"])] {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        admin.apply(&object.to_string())?;
        for pod in pods {
            admin.apply(&pod_on(node, pod, NAMESPACE).to_string())?;
        }
    }
    let attacker = Attacker {
        lab,
        node: lab.control_plane()?.node(own)?,
    };
    let path = |pod: &str| format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
    let evict = |pod: &str| {
        json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": NAMESPACE},
        })
    };
    let eviction = format!("{}/eviction", path("kept"));
    attacker.forbidden(
        "create",
        &eviction,
        Some(&evict("kept")),
        "can only evict pods with spec.nodeName set to itself",
    )?;
    attacker.forbidden(
        "delete",
        &path("kept-too"),
        None,
        "can only delete pods with spec.nodeName set to itself",
    )?;
    for pod in ["kept", "kept-too"] {
        let object = admin.json(&["get", "pod", pod, "--namespace", NAMESPACE])?;
        ensure!(
            object["metadata"]["deletionTimestamp"].is_null(),
            "the other node's pod is about to go: {object:#}"
        );
    }
    // Its own ones go.
    let eviction = format!("{}/eviction", path("evicted"));
    for request in [
        attacker.request("create", &eviction, Some(&evict("evicted")))?,
        attacker.request("delete", &path("deleted"), None)?,
    ] {
        attacker.node.run(&request)?;
    }
    let list = admin.json(&["get", "pods", "--namespace", NAMESPACE])?;
    let staying: BTreeSet<&str> = list["items"]
        .as_array()
        .context("a list of pods")?
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .collect();
    ensure!(
        staying == BTreeSet::from(["kept", "kept-too"]),
        "{staying:?} stay: {list:#}"
    );
    admin.run(&["delete", "node", own, other])?;
    let wait = "--wait=false";
    admin
        .run(&["delete", "namespace", NAMESPACE, wait])
        .map(drop)
}

/// A pod that was given to a node by whoever made it.
fn pod_on(node: &str, name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "lab/none"}]},
    })
}
