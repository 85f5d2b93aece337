//! OSUpgrade: what an operator asks of a fleet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::Schema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::rollout::{Policy, Rollout};
use super::rules;
use super::selector::NodeSelector;
use super::words::words;
use crate::image::{Image, URL_LIMIT};
use crate::names::hex;

/// What is asked: an image, the nodes that are to run it, and how carefully they get there.
#[derive(CustomResource, KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "monok8s.io",
    version = "v1alpha1",
    kind = "OSUpgrade",
    plural = "osupgrades",
    singular = "osupgrade",
    shortname = "osu",
    category = "slotd",
    status = "OSUpgradeStatus",
    derive = "PartialEq",
    doc = "OSUpgrade moves nodes to another image of their operating system. Each node writes it into its inactive slot, boots it on \
           trial, and keeps it only when it proves healthy; otherwise the node goes back to the system that it had.",
    printcolumn(
        name = "Desired",
        type_ = "string",
        json_path = ".spec.version",
        description = "What is asked for."
    ),
    printcolumn(
        name = "Resolved",
        type_ = "string",
        json_path = ".status.resolved.version",
        description = "The version that this is."
    ),
    printcolumn(
        name = "Phase",
        type_ = "string",
        json_path = ".status.phase",
        description = "How far the roll-out is."
    ),
    printcolumn(
        name = "Targets",
        type_ = "integer",
        json_path = ".status.targets",
        description = "Nodes that are to run it."
    ),
    printcolumn(
        name = "OK",
        type_ = "integer",
        json_path = ".status.ok",
        description = "Nodes that run it, proven."
    ),
    printcolumn(
        name = "Fail",
        type_ = "integer",
        json_path = ".status.fail",
        description = "Nodes that failed, rolled back or refused."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since it was made."
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = require_node_selector)]
#[x_kube(
    validation = rules::image_url_needs_version(),
    validation = rules::image_url_needs_checksum(),
    validation = rules::image_fields_need_image_url(),
    validation = rules::an_image_or_a_catalog()
)]
pub struct OSUpgradeSpec {
    /// The version asked for: a version such as v1.35.3; stable, which is the one that the catalog calls so; or latest or empty, which
    /// is the highest in the catalog that is neither blocked nor a pre-release.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = rules::wanted_version())]
    pub version: Option<String>,

    /// Where the nodes download the image (http or https). Needs version and checksum. Wins over the catalog,
    /// unless the catalog blocks that version.
    #[serde(rename = "imageURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = URL_LIMIT))]
    #[x_kube(validation = rules::image_url())]
    pub image_url: Option<String>,

    /// SHA-256 of the file at imageURL: sha256: and 64 hexadecimal digits. One that is malformed is admitted with a warning, and the
    /// upgrade is then Rejected with the reason InvalidChecksum.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub checksum: Option<String>,

    /// SHA-256 of the expanded image, written in the same way. With it, a node may fetch only what differs from what it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub expanded_checksum: Option<String>,

    /// Size of the expanded image in bytes. A node compares it with its slot before it writes anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub size: Option<u64>,

    /// Which nodes: a plain map of labels, or matchLabels and matchExpressions as elsewhere in Kubernetes. Only nodes with an agent are
    /// targets. Empty ({}) is every node with an agent. One that cannot be read is Rejected, never taken for the empty one.
    #[serde(default)]
    pub node_selector: NodeSelector,

    /// Where images are listed by version. Exactly one of its fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catalog: Option<CatalogSource>,

    /// While true, no further node is started. What is on its way ends first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,

    /// Raise it to go on after the roll-out halted: failures count anew, and what a node remembers as failed may be tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,

    /// How many nodes at a time, when to stop, and how nodes are drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,

    /// What is allowed beyond an ordinary upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

/// The API server refuses a document without a selector, or with a null one, such as a template's: neither may come to mean
/// the whole fleet, as `{}` does. What is read here is read anyway, and then cannot be.
fn require_node_selector(schema: &mut Schema) {
    let Some(required) = schema
        .ensure_object()
        .get_mut("properties")
        .and_then(|properties| {
            properties
                .get_mut("nodeSelector")?
                .as_object_mut()?
                .remove("default");
            Some(json!(["nodeSelector"]))
        })
    else {
        return;
    };
    schema.insert("required".to_owned(), required);
}

/// Where a catalog of images is.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = rules::one_catalog_source())]
pub struct CatalogSource {
    /// A catalog on a server, at most 1 MiB. It is fetched again and again; while it cannot be, the last good one is used and the
    /// condition CatalogReachable says why.
    #[serde(rename = "URL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = URL_LIMIT))]
    #[x_kube(validation = rules::catalog_url())]
    pub url: Option<String>,

