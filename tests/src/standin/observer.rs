//! The independent observer: what anybody can see of a fleet at the API server, kept at every event of the watch stream. What it
//! says of unavailable nodes rests on no counter of slotd's.

mod seen;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};

use super::background::Background;
use seen::Seen;

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
    /// Those of them that are schedulable, and of which the controller manager only says that it has not heard of them.
    pub unheard: BTreeSet<String>,
    /// Pods that are Ready and not about to be deleted, by namespace.
    pub ready_pods: BTreeMap<String, usize>,
}

impl Moment {
    /// How many nodes were unavailable for another reason than that nobody heard of them.
    fn taken_down(&self) -> usize {
        self.unavailable.difference(&self.unheard).count()
    }
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
        self.most(|moment| moment.unavailable.len())
    }

    /// The most nodes that were unavailable at any instant, without those that were only not heard of: after an API server was away
    /// the controller manager says that of all nodes, whatever anybody did to them.
    pub fn most_taken_down(&self) -> usize {
        self.most(Moment::taken_down)
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

    fn most(&self, count: fn(&Moment) -> usize) -> usize {
        self.with(|seen| seen.moments.iter().map(count).max().unwrap_or(0))
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

#[cfg(test)]
mod tests;
