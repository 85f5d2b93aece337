//! What the observer knows of a fleet after each event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use super::Moment;
use crate::standin::pods;

/// A node as it was seen last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeState {
    unschedulable: bool,
    ready: String,
    boot_id: String,
}

impl NodeState {
    fn is_unavailable(&self) -> bool {
        self.unschedulable || self.ready != "True"
    }

    fn is_unheard(&self) -> bool {
        !self.unschedulable && self.ready == "Unknown"
    }

    fn words(&self) -> String {
        let schedulable = if self.unschedulable {
            "unschedulable"
        } else {
            "schedulable"
        };
        format!("{schedulable}, Ready {}, boot {}", self.ready, self.boot_id)
    }
}

/// A pod as it was seen last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodState {
    ready: bool,
    leaving: bool,
    node: String,
}

/// Nodes and pods as they are, and what was before.
#[derive(Debug, Default)]
pub(super) struct Seen {
    nodes: BTreeMap<String, NodeState>,
    pods: BTreeMap<(String, String), PodState>,
    /// Of which kinds the first list has come.
    pub(super) listed: BTreeSet<&'static str>,
    /// How often a watch broke off; what happened until the next list was not seen.
    pub(super) interruptions: u32,
    pub(super) moments: Vec<Moment>,
}

impl Seen {
    pub(super) fn moment(&self, at: Duration, event: String) -> Moment {
        let mut ready_pods = BTreeMap::new();
        for ((namespace, _), pod) in &self.pods {
            if pod.ready && !pod.leaving {
                *ready_pods.entry(namespace.clone()).or_insert(0) += 1;
            }
        }
        let names = |which: fn(&NodeState) -> bool| {
            let nodes = self.nodes.iter().filter(|(_, node)| which(node));
            nodes.map(|(name, _)| name.clone()).collect()
        };
        Moment {
            at,
            event,
            unavailable: names(NodeState::is_unavailable),
            unheard: names(NodeState::is_unheard),
            ready_pods,
        }
    }

    pub(super) fn node(
        &mut self,
        event: Event<Node>,
        listed: &mut BTreeSet<String>,
    ) -> Option<String> {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(node) => {
                listed.insert(node.name_any());
                return self.put_node(&node);
            }
            Event::InitDone => {
                self.nodes.retain(|name, _| listed.contains(name));
                self.listed.insert("nodes");
                return Some(format!("{} nodes were listed", self.nodes.len()));
            }
            Event::Apply(node) => return self.put_node(&node),
            Event::Delete(node) => {
                self.nodes.remove(&node.name_any());
                return Some(format!("node {}: gone", node.name_any()));
            }
        }
        None
    }

    fn put_node(&mut self, node: &Node) -> Option<String> {
        let status = node.status.as_ref();
        let ready = status
            .iter()
            .flat_map(|status| &status.conditions)
            .flatten()
            .find(|condition| condition.type_ == "Ready")
            .map_or("Unknown", |condition| condition.status.as_str());
        let info = status.and_then(|status| status.node_info.as_ref());
        let state = NodeState {
            unschedulable: node
                .spec
                .as_ref()
                .and_then(|spec| spec.unschedulable)
                .unwrap_or(false),
            ready: ready.to_owned(),
            boot_id: info.map_or_else(String::new, |info| info.boot_id.clone()),
        };
        let words = format!("node {}: {}", node.name_any(), state.words());
        let before = self.nodes.insert(node.name_any(), state.clone());
        (before.as_ref() != Some(&state)).then_some(words)
    }

    pub(super) fn pod(
        &mut self,
        event: Event<Pod>,
        listed: &mut BTreeSet<(String, String)>,
    ) -> Option<String> {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(pod) => {
                listed.insert(key(&pod));
                return self.put_pod(&pod);
            }
            Event::InitDone => {
                self.pods.retain(|name, _| listed.contains(name));
                self.listed.insert("pods");
                return Some(format!("{} pods were listed", self.pods.len()));
            }
            Event::Apply(pod) => return self.put_pod(&pod),
            Event::Delete(pod) => {
                let (namespace, name) = key(&pod);
                let words = format!("pod {namespace}/{name}: gone");
                self.pods.remove(&(namespace, name));
                return Some(words);
            }
        }
        None
    }

    fn put_pod(&mut self, pod: &Pod) -> Option<String> {
        let state = PodState {
            ready: pods::is_ready(pod),
            leaving: pod.metadata.deletion_timestamp.is_some(),
            node: pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default(),
        };
        let (namespace, name) = key(pod);
        let words = format!(
            "pod {namespace}/{name}: on node `{}`, ready {}, leaving {}",
            state.node, state.ready, state.leaving
        );
        let before = self.pods.insert((namespace, name), state.clone());
        (before.as_ref() != Some(&state)).then_some(words)
    }
}

fn key(pod: &Pod) -> (String, String) {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}