    /// A catalog in a ConfigMap: its name (in the namespace of slotd, usually kube-system), or namespace/name; for another namespace
    /// bind the ClusterRole slotd-catalog-reader to the controller there. Its only key is read, or images.yaml.
    #[serde(rename = "ConfigMap", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    #[x_kube(validation = rules::config_map())]
    pub config_map: Option<String>,

    /// The catalog itself, as YAML, at most 128 KiB: stable (a version), images (a list of version, url, checksum, expandedChecksum and
    /// size) and blocked (a list of versions).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 131_072))]
    pub inline: Option<String>,
}

words! {
    /// How far a roll-out is.
    pub enum Phase {
        /// Not looked at yet, or the catalog was not reachable yet.
        Pending,
        /// Resolved; no node was started yet.
        Accepted,
        /// Nodes are on their way.
        RollingOut,
        /// Every target runs the version. One that joins later is brought to it.
        Completed,
        /// Not done; a condition names the reason and the rule.
        Rejected,
        /// Started, and no further node is started; a condition says why.
        Halted,
    }
}

/// What became of it. Written by the controller alone.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OSUpgradeStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// How far the roll-out is: Pending, Accepted (resolved), RollingOut, Completed, Rejected (a condition says why) or Halted (no
    /// further node is started; a condition says why).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// The one image that this upgrade means, fixed before any node is told of it. A catalog that changes later does not change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Image>,

    /// Digest of the fields of the spec that resolved was made from (version, imageURL, checksum, expandedChecksum, size, catalog,
    /// policy). It is made anew only when one of them changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub resolved_from: Option<String>,

    /// Digest of the image's whole URL, where resolved shows it without its query, which may be a secret. The nodes are told the
    /// whole one.
    #[serde(rename = "resolvedURLDigest", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub resolved_url_digest: Option<String>,

    /// How many nodes are to run the version: those that match nodeSelector, have an agent, and follow no younger upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<u32>,

    /// How many of them run it, proven by their boot loader, and are Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ok: Option<u32>,

    /// How many of them failed, rolled back or refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail: Option<u32>,

    /// What holds at present and why, such as CatalogReachable; the first failing node and its reason are among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Option<Vec<Condition>>,
}

/// The fields that decide what an upgrade resolves to. Their digest is kept beside the result, since the generation also rises
/// with `suspend` and `attempt`, which must not resolve anew.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResolutionInput<'a> {
    version: Option<&'a str>,
    image_url: Option<&'a str>,
    checksum: Option<&'a str>,
    expanded_checksum: Option<&'a str>,
    size: Option<u64>,
    catalog: Option<&'a CatalogSource>,
    allow_downgrade: bool,
}

impl OSUpgradeSpec {
    /// A digest of the fields that decide what this resolves to, for `status.resolvedFrom`. The same in every release, since another
    /// one would resolve every upgrade anew.
    #[must_use]
    pub fn resolution_digest(&self) -> String {
        let input = ResolutionInput {
            version: self.version.as_deref(),
            image_url: self.image_url.as_deref(),
            checksum: self.checksum.as_deref(),
            expanded_checksum: self.expanded_checksum.as_deref(),
            size: self.size,
            catalog: self.catalog.as_ref(),
            allow_downgrade: self.allow_downgrade(),
        };
        // A plain struct of texts and numbers has no way to fail; an empty digest would only resolve anew.
        hex(
            &Sha256::digest(serde_json::to_vec(&input).unwrap_or_default()),
            32,
        )
    }

    /// Whether a node may go to an older version.
    #[must_use]
    pub fn allow_downgrade(&self) -> bool {
        self.policy
            .as_ref()
            .and_then(|policy| policy.allow_downgrade)
            .unwrap_or(false)
    }
}
