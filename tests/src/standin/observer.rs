//! The independent observer: what anybody can see of a fleet at the API server, kept at every event of the watch stream. What it
//! says of unavailable nodes rests on no counter of slotd's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};

use super::background::Background;
use super::pods;

/// Before a watch is started anew.
const RETRY: Duration = Duration::from_millis(250);

/// What the fleet was at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// Since the observer was started.
    pub at: Duration,
    /// The event that led to it.
    pub event: String,
    /// Nodes that are unschedulable or not Ready.
    pub unavailable: BTreeSet<String>,
    /// Pods that are Ready and not about to be deleted, by namespace.
    pub ready_pods: BTreeMap<String, usize>,
}

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

#[derive(Debug, Default)]
struct Seen {
    nodes: BTreeMap<String, NodeState>,
    pods: BTreeMap<(String, String), PodState>,
    /// Of which kinds the first list has come.
    listed: BTreeSet<&'static str>,
    /// How often a watch broke off; what happened until the next list was not seen.
    interruptions: u32,
    moments: Vec<Moment>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
}

/// Watches the Nodes of a fleet, and the pods of all namespaces.
#[derive(Debug)]
pub struct Observer {
    shared: Arc<Shared>,
    // Stops when the observer goes.
    _background: Background,
}

impl Observer {
    /// Starts watching the Nodes with these labels, and returns when it has seen what there is.
    pub fn start(kubeconfig: &Path, labels: &str) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let background = {
            let shared = Arc::clone(&shared);
            let labels = labels.to_owned();
            Background::start("observer", kubeconfig, move |client| {
                watch(client, labels, shared)
            })?
        };
        let observer = Self {
            shared,
            _background: background,
        };
        observer.wait(Duration::from_secs(30), "the first look", |seen| {
            seen.listed.len() == 2
        })?;
        Ok(observer)
    }

    /// The most nodes that were unavailable at any instant.
    pub fn most_unavailable(&self) -> usize {
        self.with(|seen| {
            let counts = seen.moments.iter().map(|moment| moment.unavailable.len());
            counts.max().unwrap_or(0)
        })
    }

    /// The nodes that were unavailable at any instant.
    pub fn ever_unavailable(&self) -> BTreeSet<String> {
        self.with(|seen| {
            let names = seen.moments.iter().flat_map(|moment| &moment.unavailable);
            names.cloned().collect()
        })
    }

    /// The fewest Ready pods of a namespace at any instant.
    pub fn least_ready_pods(&self, namespace: &str) -> usize {
        self.with(|seen| {
            let counts = seen.moments.iter().map(|moment| {
                let count = moment.ready_pods.get(namespace);
                count.copied().unwrap_or(0)
            });
            counts.min().unwrap_or(0)
        })
    }

    /// How often a watch broke off, such as when the API server was away: what happened then was not seen.
    pub fn interruptions(&self) -> u32 {
        self.with(|seen| seen.interruptions)
    }

    /// Everything that was seen since the start, or since the last [`Observer::forget`].
    pub fn moments(&self) -> Vec<Moment> {
        self.with(|seen| seen.moments.clone())
    }

    /// Forgets the past: from now on only this instant and what follows count.
    pub fn forget(&self) {
        self.with(|seen| {
            let last = seen.moments.pop();
            seen.moments.clear();
            seen.moments.extend(last);
            seen.interruptions = 0;
        });
    }

    /// What was seen, one line for each event.
    pub fn log(&self) -> String {
        let line = |moment: &Moment| {
            format!(
                "{:8.3} {} | unavailable {:?} | ready pods {:?}\n",
                moment.at.as_secs_f64(),
                moment.event,
                moment.unavailable,
                moment.ready_pods
            )
        };
        self.moments().iter().map(line).collect()
    }

    /// Waits until what is seen now satisfies this; an error carries the log.
    pub fn wait_for(
        &self,
        what: &str,
        patience: Duration,
        holds: impl Fn(&Moment) -> bool,
    ) -> Result<()> {
        self.wait(patience, what, |seen| {
            seen.moments.last().is_some_and(&holds)
        })
    }

    fn wait(&self, patience: Duration, what: &str, holds: impl Fn(&Seen) -> bool) -> Result<()> {
        let seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (seen, result) = self
            .shared
            .changed
            .wait_timeout_while(seen, patience, |seen| !holds(seen))
            .unwrap_or_else(PoisonError::into_inner);
        drop(seen);
        if result.timed_out() {
            bail!(
                "the observer waited {} s in vain: {what}; it saw\n{}",
                patience.as_secs(),
                self.log()
            );
        }
        Ok(())
    }

    fn with<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(
            &mut self
                .shared
                .seen
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

async fn watch(client: Client, labels: String, shared: Arc<Shared>) {
    let began = Instant::now();
    let nodes = watcher(
        Api::<Node>::all(client.clone()),
        watcher::Config::default().labels(&labels),
    );
    let pods = watcher(Api::<Pod>::all(client), watcher::Config::default());
    let (mut nodes, mut pods) = (pin!(nodes), pin!(pods));
    let (mut listed_nodes, mut listed_pods) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let failed = tokio::select! {
            event = nodes.next() => match event {
                Some(Ok(event)) => {
                    shared.take(began, |seen| seen.node(event, &mut listed_nodes));
                    false
                }
                Some(Err(_)) => true,
                None => return,
            },
            event = pods.next() => match event {
                Some(Ok(event)) => {
                    shared.take(began, |seen| seen.pod(event, &mut listed_pods));
                    false
                }
                Some(Err(_)) => true,
                None => return,
            },
        };
        if failed {
            shared.take(began, |seen| {
                seen.interruptions += 1;
                None
            });
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl Shared {
    /// Takes an event, and keeps what the fleet is after it if that is another than before.
    fn take(&self, began: Instant, change: impl FnOnce(&mut Seen) -> Option<String>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = change(&mut seen) {
            let moment = seen.moment(began.elapsed(), event);
            seen.moments.push(moment);
        }
        drop(seen);
        self.changed.notify_all();
    }
}

impl Seen {
    fn moment(&self, at: Duration, event: String) -> Moment {
        let mut ready_pods = BTreeMap::new();
        for ((namespace, _), pod) in &self.pods {
            if pod.ready && !pod.leaving {
                *ready_pods.entry(namespace.clone()).or_insert(0) += 1;
            }
        }
        Moment {
            at,
            event,
            unavailable: self
                .nodes
                .iter()
                .filter(|(_, node)| node.is_unavailable())
                .map(|(name, _)| name.clone())
                .collect(),
            ready_pods,
        }
    }

    fn node(&mut self, event: Event<Node>, listed: &mut BTreeSet<String>) -> Option<String> {
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

    fn pod(
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

#[cfg(test)]
mod tests;
