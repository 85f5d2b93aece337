//! Whether the API server can take the schemas: the rules for structural schemas of
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>,
//! and what `kubectl explain` and `kubectl get` show of them.

use serde_json::{Value, json};

use crate::definitions::{definitions, schema};

/// Calls `each` with every schema in a schema and its path.
pub(crate) fn walk(path: &str, schema: &Value, each: &mut impl FnMut(&str, &Value)) {
    each(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, each);
    }
    for (key, sign) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            walk(&format!("{path}{sign}"), &schema[key], each);
        }
    }
}

#[test]
fn the_schemas_are_structural() {
    const KEYS: &[&str] = &[
        "type",
        "format",
        "description",
        "properties",
        "required",
        "items",
        "additionalProperties",
        "enum",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "x-kubernetes-validations",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
    ];
    const TYPES: &[&str] = &["object", "array", "string", "integer", "boolean"];
    const FORMATS: &[&str] = &["int32", "int64", "date-time"];
    for definition in definitions() {
        walk("", schema(&definition), &mut |path, schema| {
            for key in schema.as_object().unwrap().keys() {
                assert!(
                    KEYS.contains(&key.as_str()),
                    "{path}: {key} is not allowed or not known here"
                );
            }
            if schema["x-kubernetes-int-or-string"] == true {
                assert!(
                    schema.get("type").is_none(),
                    "{path}: a type beside x-kubernetes-int-or-string"
                );
            } else {
                let kind = schema["type"].as_str().unwrap_or_default();
                assert!(TYPES.contains(&kind), "{path}: type {kind:?}");
            }
            if let Some(format) = schema.get("format") {
                assert!(
                    FORMATS.contains(&format.as_str().unwrap()),
                    "{path}: format {format}"
                );
            }
            assert!(
                schema.get("properties").is_none() || schema.get("additionalProperties").is_none(),
                "{path}: properties and additionalProperties exclude one another"
            );
            for required in schema["required"].as_array().into_iter().flatten() {
                assert!(
                    schema["properties"]
                        .get(required.as_str().unwrap())
                        .is_some(),
                    "{path}: {required} is required, not declared"
                );
            }
            if schema["type"] == "array" {
                assert!(
                    schema["items"].is_object(),
                    "{path}: an array without items"
                );
            }
            for key in schema["x-kubernetes-list-map-keys"]
                .as_array()
                .into_iter()
                .flatten()
            {
                assert_eq!(schema["x-kubernetes-list-type"], "map", "{path}");
                assert!(
                    schema["items"]["required"]
                        .as_array()
                        .unwrap()
                        .contains(key),
                    "{path}: the key {key} is not required"
                );
            }
            for rule in schema["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let message = rule["message"].as_str().unwrap_or_default();
                assert!(
                    !message.is_empty() && message.len() <= 2048 && !message.contains('\n'),
                    "{path}: {rule}"
                );
            }
        });
        assert_eq!(
            schema(&definition)["properties"]["metadata"],
            Value::Null,
            "metadata is the API server's"
        );
    }
}

#[test]
fn texts_with_rules_are_bounded_so_that_the_rules_cost_little() {
    for definition in definitions() {
        walk("", schema(&definition), &mut |path, schema| {
            let has_rules = schema.get("x-kubernetes-validations").is_some();
            if has_rules && schema["type"] != "object" {
                let bound = schema["maxLength"].as_u64().unwrap_or(u64::MAX);
                assert!(bound <= 2048, "{path}: {bound} characters");
            }
        });
    }
}

#[test]
fn every_field_is_described_for_people() {
    for definition in definitions() {
        walk("", schema(&definition), &mut |path, schema| {
            let last = path.rsplit('.').next().unwrap_or_default();
            if ["", "apiVersion", "kind"].contains(&last) && path.matches('.').count() <= 1
                || path.ends_with("[]")
                || path.ends_with("{}")
            {
                return;
            }
            let description = schema["description"].as_str().unwrap_or_default();
            assert!(description.len() > 8, "{path} has no description");
            assert!(
                description.ends_with(['.', ')']),
                "{path}: {description:?} is no sentence"
            );
            assert!(
                !description.contains(['[', '`']) || path.contains("conditions"),
                "{path}: {description:?} is written for rustdoc"
            );
        });
    }
}

