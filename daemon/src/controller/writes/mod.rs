//! What a plan says is to be written, written.
//!
//! Each write carries the version that it was planned on. One that comes too late changes nothing, and the next pass plans anew.

mod objects;
mod places;
mod shown;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};
use slotd_crds::names::{ACTIVATED_ANNOTATION, FINALIZER};
use slotd_engine::rollout::{self, ProgressUid, Unwanted, UpgradeUid, Write};
use tracing::{debug, info};

use super::resolution::Settled;
use super::snapshot::Snapshot;
use objects::metadata;

/// An object that was written, and how it was before: until the watch shows another version, planning again would only write
/// the same in vain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Touched {
    /// The places, of that version.
    Places(Option<String>),
    /// A progress object by name, of that version.
    Progress(String, Option<String>),
    /// An upgrade by name, of that version.
    Upgrade(String, Option<String>),
}

impl Touched {
    /// Whether the watches show what was written, or anything newer.
    pub(super) fn seen(&self, snapshot: &Snapshot) -> bool {
        let (before, now) = match self {
            Self::Places(before) => (
                before,
                snapshot
                    .places
                    .as_ref()
                    .and_then(|places| places.resource_version()),
            ),
            Self::Progress(name, before) => {
                let object = snapshot
                    .progress
                    .iter()
                    .find(|object| object.name_any() == *name);
                (before, object.and_then(|object| object.resource_version()))
            }
            Self::Upgrade(name, before) => {
                let upgrade = snapshot
                    .upgrades
                    .iter()
                    .find(|upgrade| upgrade.name_any() == *name);
                (
                    before,
                    upgrade.and_then(|upgrade| upgrade.resource_version()),
                )
            }
        };
        *before != now
    }
}

/// Writes to one cluster.
pub(super) struct Writer {
    upgrades: Api<OSUpgrade>,
    progress: Api<OSUpgradeProgress>,
    nodes: Api<Node>,
    places: Api<ConfigMap>,
}

/// The writes of one pass.
pub(super) struct Writing<'a> {
    writer: &'a Writer,
    snapshot: &'a Snapshot,
    settled: &'a BTreeMap<String, Settled>,
    /// What was written, or found to be another than it was planned on.
    pub(super) touched: BTreeSet<Touched>,
}

impl Writer {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            upgrades: Api::all(client.clone()),
            progress: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            places: Api::namespaced(client.clone(), namespace),
        }
    }

    pub(super) fn begin<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        settled: &'a BTreeMap<String, Settled>,
    ) -> Writing<'a> {
        Writing {
            writer: self,
            snapshot,
            settled,
            touched: BTreeSet::new(),
        }
    }
}

