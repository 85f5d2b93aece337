//! What is checked beside the schemas: who writes a status, and a warning where the schema is to stay lenient.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec, Validation,
};
use kube::core::cel::{AdmissionRequest, VapEvaluator, VapExpression};
use serde_json::{Value, json};

use crate::access::metadata;
use crate::rules::{CHECKSUM as GOOD, progress};

struct Policy {
    name: &'static str,
    about: &'static str,
    resource: &'static str,
    operations: &'static [&'static str],
    condition: Option<(&'static str, &'static str)>,
    validations: Vec<Validation>,
    action: &'static str,
}

/// Both the policy and what puts it into force.
fn documents(policy: Policy) -> [Value; 2] {
    let texts = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    let rule = NamedRuleWithOperations {
        api_groups: texts(&["monok8s.io"]),
        api_versions: texts(&["v1alpha1"]),
        operations: texts(policy.operations),
        resources: texts(&[policy.resource]),
        ..NamedRuleWithOperations::default()
    };
    let fail_closed = policy.action == "Deny";
    let binding = ValidatingAdmissionPolicyBinding {
        metadata: metadata(policy.name, policy.about),
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(policy.name.to_owned()),
            validation_actions: texts(&[policy.action]),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }),
    };
    let definition = ValidatingAdmissionPolicy {
        metadata: metadata(policy.name, policy.about),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some(if fail_closed { "Fail" } else { "Ignore" }.to_owned()),
            match_constraints: Some(MatchResources {
                resource_rules: Some(vec![rule]),
                ..MatchResources::default()
            }),
            match_conditions: policy.condition.map(|(name, expression)| {
                vec![MatchCondition {
                    name: name.to_owned(),
                    expression: expression.to_owned(),
                }]
            }),
            validations: Some(policy.validations),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        status: None,
    };
    [
        serde_json::to_value(definition),
        serde_json::to_value(binding),
    ]
    .map(Result::unwrap)
}

/// A warning where `object.PATH.field` is there and no checksum, as [`slotd_crds::image::is_checksum`] has it.
fn checksum(path: &str, field: &str) -> Validation {
    let place = format!("object.{path}");
    Validation {
        expression: format!("!has({place}.{field}) || {place}.{field}.matches('{CHECKSUM}')"),
        message: Some(format!(
            "{path}.{field} is not sha256: and 64 hexadecimal digits: it is stored, and then Rejected with the reason InvalidChecksum"
        )),
        ..Validation::default()
    }
}

const CHECKSUM: &str = "^([sS][hH][aA]256:)?[0-9a-fA-F]{64}$";

/// Every policy with its binding.
pub(crate) fn policies() -> Vec<Value> {
    [
        Policy {
            name: "slotd-node-owns-status",
            about: "A node writes the status of its own OSUpgradeProgress objects and of no other's.",
            resource: "osupgradeprogresses/status",
            operations: &["UPDATE"],
            condition: Some(("by-a-node", "'system:nodes' in request.userInfo.groups")),
            validations: vec![Validation {
                expression: "request.userInfo.username == 'system:node:' + oldObject.spec.nodeName".to_owned(),
                message_expression: Some(
                    "'only the node ' + oldObject.spec.nodeName + ' may write this status, not ' + request.userInfo.username".to_owned(),
                ),
                reason: Some("Forbidden".to_owned()),
                ..Validation::default()
            }],
            action: "Deny",
        },
        Policy {
            name: "slotd-upgrade-checksum",
            about: "Warns of a checksum in an OSUpgrade that will be Rejected.",
            resource: "osupgrades",
            operations: &["CREATE", "UPDATE"],
            condition: None,
            validations: vec![checksum("spec", "checksum"), checksum("spec", "expandedChecksum")],
            action: "Warn",
        },
        Policy {
            name: "slotd-progress-checksum",
            about: "Warns of a checksum in an OSUpgradeProgress that will be Rejected.",
            resource: "osupgradeprogresses",
            operations: &["CREATE", "UPDATE"],
            condition: None,
            validations: vec![checksum("spec.image", "checksum"), checksum("spec.image", "expandedChecksum")],
            action: "Warn",
        },
    ]
    .into_iter()
    .flat_map(documents)
    .collect()
}

