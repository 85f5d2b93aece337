//! Selectors as people write them.

use super::NodeSelector;
use kube::core::SelectorExt;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn selects(selector: Value, labels: &[(&str, &str)]) -> bool {
    let labels: BTreeMap<_, _> = labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    NodeSelector(selector).read().unwrap().matches(&labels)
}

#[test]
fn both_ways_of_writing_select_the_same() {
    let edge = [
        ("site", "edge"),
        ("node-role.kubernetes.io/control-plane", ""),
    ];
    assert!(selects(json!({}), &edge));
    assert!(selects(json!({"site": "edge"}), &edge));
    assert!(!selects(json!({"site": "hub"}), &edge));
    assert!(!selects(json!({"site": "edge", "disk": "ssd"}), &edge));
    assert!(selects(
        json!({"node-role.kubernetes.io/control-plane": ""}),
        &edge
    ));
    assert!(selects(json!({"matchLabels": {"site": "edge"}}), &edge));
    assert!(selects(json!({"matchLabels": {}}), &edge));
    assert!(!selects(json!({"matchLabels": {"site": "hub"}}), &edge));
    // A label may have that name.
    assert!(!selects(json!({"matchLabels": "x"}), &edge));
    assert!(selects(
        json!({"matchLabels": "x"}),
        &[("matchLabels", "x")]
    ));
}

#[test]
fn expressions_mean_what_they_mean_in_kubernetes() {
    let with = |operator: &str, values: Value| {
        let mut requirement = json!({"key": "site", "operator": operator});
        if !values.is_null() {
            requirement["values"] = values;
        }
        json!({ "matchExpressions": [requirement] })
    };
    let (edge, none) = ([("site", "edge")], []);
    for (selector, on_edge, without) in [
        (with("In", json!(["edge", "hub"])), true, false),
        (with("In", json!(["hub"])), false, false),
        (with("NotIn", json!(["edge"])), false, true),
        (with("Exists", Value::Null), true, false),
        (with("DoesNotExist", json!([])), false, true),
    ] {
        assert_eq!(selects(selector.clone(), &edge), on_edge, "{selector}");
        assert_eq!(selects(selector.clone(), &none), without, "{selector}");
    }
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    for (selector, message) in [
        (
            Value::Null,
            "nodeSelector: it is missing; {} selects every node",
        ),
        (json!([]), "nodeSelector: it is a list, not a map"),
        (json!("all"), "nodeSelector: it is a text, not a map"),
        (
            json!({"gpu": true}),
            "nodeSelector[\"gpu\"]: the value is the truth value true, not a text: labels are texts, put it in quotes",
        ),
        (
            json!({"matchLabel": {"a": "b"}}),
            "nodeSelector[\"matchLabel\"]: the value is a map, not a text: labels are texts, put it in quotes",
        ),
        (
            json!({"matchLabels": null}),
            "nodeSelector.matchLabels: it is empty (null), not a map",
        ),
        (
            json!({"matchExpressions": {}}),
            "nodeSelector.matchExpressions: it is a map, not a list",
        ),
        (
            json!({"matchLabels": {}, "site": "edge"}),
            "nodeSelector.site: a label cannot stand beside matchLabels or matchExpressions",
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}),
            "nodeSelector.matchExpressions[0]: \"Is\" is none of the operators In, NotIn, Exists and DoesNotExist",
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]}),
            "nodeSelector.matchExpressions[0]: the operator NotIn needs values",
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
            "nodeSelector.matchExpressions[0]: the operator Exists takes no values",
        ),
        (
            json!({"a b": "c"}),
            "nodeSelector[\"a b\"]: \"a b\" cannot be the key of a label",
        ),
        (
            json!({"-x.io/a": "c"}),
            "nodeSelector[\"-x.io/a\"]: \"-x.io/a\" cannot be the key of a label",
        ),
        (
            json!({"a": "b c"}),
            "nodeSelector[\"a\"]: \"b c\" cannot be the value of a label",
        ),
    ] {
        assert_eq!(
            NodeSelector(selector).read().unwrap_err().to_string(),
            message
        );
    }
    let unknown = json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "value": ["b"]}]});
    let error = NodeSelector(unknown).read().unwrap_err().to_string();
    assert!(error.contains("unknown field `value`"), "{error}");
    let missing: NodeSelector = serde_json::from_value(Value::Null).unwrap();
    assert!(missing.read().is_err());
    assert!(NodeSelector::default().read().is_err());
    assert!(NodeSelector::everything().read().unwrap().selects_all());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let key = prop_oneof![
            Just("matchLabels".to_owned()),
            Just("matchExpressions".to_owned()),
            Just("key".to_owned()),
            "[a-z]{1,2}",
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn only_what_says_nothing_selects_the_whole_fleet(value in any_json()) {
        if let Ok(selector) = NodeSelector(value.clone()).read() {
            let empty = [json!({}), json!({"matchLabels": {}}), json!({"matchExpressions": []}),
                json!({"matchLabels": {}, "matchExpressions": []})];
            prop_assert!(!selector.selects_all() || empty.contains(&value), "{}", value);
        }
    }
}
