//! Who may do what.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use slotd_crds::names::{CATALOGS_CONFIG_MAP, DEFAULT_NAMESPACE, LEADER_LEASE, PLACES_CONFIG_MAP};

const RBAC: &str = "rbac.authorization.k8s.io";
const AGENT: &str = "slotd-agent";
pub(crate) const CONTROLLER: &str = "slotd-controller";
const CATALOG_READER: &str = "slotd-catalog-reader";
const READ: &[&str] = &["get", "list", "watch"];

pub(crate) fn metadata(name: &str, about: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some([("app.kubernetes.io/part-of".to_owned(), "slotd".to_owned())].into()),
        annotations: Some([("kubernetes.io/description".to_owned(), about.to_owned())].into()),
        ..ObjectMeta::default()
    }
}

pub(crate) fn in_namespace(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(DEFAULT_NAMESPACE.to_owned()),
        ..metadata
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(owned(&[group])),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

fn named(rule: PolicyRule, names: &[&str]) -> PolicyRule {
    PolicyRule {
        resource_names: Some(owned(names)),
        ..rule
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: RBAC.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

/// The controller, in the cluster or as a service on a host with a client certificate.
fn controller_subjects() -> Option<Vec<Subject>> {
    Some(vec![
        Subject {
            api_group: None,
            kind: "ServiceAccount".to_owned(),
            name: CONTROLLER.to_owned(),
            namespace: Some(DEFAULT_NAMESPACE.to_owned()),
        },
        Subject {
            api_group: Some(RBAC.to_owned()),
            kind: "User".to_owned(),
            name: CONTROLLER.to_owned(),
            namespace: None,
        },
    ])
}

/// What a node may do beyond what a kubelet may anyway: its own Node, its own pods and their eviction are the Node authorizer's.
pub(crate) fn agent() -> Vec<Value> {
    let about = "What slotd's agent does with the kubelet's own credential. The policy slotd-node-owns-status holds each node to its own objects.";
    let role = ClusterRole {
        metadata: metadata(AGENT, about),
        rules: Some(vec![
            rule("monok8s.io", &["osupgradeprogresses"], READ),
            rule(
                "monok8s.io",
                &["osupgradeprogresses/status"],
                &["get", "patch", "update"],
            ),
        ]),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata: metadata(AGENT, about),
        role_ref: role_ref("ClusterRole", AGENT),
        subjects: Some(vec![Subject {
            api_group: Some(RBAC.to_owned()),
            kind: "Group".to_owned(),
            name: "system:nodes".to_owned(),
            namespace: None,
        }]),
    };
    [serde_json::to_value(role), serde_json::to_value(binding)]
        .map(Result::unwrap)
        .into()
}

/// The controller's own credential.
pub(crate) fn controller() -> Vec<Value> {
    let account = ServiceAccount {
        metadata: in_namespace(metadata(
            CONTROLLER,
            "slotd's controller, where it runs in the cluster.",
        )),
        ..ServiceAccount::default()
    };
    let about = "What slotd's controller needs of the whole cluster. On a host it is the user slotd-controller.";
    let role = ClusterRole {
        metadata: metadata(CONTROLLER, about),
        rules: Some(vec![
            // Its finalizer is in the metadata, which is no resource of its own.
            rule(
                "monok8s.io",
                &["osupgrades"],
                &["get", "list", "watch", "patch", "update"],
            ),
            rule(
                "monok8s.io",
                &["osupgrades/status"],
                &["get", "patch", "update"],
            ),
            // For owner references that block the owner's deletion.
            rule("monok8s.io", &["osupgrades/finalizers"], &["update"]),
            rule(
                "monok8s.io",
                &["osupgradeprogresses"],
                &[
                    "get", "list", "watch", "create", "patch", "update", "delete",
                ],
            ),
            rule(
                "monok8s.io",
                &["osupgradeprogresses/status"],
                &["get", "patch", "update"],
            ),
            rule("", &["nodes"], READ),
            rule("", &["events"], &["create", "patch"]),
            rule("events.k8s.io", &["events"], &["create", "patch"]),
        ]),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata: metadata(CONTROLLER, about),
        role_ref: role_ref("ClusterRole", CONTROLLER),
        subjects: controller_subjects(),
    };
    let about_own = "What slotd's controller keeps in its own namespace: the places of the roll-out, the last good catalogs and its Lease.";
    let own = Role {
        metadata: in_namespace(metadata(CONTROLLER, about_own)),
        rules: Some(vec![
            // Creation cannot be limited by name.
            rule("", &["configmaps"], &["create"]),
            named(
                rule(
                    "",
                    &["configmaps"],
                    &["get", "list", "watch", "patch", "update"],
                ),
                &[PLACES_CONFIG_MAP, CATALOGS_CONFIG_MAP],
            ),
            rule("coordination.k8s.io", &["leases"], &["create"]),
            named(
                rule(
                    "coordination.k8s.io",
                    &["leases"],
                    &["get", "list", "watch", "patch", "update"],
                ),
                &[LEADER_LEASE],
            ),
        ]),
    };
    let own_binding = RoleBinding {
        metadata: in_namespace(metadata(CONTROLLER, about_own)),
        role_ref: role_ref("Role", CONTROLLER),
        subjects: controller_subjects(),
    };
    let about_catalogs = "Reads catalogs in ConfigMaps. Bound in slotd's own namespace; for catalogs elsewhere, bind it in their namespace too.";
    let reader = ClusterRole {
        metadata: metadata(CATALOG_READER, about_catalogs),
        rules: Some(vec![rule("", &["configmaps"], READ)]),
        ..ClusterRole::default()
    };
    let reader_binding = RoleBinding {
        metadata: in_namespace(metadata(CATALOG_READER, about_catalogs)),
        role_ref: role_ref("ClusterRole", CATALOG_READER),
        subjects: controller_subjects(),
    };
    [
        serde_json::to_value(account),
        serde_json::to_value(role),
        serde_json::to_value(binding),
        serde_json::to_value(own),
        serde_json::to_value(own_binding),
        serde_json::to_value(reader),
        serde_json::to_value(reader_binding),
    ]
    .map(Result::unwrap)
    .into()
}

/// Every verb on every resource that the documents grant, as `group/resource verb`.
fn granted(documents: &[Value]) -> Vec<String> {
    let texts = |value: &Value| -> Vec<String> {
        serde_json::from_value(value.clone()).unwrap_or_default()
    };
    let mut granted = Vec::new();
    for rule in documents
        .iter()
        .flat_map(|document| document["rules"].as_array().into_iter().flatten())
    {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    granted.push(format!("{group}/{resource} {verb}"));
                }
            }
        }
    }
    granted.sort();
    granted
}

#[test]
fn a_node_may_read_progress_objects_and_write_their_status_and_nothing_else() {
    assert_eq!(
        granted(&agent()),
        [
            "monok8s.io/osupgradeprogresses get",
            "monok8s.io/osupgradeprogresses list",
            "monok8s.io/osupgradeprogresses watch",
            "monok8s.io/osupgradeprogresses/status get",
            "monok8s.io/osupgradeprogresses/status patch",
            "monok8s.io/osupgradeprogresses/status update",
        ]
    );
}

#[test]
fn the_controller_touches_no_pod_no_secret_and_writes_no_node() {
    for grant in granted(&controller()) {
        let (resource, verb) = grant.split_once(' ').unwrap();
        assert!(!resource.contains('*') && verb != "*", "{grant}");
        assert!(
            !["/secrets", "/pods", "/pods/eviction"].contains(&resource),
            "{grant}"
        );
        assert!(resource != "/nodes" || READ.contains(&verb), "{grant}");
        assert!(
            !["escalate", "bind", "impersonate", "deletecollection"].contains(&verb),
            "{grant}"
        );
    }
}
