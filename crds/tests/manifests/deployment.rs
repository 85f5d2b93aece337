//! The controller in the cluster, where no host is to run it.

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

use crate::access::{CONTROLLER, controller, in_namespace, metadata};

/// Stands for the image, whose name nobody here knows: a kustomization's `images` puts another one in its place.
const IMAGE: &str = "slotd";

/// Two controllers, of which one leads, on nodes of the control plane.
pub(crate) fn deployment() -> Value {
    let about = "slotd's controller in the cluster, instead of slotd-controller.service on hosts. The image is to have slotd in \
                 /usr/bin; slotd is a placeholder for its name.";
    let labels =
        json!({"app.kubernetes.io/name": CONTROLLER, "app.kubernetes.io/part-of": "slotd"});
    let name = json!({"app.kubernetes.io/name": CONTROLLER});
    let control_plane = "node-role.kubernetes.io/control-plane";
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": in_namespace(metadata(CONTROLLER, about)),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": name},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": CONTROLLER,
                    "priorityClassName": "system-cluster-critical",
                    "nodeSelector": {control_plane: "", "kubernetes.io/os": "linux"},
                    // Not of a cordon: a pod that comes back to the node that is drained would never let that end.
                    "tolerations": [{"key": control_plane, "operator": "Exists", "effect": "NoSchedule"}],
                    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 100,
                        "podAffinityTerm": {
                            "labelSelector": {"matchLabels": name},
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }]}},
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": 65532,
                        "runAsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                        "name": "controller",
                        "image": IMAGE,
                        "command": ["/usr/bin/slotd", "controller", "--in-cluster"],
                        "resources": {
                            "requests": {"cpu": "10m", "memory": "64Mi"},
                            "limits": {"memory": "256Mi"},
                        },
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "capabilities": {"drop": ["ALL"]},
                            "readOnlyRootFilesystem": true,
                        },
                    }],
                },
            },
        },
    })
}

#[test]
fn the_api_knows_every_field_of_it() {
    let document = deployment();
    let mut read: Value =
        serde_json::to_value(serde_json::from_value::<Deployment>(document.clone()).unwrap())
            .unwrap();
    // A type's own, which none of it is.
    for key in ["apiVersion", "kind"] {
        read[key] = document[key].clone();
    }
    assert_eq!(read, document);
}

#[test]
fn it_runs_as_the_service_account_that_the_rights_are_given_to() {
    let account = controller()
        .into_iter()
        .find(|one| one["kind"] == "ServiceAccount");
    let account = account.unwrap();
    let deployment = deployment();
    assert_eq!(
        deployment["spec"]["template"]["spec"]["serviceAccountName"],
        account["metadata"]["name"]
    );
    assert_eq!(
        deployment["metadata"]["namespace"],
        account["metadata"]["namespace"]
    );
}
