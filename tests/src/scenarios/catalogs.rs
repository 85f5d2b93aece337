//! Catalogs on servers, and who leads next.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api::installed;
use super::in_cluster;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::server::{Body, Fault, Server};
use crate::standin::Controller;

/// Many times what anything takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// With what nobody else is to read.
const PATH: &str = "/images.yaml?token=hunter2";

const KEPT: [&str; 4] = [
    "get",
    "configmap",
    "--namespace=kube-system",
    "slotd-catalogs",
];

pub(super) fn tests() -> Vec<Test> {
    vec![in_cluster(
        "cluster/the-last-good-catalog-of-a-server-survives-its-leader",
        survives,
    )]
}

/// An OSUpgrade for no node, of a catalog's version.
struct Wish<'a> {
    admin: &'a Client,
    name: &'static str,
}

impl<'a> Wish<'a> {
    fn apply(admin: &'a Client, name: &'static str, catalog: &str, version: &str) -> Result<Self> {
        let document = json!({
            "apiVersion": "monok8s.io/v1alpha1",
            "kind": "OSUpgrade",
            "metadata": {"name": name},
            "spec": {
                "version": version,
                "nodeSelector": {"lab.slotd/fleet": "nobody"},
                "catalog": {"URL": catalog},
            },
        });
        admin.apply(&document.to_string())?;
        Ok(Self { admin, name })
    }

    /// Waits for the version that it is resolved to, and whether the catalog can be reached.
    fn wait_for(&self, version: Option<&str>, reachable: bool, reason: &str) -> Result<()> {
        wait_until(&format!("{} is settled", self.name), PATIENCE, || {
            let status = self.admin.json(&["get", "osupgrade", self.name])?["status"].clone();
            let condition = |kind: &str| -> Option<Value> {
                let all = status["conditions"].as_array()?;
                all.iter().find(|one| one["type"] == kind).cloned()
            };
            let reached =
                condition("CatalogReachable").context("nothing is said of the catalog")?;
            let resolved = condition("Resolved").context("nothing is said of the image")?;
            ensure!(
                status["resolved"]["version"].as_str() == version
                    && reached["status"] == if reachable { "True" } else { "False" }
                    && resolved["reason"] == reason,
                "{status:#}"
            );
            Ok(())
        })
    }
}

fn survives(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let server = Server::start()?;
    let image = |version: &str| {
        format!(
            "- {{version: {version}, url: 'http://h/{version}', checksum: 'sha256:{}'}}\n",
            "a".repeat(64)
        )
    };
    let text = format!(
        "stable: v1.1.0\nimages:\n{}{}blocked: [v1.2.0]\n",
        image("v1.1.0"),
        image("v1.2.0")
    );
    // The query is no part of what a path is served under.
    let (path, _) = PATH.split_once('?').context("no query")?;
    server.serve(path, Body::Bytes(text.into_bytes().into()), Fault::None);
    let url = server.url(PATH);
    let first = Controller::start(lab, "first")?;
    let before = Wish::apply(admin, "catalog-before", &url, "stable")?;
    before.wait_for(Some("v1.1.0"), true, "Resolved")?;
    wait_until("the catalog is kept", PATIENCE, || {
        let kept = admin.json(&KEPT)?;
        let count = kept["binaryData"]
            .as_object()
            .map_or(0, serde_json::Map::len);
        ensure!(count == 1, "{kept:#}");
        ensure!(!kept.to_string().contains("hunter2"), "{kept:#}");
        Ok(())
    })?;
    let version = admin.json(&KEPT)?["metadata"]["resourceVersion"].clone();

    // Server and leader go; who leads next has nothing but what was kept.
    drop(server);
    drop(first);
    let _second = Controller::start(lab, "second")?;
    let after = Wish::apply(admin, "catalog-after", &url, "stable")?;
    after.wait_for(Some("v1.1.0"), false, "Resolved")?;
    let blocked = Wish::apply(admin, "catalog-blocked", &url, "v1.2.0")?;
    blocked.wait_for(None, false, "Blocked")?;
    ensure!(
        admin.json(&KEPT)?["metadata"]["resourceVersion"] == version,
        "it was written without a change"
    );
    admin.run(&["delete", "osupgrade", before.name, after.name, blocked.name])?;
    Ok(())
}
