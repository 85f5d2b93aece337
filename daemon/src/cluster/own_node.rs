//! The node's own Node: its labels, and its cordon.

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use slotd_crds::names::{
    AGENT_LABEL, CORDONED_BY_ANNOTATION, SLOT_LABEL, VERSION_ANNOTATION, VERSION_LABEL,
    version_label,
};

use super::error::{ClusterError, ask};
use super::report::NodeFacts;
use crate::status::SlotLetter;

/// What stands in front of the object's name in the annotation of a cordon of ours.
const OURS: &str = "slotd/";

/// The Node of this node.
#[derive(Clone)]
pub(super) struct OwnNode {
    api: Api<Node>,
    name: String,
}

impl OwnNode {
    pub(super) fn new(client: Client, name: &str) -> Self {
        Self {
            api: Api::all(client),
            name: name.to_owned(),
        }
    }

    /// The Node as it is now.
    ///
    /// # Errors
    /// When the API server does not tell.
    pub(super) async fn get(&self) -> Result<Node, ClusterError> {
        ask("read this node's own Node", self.api.get(&self.name)).await
    }

    /// Says on the Node what runs, where it does not say so yet, and takes a cordon of ours back where that is asked for, and no
    /// other one: both in one write. Whether there was a cordon.
    ///
    /// # Errors
    /// When the API server does not take it, or takes it for a Node that somebody changed meanwhile.
    pub(super) async fn keep(
        &self,
        node: &Node,
        facts: Option<&NodeFacts>,
        uncordon: bool,
    ) -> Result<bool, ClusterError> {
        let uncordon = uncordon && cordoned_by_us(node);
        let (patch, action) = match (facts.and_then(|facts| labels(node, facts)), uncordon) {
            (None, false) => return Ok(false),
            (Some(patch), false) => (patch, "label this node's own Node"),
            (labels, true) => (uncordoned(node, labels), "uncordon this node"),
        };
        self.patch(&patch, action).await?;
        Ok(uncordon)
    }

    /// Cordons the node for an object, unless it is unschedulable already: whoever made it so is who undoes it.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub(super) async fn cordon(&self, object: &str) -> Result<(), ClusterError> {
        let node = self.get().await?;
        if unschedulable(&node) {
            return Ok(());
        }
        let patch = json!({
            // Against somebody who cordons it at the same moment.
            "metadata": {
                "resourceVersion": node.metadata.resource_version,
                "annotations": {CORDONED_BY_ANNOTATION: format!("{OURS}{object}")},
            },
            "spec": {"unschedulable": true},
        });
        self.patch(&patch, "cordon this node").await.map(drop)
    }

    async fn patch(&self, patch: &Value, action: &'static str) -> Result<Node, ClusterError> {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        ask(action, self.api.patch(&self.name, &parameters, &patch)).await
    }
}

fn unschedulable(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.unschedulable).unwrap_or(false)
}

/// Whether the Node carries a cordon of ours.
pub(super) fn cordoned_by_us(node: &Node) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations
        .and_then(|annotations| annotations.get(CORDONED_BY_ANNOTATION))
        .is_some_and(|by| by.starts_with(OURS))
}

/// What of labels and annotations is not as it should be.
fn labels(node: &Node, facts: &NodeFacts) -> Option<Value> {
    let slot = facts.booted.map(|booted| match booted {
        SlotLetter::A => "A".to_owned(),
        SlotLetter::B => "B".to_owned(),
    });
    let label = facts.version.as_deref().and_then(version_label);
    let labels = change(
        node.metadata.labels.as_ref(),
        [
            (AGENT_LABEL, Some("true".to_owned())),
            (SLOT_LABEL, slot),
            (VERSION_LABEL, label),
        ],
    );
    let annotations = change(
        node.metadata.annotations.as_ref(),
        [(VERSION_ANNOTATION, facts.version.clone())],
    );
    (!labels.is_empty() || !annotations.is_empty())
        .then(|| json!({"metadata": {"labels": labels, "annotations": annotations}}))
}

/// The patch that takes a cordon of ours back, beside what else is to change.
fn uncordoned(node: &Node, labels: Option<Value>) -> Value {
    let mut patch = labels.unwrap_or_else(|| json!({"metadata": {"annotations": {}}}));
    patch["metadata"]["resourceVersion"] = json!(node.metadata.resource_version);
    patch["metadata"]["annotations"][CORDONED_BY_ANNOTATION] = Value::Null;
    patch["spec"] = json!({"unschedulable": null});
    patch
}

fn change<const N: usize>(
    known: Option<&std::collections::BTreeMap<String, String>>,
    wanted: [(&str, Option<String>); N],
) -> Map<String, Value> {
    wanted
        .into_iter()
        .filter(|(key, value)| known.and_then(|known| known.get(*key)) != value.as_ref())
        .map(|(key, value)| (key.to_owned(), value.map_or(Value::Null, Value::String)))
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::{cordoned_by_us, labels, uncordoned};
    use crate::cluster::report::NodeFacts;
    use crate::status::SlotLetter;

    fn node(metadata: serde_json::Value) -> Node {
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn a_node_is_labelled_where_it_is_not_yet_and_left_alone_where_it_is() {
        let facts = NodeFacts {
            version: Some("v1.35.1+k3s1".to_owned()),
            booted: Some(SlotLetter::B),
        };
        let patch = labels(&node(json!({"labels": {"monok8s.io/slot": "A"}})), &facts);
        let wanted = json!({"metadata": {
            "labels": {"monok8s.io/agent": "true", "monok8s.io/slot": "B", "monok8s.io/version": "v1.35.1_k3s1"},
            "annotations": {"monok8s.io/version": "v1.35.1+k3s1"},
        }});
        assert_eq!(patch, Some(wanted.clone()));
        assert_eq!(labels(&node(wanted["metadata"].clone()), &facts), None);
        // A system that names no version must not keep the name of another one.
        let unknown = NodeFacts {
            version: None,
            ..facts
        };
        let patch = labels(&node(wanted["metadata"].clone()), &unknown).unwrap();
        assert!(patch["metadata"]["annotations"]["monok8s.io/version"].is_null());
    }

    #[test]
    fn a_cordon_is_taken_back_by_the_write_that_labels_and_only_on_what_was_looked_at() {
        let node = node(json!({"resourceVersion": "7", "labels": {"monok8s.io/agent": "true"}}));
        let taken_back = json!({
            "metadata": {"resourceVersion": "7", "annotations": {"monok8s.io/cordoned-by": null}},
            "spec": {"unschedulable": null},
        });
        assert_eq!(uncordoned(&node, None), taken_back);
        let facts = NodeFacts {
            version: Some("v2".to_owned()),
            booted: Some(SlotLetter::B),
        };
        let mut both = taken_back;
        both["metadata"]["labels"] = json!({"monok8s.io/slot": "B", "monok8s.io/version": "v2"});
        both["metadata"]["annotations"]["monok8s.io/version"] = json!("v2");
        assert_eq!(uncordoned(&node, labels(&node, &facts)), both);
    }

    #[test]
    fn only_a_cordon_with_our_mark_is_ours() {
        let marked = |by: &str| node(json!({"annotations": {"monok8s.io/cordoned-by": by}}));
        assert!(cordoned_by_us(&marked("slotd/osupgrade-1")));
        assert!(!cordoned_by_us(&marked("somebody")));
        assert!(!cordoned_by_us(&node(json!({}))));
    }
}
