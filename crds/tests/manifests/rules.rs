//! What the rules of the schemas let through, evaluated without an API server.

use kube::core::cel::{AdmissionRequest, ErrorKind, Validator};
use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use serde_json::{Value, json};
use slotd_crds::api::{Drain, Limit};
use slotd_crds::image::{check_web_url, is_checksum};
use slotd_crds::version::Version;

use crate::admission::policy;
use crate::definitions::{definitions, schema};

pub(crate) const CHECKSUM: &str =
    "sha256:99af82a263deca44ad91d21d684f0fa944d5d0456a1da540f1c644f8aa59b14b";

/// Messages of the rules that refuse a spec, with their fields.
fn refusals(kind: usize, spec: &Value, old: Option<&Value>) -> Vec<String> {
    let definitions = definitions();
    let mut schema = schema(&definitions[kind])["properties"]["spec"].clone();
    tell_types(&mut schema, spec);
    match Validator::new().validate(&schema, spec, old) {
        Ok(()) => Vec::new(),
        Err(errors) => errors
            .as_slice()
            .iter()
            .map(|error| {
                assert_eq!(
                    error.kind,
                    ErrorKind::ValidationFailure,
                    "{error} of {}",
                    error.rule
                );
                error.to_string()
            })
            .collect(),
    }
}

/// The evaluator here does not know CEL's `type`; the API server does. Puts its value in, for the value at hand.
pub(crate) fn tell_types(schema: &mut Value, value: &Value) {
    for rule in schema["x-kubernetes-validations"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        let text = rule["rule"].as_str().unwrap();
        rule["rule"] = text
            .replace(
                "type(self) == int",
                if value.is_i64() { "true" } else { "false" },
            )
            .into();
    }
    for (name, property) in schema["properties"].as_object_mut().into_iter().flatten() {
        tell_types(property, &value[name]);
    }
}

fn upgrade(change: Value) -> Vec<String> {
    let mut spec = json!({
        "version": "v1.35.3",
        "imageURL": "https://updates.example.com/monok8s-1.2.3.img.zst",
        "checksum": CHECKSUM,
        "nodeSelector": {},
    });
    merge(&mut spec, change);
    refusals(0, &spec, None)
}

pub(crate) fn progress() -> Value {
    json!({
        "sourceRef": {"name": "my-upgrade-2", "uid": "u"},
        "nodeName": "n1",
        "nodeUID": "n",
        "image": {"version": "v1.35.3", "url": "https://h/x", "checksum": CHECKSUM},
        "action": "Stage",
    })
}

/// A merge patch: null takes a field away.
fn merge(target: &mut Value, patch: Value) {
    let (Some(target), Value::Object(patch)) = (target.as_object_mut(), patch) else {
        return;
    };
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.remove(&key)),
            Value::Object(_) if target.get(&key).is_some_and(Value::is_object) => {
                merge(&mut target[&key], value)
            }
            value => drop(target.insert(key, value)),
        }
    }
}

#[test]
fn good_upgrades_pass() {
    for change in [
        json!({}),
        json!({"checksum": "sha256:..."}),
        json!({"checksum": ""}),
        json!({"imageURL": "https://h/x.zst", "size": 4096, "expandedChecksum": CHECKSUM}),
        json!({"catalog": {"inline": "stable: v1.0.0"}}),
        json!({"imageURL": null, "checksum": null, "version": "stable", "catalog": {"URL": "https://h/images.yaml"}}),
        json!({"imageURL": null, "checksum": null, "version": "latest", "catalog": {"ConfigMap": "images-cm"}}),
        json!({"imageURL": null, "checksum": null, "version": "", "catalog": {"ConfigMap": "os-images/images.v1"}}),
        json!({"imageURL": null, "checksum": null, "version": null, "catalog": {"inline": ""}}),
        json!({"nodeSelector": {"gpu": true}}),
        json!({"nodeSelector": {"matchExpressions": 5}}),
        json!({"rollout": {"maxUnavailable": 3, "maxStaging": "100%", "maxFailures": 1, "drain": {"timeout": "1h30m", "onTimeout": "Force"}}}),
        json!({"rollout": {"maxUnavailable": "1%", "drain": {}}, "policy": {"allowDowngrade": true}, "suspend": true, "attempt": 2}),
    ] {
        assert_eq!(upgrade(change.clone()), [""; 0], "{change}");
    }
}

