//! Moving a node's pods away before its reboot: cordon, evict, wait until they are gone.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, ListParams, Preconditions};
use kube::{Api, Client};
use slotd_engine::{Drain, ErrorKind, Failure};
use slotd_image::Cancel;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::error::{ClusterError, FIRST_PAUSE, LONGEST_PAUSE, ask};
use super::identity::Identity;
use super::own_node::OwnNode;
use crate::agent::{Drainer, Trouble};
use crate::backoff::Backoff;

/// Between two looks at the pods that are still there.
const LOOK: Duration = Duration::from_secs(2);

/// Between two tries to evict a pod that a budget keeps.
const AGAIN: Duration = Duration::from_secs(5);

/// Between two looks at whether to stop.
const STOP: Duration = Duration::from_millis(100);

/// What the task that speaks with the cluster lends to whoever drains.
#[derive(Clone)]
pub struct PodDrainer {
    runtime: Handle,
    identity: watch::Receiver<Option<Identity>>,
    object: Arc<Mutex<String>>,
    landed: Arc<Notify>,
}

impl fmt::Debug for PodDrainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodDrainer").finish_non_exhaustive()
    }
}

/// The other end of a [`PodDrainer`].
pub struct Lender {
    pub(super) identity: watch::Sender<Option<Identity>>,
    object: Arc<Mutex<String>>,
    /// Told when a cordon was answered that nobody waited for any more.
    pub(super) landed: Arc<Notify>,
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender").finish_non_exhaustive()
    }
}

impl Lender {
    /// The object that a drain is for from now on; before, nothing is drained.
    pub(super) fn name(&self, object: &str) {
        let mut name = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        if *name != object {
            object.clone_into(&mut name);
        }
    }
}

impl PodDrainer {
    /// A drainer whose requests run on this runtime, which another thread drives.
    #[must_use]
    pub fn new(runtime: Handle) -> (Self, Lender) {
        let (sender, identity) = watch::channel(None);
        let object = Arc::new(Mutex::new(String::new()));
        let landed = Arc::new(Notify::new());
        let lender = Lender {
            identity: sender,
            object: Arc::clone(&object),
            landed: Arc::clone(&landed),
        };
        let drainer = Self {
            runtime,
            identity,
            object,
            landed,
        };
        (drainer, lender)
    }

    async fn drain(
        &self,
        drain: Drain,
        say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), Failure> {
        let (client, node) = self.cordon(say).await;
        info!(node, seconds = drain.timeout, "cordoned; evicting pods");
        let begun = Instant::now();
        let timeout = Duration::from_secs(drain.timeout);
        let mut evictions = Evictions::new(client, &node);
        loop {
            self.renew(&mut evictions);
            let left = match evictions.round().await {
                Ok(left) if left.is_empty() => return Ok(()),
                Ok(left) => left,
                Err(error) => {
                    warn!(%error, "draining");
                    vec![error.to_string()]
                }
            };
            let waits = left.join("; ");
            if begun.elapsed() >= timeout {
                if drain.force {
                    warn!(waits, "not drained in time; going on, as asked");
                    return Ok(());
                }
                let seconds = drain.timeout;
                let reason = format!("not drained within {seconds} s: {waits}");
                return Err(Failure::new(ErrorKind::Retry, reason).coded("DrainTimeout"));
            }
            say(format!("draining: {waits}"));
            let rest = timeout.saturating_sub(begun.elapsed());
            tokio::time::sleep(evictions.pause().min(rest)).await;
        }
    }

    /// Lets evictions speak with the credential that there is now: it may have been renewed since.
    fn renew(&self, evictions: &mut Evictions) {
        if let Some(identity) = self.identity.borrow().as_ref() {
            evictions.client = identity.client.clone();
        }
    }

    /// Cordons the node; tries until the API server takes it, since nothing may be evicted before and nothing times out.
    async fn cordon(&self, say: &(dyn Fn(String) + Send + Sync)) -> (Client, String) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let object = self
                .object
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let identity = self.identity.borrow().clone();
            let trouble = match identity {
                None => "the cluster is not known yet".to_owned(),
                // After a restart: it may be edited or gone.
                Some(_) if object.is_empty() => {
                    "it is not known yet whether the cluster still wants it".to_owned()
                }
                Some(identity) => match self.cordon_once(&identity, object).await {
                    Ok(()) => return (identity.client, identity.node),
                    Err(reason) => reason,
                },
            };
            warn!(reason = trouble, "the node is not drained yet");
            say(format!("staged, and waits undrained: {trouble}"));
            tokio::time::sleep(backoff.failed()).await;
        }
    }

    /// Asks for a cordon once. A request that is on its way when the drain is stopped is not given up, since the API server may
    /// have it already: its answer is told to whoever takes cordons back.
    async fn cordon_once(&self, identity: &Identity, object: String) -> Result<(), String> {
        let node = OwnNode::new(identity.client.clone(), &identity.node);
        let (answer, waits) = oneshot::channel();
        let landed = Arc::clone(&self.landed);
        self.runtime.spawn(async move {
            let cordoned = node.cordon(&object).await;
            if answer.send(cordoned).is_err() {
                landed.notify_one();
            }
        });
        match waits.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the request for a cordon broke off".to_owned()),
        }
    }
}

