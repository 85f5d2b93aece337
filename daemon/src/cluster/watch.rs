//! The node's progress objects, as the API server tells of them.

use std::collections::BTreeMap;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_of};
use kube::{Api, Client};
use slotd_crds::api::OSUpgradeProgress;

use super::error::{ClusterError, LONGEST_PAUSE};
use crate::backoff::WatchBackoff;

/// The objects of one node, kept up to date by a watch that begins again by itself.
pub(super) struct Watch {
    stream: BoxStream<'static, Result<Event<OSUpgradeProgress>, watcher::Error>>,
    objects: BTreeMap<String, OSUpgradeProgress>,
    /// What a list in progress has brought so far.
    list: BTreeMap<String, OSUpgradeProgress>,
    complete: bool,
    /// Whether an object went since it was asked last.
    went: bool,
}

impl Watch {
    /// Watches the objects whose `spec.nodeName` is this node's.
    pub(super) fn start(client: Client, node: &str) -> Self {
        let api: Api<OSUpgradeProgress> = Api::all(client);
        let own = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        Self {
            stream: watch_of(api, own)
                .backoff(WatchBackoff::new(LONGEST_PAUSE))
                .boxed(),
            objects: BTreeMap::new(),
            list: BTreeMap::new(),
            complete: false,
            went: false,
        }
    }

    /// Waits for the next change. Safe to be dropped while it waits.
    ///
    /// # Errors
    /// Why nothing can be watched now; the watch goes on by itself, after a pause that grows.
    pub(super) async fn changed(&mut self) -> Result<(), ClusterError> {
        loop {
            let next = self.stream.try_next().await;
            let Some(event) = next.map_err(ClusterError::watch)? else {
                // A watch has no end; were it to have one, nothing changes any more.
                std::future::pending::<()>().await;
                continue;
            };
            match event {
                Event::Init => self.list.clear(),
                Event::InitApply(object) => keep(&mut self.list, object),
                Event::InitDone => {
                    let before =
                        std::mem::replace(&mut self.objects, std::mem::take(&mut self.list));
                    self.went |= before.keys().any(|uid| !self.objects.contains_key(uid));
                    self.complete = true;
                    return Ok(());
                }
                Event::Apply(object) => {
                    keep(&mut self.objects, object);
                    return Ok(());
                }
                Event::Delete(object) => {
                    if let Some(uid) = object.metadata.uid {
                        self.went |= self.objects.remove(&uid).is_some();
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Whether an object went since this was asked last.
    pub(super) fn went(&mut self) -> bool {
        std::mem::take(&mut self.went)
    }

    /// All objects of the node; `None` before the first list was complete, when an object that is not here may still exist.
    pub(super) fn objects(&self) -> Option<impl Iterator<Item = &OSUpgradeProgress>> {
        self.complete.then(|| self.objects.values())
    }

    /// An object as an answer to a write showed it, unless the watch has a younger one by now or lost it.
    pub(super) fn wrote(&mut self, object: OSUpgradeProgress) {
        let Some(known) = object
            .metadata
            .uid
            .as_ref()
            .and_then(|uid| self.objects.get_mut(uid))
        else {
            return;
        };
        let version = |object: &OSUpgradeProgress| {
            let text = object.metadata.resource_version.as_deref();
            text.and_then(|text| text.parse::<u64>().ok())
        };
        // Versions of one resource can be compared since Kubernetes 1.35 says so; where they are no numbers, the watch decides.
        if version(&object) > version(known) {
            *known = object;
        }
    }
}

fn keep(objects: &mut BTreeMap<String, OSUpgradeProgress>, object: OSUpgradeProgress) {
    // The API server gives each object a uid.
    if let Some(uid) = object.metadata.uid.clone() {
        objects.insert(uid, object);
    }
}