#[test]
fn wrong_upgrades_are_refused_with_the_field_and_what_it_needs() {
    let from_catalog = json!({"imageURL": null, "checksum": null});
    let with = |change: Value| {
        let mut both = from_catalog.clone();
        // Not a merge patch: its nulls are to stay.
        both.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        both
    };
    for (change, expected) in [
        (
            json!({"version": "1.35"}),
            "version: version must be a version such as v1.35.3",
        ),
        (
            json!({"version": "stable"}),
            "imageURL needs version to be the version of that image",
        ),
        (json!({"version": ""}), "imageURL needs version"),
        (json!({"version": null}), "imageURL needs version"),
        (
            json!({"checksum": null}),
            "imageURL needs the checksum of that file",
        ),
        (
            json!({"imageURL": "https://user:pw@h/x"}),
            "imageURL: must be a http:// or https:// URL",
        ),
        (
            json!({"imageURL": "file:///dev/vda"}),
            "imageURL: must be a http:// or https:// URL",
        ),
        (json!({"imageURL": ""}), "imageURL: must be a http://"),
        (
            json!({"imageURL": null, "catalog": {"inline": "x"}}),
            "checksum, expandedChecksum and size describe the image at imageURL",
        ),
        (
            with(json!({"size": 5, "catalog": {"inline": "x"}})),
            "checksum, expandedChecksum and size describe",
        ),
        (from_catalog.clone(), "either imageURL or catalog is needed"),
        (
            with(json!({"catalog": {}})),
            "catalog: catalog needs exactly one of URL, ConfigMap and inline",
        ),
        (
            with(json!({"catalog": {"URL": "https://h/x", "inline": "x"}})),
            "catalog: catalog needs exactly one of",
        ),
        (
            with(json!({"catalog": {"URL": "file:///x"}})),
            "catalog.URL: catalog.URL must be a http:// or https:// URL",
        ),
        (
            with(json!({"catalog": {"URL": "github-releases://o/r"}})),
            "catalog.URL: catalog.URL must be",
        ),
        (
            with(json!({"catalog": {"ConfigMap": "a/b/c"}})),
            "catalog.ConfigMap: catalog.ConfigMap must be the name",
        ),
        (
            with(json!({"catalog": {"ConfigMap": "Images"}})),
            "catalog.ConfigMap: catalog.ConfigMap must be the name",
        ),
        (
            json!({"rollout": {"maxUnavailable": 0}}),
            "rollout.maxUnavailable: maxUnavailable must be a number from 1 up, or a percentage",
        ),
        (
            json!({"rollout": {"maxUnavailable": "0%"}}),
            "rollout.maxUnavailable: maxUnavailable must be",
        ),
        (
            json!({"rollout": {"maxUnavailable": "2"}}),
            "rollout.maxUnavailable: maxUnavailable must be",
        ),
        (
            json!({"rollout": {"maxStaging": "200%"}}),
            "rollout.maxStaging: maxStaging must be",
        ),
        (
            json!({"rollout": {"drain": {"timeout": "0s"}}}),
            "rollout.drain.timeout: must be a length of time above zero",
        ),
        (
            json!({"rollout": {"drain": {"timeout": "ten minutes"}}}),
            "rollout.drain.timeout: must be a length of time above zero",
        ),
    ] {
        let refusals = upgrade(change.clone());
        assert_eq!(refusals.len(), 1, "{change}: {refusals:?}");
        assert!(
            refusals[0].starts_with(expected),
            "{change}: {}",
            refusals[0]
        );
    }
}