/// What a write came to: `None` where the object is not any more as it was planned on.
fn late<T>(answer: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match answer {
        Ok(done) => Ok(Some(done)),
        Err(kube::Error::Api(status))
            if status.is_conflict() || status.is_not_found() || status.is_already_exists() =>
        {
            debug!(reason = status.message, "came too late");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl Writing<'_> {
    /// Writes all that a plan says.
    pub(super) async fn plan(
        &mut self,
        plan: &rollout::Plan,
        fleet: &rollout::Fleet,
    ) -> Result<(), kube::Error> {
        self.change_places(&plan.writes, fleet).await?;
        for write in &plan.writes {
            self.one(write).await?;
        }
        Ok(())
    }

    async fn one(&mut self, write: &Write) -> Result<(), kube::Error> {
        match write {
            Write::Free { .. } | Write::Claim(_) => Ok(()),
            Write::BindUpgrade(uid) => self.bind_upgrade(uid, true).await,
            Write::UnbindUpgrade(uid) => self.bind_upgrade(uid, false).await,
            Write::Create {
                upgrade,
                node,
                attempt,
            } => self.create(upgrade, node, *attempt).await,
            Write::Raise {
                progress,
                attempt,
                because,
            } => {
                info!(
                    progress = self.name(progress),
                    attempt,
                    ?because,
                    "a further attempt"
                );
                self.raise(progress, *attempt).await
            }
            Write::Activate { progress, attempt } => self.activate(progress, *attempt).await,
            Write::Unbind {
                progress,
                node_gone,
            } => {
                let Some(object) = self.snapshot.object(progress) else {
                    return Ok(());
                };
                if *node_gone && !self.node_gone(object).await? {
                    return Ok(());
                }
                let finalizers = without_ours(object.finalizers());
                self.patch(
                    object,
                    metadata(Some(finalizers), ACTIVATED_ANNOTATION, None),
                    None,
                )
                .await
            }
            Write::Delete { progress, because } => {
                let Some(object) = self.snapshot.object(progress) else {
                    return Ok(());
                };
                if *because == Unwanted::NodeGone && !self.node_gone(object).await? {
                    return Ok(());
                }
                info!(
                    progress = object.name_any(),
                    node = object.spec.node_name,
                    ?because,
                    "deleting"
                );
                let parameters = DeleteParams::default().preconditions(Preconditions {
                    uid: object.metadata.uid.clone(),
                    resource_version: object.resource_version(),
                });
                late(
                    self.writer
                        .progress
                        .delete(&object.name_any(), &parameters)
                        .await,
                )?;
                self.touch(object);
                Ok(())
            }
        }
    }

    fn name(&self, progress: &ProgressUid) -> String {
        self.snapshot
            .object(progress)
            .map_or_else(|| progress.0.clone(), |object| object.name_any())
    }

    fn touch(&mut self, object: &OSUpgradeProgress) {
        self.touched.insert(Touched::Progress(
            object.name_any(),
            object.resource_version(),
        ));
    }

    /// Whether the Node that an object is for is not there any more, by what the server says.
    async fn node_gone(&self, object: &OSUpgradeProgress) -> Result<bool, kube::Error> {
        let node = self.writer.nodes.get_opt(&object.spec.node_name).await?;
        Ok(node.is_none_or(|node| node.metadata.uid != object.spec.node_uid))
    }

    /// Patches a progress object if it is as the snapshot has it.
    async fn patch(
        &mut self,
        object: &OSUpgradeProgress,
        mut metadata: Map<String, Value>,
        spec: Option<Value>,
    ) -> Result<(), kube::Error> {
        metadata.insert(
            "resourceVersion".to_owned(),
            json!(object.metadata.resource_version),
        );
        metadata.insert("uid".to_owned(), json!(object.metadata.uid));
        let mut patch = Map::new();
        patch.insert("metadata".to_owned(), Value::Object(metadata));
        patch.extend(spec.map(|spec| ("spec".to_owned(), spec)));
        let patch = Patch::Merge(Value::Object(patch));
        late(
            self.writer
                .progress
                .patch(&object.name_any(), &PatchParams::default(), &patch)
                .await,
        )?;
        self.touch(object);
        Ok(())
    }

    fn touch_upgrade(&mut self, upgrade: &OSUpgrade) {
        self.touched.insert(Touched::Upgrade(
            upgrade.name_any(),
            upgrade.resource_version(),
        ));
    }

    async fn bind_upgrade(&mut self, uid: &UpgradeUid, bind: bool) -> Result<(), kube::Error> {
        let Some(upgrade) = self.snapshot.upgrade(uid) else {
            return Ok(());
        };
        let mut finalizers = without_ours(upgrade.finalizers());
        if bind {
            finalizers.push(FINALIZER.to_owned());
        }
        let patch = json!({ "metadata": {
            "resourceVersion": upgrade.metadata.resource_version,
            "uid": upgrade.metadata.uid,
            "finalizers": finalizers,
        } });
        late(
            self.writer
                .upgrades
                .patch(
                    &upgrade.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(patch),
                )
                .await,
        )?;
        self.touch_upgrade(upgrade);
        Ok(())
    }
}

/// The finalizers of others.
fn without_ours(finalizers: &[String]) -> Vec<String> {
    finalizers
        .iter()
        .filter(|finalizer| *finalizer != FINALIZER)
        .cloned()
        .collect()
}