#[test]
fn kubectl_prints_the_columns_of_the_design() {
    let [upgrade, progress] = definitions();
    for (definition, columns) in [
        (
            &upgrade,
            [
                "Desired", "Resolved", "Phase", "Targets", "OK", "Fail", "Age",
            ]
            .as_slice(),
        ),
        (
            &progress,
            ["Node", "Source", "Current", "Target", "Status"].as_slice(),
        ),
    ] {
        let version = &definition["spec"]["versions"][0];
        let printed = version["additionalPrinterColumns"].as_array().unwrap();
        let names: Vec<_> = printed
            .iter()
            .map(|column| column["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, columns);
        for column in printed {
            let path = column["jsonPath"].as_str().unwrap();
            let mut schema = schema(definition);
            if path.starts_with(".metadata.") {
                continue;
            }
            for name in path.split('.').skip(1) {
                schema = schema["properties"]
                    .get(name)
                    .unwrap_or_else(|| panic!("{path} is no field"));
            }
            assert_eq!(schema["type"], column["type"], "{path}");
        }
        assert_eq!(version["subresources"], json!({"status": {}}));
        assert_eq!(definition["spec"]["scope"], "Cluster");
        assert_eq!(definition["spec"]["group"], "monok8s.io");
        assert_eq!(version["name"], "v1alpha1");
    }
    assert_eq!(
        upgrade["spec"]["names"],
        json!({"kind": "OSUpgrade", "plural": "osupgrades", "singular": "osupgrade", "shortNames": ["osu"], "categories": ["slotd"]})
    );
    assert_eq!(
        progress["spec"]["names"],
        json!({
            "kind": "OSUpgradeProgress", "plural": "osupgradeprogresses", "singular": "osupgradeprogress",
            "shortNames": ["osup"], "categories": ["slotd"],
        })
    );
    assert_eq!(
        progress["spec"]["versions"][0]["selectableFields"],
        json!([{"jsonPath": ".spec.nodeName"}])
    );
}

/// The design's lists of fields; what comes later is not in the schema, never accepted and ignored.
#[test]
fn the_schemas_have_the_fields_of_the_design_and_no_later_ones() {
    let [upgrade, progress] = definitions();
    let fields = |definition: &Value, path: &[&str]| -> Vec<String> {
        let mut schema = schema(definition);
        for name in path {
            schema = &schema["properties"][name];
        }
        schema["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let image = ["checksum", "expandedChecksum", "size", "url", "version"];
    for (definition, path, expected) in [
        (
            &upgrade,
            ["spec"].as_slice(),
            [
                "attempt",
                "catalog",
                "checksum",
                "expandedChecksum",
                "imageURL",
                "nodeSelector",
                "policy",
                "rollout",
                "size",
                "suspend",
                "version",
            ]
            .as_slice(),
        ),
        (
            &upgrade,
            &["spec", "catalog"],
            &["ConfigMap", "URL", "inline"],
        ),
        (
            &upgrade,
            &["spec", "rollout"],
            &["drain", "maxFailures", "maxStaging", "maxUnavailable"],
        ),
        (
            &upgrade,
            &["spec", "rollout", "drain"],
            &["onTimeout", "timeout"],
        ),
        (&upgrade, &["spec", "policy"], &["allowDowngrade"]),
        (
            &upgrade,
            &["status"],
            &[
                "conditions",
                "fail",
                "observedGeneration",
                "ok",
                "phase",
                "resolved",
                "resolvedFrom",
                "resolvedURLDigest",
                "targets",
            ],
        ),
        (&upgrade, &["status", "resolved"], &image),
        (
            &progress,
            &["spec"],
            &[
                "action",
                "allowDowngrade",
                "attempt",
                "drain",
                "image",
                "nodeName",
                "nodeUID",
                "sourceRef",
                "suspend",
            ],
        ),
        (&progress, &["spec", "sourceRef"], &["name", "uid"]),
        (&progress, &["spec", "image"], &image),
        (
            &progress,
            &["status"],
            &[
                "attempt",
                "bytesDone",
                "bytesTotal",
                "completedAt",
                "conditions",
                "currentVersion",
                "display",
                "failureReason",
                "inactivePartition",
                "lastUpdatedAt",
                "message",
                "observedGeneration",
                "percent",
                "phase",
                "retryCount",
                "startedAt",
                "targetVersion",
            ],
        ),
    ] {
        assert_eq!(fields(definition, path), expected, "{path:?}");
    }
    let enumerated =
        |definition: &Value, path: &str| schema(definition).pointer(path).unwrap()["enum"].clone();
    assert_eq!(
        enumerated(&upgrade, "/properties/status/properties/phase"),
        json!([
            "Pending",
            "Accepted",
            "RollingOut",
            "Completed",
            "Rejected",
            "Halted"
        ])
    );
    assert_eq!(
        enumerated(&progress, "/properties/status/properties/phase"),
        json!([
            "Pending",
            "Downloading",
            "Verifying",
            "Staged",
            "Draining",
            "Rebooting",
            "Confirming",
            "Completed",
            "RolledBack",
            "Failed",
            "Rejected"
        ])
    );
    assert_eq!(
        enumerated(&progress, "/properties/status/properties/inactivePartition"),
        json!(["A", "B"])
    );
    assert_eq!(
        enumerated(&progress, "/properties/spec/properties/action"),
        json!(["Stage", "Activate"])
    );
}