impl Drainer for PodDrainer {
    fn drain(
        &self,
        drain: Drain,
        cancel: &Cancel,
        say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), Trouble> {
        let stopped = async {
            while !cancel.is_cancelled() {
                tokio::time::sleep(STOP).await;
            }
        };
        self.runtime.block_on(async {
            tokio::select! {
                drained = self.drain(drain, say) => drained.map_err(Trouble::from),
                () = stopped => Err(Trouble::Stopped),
            }
        })
    }
}

/// The pods of a node on their way out.
struct Evictions {
    client: Client,
    node: String,
    /// Whether a budget kept a pod in the last round.
    kept: bool,
}

impl Evictions {
    fn new(client: Client, node: &str) -> Self {
        Self {
            client,
            node: node.to_owned(),
            kept: false,
        }
    }

    fn pause(&self) -> Duration {
        if self.kept { AGAIN } else { LOOK }
    }

    /// Evicts what is not on its way yet. What is still there, and why, one sentence for each pod.
    ///
    /// # Errors
    /// When the pods cannot be listed, or no answer comes to an eviction: nothing would to the others either, and the
    /// time that a drain may take would be spent many times over.
    async fn round(&mut self) -> Result<Vec<String>, ClusterError> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let own = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let pods = ask("list this node's pods", pods.list(&own)).await?;
        let mut left = Vec::new();
        self.kept = false;
        for pod in pods.items.iter().filter(|pod| has_to_go(pod)) {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            if pod.metadata.deletion_timestamp.is_some() {
                left.push(format!("pod {namespace}/{name} ends"));
                continue;
            }
            match self.evict(namespace, name, pod).await? {
                Evicted::Ends => left.push(format!("pod {namespace}/{name} ends")),
                Evicted::Kept(why) => {
                    self.kept = true;
                    left.push(format!("pod {namespace}/{name} is kept: {why}"));
                }
            }
        }
        Ok(left)
    }

    async fn evict(&self, namespace: &str, name: &str, pod: &Pod) -> Result<Evicted, ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let parameters = EvictParams {
            delete_options: Some(DeleteParams {
                // Not another pod of that name.
                preconditions: Some(Preconditions {
                    uid: pod.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            }),
            ..EvictParams::default()
        };
        match ask("evict a pod", pods.evict(name, &parameters)).await {
            Ok(_) => {
                info!(namespace, name, "evicted");
                Ok(Evicted::Ends)
            }
            // Gone, or another one of its name is there: the next look tells.
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(Evicted::Ends),
            Err(error) => match error.status() {
                Some(status) => Ok(Evicted::Kept(kept(status))),
                None => Err(error),
            },
        }
    }
}

/// What came of an eviction.
enum Evicted {
    /// It is told to end, or has ended.
    Ends,
    /// It stays for now.
    Kept(String),
}

/// What a refusal says, with the budget, which stands in its causes.
fn kept(status: &kube::core::Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let words: Vec<&str> = causes.map(|cause| cause.message.as_str()).collect();
    if words.is_empty() {
        status.message.clone()
    } else {
        format!("{} {}", status.message, words.join(" "))
    }
}

