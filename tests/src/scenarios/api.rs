//! The API of `crds/` on a real API server: what people write, and what they see of it.

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
    vec![in_cluster(
        "cluster/the-examples-are-applied-as-they-stand",
        examples,
    )]
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
        // What stands already is not warned of again, also where the policy came later than it.
        admin.run(&["delete", "osupgrade", "my-upgrade-2"])?;
        ensure!(
            said.contains("Warning") && said.contains("InvalidChecksum"),
            "kubectl said {said:?}"
        );
        Ok(())
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
    // The category has both kinds.
    let all = admin.run(&["get", "slotd", "--output=name"])?;
    ensure!(
        all.lines().count() == 4
            && all.contains("osupgrade.monok8s.io/")
            && all.contains("osupgradeprogress.monok8s.io/"),
        "kubectl get slotd shows\n{all}"
    );
    unknown_fields(admin)?;
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

/// An OSUpgrade that the API server takes.
pub(super) fn upgrade() -> Value {
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

/// A progress object that the API server takes.
pub(super) fn progress(name: &str, node: &str) -> Value {
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

/// kubectl refuses what the schema does not know; who asks for a warning instead gets one, and it is not stored.
fn unknown_fields(admin: &Client) -> Result<()> {
    let mut document = upgrade();
    document["metadata"]["name"] = json!("unknown");
    document["spec"]["colour"] = json!("red");
    let refusal = admin.try_apply(&document.to_string())?;
    let said = String::from_utf8_lossy(&refusal.stderr);
    ensure!(
        !refusal.status.success() && said.contains("unknown field \"spec.colour\""),
        "kubectl says {said}"
    );
    let warned = admin.try_apply_with(&["--validate=warn"], &document.to_string())?;
    let said = String::from_utf8_lossy(&warned.stderr);
    ensure!(
        warned.status.success() && said.contains("Warning: unknown field \"spec.colour\""),
        "kubectl says {said}"
    );
    let stored = admin.json(&["get", "osupgrade", "unknown"])?;
    ensure!(stored["spec"]["colour"].is_null(), "{stored:#}");
    Ok(())
}
