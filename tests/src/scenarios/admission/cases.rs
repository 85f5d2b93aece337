//! Documents with one thing wrong.

use serde_json::{Value, json};

/// More than any checksum has.
fn long() -> String {
    "a".repeat(257)
}

/// A change to an OSUpgrade's spec, each with one field wrong, and what the refusal has to say of it. Null takes a field away.
pub(super) fn upgrades() -> Vec<(Value, &'static str)> {
    vec![
        (
            json!({"vresion": "v1.35.3"}),
            "unknown field \"spec.vresion\"",
        ),
        (
            json!({"policy": {"skew": "Kubernetes"}}),
            "unknown field \"spec.policy.skew\"",
        ),
        (
            json!({"version": "stable"}),
            "imageURL needs version to be the version of that image",
        ),
        (
            json!({"version": "1.35"}),
            "version must be a version such as v1.35.3",
        ),
        (
            json!({"imageURL": null, "checksum": null}),
            "either imageURL or catalog is needed",
        ),
        (
            json!({"imageURL": "ftp://host/x"}),
            "must be a http:// or https:// URL",
        ),
        (
            json!({"imageURL": "file:///dev/vda"}),
            "an image in a file of the node is installed there",
        ),
        (
            json!({"imageURL": "https://user:word@host/x"}),
            "without a user or password",
        ),
        (
            json!({"checksum": null}),
            "imageURL needs the checksum of that file",
        ),
        (
            json!({"size": 0}),
            "spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"nodeSelector": null}),
            "spec.nodeSelector: Required value",
        ),
        (
            json!({"nodeSelector": "all"}),
            "spec.nodeSelector in body must be of type object",
        ),
        (
            json!({"catalog": {"URL": "https://host/c", "ConfigMap": "c"}}),
            "catalog needs exactly one of URL, ConfigMap and inline",
        ),
        (
            json!({"catalog": {}}),
            "catalog needs exactly one of URL, ConfigMap and inline",
        ),
        (
            json!({"catalog": {"inline": "x".repeat(128 * 1024 + 1)}}),
            "spec.catalog.inline",
        ),
        (
            json!({"suspend": "no"}),
            "spec.suspend in body must be of type boolean",
        ),
        (
            json!({"attempt": -1}),
            "spec.attempt in body should be greater than or equal to 0",
        ),
        (
            json!({"rollout": {"maxUnavailable": 0}}),
            "maxUnavailable must be a number from 1 up, or a percentage",
        ),
        (
            json!({"rollout": {"maxUnavailable": "150%"}}),
            "maxUnavailable must be a number from 1 up, or a percentage",
        ),
        (
            json!({"rollout": {"maxStaging": "some"}}),
            "maxStaging must be a number from 1 up, or a percentage",
        ),
        (
            json!({"rollout": {"maxFailures": 0}}),
            "spec.rollout.maxFailures in body should be greater than or equal to 1",
        ),
        (
            json!({"rollout": {"drain": {"timeout": "ten"}}}),
            "must be a length of time above zero",
        ),
        (
            json!({"rollout": {"drain": {"onTimeout": "Maybe"}}}),
            "supported values: \"Abort\", \"Force\"",
        ),
        (
            json!({"policy": {"allowDowngrade": "yes"}}),
            "spec.policy.allowDowngrade in body must be of type boolean",
        ),
        (
            json!({"checksum": long()}),
            "spec.checksum: Too long: may not be more than 256",
        ),
        (
            json!({"expandedChecksum": long()}),
            "spec.expandedChecksum: Too long: may not be more than 256",
        ),
        (
            json!({"imageURL": null, "catalog": {"ConfigMap": "images-cm"}}),
            "checksum, expandedChecksum and size describe the image at imageURL and need it",
        ),
        (
            json!({"catalog": {"URL": "file:///etc/images.yaml"}}),
            "catalog.URL must be a http:// or https:// URL",
        ),
        (
            json!({"catalog": {"ConfigMap": "Images CM"}}),
            "catalog.ConfigMap must be the name of a ConfigMap",
        ),
    ]
}

/// The same for a progress object.
pub(super) fn progresses() -> Vec<(Value, &'static str)> {
    vec![
        (
            json!({"nodeName": "Not_A_Node"}),
            "nodeName must be the name of a Node",
        ),
        (
            json!({"action": "Boot"}),
            "supported values: \"Stage\", \"Activate\"",
        ),
        (json!({"image": null}), "spec.image: Required value"),
        (
            json!({"drain": {"timeout": "0s"}}),
            "must be a length of time above zero",
        ),
        (
            json!({"sourceRef": {"name": "u", "uid": "1"}}),
            "sourceRef needs nodeUID",
        ),
        (
            json!({"image": {"version": "latest"}}),
            "version must be a version such as v1.35.3",
        ),
        (
            json!({"image": {"url": "ftp://host/x"}}),
            "must be a http:// or https:// URL",
        ),
        (
            json!({"image": {"checksum": null}}),
            "spec.image.checksum: Required value",
        ),
        (
            json!({"image": {"expandedChecksum": long()}}),
            "spec.image.expandedChecksum: Too long: may not be more than 256",
        ),
        (
            json!({"image": {"size": "1 GiB"}}),
            "spec.image.size in body must be of type integer",
        ),
        (
            json!({"nodeUID": ""}),
            "spec.nodeUID in body should be at least 1 chars long",
        ),
        (
            json!({"nodeUID": "n", "sourceRef": {"name": "", "uid": "u"}}),
            "spec.sourceRef.name in body should be at least 1 chars long",
        ),
        (
            json!({"nodeUID": "n", "sourceRef": {"name": "u", "uid": 7}}),
            "spec.sourceRef.uid in body must be of type string",
        ),
        (
            json!({"attempt": "again"}),
            "spec.attempt in body must be of type integer",
        ),
        (
            json!({"suspend": 1}),
            "spec.suspend in body must be of type boolean",
        ),
        (
            json!({"allowDowngrade": "yes"}),
            "spec.allowDowngrade in body must be of type boolean",
        ),
        (
            json!({"drain": {"onTimeout": "Maybe"}}),
            "supported values: \"Abort\", \"Force\"",
        ),
    ]
}
