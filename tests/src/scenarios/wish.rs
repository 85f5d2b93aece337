//! What is asked of a fleet, and what there is to see of it: an OSUpgrade with its progress objects, the places, the versions.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::told::schedulable;
use crate::artifacts::Image;
use crate::cluster::{Client, progress_of, wait_until};
use crate::standin::{FLEET_LABEL, Fleet, StandIn};

/// Many times what anything takes on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// An OSUpgrade for a fleet.
pub(crate) struct Wish<'a> {
    admin: &'a Client,
    name: String,
}

impl<'a> Wish<'a> {
    /// Applies one for a version, with a change to its spec; null takes a field away.
    pub(crate) fn apply(
        fleet: &'a Fleet<'_>,
        from: &(String, Image),
        change: &Value,
    ) -> Result<Self> {
        let name = format!("{}-{}", fleet.name(), from.1.version);
        let mut spec = json!({
            "version": from.1.version,
            "imageURL": from.0,
            "checksum": from.1.checksum,
            "size": from.1.size,
            "nodeSelector": {FLEET_LABEL: fleet.name()},
        });
        for (key, value) in change.as_object().context("a change is a map")? {
            if !value.is_null() {
                spec[key] = value.clone();
            } else if let Some(spec) = spec.as_object_mut() {
                spec.remove(key);
            }
        }
        let document = json!({
            "apiVersion": "monok8s.io/v1alpha1",
            "kind": "OSUpgrade",
            "metadata": {"name": name},
            "spec": spec,
        });
        fleet.admin().apply(&document.to_string())?;
        Ok(Self {
            admin: fleet.admin(),
            name,
        })
    }

    pub(crate) fn status(&self) -> Result<Value> {
        let object = self.admin.json(&["get", "osupgrade", &self.name])?;
        Ok(object["status"].clone())
    }

    /// Waits until it shows this phase and these counts; its status.
    pub(crate) fn wait_for(&self, phase: &str, targets: u64, ok: u64, fail: u64) -> Result<Value> {
        self.wait_until(
            &format!("is {phase} with {targets} targets, {ok} ok, {fail} failed"),
            |status| {
                status["phase"] == phase
                    && status["targets"] == targets
                    && status["ok"] == ok
                    && status["fail"] == fail
            },
        )
    }

    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        wait_until(&format!("{} {what}", self.name), PATIENCE, || {
            let status = self.status()?;
            ensure!(holds(&status), "its status is {status:#}");
            Ok(status)
        })
    }

    pub(crate) fn patch(&self, spec: &Value) -> Result<()> {
        let patch = json!({"spec": spec}).to_string();
        let arguments = ["--type=merge", "--patch", &patch];
        self.admin
            .run(&[&["patch", "osupgrade", &self.name][..], &arguments].concat())
            .map(drop)
    }

    /// The progress object of a node.
    pub(crate) fn progress(&self, node: &StandIn) -> Result<Value> {
        progress_of(self.admin, &self.name, node.name())
    }

    /// Waits until a node waits for this, as the upgrade says it, and the node's progress object where there is one.
    pub(crate) fn waits(&self, node: &StandIn, reason: &str) -> Result<()> {
        wait_until(
            &format!("{} waits: {reason}", node.name()),
            PATIENCE,
            || {
                let status = self.status()?;
                let waiting = condition(&status, "Waiting")?;
                let message = waiting["message"].as_str().unwrap_or_default();
                let said = message.split("; ").any(|part| {
                    part.strip_prefix(&format!("{reason}: "))
                        .is_some_and(|names| is_named(names, node.name()))
                });
                ensure!(said && waiting["status"] == "True", "{waiting}");
                if let Ok(object) = self.progress(node) {
                    let own = condition(&object["status"], "Waiting")?;
                    ensure!(own["status"] == "True" && own["reason"] == reason, "{own}");
                }
                Ok(())
            },
        )
    }

    /// Waits until events of these reasons and types tell of it, each with these words.
    pub(crate) fn ensure_events(&self, expected: &[(&str, &str, &str)]) -> Result<()> {
        let selector = format!(
            "--field-selector=involvedObject.kind=OSUpgrade,involvedObject.name={}",
            self.name
        );
        wait_until(&format!("events of {}", self.name), PATIENCE, || {
            let list = (self.admin).json(&["get", "events", "--all-namespaces", &selector])?;
            let events = list["items"].as_array().context("a list of events")?;
            for (reason, severity, words) in expected {
                let found = events.iter().any(|event| {
                    let message = event["message"].as_str().unwrap_or_default();
                    event["reason"] == *reason
                        && event["type"] == *severity
                        && message.contains(words)
                });
                ensure!(found, "no {severity} {reason} with {words:?}: {events:#?}");
            }
            Ok(())
        })
    }

    /// Deletes it, and waits until nothing of it is left.
    pub(crate) fn delete(&self) -> Result<()> {
        self.admin
            .run(&["delete", "osupgrade", &self.name, "--timeout=60s"])?;
        wait_until("the end of its progress objects", PATIENCE, || {
            let list = self.admin.json(&["get", "osupgradeprogress"])?;
            let left = list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|object| object["spec"]["sourceRef"]["name"] == self.name.as_str());
            ensure!(left.is_none(), "{left:#?}");
            Ok(())
        })
    }
}

/// Whether a node is one of `n1, n2, n3 and 2 more`. The names are sorted: one of the two stands behind the last of them.
fn is_named(names: &str, node: &str) -> bool {
    let (first, more) = names
        .split_once(" and ")
        .map_or((names, false), |(first, _)| (first, true));
    let last = first.split(", ").last().unwrap_or_default();
    first.split(", ").any(|name| name == node) || (more && node > last)
}

/// The condition of this type.
pub(crate) fn condition<'a>(status: &'a Value, kind: &str) -> Result<&'a Value> {
    let conditions = status["conditions"].as_array();
    conditions
        .and_then(|all| all.iter().find(|one| one["type"] == kind))
        .with_context(|| format!("no condition {kind} in {status:#}"))
}

/// The places as they are held.
pub(crate) fn places(admin: &Client) -> Result<Value> {
    let map = admin.json(&[
        "get",
        "configmap",
        "slotd-places",
        "--namespace=kube-system",
    ])?;
    Ok(map["data"].clone())
}

/// Waits until no place is held.
pub(crate) fn places_given_back(admin: &Client) -> Result<()> {
    wait_until("places that are given back", PATIENCE, || {
        let held = places(admin)?;
        ensure!(
            held.as_object().is_none_or(serde_json::Map::is_empty),
            "{held:#}"
        );
        Ok(())
    })
}

/// An error unless every node runs this version, and takes pods.
pub(crate) fn run_version(fleet: &Fleet<'_>, version: &str) -> Result<()> {
    for node in fleet.nodes() {
        let boot = node.boot()?;
        ensure!(boot.version == version, "{}: {boot:?}", node.name());
        ensure!(schedulable(node)?, "{:#}", node.object()?);
        node.sound()?;
    }
    Ok(())
}
