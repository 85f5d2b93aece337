//! OSUpgradeProgress: one node's part of an upgrade.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::rollout::Drain;
use super::rules;
use super::words::words;
use crate::image::Image;

/// What one node is told. Written by the controller, or by hand: a progress object works without a controller.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "monok8s.io",
    version = "v1alpha1",
    kind = "OSUpgradeProgress",
    plural = "osupgradeprogresses",
    singular = "osupgradeprogress",
    shortname = "osup",
    category = "slotd",
    status = "OSUpgradeProgressStatus",
    derive = "PartialEq",
    selectable = ".spec.nodeName",
    doc = "OSUpgradeProgress is one node's part of an OSUpgrade: the image that the node is told to install, and how far it is. \
           The controller makes one for each target; one made by hand works without a controller.",
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".spec.nodeName",
        description = "The node."
    ),
    printcolumn(
        name = "Source",
        type_ = "string",
        json_path = ".spec.sourceRef.name",
        description = "The OSUpgrade that asks for it."
    ),
    printcolumn(
        name = "Current",
        type_ = "string",
        json_path = ".status.currentVersion",
        description = "The version that runs."
    ),
    printcolumn(
        name = "Target",
        type_ = "string",
        json_path = ".status.targetVersion",
        description = "The version that is to run."
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.display",
        description = "How far the node is."
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::immutable_optional("nodeUID"),
    validation = rules::immutable_optional("sourceRef"),
    validation = rules::source_needs_node_uid(),
    validation = rules::attempt_only_rises()
)]
pub struct OSUpgradeProgressSpec {
    /// The OSUpgrade that asks for it. None where the object was made by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<SourceReference>,

    /// The Node that this is for. Its agent, and no other node, acts on this object and writes its status.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::node_name(), validation = rules::immutable("nodeName"))]
    pub node_name: String,

    /// The uid of that Node. An agent leaves an object alone whose uid is not its Node's: another Node of that name was meant. Needed
    /// with sourceRef.
    #[serde(rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub node_uid: Option<String>,

    /// The image that the node is to run.
    pub image: Image,

    /// How far the node may go: Stage downloads, writes and verifies the image in the inactive slot and changes nothing about the next
    /// boot; Activate also drains the node, restarts it into the image on trial, and keeps that or goes back.
    pub action: Action,

    /// The number of this attempt; only ever raised. A node that failed tries again when it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,

    /// While true, this one node starts nothing new. A trial boot is still confirmed or rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,

    /// Allows a version older than the one that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_downgrade: Option<bool>,

    /// How the node is drained before it restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
}

/// The OSUpgrade that an object was made for.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Its uid: another OSUpgrade of that name is not meant.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

words! {
    /// How far a node may go.
    pub enum Action {
        /// Download, write and verify; change nothing about the next boot.
        Stage,
        /// Also drain, restart on trial, confirm or go back.
        Activate,
    }
}

words! {
    /// How far a node is.
    pub enum ProgressPhase {
        /// Nothing has started.
        Pending,
        /// The image is downloaded and written to the inactive slot.
        Downloading,
        /// The slot is read back and compared.
        Verifying,
        /// The image is in the slot, verified; the next boot is as before.
        Staged,
        /// The node's pods are evicted.
        Draining,
        /// The trial boot was asked for.
        Rebooting,
        /// The trial boot runs and has to prove itself.
        Confirming,
        /// The image runs, and the boot loader's own data says that it is good.
        Completed,
        /// The trial boot did not hold; the node runs what it ran before.
        RolledBack,
        /// It could not be done; the node runs what it ran before.
        Failed,
        /// It was not tried: a rule forbids it.
        Rejected,
    }
}

impl ProgressPhase {
    /// The STATUS column: the phase in lower case, and while bytes move the part that is done.
    #[must_use]
    pub fn display(&self, percent: Option<u32>) -> String {
        let word = self.as_str().to_lowercase();
        match (self, percent) {
            (Self::Downloading | Self::Verifying, Some(percent)) => {
                format!("{word} {}%", percent.min(100))
            }
            _ => word,
        }
    }

    /// Whether nothing further happens in this attempt.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Self::Completed | Self::RolledBack | Self::Failed | Self::Rejected
        )
    }
}

words! {
    /// One of a node's two slots.
    pub enum Partition {
        /// The first.
        A,
        /// The second.
        B,
    }
}

/// How far the node is. Written by the node's own agent; its first version, and the condition Waiting, by the controller.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OSUpgradeProgressStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The attempt that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,

    /// The version that runs now, whatever was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_version: Option<String>,

    /// The version that the node is on its way to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,

    /// How far the node is: Pending, Downloading, Verifying, Staged, Draining, Rebooting, Confirming, Completed, RolledBack, Failed or
    /// Rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<ProgressPhase>,

    /// The STATUS column: the phase as a word, and while bytes move a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<String>,

    /// How much of the image is written, from 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub percent: Option<u32>,

    /// Bytes of the image that are done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_done: Option<u64>,

    /// Bytes of the image in all, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_total: Option<u64>,

    /// When the node began with this attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,

    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,

    /// When the node last wrote this status. While nothing changes, it is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_updated_at: Option<Time>,

    /// How often the node began again in this attempt after a failure that may pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u32>,

    /// The slot that does not run and takes the image, A or B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inactive_partition: Option<Partition>,

    /// Why it failed, rolled back or was rejected, in one word for programs, such as VersionMismatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,

    /// What happens or happened, in a sentence for people: the failing check and its output, the pod and budget that block.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32_768))]
    pub message: Option<String>,

    /// What holds at present and why. Waiting is the controller's: its reason says what this node waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Option<Vec<Condition>>,
}

#[cfg(test)]
mod tests {
    use super::ProgressPhase;

    #[test]
    fn the_status_column_is_a_word_and_a_percentage_while_bytes_move() {
        assert_eq!(
            ProgressPhase::Downloading.display(Some(43)),
            "downloading 43%"
        );
        assert_eq!(ProgressPhase::Downloading.display(None), "downloading");
        assert_eq!(
            ProgressPhase::Verifying.display(Some(250)),
            "verifying 100%"
        );
        assert_eq!(ProgressPhase::Completed.display(Some(100)), "completed");
        assert_eq!(ProgressPhase::RolledBack.display(None), "rolledback");
        let ends: Vec<_> = ProgressPhase::KNOWN
            .iter()
            .filter(|phase| phase.is_end())
            .map(ProgressPhase::as_str)
            .collect();
        assert_eq!(ends, ["Completed", "RolledBack", "Failed", "Rejected"]);
        assert!(!ProgressPhase::Other("Resting".to_owned()).is_end());
    }
}
