//! The kubelets' pods: what is bound to a node of the fleet runs and is Ready, and what is deleted comes to its end.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::{reflector, watcher};
use kube::{Api, Client, Error, ResourceExt};
use serde_json::json;
use tokio::sync::watch;

use super::kubelet::Wish;

/// How often all pods are looked at: those of a node that came back, and those that a request failed for.
const SWEEP: Duration = Duration::from_millis(500);

/// Before the watch is started anew.
const RETRY: Duration = Duration::from_millis(250);

/// The kubelets by their nodes' names.
pub(super) type Kubelets = BTreeMap<String, watch::Receiver<Wish>>;

/// Runs the pods of these nodes for ever.
pub(super) async fn keep(client: Client, kubelets: Kubelets) {
    let (store, mut writer) = reflector::store();
    let mut events = pin!(watcher(
        Api::<Pod>::all(client.clone()),
        watcher::Config::default()
    ));
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    writer.apply_watcher_event(&event);
                    if let watcher::Event::Apply(pod) = &event {
                        look(&client, &kubelets, pod).await;
                    }
                }
                // The API server is away.
                Some(Err(_)) => tokio::time::sleep(RETRY).await,
                None => return,
            },
            _ = sweep.tick() => for pod in store.state() {
                look(&client, &kubelets, &pod).await;
            }
        }
    }
}

/// Does for a pod what is due. What fails is done by a later sweep.
async fn look(client: &Client, kubelets: &Kubelets, pod: &Pod) {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let Some(kubelet) = node.and_then(|node| kubelets.get(node)) else {
        return;
    };
    let (works, pods_end) = {
        let wish = kubelet.borrow();
        (wish.works(), wish.pods_end)
    };
    if !works {
        return;
    }
    let api = Api::namespaced(
        client.clone(),
        pod.namespace().as_deref().unwrap_or("default"),
    );
    let _ = if pod.metadata.deletion_timestamp.is_some() {
        if !pods_end {
            return;
        }
        end(&api, pod).await
    } else if !is_ready(pod) && !is_over(pod) {
        run(&api, pod).await
    } else {
        return;
    };
}

async fn run(api: &Api<Pod>, pod: &Pod) -> Result<()> {
    let now = Timestamp::now().to_string();
    let conditions: Vec<_> = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]
    .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": now}))
    .into();
    let containers: Vec<_> = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .map(|container| {
            json!({
                "name": container.name,
                "image": container.image,
                "imageID": "lab://image",
                "ready": true,
                "started": true,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            })
        })
        .collect();
    let status = json!({
        // Not another pod that has its name by now.
        "metadata": {"uid": pod.metadata.uid},
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": containers,
            "hostIP": "127.0.0.1",
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "startTime": now,
        },
    });
    api.patch_status(
        &pod.name_any(),
        &PatchParams::default(),
        &Patch::Strategic(status),
    )
    .await
    .context("saying that a pod runs")?;
    Ok(())
}

async fn end(api: &Api<Pod>, pod: &Pod) -> Result<()> {
    let parameters = DeleteParams::default()
        .grace_period(0)
        .preconditions(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        });
    match api.delete(&pod.name_any(), &parameters).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        Err(error) => Err(error).context("ending a pod"),
    }
}

/// Whether the pod is Ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
