//! Catalogs on servers, and who leads next; catalogs in ConfigMaps, and what their edits do to a roll-out.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::api::installed;
use super::wish::{Wish, condition, run_version};
use super::{in_cluster, on_stand_ins};
use crate::artifacts::Image;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::server::{Body, Fault, Server};
use crate::standin::{Controller, FLEET_LABEL, Fleet, Health, StandIn};

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
    vec![
        in_cluster(
            "cluster/the-last-good-catalog-of-a-server-survives-its-leader",
            survives,
        ),
        on_stand_ins(
            "cluster/a-catalog-in-a-config-map-is-followed-and-moves-no-target",
            config_map,
        ),
    ]
}

/// An OSUpgrade for no node, of a version in a catalog on a server.
struct Settled<'a> {
    admin: &'a Client,
    name: &'static str,
}

impl<'a> Settled<'a> {
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
    let before = Settled::apply(admin, "catalog-before", &url, "stable")?;
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
    let after = Settled::apply(admin, "catalog-after", &url, "stable")?;
    after.wait_for(Some("v1.1.0"), false, "Resolved")?;
    let blocked = Settled::apply(admin, "catalog-blocked", &url, "v1.2.0")?;
    blocked.wait_for(None, false, "Blocked")?;
    ensure!(
        admin.json(&KEPT)?["metadata"]["resourceVersion"] == version,
        "it was written without a change"
    );
    admin.run(&["delete", "osupgrade", before.name, after.name, blocked.name])?;
    Ok(())
}

/// The ConfigMap with a catalog of these images, in the namespace that a name alone means.
struct Shelf<'a> {
    admin: &'a Client,
    name: String,
    images: String,
}

impl<'a> Shelf<'a> {
    fn new(fleet: &'a Fleet<'_>, published: &[&(String, Image)]) -> Self {
        let images = published.iter().map(|(url, image)| {
            let Image {
                version,
                checksum,
                size,
                ..
            } = image;
            format!(
                "- {{version: {version}, url: '{url}', checksum: '{checksum}', size: {size}}}\n"
            )
        });
        Self {
            admin: fleet.admin(),
            name: format!("{}-images", fleet.name()),
            images: images.collect(),
        }
    }

    /// Says which version is stable, and which one is blocked, if any is.
    fn say(&self, stable: &str, blocked: &str) -> Result<()> {
        let text = format!(
            "stable: {stable}\nblocked: [{blocked}]\nimages:\n{}",
            self.images
        );
        let document = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name, "namespace": "kube-system"},
            "data": {"images.yaml": text},
        });
        self.admin.apply(&document.to_string()).map(drop)
    }

    fn delete(&self) -> Result<()> {
        let namespace = "--namespace=kube-system";
        self.admin
            .run(&["delete", "configmap", &self.name, namespace])
            .map(drop)
    }
}

fn config_map(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 2)?;
    let _controller = Controller::start(lab, "controller")?;
    for node in fleet.nodes() {
        node.set_health("v1.1.0", Health::Waiting)?;
    }
    let (from, newer) = (fleet.publish("v1.1.0")?, fleet.publish("v1.2.0")?);
    let shelf = Shelf::new(&fleet, &[&from, &newer]);
    shelf.say("v1.1.0", "")?;
    let of_catalog = json!({
        "version": "stable",
        "imageURL": null,
        "checksum": null,
        "size": null,
        "catalog": {"ConfigMap": shelf.name},
    });
    let wish = Wish::apply(&fleet, &from, &of_catalog)?;
    let trial = wait_until("a trial boot", PATIENCE, || on_trial(&fleet, "v1.1.0"))?;
    let status = wish.status()?;
    let resolved = status["resolved"].clone();
    let reached = condition(&status, "CatalogReachable")?;
    ensure!(
        resolved["version"] == "v1.1.0"
            && resolved["url"] == from.0.as_str()
            && resolved["checksum"] == from.1.checksum.as_str()
            && resolved["size"] == from.1.size
            && reached["status"] == "True",
        "{status:#}"
    );

    // Another version is stable from now on, and what the roll-out is for is blocked: it goes to no further node, and nowhere else.
    shelf.say("v1.2.0", "v1.1.0")?;
    let halted = wish.wait_for("Halted", 2, 0, 0)?;
    ensure!(
        condition(&halted, "Halted")?["reason"] == "Blocked" && halted["resolved"] == resolved,
        "{halted:#}"
    );
    for node in fleet.nodes() {
        node.set_health("v1.1.0", Health::Healthy)?;
    }
    // What is on its way comes to its end.
    let halted = wish.wait_for("Halted", 2, 1, 0)?;
    ensure!(halted["resolved"] == resolved, "{halted:#}");
    fleet.wait_until_available()?;
    for node in fleet.nodes() {
        let (name, boots) = (node.name(), node.boots());
        let times = if name == trial.name() { 2 } else { 1 };
        ensure!(boots.len() == times, "{name}: {boots:?}");
        ensure!(
            name == trial.name() || node.history()?.is_empty(),
            "{name}: {:?}",
            node.history()
        );
    }

    shelf.say("v1.2.0", "")?;
    let completed = wish.wait_for("Completed", 2, 2, 0)?;
    ensure!(completed["resolved"] == resolved, "{completed:#}");
    run_version(&fleet, "v1.1.0")?;

    // Gone, and what was last good in it serves whoever asks next.
    shelf.delete()?;
    let missing = |status: &Value| {
        let reached = condition(status, "CatalogReachable");
        reached.is_ok_and(|reached| {
            reached["status"] == "False" && reached["reason"] == "ConfigMapNotFound"
        })
    };
    let without = wish.wait_until("says that its catalog is gone", missing)?;
    ensure!(
        without["phase"] == "Completed" && without["resolved"] == resolved,
        "{without:#}"
    );
    let mut for_nobody = of_catalog;
    for_nobody["nodeSelector"] = json!({FLEET_LABEL: "nobody"});
    let next = Wish::apply(&fleet, &newer, &for_nobody)?;
    next.wait_until("is what was stable last", |status| {
        status["resolved"]["version"] == "v1.2.0" && missing(status)
    })?;
    next.delete()?;
    wish.delete()
}

/// The node that runs this version.
fn on_trial<'a>(fleet: &'a Fleet<'_>, version: &str) -> Result<&'a StandIn> {
    for node in fleet.nodes() {
        if node.boot()?.version == version {
            return Ok(node);
        }
    }
    bail!("no node runs {version}")
}