/// Whether a pod has to go before the node reboots: not a DaemonSet's, which would be back at once, not a static one, which
/// only the kubelet ends, and none that is over.
fn has_to_go(pod: &Pod) -> bool {
    let metadata = &pod.metadata;
    let mirror = metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key("kubernetes.io/config.mirror"));
    let of_daemon_set = metadata.owner_references.iter().flatten().any(|owner| {
        owner.controller == Some(true)
            && owner.kind == "DaemonSet"
            && owner.api_version.starts_with("apps/")
    });
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let over = matches!(phase, Some("Succeeded" | "Failed"));
    !mirror && !of_daemon_set && !over
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use slotd_engine::Drain;
    use slotd_image::Cancel;
    use tokio::runtime::Handle;

    use super::{Evictions, PodDrainer, has_to_go};
    use crate::agent::{Drainer, Trouble};
    use crate::cluster::identity::for_tests;

    fn pod(metadata: serde_json::Value, phase: &str) -> Pod {
        serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
    }

    #[test]
    fn what_would_be_back_at_once_or_is_over_is_left_alone() {
        let owner = |kind: &str, version: &str| json!({"ownerReferences": [{"apiVersion": version, "kind": kind, "name": "x", "uid": "1", "controller": true}]});
        assert!(has_to_go(&pod(json!({}), "Running")));
        assert!(has_to_go(&pod(json!({}), "Pending")));
        assert!(has_to_go(&pod(owner("ReplicaSet", "apps/v1"), "Running")));
        // Not ours to skip: another API group's kind of that name.
        assert!(has_to_go(&pod(
            owner("DaemonSet", "example.com/v1"),
            "Running"
        )));
        assert!(!has_to_go(&pod(owner("DaemonSet", "apps/v1"), "Running")));
        let mirror = json!({"annotations": {"kubernetes.io/config.mirror": "hash"}});
        assert!(!has_to_go(&pod(mirror, "Running")));
        for over in ["Succeeded", "Failed"] {
            assert!(!has_to_go(&pod(json!({}), over)));
        }
    }

    #[tokio::test]
    async fn after_a_restart_nothing_is_cordoned_before_it_is_known_that_it_is_still_wanted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (drainer, lender) = PodDrainer::new(Handle::current());
        let server = format!("http://{}", listener.local_addr().unwrap());
        lender.identity.send_replace(Some(for_tests(&server)));
        let drain = async || {
            let (drainer, cancel) = (drainer.clone(), Cancel::new());
            let asked = cancel.clone();
            let thread = tokio::task::spawn_blocking(move || {
                let drain = Drain {
                    timeout: 1,
                    force: true,
                };
                Drainer::drain(&drainer, drain, &asked, &|_| {})
            });
            tokio::time::sleep(Duration::from_millis(500)).await;
            cancel.cancel();
            assert!(matches!(thread.await.unwrap(), Err(Trouble::Stopped)));
        };
        drain().await;
        assert!(listener.accept().is_err(), "it asked the API server");
        lender.name("o");
        drain().await;
        assert!(listener.accept().is_ok(), "it asked nothing");
    }

    #[tokio::test]
    async fn a_cordon_that_lands_after_the_drain_was_stopped_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        std::thread::spawn(move || {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "resourceVersion": "1"}});
            let node = node.to_string();
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut request = [0; 8192];
                let length = connection.read(&mut request).unwrap();
                if request[..length].starts_with(b"PATCH") {
                    counted.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_secs(2));
                }
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
                // Who hung up does not read it.
                let _ = write!(
                    connection,
                    "{head}\r\ncontent-length: {}\r\n\r\n{node}",
                    node.len()
                );
            }
        });
        let (drainer, lender) = PodDrainer::new(Handle::current());
        lender.identity.send_replace(Some(for_tests(&server)));
        lender.name("o");
        let cancel = Cancel::new();
        let stop = cancel.clone();
        let thread = tokio::task::spawn_blocking(move || {
            let drain = Drain {
                timeout: 60,
                force: false,
            };
            Drainer::drain(&drainer, drain, &stop, &|_| {})
        });
        while asked.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        cancel.cancel();
        assert!(matches!(thread.await.unwrap(), Err(Trouble::Stopped)));
        let landed = tokio::time::timeout(Duration::from_secs(20), lender.landed.notified());
        assert!(landed.await.is_ok(), "nobody was told");
    }

    #[tokio::test]
    async fn a_credential_that_is_renewed_while_pods_leave_is_used() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let renewed = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let (old, new) = (for_tests(&at(&silent)), for_tests(&at(&renewed)));
        let (drainer, lender) = PodDrainer::new(Handle::current());
        lender.identity.send_replace(Some(old.clone()));
        lender.name("o");
        let mut evictions = Evictions::new(old.client, "n1");
        drainer.renew(&mut evictions);
        lender.identity.send_replace(Some(new));
        drainer.renew(&mut evictions);
        renewed.set_nonblocking(false).unwrap();
        let asked = std::thread::spawn(move || drop(renewed.accept().unwrap()));
        assert!(evictions.round().await.is_err());
        asked.join().unwrap();
        silent.set_nonblocking(true).unwrap();
        assert!(silent.accept().is_err(), "the old one was used");
    }

    #[tokio::test]
    async fn a_server_that_answers_no_eviction_is_not_asked_for_each_pod_in_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let evictions = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&evictions);
        std::thread::spawn(move || {
            let pod = |name: &str| json!({"metadata": {"name": name, "namespace": "team"}});
            let pods: Vec<_> = ["a", "b", "c"].map(pod).into();
            let list =
                json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods});
            let list = list.to_string();
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut request = [0; 8192];
                let length = connection.read(&mut request).unwrap();
                if request[..length].starts_with(b"POST") {
                    counted.fetch_add(1, Ordering::SeqCst);
                } else {
                    let head =
                        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
                    write!(
                        connection,
                        "{head}\r\ncontent-length: {}\r\n\r\n{list}",
                        list.len()
                    )
                    .unwrap();
                }
            }
        });
        let mut round = Evictions::new(for_tests(&server).client, "n1");
        let error = round.round().await.unwrap_err().to_string();
        assert!(error.starts_with("cannot evict a pod: "), "{error}");
        assert_eq!(evictions.load(Ordering::SeqCst), 1);
    }
}