#[test]
fn only_the_policy_on_nodes_denies_and_it_concerns_nothing_but_status() {
    let policies = policies();
    let denying: Vec<_> = policies
        .iter()
        .filter(|document| document["spec"]["validationActions"][0] == "Deny")
        .collect();
    assert_eq!(denying.len(), 1);
    let policy = policies
        .iter()
        .find(|document| {
            document["metadata"]["name"] == denying[0]["spec"]["policyName"]
                && document["kind"] == "ValidatingAdmissionPolicy"
        })
        .unwrap();
    assert_eq!(policy["spec"]["failurePolicy"], "Fail");
    let rules = policy["spec"]["matchConstraints"]["resourceRules"]
        .as_array()
        .unwrap();
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0]["resources"], json!(["osupgradeprogresses/status"]));
    assert_eq!(rules[0]["operations"], json!(["UPDATE"]));
}

/// What a policy says to a request: its messages, or none where it does not apply.
pub(crate) fn policy(name: &str, request: &AdmissionRequest, object: &Value) -> Vec<String> {
    let policies = policies();
    let spec = &policies
        .iter()
        .find(|document| {
            document["metadata"]["name"] == name && document["kind"] == "ValidatingAdmissionPolicy"
        })
        .unwrap()["spec"];
    let evaluator = VapEvaluator::builder()
        .object(object.clone())
        .old_object(object.clone())
        .request(request.clone())
        .build();
    let expressions = |list: &Value| -> Vec<VapExpression> {
        list.as_array()
            .into_iter()
            .flatten()
            .map(|item| VapExpression {
                expression: item["expression"].as_str().unwrap().to_owned(),
                message: item["message"].as_str().map(str::to_owned),
                message_expression: item["messageExpression"].as_str().map(str::to_owned),
            })
            .collect()
    };
    if !evaluator
        .evaluate(&expressions(&spec["matchConditions"]))
        .iter()
        .all(|result| result.passed)
    {
        return Vec::new();
    }
    let results = evaluator.evaluate(&expressions(&spec["validations"]));
    results
        .into_iter()
        .filter(|result| !result.passed)
        .map(|result| result.message.unwrap_or_default())
        .collect()
}

#[test]
fn a_node_writes_its_own_status_alone() {
    let object = json!({"spec": progress()});
    let by = |username: &str, group: &str| {
        let request = AdmissionRequest {
            username: username.to_owned(),
            groups: vec![group.to_owned(), "system:authenticated".to_owned()],
            ..AdmissionRequest::default()
        };
        policy("slotd-node-owns-status", &request, &object)
    };
    assert_eq!(by("system:node:n1", "system:nodes"), [""; 0]);
    assert_eq!(
        by("system:node:n2", "system:nodes"),
        ["only the node n1 may write this status, not system:node:n2"]
    );
    assert_eq!(
        by("n1", "system:nodes"),
        ["only the node n1 may write this status, not n1"]
    );
    assert_eq!(
        by(
            "system:serviceaccount:kube-system:slotd-controller",
            "system:serviceaccounts"
        ),
        [""; 0]
    );
}

#[test]
fn a_malformed_checksum_is_warned_of() {
    let request = AdmissionRequest::default();
    let upgrade =
        |spec: Value| policy("slotd-upgrade-checksum", &request, &json!({ "spec": spec }));
    assert_eq!(upgrade(json!({})), [""; 0]);
    assert_eq!(
        upgrade(json!({"checksum": GOOD, "expandedChecksum": GOOD.to_uppercase()})),
        [""; 0]
    );
    let warnings = upgrade(json!({"checksum": "sha256:...", "expandedChecksum": "x"}));
    assert_eq!(warnings.len(), 2);
    assert!(
        warnings[0].starts_with("spec.checksum is not sha256: and 64 hexadecimal digits"),
        "{warnings:?}"
    );
    let progress = |image: Value| {
        policy(
            "slotd-progress-checksum",
            &request,
            &json!({"spec": {"image": image}}),
        )
    };
    assert_eq!(progress(json!({"checksum": GOOD})), [""; 0]);
    assert_eq!(progress(json!({"checksum": "sha256:..."})).len(), 1);
}