#[test]
fn a_progress_object_keeps_its_node_and_its_source() {
    let hand_made = {
        let mut spec = progress();
        merge(&mut spec, json!({"sourceRef": null, "nodeUID": null}));
        spec
    };
    for (old, change, expected) in [
        (progress(), json!({}), ""),
        (
            progress(),
            json!({"action": "Activate", "attempt": 1, "suspend": true, "image": {"version": "v2.0.0"}}),
            "",
        ),
        (hand_made.clone(), json!({"action": "Activate"}), ""),
        (
            progress(),
            json!({"nodeName": "n2"}),
            "nodeName: nodeName cannot be changed",
        ),
        (
            progress(),
            json!({"nodeUID": "m"}),
            "nodeUID cannot be set, changed or removed later",
        ),
        (
            hand_made.clone(),
            json!({"nodeUID": "m"}),
            "nodeUID cannot be set, changed or removed later",
        ),
        (
            progress(),
            json!({"sourceRef": null}),
            "sourceRef cannot be set, changed or removed later",
        ),
        (
            progress(),
            json!({"sourceRef": {"uid": "v"}}),
            "sourceRef cannot be set, changed or removed later",
        ),
        (
            progress(),
            json!({"image": {"version": "stable"}}),
            "image.version: version must be a version",
        ),
        (
            progress(),
            json!({"image": {"url": "ftp://h/x"}}),
            "image.url: must be a http://",
        ),
    ] {
        let mut new = old.clone();
        merge(&mut new, change.clone());
        let refusals = refusals(1, &new, Some(&old));
        assert_eq!(
            refusals.len(),
            usize::from(!expected.is_empty()),
            "{change}: {refusals:?}"
        );
        assert!(
            refusals.iter().all(|refusal| refusal.starts_with(expected)),
            "{change}: {refusals:?}"
        );
    }
    assert_eq!(refusals(1, &hand_made, None), [""; 0]);
    let mut without_uid = progress();
    merge(&mut without_uid, json!({"nodeUID": null}));
    let messages = refusals(1, &without_uid, None);
    assert!(
        messages.len() == 1 && messages[0].starts_with("sourceRef needs nodeUID"),
        "{messages:?}"
    );
    let mut odd_name = progress();
    merge(&mut odd_name, json!({"nodeName": "N 1"}));
    assert!(
        refusals(1, &odd_name, None)[0]
            .starts_with("nodeName: nodeName must be the name of a Node")
    );
}

#[test]
fn an_attempt_only_rises() {
    for (before, after, allowed) in [
        (Value::Null, json!(0), true),
        (Value::Null, json!(3), true),
        (json!(0), Value::Null, true),
        (json!(2), json!(2), true),
        (json!(2), json!(3), true),
        (json!(2), json!(1), false),
        (json!(2), Value::Null, false),
    ] {
        let (mut old, mut new) = (progress(), progress());
        merge(&mut old, json!({"attempt": before}));
        merge(&mut new, json!({"attempt": after}));
        let refusals = refusals(1, &new, Some(&old));
        assert_eq!(
            refusals.is_empty(),
            allowed,
            "{before} to {after}: {refusals:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The schema and the controller read the same language; where they did not, one would pass what the other calls impossible.
    #[test]
    fn rules_and_types_agree(
        version in "v{0,2}[0-2]{1,2}\\.0?[0-9](\\.(0|1|01))?(-[a0.-]{0,3})?(\\+[a0.-]{0,3})?",
        url in "(https?|ftp|file)://?/?[a@/?# \\\\.:]{0,6}",
        duration in "[0-9]{0,2}[hms]?[0-9]{0,6}[hms]?[0-9]{0,2}[hms]?",
        limit in "[0-9]{0,3}%?",
        checksum in "((?i)sha256:)?([0-9a-fA-F]{64}|[0-9a-g]{63,65})",
    ) {
        let passes = |change: Value| upgrade(change).is_empty();
        prop_assert_eq!(passes(json!({"version": version})), version.parse::<Version>().is_ok(), "{}", version);
        prop_assert_eq!(passes(json!({"imageURL": url})), check_web_url(&url).is_ok(), "{}", url);
        prop_assert_eq!(passes(json!({"catalog": {"URL": url}})), check_web_url(&url).is_ok(), "{}", url);
        let drain = Drain { timeout: Some(duration.clone()), on_timeout: None };
        prop_assert_eq!(passes(json!({"rollout": {"drain": {"timeout": duration}}})), drain.timeout().is_ok(), "{}", duration);
        prop_assert_eq!(passes(json!({"rollout": {"maxStaging": limit}})), Limit::Text(limit.clone()).of(9).is_ok() && !limit.starts_with('0'));
        let warnings = policy("slotd-upgrade-checksum", &AdmissionRequest::default(), &json!({"spec": {"checksum": checksum}}));
        prop_assert_eq!(warnings.is_empty(), is_checksum(&checksum), "{}", checksum);
    }
}
