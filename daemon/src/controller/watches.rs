//! What the API server holds, kept in memory by watches.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, reflector as reflect};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};
use slotd_crds::catalog::ConfigMapName;
use slotd_crds::names::PLACES_CONFIG_MAP;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use crate::backoff::WatchBackoff;
use crate::said;

/// Between two attempts of a watch. Only one controller asks, and a whole roll-out may wait for it.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What can be watched.
pub(super) trait Watched:
    Resource<DynamicType = ()> + Clone + Debug + PartialEq + DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = ()>
        + Clone
        + Debug
        + PartialEq
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// One watch and what it holds. Ends when it is dropped.
pub(super) struct Watch<K: Watched> {
    store: Store<K>,
    whole: watch::Receiver<bool>,
    /// Why it fails, while it does.
    trouble: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

impl<K: Watched> Drop for Watch<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K: Watched> Watch<K> {
    /// Starts a watch that tells `changed` of every change. What nobody here reads is cut off by `trim`. One that fails begins
    /// again, later each time; a kind that the server does not know yet is one such failure.
    fn start(api: Api<K>, config: watcher::Config, trim: fn(&mut K), changed: Arc<Notify>) -> Self {
        let (store, writer) = reflector::store();
        let (complete, whole) = watch::channel(false);
        let (fails, trouble) = watch::channel(None);
        // A heartbeat that says what the one before said is no reason for anything.
        let news = Arc::new(AtomicBool::new(false));
        let events = {
            let (news, store) = (news.clone(), store.clone());
            watcher(api, config).map(move |event| {
                let event = event.map(|event| event.modify(trim));
                if matches!(&event, Ok(event) if is_news(event, &store)) {
                    news.store(true, Ordering::Relaxed);
                }
                event
            })
        };
        let task = tokio::spawn(async move {
            let backoff = WatchBackoff::new(LONGEST_PAUSE);
            let mut events = std::pin::pin!(reflect(writer, events.backoff(backoff)));
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init | Event::InitApply(_)) => {}
                    Ok(event) => {
                        if matches!(event, Event::InitDone) {
                            complete.send_replace(true);
                        }
                        fails.send_replace(None);
                        if news.swap(false, Ordering::Relaxed) {
                            changed.notify_one();
                        }
                    }
                    Err(error) => {
                        // Once, not with every attempt.
                        let error = said::watch(&error);
                        if fails.send_replace(Some(error.clone())).is_none() {
                            warn!(kind = %K::kind(&()), error, "the watch failed and begins again");
                            changed.notify_one();
                        }
                    }
                }
            }
        });
        Self {
            store,
            whole,
            trouble,
            task,
        }
    }

    /// Whether it has held everything once.
    pub(super) fn whole(&self) -> bool {
        *self.whole.borrow()
    }

    /// All that it holds.
    pub(super) fn all(&self) -> Vec<Arc<K>> {
        self.store.state()
    }
}

/// All watches of the controller.
pub(super) struct Watches {
    pub(super) upgrades: Watch<OSUpgrade>,
    pub(super) progress: Watch<OSUpgradeProgress>,
    pub(super) nodes: Watch<Node>,
    pub(super) places: Watch<ConfigMap>,
    config_maps: BTreeMap<(String, String), Watch<ConfigMap>>,
    client: Client,
    changed: Arc<Notify>,
}

impl Watches {
    pub(super) fn start(client: &Client, namespace: &str, changed: &Arc<Notify>) -> Self {
        let all = watcher::Config::default;
        Self {
            upgrades: Watch::start(
                Api::all(client.clone()),
                all(),
                trim_metadata,
                changed.clone(),
            ),
            progress: Watch::start(
                Api::all(client.clone()),
                all(),
                trim_metadata,
                changed.clone(),
            ),
            nodes: Watch::start(Api::all(client.clone()), all(), trim_node, changed.clone()),
            places: one(client, namespace, PLACES_CONFIG_MAP, changed),
            config_maps: BTreeMap::new(),
            client: client.clone(),
            changed: changed.clone(),
        }
    }

    /// Whether everything that a pass is made from was held once.
    pub(super) fn whole(&self) -> bool {
        self.upgrades.whole() && self.progress.whole() && self.nodes.whole() && self.places.whole()
    }

    /// Watches these ConfigMaps with catalogs and no others.
    pub(super) fn follow(&mut self, names: &[ConfigMapName]) {
        let key = |name: &ConfigMapName| (name.namespace.clone(), name.name.clone());
        self.config_maps
            .retain(|held, _| names.iter().any(|name| key(name) == *held));
        for name in names {
            self.config_maps
                .entry(key(name))
                .or_insert_with(|| one(&self.client, &name.namespace, &name.name, &self.changed));
        }
    }

    /// A ConfigMap that is followed.
    pub(super) fn config_map(&self, name: &ConfigMapName) -> Followed {
        let key = (name.namespace.clone(), name.name.clone());
        let Some(watch) = self.config_maps.get(&key) else {
            return Followed::Unknown;
        };
        if watch.whole() {
            return watch
                .all()
                .into_iter()
                .next()
                .map_or(Followed::Missing, Followed::Held);
        }
        let trouble = watch.trouble.borrow().clone();
        trouble.map_or(Followed::Unknown, Followed::Unreadable)
    }
}

/// What there is of a ConfigMap that is followed.
pub(super) enum Followed {
    /// Nothing yet.
    Unknown,
    /// It cannot be read, for this reason.
    Unreadable(String),
    /// There is none.
    Missing,
    /// As it is.
    Held(Arc<ConfigMap>),
}

/// Whether an event changes what is held, apart from the object's version.
fn is_news<K>(event: &Event<K>, store: &Store<K>) -> bool
where
    K: Resource<DynamicType = ()> + Clone + PartialEq + 'static,
{
    match event {
        Event::Apply(object) => {
            let Some(held) = store.get(&ObjectRef::from_obj(object)) else {
                return true;
            };
            let mut held = K::clone(&held);
            held.meta_mut().resource_version = object.meta().resource_version.clone();
            held != *object
        }
        Event::Delete(_) | Event::InitDone => true,
        Event::Init | Event::InitApply(_) => false,
    }
}

/// A watch of one object alone, for which the right to read others is not needed.
fn one<K>(client: &Client, namespace: &str, name: &str, changed: &Arc<Notify>) -> Watch<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + PartialEq
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    Watch::start(
        Api::namespaced(client.clone(), namespace),
        config,
        trim_metadata,
        changed.clone(),
    )
}

fn trim_metadata<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// A Node's status is large, and all but its conditions is of no use here.
fn trim_node(node: &mut Node) {
    trim_metadata(node);
    if let Some(status) = &mut node.status {
        let mut conditions = status.conditions.take();
        for condition in conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        *status = k8s_openapi::api::core::v1::NodeStatus {
            conditions,
            ..Default::default()
        };
    }
}
