//! Names that more than one program uses: labels, annotations, objects.

use sha2::{Digest, Sha256};

use crate::api::is_label_text;

/// Label that an agent puts on its own Node; a Node without it is no target.
pub const AGENT_LABEL: &str = "monok8s.io/agent";
/// Label of a Node: the slot that runs, `A` or `B`.
pub const SLOT_LABEL: &str = "monok8s.io/slot";
/// Label of a Node: the version that runs, as [`version_label`] writes it, for `kubectl get nodes -L`.
pub const VERSION_LABEL: &str = "monok8s.io/version";
/// Annotation of a Node: the version that runs, exactly. The one that is compared.
pub const VERSION_ANNOTATION: &str = "monok8s.io/version";
/// Annotation of a Node: hold it back from every upgrade; the value is the reason.
pub const HOLD_ANNOTATION: &str = "monok8s.io/hold";
/// Annotation of a Node: who cordoned it, so that nothing else is uncordoned.
pub const CORDONED_BY_ANNOTATION: &str = "monok8s.io/cordoned-by";
/// Annotation of a progress object: the attempt of its OSUpgrade that it belongs to. What failed in an earlier one counts no more.
pub const UPGRADE_ATTEMPT_ANNOTATION: &str = "monok8s.io/upgrade-attempt";
/// Annotation of a progress object with [`FINALIZER`]: the attempt that was activated.
pub const ACTIVATED_ANNOTATION: &str = "monok8s.io/activated-attempt";
/// Finalizer of an OSUpgrade and a progress object while a node is on its way. Whoever takes it off by hand says that the node
/// will never report again.
pub const FINALIZER: &str = "monok8s.io/slotd";
/// Namespace of slotd's own objects, where nothing else is configured.
pub const DEFAULT_NAMESPACE: &str = "kube-system";
/// ConfigMap of the places, in slotd's namespace.
pub const PLACES_CONFIG_MAP: &str = "slotd-places";
/// ConfigMap of the last good catalogs from servers, in slotd's namespace.
pub const CATALOGS_CONFIG_MAP: &str = "slotd-catalogs";
/// Lease of the controller that leads, in slotd's namespace.
pub const LEADER_LEASE: &str = "slotd-controller";
/// The key of a ConfigMap with several that is read as a catalog.
pub const CATALOG_KEY: &str = "images.yaml";

/// The name of the progress object of one upgrade on one node: `osupgrade-` and 20 digits of a hash of both uids. The same at every
/// call, so that an object that is there already is found, and never that of another upgrade or Node under the same name.
#[must_use]
pub fn progress_name(upgrade_uid: &str, node_uid: &str) -> String {
    let mut hash = Sha256::new();
    // A uid holds no slash, so no two pairs give one text.
    hash.update(upgrade_uid);
    hash.update("/");
    hash.update(node_uid);
    format!("osupgrade-{}", hex(&hash.finalize(), 20))
}

/// 40 digits of a hash of a URL, to tell one from another where it is not to be read: its query may be a secret.
#[must_use]
pub fn url_digest(url: &str) -> String {
    hex(&Sha256::digest(url), 40)
}

/// A version as a label's value, with `+` as `_`; none where it would be no label's value even so.
#[must_use]
pub fn version_label(version: &str) -> Option<String> {
    let value = version.replace('+', "_");
    is_label_text(&value).then_some(value)
}

/// The first `digits` digits of bytes in hex.
pub(crate) fn hex(bytes: &[u8], digits: usize) -> String {
    let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(digits);
    text
}

#[cfg(test)]
mod tests {
    use super::{progress_name, url_digest, version_label};

    #[test]
    fn a_progress_object_is_named_by_both_uids() {
        // `printf %s "$UPGRADE/$NODE" | sha256sum`
        assert_eq!(
            progress_name(
                "0b5f3f5e-6c1d-4f3e-9a53-0d3a7a6c1f11",
                "7d0f6a52-9d2b-4a57-8f0e-2a3c4d5e6f70"
            ),
            "osupgrade-0149ec600b03b45ed89e"
        );
        assert_ne!(progress_name("ab", "c"), progress_name("a", "bc"));
    }

    #[test]
    fn a_url_is_told_from_others_by_a_hash() {
        // `printf %s https://h/a?token=x | sha256sum`
        assert_eq!(
            url_digest("https://h/a?token=x"),
            "5cbc69a129e0412b20b6d738b7d99b880ea94adb"
        );
    }

    #[test]
    fn a_version_is_a_label_where_it_can_be_one() {
        assert_eq!(
            version_label("v1.35.3+k3s1").as_deref(),
            Some("v1.35.3_k3s1")
        );
        assert_eq!(
            version_label("v1.35.3-rc.1").as_deref(),
            Some("v1.35.3-rc.1")
        );
        assert_eq!(version_label(""), None);
        assert_eq!(version_label("1.2.3-"), None);
        assert_eq!(
            version_label(&format!("1.2.{}", "3".repeat(59))).map(|label| label.len()),
            Some(63)
        );
        assert_eq!(version_label(&format!("1.2.{}", "3".repeat(60))), None);
        assert_eq!(version_label("a b"), None);
    }
}
