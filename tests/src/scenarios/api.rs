//! The API of `crds/` on a real API server: what people may write, what they see of it, and what a node's credential may do.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::in_cluster;
use crate::artifacts::repository;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;

/// Many times what the API server takes to know a new kind or policy.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_cluster("cluster/the-examples-are-applied-as-they-stand", examples),
        in_cluster("cluster/wrong-documents-are-refused-with-a-reason", wrong),
        in_cluster(
            "cluster/what-was-written-for-a-node-is-not-given-to-another",
            immutable,
        ),
        in_cluster(
            "cluster/a-node-writes-the-status-of-its-own-progress-only",
            own_status_only,
        ),
    ]
}

/// Applies the manifests, which may be there already, and waits until both kinds are served.
pub(super) fn installed(lab: &Lab) -> Result<&Client> {
    let plane = lab.control_plane()?;
    plane.install()?;
    Ok(plane.admin())
}

fn examples(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let folder = repository().join("crds/manifests/examples");
    let owners = fs::read_to_string(folder.join("osupgrade.yaml")).context("reading an example")?;
    // The document as it stands has no real checksum: admitted, and said at once.
    wait_until("the warning of the checksum", PATIENCE, || {
        let output = admin.try_apply(&owners)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "refused: {said}");
        ensure!(
            said.contains("Warning") && said.contains("InvalidChecksum"),
            "kubectl said {said:?}"
        );
        // Applying it once more without a change would not warn.
        admin.run(&["delete", "osupgrade", "my-upgrade-2"])
    })?;
    admin.apply_folder(&folder)?;

    ensure_columns(
        admin,
        "osupgrades",
        "NAME DESIRED RESOLVED PHASE TARGETS OK FAIL AGE",
    )?;
    ensure_columns(
        admin,
        "osupgradeprogress",
        "NAME NODE SOURCE CURRENT TARGET STATUS",
    )?;
    ensure!(
        admin
            .run(&["get", "osu,osup", "--output", "name"])?
            .lines()
            .count()
            == 4,
        "the short names do not show the four examples"
    );
    let explained = admin.run(&["explain", "osupgrade.spec.rollout.maxUnavailable"])?;
    ensure!(
        explained.contains("DESCRIPTION") && explained.contains("percentage"),
        "kubectl explain says {explained}"
    );
    admin.run(&["delete", "osupgrades,osupgradeprogresses", "--all"])?;
    Ok(())
}

fn ensure_columns(admin: &Client, kind: &str, expected: &str) -> Result<()> {
    let table = admin.run(&["get", kind])?;
    let header = table.lines().next().unwrap_or_default();
    let words: Vec<&str> = header.split_whitespace().collect();
    ensure!(
        words.join(" ") == expected,
        "kubectl get {kind} prints\n{table}"
    );
    Ok(())
}

fn upgrade() -> Value {
    json!({
        "apiVersion": "monok8s.io/v1alpha1",
        "kind": "OSUpgrade",
        "metadata": {"name": "wrong"},
        "spec": {
            "version": "v1.35.3",
            "imageURL": "https://updates.example.com/rootfs.ext4.zst",
            "checksum": format!("sha256:{}", "a".repeat(64)),
            "nodeSelector": {},
        },
    })
}

fn progress(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "monok8s.io/v1alpha1",
        "kind": "OSUpgradeProgress",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "action": "Stage",
            "image": {
                "version": "v1.35.3",
                "url": "https://updates.example.com/rootfs.ext4.zst",
                "checksum": format!("sha256:{}", "a".repeat(64)),
            },
        },
    })
}

