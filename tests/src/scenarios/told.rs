//! A progress object that was made by hand, as scenarios handle it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::artifacts::Image;
use crate::cluster::{Client, wait_until};
use crate::standin::{Fleet, StandIn};

/// Many times what anything takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A progress object for one node.
pub(super) struct Told<'a> {
    admin: &'a Client,
    name: String,
}

impl<'a> Told<'a> {
    /// Makes it, changed as given.
    pub(super) fn apply(
        fleet: &'a Fleet<'_>,
        node: &StandIn,
        version: &str,
        from: &(String, Image),
        change: &Value,
    ) -> Result<Self> {
        let document = Self::document(node, version, from, change)?;
        fleet.admin().apply(&document.to_string())?;
        Ok(Self {
            admin: fleet.admin(),
            name: Self::name(node),
        })
    }

    fn name(node: &StandIn) -> String {
        format!("{}-by-hand", node.name())
    }

    /// What is applied.
    pub(super) fn document(
        node: &StandIn,
        version: &str,
        from: &(String, Image),
        change: &Value,
    ) -> Result<Value> {
        let mut spec = json!({
            "nodeName": node.name(),
            "image": {"version": version, "url": from.0, "checksum": from.1.checksum, "size": from.1.size},
            "action": "Activate",
        });
        for (key, value) in change.as_object().context("a change is a map")? {
            spec[key] = value.clone();
        }
        Ok(json!({
            "apiVersion": "monok8s.io/v1alpha1",
            "kind": "OSUpgradeProgress",
            "metadata": {"name": Self::name(node)},
            "spec": spec,
        }))
    }

    pub(super) fn status(&self) -> Result<Value> {
        let object = self.admin.json(&["get", "osupgradeprogress", &self.name])?;
        Ok(object["status"].clone())
    }

    /// Waits for a phase of the attempt; the status then.
    pub(super) fn wait_for(&self, phase: &str) -> Result<Value> {
        self.wait_until(phase, |status| status["phase"] == phase)
    }

    pub(super) fn wait_until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        wait_until(&format!("{} {what}", self.name), PATIENCE, || {
            let status = self.status()?;
            ensure!(holds(&status), "its status is {status:#}");
            Ok(status)
        })
    }

    pub(super) fn patch(&self, spec: &Value) -> Result<()> {
        let patch = json!({"spec": spec}).to_string();
        let arguments = ["--type=merge", "--patch", &patch];
        self.admin
            .run(&[&["patch", "osupgradeprogress", &self.name][..], &arguments].concat())
            .map(drop)
    }

    pub(super) fn delete(&self) -> Result<()> {
        self.admin
            .run(&["delete", "osupgradeprogress", &self.name])
            .map(drop)
    }
}

/// Whether a node takes pods, and nothing of a cordon of slotd's is left on it.
pub(super) fn schedulable(node: &StandIn) -> Result<bool> {
    let object = node.object()?;
    let mark = &object["metadata"]["annotations"]["monok8s.io/cordoned-by"];
    Ok(object["spec"]["unschedulable"].is_null() && mark.is_null())
}
