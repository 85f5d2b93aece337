//! Progress objects: made, raised, activated.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};
use slotd_crds::api::{
    Action, OSUpgrade, OSUpgradeProgress, OSUpgradeProgressSpec, ProgressPhase, SourceReference,
};
use slotd_crds::image::Image;
use slotd_crds::names::{
    ACTIVATED_ANNOTATION, FINALIZER, UPGRADE_ATTEMPT_ANNOTATION, progress_name,
};
use slotd_engine::rollout::{NodeUid, ProgressUid, UpgradeUid};
use tracing::info;

use super::{Touched, Writing, late, without_ours};
use crate::controller::resolution::Meaning;
use crate::controller::status;

impl Writing<'_> {
    /// The image of an upgrade that nodes may be told of.
    fn image(&self, upgrade: &OSUpgrade) -> Option<Image> {
        match &self.settled.get(upgrade.metadata.uid.as_ref()?)?.meaning {
            Meaning::Frozen(image) | Meaning::Blocked(image) => Some(image.clone()),
            Meaning::Found(_) | Meaning::Pending(_) | Meaning::Rejected { .. } => None,
        }
    }

    pub(super) async fn create(
        &mut self,
        upgrade: &UpgradeUid,
        node: &NodeUid,
        attempt: u32,
    ) -> Result<(), kube::Error> {
        let (Some(upgrade), Some(node)) =
            (self.snapshot.upgrade(upgrade), self.snapshot.node(node))
        else {
            return Ok(());
        };
        let (Some(image), Some(upgrade_uid), Some(node_uid)) = (
            self.image(upgrade),
            upgrade.metadata.uid.clone(),
            node.metadata.uid.clone(),
        ) else {
            return Ok(());
        };
        let name = progress_name(&upgrade_uid, &node_uid);
        let spec = OSUpgradeProgressSpec {
            source_ref: Some(SourceReference {
                name: upgrade.name_any(),
                uid: upgrade_uid.clone(),
            }),
            node_name: node.name_any(),
            node_uid: Some(node_uid),
            image,
            action: Action::Stage,
            attempt: Some(attempt),
            suspend: None,
            allow_downgrade: upgrade.spec.allow_downgrade().then_some(true),
            drain: upgrade
                .spec
                .rollout
                .as_ref()
                .and_then(|rollout| rollout.drain.clone()),
        };
        let mut object = OSUpgradeProgress::new(&name, spec);
        object.metadata.annotations = Some(
            [(
                UPGRADE_ATTEMPT_ANNOTATION.to_owned(),
                upgrade.spec.attempt.unwrap_or(0).to_string(),
            )]
            .into(),
        );
        object.metadata.owner_references = Some(vec![OwnerReference {
            api_version: OSUpgrade::api_version(&()).into_owned(),
            kind: OSUpgrade::kind(&()).into_owned(),
            name: upgrade.name_any(),
            uid: upgrade_uid,
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]);
        let created = late(
            self.writer
                .progress
                .create(&PostParams::default(), &object)
                .await,
        )?;
        self.touched.insert(Touched::Progress(name.clone(), None));
        let Some(created) = created else {
            return Ok(());
        };
        info!(
            progress = name,
            node = created.spec.node_name,
            version = created.spec.image.version,
            "told to stage"
        );
        Ok(())
    }

    /// Says of a progress object that nothing has started: the status that it has until its agent writes one.
    pub(in crate::controller) async fn first_status(
        &mut self,
        object: &OSUpgradeProgress,
    ) -> Result<(), kube::Error> {
        let phase = ProgressPhase::Pending;
        let status = json!({
            // The agent may have been quicker; then its status stands.
            "metadata": { "resourceVersion": object.metadata.resource_version },
            "status": { "phase": phase, "display": phase.display(None), "targetVersion": object.spec.image.version },
        });
        late(
            self.writer
                .progress
                .patch_status(
                    &object.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(status),
                )
                .await,
        )?;
        self.touch(object);
        Ok(())
    }

    pub(super) async fn raise(
        &mut self,
        progress: &ProgressUid,
        attempt: u32,
    ) -> Result<(), kube::Error> {
        let Some(object) = self.snapshot.object(progress) else {
            return Ok(());
        };
        let source = object
            .spec
            .source_ref
            .as_ref()
            .map(|source| UpgradeUid(source.uid.clone()));
        let Some(upgrade) = source.and_then(|uid| self.snapshot.upgrade(&uid)) else {
            return Ok(());
        };
        let Some(image) = self.image(upgrade) else {
            return Ok(());
        };
        let spec = json!({
            "action": Action::Stage,
            "attempt": attempt,
            "image": status::image(&image),
            "allowDowngrade": upgrade.spec.allow_downgrade().then_some(true),
            "drain": drain(Some(upgrade)),
        });
        let round = upgrade.spec.attempt.unwrap_or(0);
        self.patch(
            object,
            metadata(None, UPGRADE_ATTEMPT_ANNOTATION, Some(round)),
            Some(spec),
        )
        .await
    }

    pub(super) async fn activate(
        &mut self,
        progress: &ProgressUid,
        attempt: u32,
    ) -> Result<(), kube::Error> {
        let Some(object) = self.snapshot.object(progress) else {
            return Ok(());
        };
        let mut finalizers = without_ours(object.finalizers());
        finalizers.push(FINALIZER.to_owned());
        let source = object
            .spec
            .source_ref
            .as_ref()
            .map(|source| UpgradeUid(source.uid.clone()));
        let upgrade = source
            .and_then(|uid| self.snapshot.upgrade(&uid))
            .map(|upgrade| &**upgrade);
        // How the node is drained may have been edited since it was told to stage.
        let spec = json!({ "action": Action::Activate, "drain": drain(upgrade) });
        info!(
            progress = object.name_any(),
            node = object.spec.node_name,
            attempt,
            "told to go on"
        );
        self.patch(
            object,
            metadata(Some(finalizers), ACTIVATED_ANNOTATION, Some(attempt)),
            Some(spec),
        )
        .await
    }
}

/// How nodes are drained, for a merge patch: what is not given is taken away.
fn drain(upgrade: Option<&OSUpgrade>) -> Option<Value> {
    let drain = upgrade?.spec.rollout.as_ref()?.drain.as_ref()?;
    Some(json!({ "timeout": drain.timeout, "onTimeout": drain.on_timeout }))
}

/// Finalizers, if they change, and one annotation, for a merge patch.
pub(super) fn metadata(
    finalizers: Option<Vec<String>>,
    annotation: &str,
    value: Option<u32>,
) -> Map<String, Value> {
    let mut annotations = Map::new();
    annotations.insert(
        annotation.to_owned(),
        json!(value.map(|value| value.to_string())),
    );
    let mut metadata = Map::new();
    metadata.insert("annotations".to_owned(), Value::Object(annotations));
    metadata.extend(finalizers.map(|finalizers| ("finalizers".to_owned(), json!(finalizers))));
    metadata
}
