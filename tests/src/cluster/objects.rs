//! Objects of a cluster that nodes of either kind have to do with, stand-ins and virtual machines.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::client::Client;

/// Pods of a Deployment, and the budget for them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload<'a> {
    /// The name of both, and the pods' label `app`.
    pub(crate) name: &'a str,
    /// Where they are.
    pub(crate) namespace: &'a str,
}

impl Workload<'_> {
    /// Asks for so many pods with this spec.
    pub(crate) fn deploy(&self, client: &Client, replicas: usize, pod: &Value) -> Result<()> {
        let labels = self.labels();
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self.metadata(),
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        });
        client.apply(&deployment.to_string()).map(drop)
    }

    /// Sets how many pods the budget lets be missing.
    pub(crate) fn set_budget(&self, client: &Client, may_be_missing: usize) -> Result<()> {
        self.set_budget_of(client, self, may_be_missing)
    }

    /// The same for the pods of another workload in the namespace, by a budget with this one's name.
    pub(crate) fn set_budget_of(
        &self,
        client: &Client,
        pods: &Workload<'_>,
        may_be_missing: usize,
    ) -> Result<()> {
        let budget = json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": self.metadata(),
            "spec": {
                "maxUnavailable": may_be_missing,
                "selector": {"matchLabels": pods.labels()},
            },
        });
        client.apply(&budget.to_string()).map(drop)
    }

    /// An error unless so many pods are Ready.
    pub(crate) fn ready(&self, client: &Client, replicas: usize) -> Result<()> {
        let namespace = ["--namespace", self.namespace];
        let object = client.json(&[&["get", "deployment", self.name][..], &namespace].concat())?;
        let ready = &object["status"]["readyReplicas"];
        ensure!(
            ready.as_u64() == Some(u64::try_from(replicas)?),
            "{ready} of {replicas} pods of {} are Ready",
            self.name
        );
        Ok(())
    }

    /// The pods' labels.
    pub(crate) fn labels(&self) -> Value {
        json!({"app": self.name})
    }

    fn metadata(&self) -> Value {
        json!({"name": self.name, "namespace": self.namespace})
    }
}

/// The progress object of a node for an upgrade.
pub(crate) fn progress_of(client: &Client, upgrade: &str, node: &str) -> Result<Value> {
    let selector = format!("--field-selector=spec.nodeName={node}");
    let list = client.json(&["get", "osupgradeprogress", &selector])?;
    let items = list["items"].as_array().context("a list")?;
    items
        .iter()
        .find(|object| object["spec"]["sourceRef"]["name"] == upgrade)
        .cloned()
        .with_context(|| format!("{node} has no progress object of {upgrade}"))
}