/// One field changed (or, with null, taken away), and what the refusal has to say of it.
fn wrong(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let upgrades = [
        (
            json!({"vresion": "v1.35.3"}),
            "unknown field \"spec.vresion\"",
        ),
        (
            json!({"policy": {"skew": "Kubernetes"}}),
            "unknown field \"spec.policy.skew\"",
        ),
        (
            json!({"version": "stable"}),
            "imageURL needs version to be the version of that image",
        ),
        (
            json!({"version": "1.35"}),
            "version must be a version such as v1.35.3",
        ),
        (
            json!({"imageURL": null, "checksum": null}),
            "either imageURL or catalog is needed",
        ),
        (
            json!({"imageURL": "ftp://host/x"}),
            "must be a http:// or https:// URL",
        ),
        (
            json!({"imageURL": "file:///dev/vda"}),
            "an image in a file of the node is installed there",
        ),
        (
            json!({"imageURL": "https://user:word@host/x"}),
            "without a user or password",
        ),
        (
            json!({"checksum": null}),
            "imageURL needs the checksum of that file",
        ),
        (
            json!({"size": 0}),
            "spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"nodeSelector": null}),
            "spec.nodeSelector: Required value",
        ),
        (
            json!({"nodeSelector": "all"}),
            "spec.nodeSelector in body must be of type object",
        ),
        (
            json!({"catalog": {"URL": "https://host/c", "ConfigMap": "c"}}),
            "catalog needs exactly one of URL, ConfigMap and inline",
        ),
        (
            json!({"catalog": {}}),
            "catalog needs exactly one of URL, ConfigMap and inline",
        ),
        (
            json!({"catalog": {"inline": "x".repeat(128 * 1024 + 1)}}),
            "spec.catalog.inline",
        ),
        (
            json!({"suspend": "no"}),
            "spec.suspend in body must be of type boolean",
        ),
        (
            json!({"attempt": -1}),
            "spec.attempt in body should be greater than or equal to 0",
        ),
        (
            json!({"rollout": {"maxUnavailable": 0}}),
            "maxUnavailable must be a number from 1 up, or a percentage",
        ),
        (
            json!({"rollout": {"maxUnavailable": "150%"}}),
            "maxUnavailable must be a number from 1 up, or a percentage",
        ),
        (
            json!({"rollout": {"maxStaging": "some"}}),
            "maxStaging must be a number from 1 up, or a percentage",
        ),
        (
            json!({"rollout": {"maxFailures": 0}}),
            "spec.rollout.maxFailures in body should be greater than or equal to 1",
        ),
        (
            json!({"rollout": {"drain": {"timeout": "ten"}}}),
            "must be a length of time above zero",
        ),
        (
            json!({"rollout": {"drain": {"onTimeout": "Maybe"}}}),
            "supported values: \"Abort\", \"Force\"",
        ),
        (
            json!({"policy": {"allowDowngrade": "yes"}}),
            "spec.policy.allowDowngrade in body must be of type boolean",
        ),
    ];
    for (change, reason) in upgrades {
        refused(admin, upgrade(), &change, reason)?;
    }
    let progresses = [
        (
            json!({"nodeName": "Not_A_Node"}),
            "nodeName must be the name of a Node",
        ),
        (
            json!({"action": "Boot"}),
            "supported values: \"Stage\", \"Activate\"",
        ),
        (json!({"image": null}), "spec.image: Required value"),
        (
            json!({"drain": {"timeout": "0s"}}),
            "must be a length of time above zero",
        ),
        (
            json!({"sourceRef": {"name": "u", "uid": "1"}}),
            "sourceRef needs nodeUID",
        ),
    ];
    for (change, reason) in progresses {
        refused(admin, progress("wrong", "n1"), &change, reason)?;
    }
    // Each of them was right but for that change.
    admin.apply(&upgrade().to_string())?;
    admin.apply(&progress("wrong", "n1").to_string())?;
    admin.run(&["delete", "osupgrade/wrong", "osupgradeprogress/wrong"])?;
    Ok(())
}

fn refused(admin: &Client, mut document: Value, change: &Value, reason: &str) -> Result<()> {
    let fields = change.as_object().context("a change is a map")?;
    for (key, value) in fields {
        if value.is_null() {
            let spec = document["spec"].as_object_mut();
            spec.context("a document has a spec")?.remove(key);
        } else {
            document["spec"][key] = value.clone();
        }
    }
    let output = admin.try_apply(&document.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let shown: String = change.to_string().chars().take(200).collect();
    ensure!(!output.status.success(), "{shown} was admitted");
    ensure!(said.contains(reason), "of {shown} kubectl says {said}");
    Ok(())
}

fn immutable(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let mut document = progress("bound", "n1");
    document["spec"]["attempt"] = json!(2);
    admin.apply(&document.to_string())?;
    for (change, reason) in [
        (json!({"nodeName": "n2"}), "nodeName cannot be changed"),
        (
            json!({"nodeUID": "1"}),
            "nodeUID cannot be set, changed or removed later",
        ),
        (json!({"attempt": 1}), "attempt can only be raised"),
    ] {
        refused(admin, document.clone(), &change, reason)?;
    }
    document["spec"]["action"] = json!("Activate");
    document["spec"]["attempt"] = json!(3);
    admin.apply(&document.to_string())?;
    admin.run(&["delete", "osupgradeprogress", "bound"])?;
    Ok(())
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
