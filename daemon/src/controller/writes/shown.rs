//! What is shown: the condition of a node that waits, the status of an upgrade.

use kube::api::{Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};
use slotd_engine::rollout::ProgressUid;

use super::{Writing, late};
use crate::controller::conditions::Holds;
use crate::controller::waiting;

/// Who writes, for server-side apply.
const MANAGER: &str = "slotd-controller";

impl Writing<'_> {
    /// Writes the condition Waiting of a progress object.
    pub(in crate::controller) async fn waiting(
        &mut self,
        progress: &ProgressUid,
        holds: Holds,
    ) -> Result<(), kube::Error> {
        let Some(object) = self.snapshot.object(progress) else {
            return Ok(());
        };
        let condition = holds.condition(waiting::said(object), object.metadata.generation);
        let patch = json!({
            "apiVersion": OSUpgradeProgress::api_version(&()),
            "kind": OSUpgradeProgress::kind(&()),
            // An object made anew under that name is not meant.
            "metadata": { "name": object.name_any(), "uid": object.metadata.uid },
            "status": { "conditions": [condition] },
        });
        let parameters = PatchParams::apply(MANAGER).force();
        late(
            self.writer
                .progress
                .patch_status(&object.name_any(), &parameters, &Patch::Apply(patch))
                .await,
        )?;
        self.touch(object);
        Ok(())
    }

    /// Writes the status of an upgrade.
    pub(in crate::controller) async fn status(
        &mut self,
        upgrade: &OSUpgrade,
        patch: Value,
    ) -> Result<(), kube::Error> {
        late(
            self.writer
                .upgrades
                .patch_status(
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
