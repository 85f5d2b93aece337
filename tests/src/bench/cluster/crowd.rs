//! The controller's memory with many nodes that are objects alone: a roll-out in the middle, one half through, the other staged.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};
use slotd_crds::names::{
    AGENT_LABEL, UPGRADE_ATTEMPT_ANNOTATION, VERSION_ANNOTATION, VERSION_LABEL, progress_name,
};

use super::{PATIENCE, memory, quiet};
use crate::lab::Lab;
use crate::standin::{Background, Controller, connect};

/// Nodes, each with a progress object.
const OBJECTS: usize = 500;
/// Requests that are under way at a time.
const TOGETHER: usize = 16;
/// How often the Leases of the nodes are renewed; the lab's controller manager gives a node up that is silent for 20 s.
const RENEWAL: Duration = Duration::from_secs(8);
/// Images that a kubelet tells of, at most.
const IMAGES: usize = 50;
/// The label of the nodes, and their names' first part.
const NAME: &str = "crowd";
const OLD: &str = "v1.0.0";
const NEW: &str = "v2.0.0";
const CHECKSUM: &str = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

/// The controller with many objects.
#[derive(Debug, Serialize)]
pub struct Crowd {
    /// Progress objects, and Nodes.
    pub objects: usize,
    /// Anonymous memory once it has nothing more to write, in bytes.
    pub settled: u64,
    /// The most that was seen from its start until then.
    pub most: u64,
}

/// Makes the objects and starts a controller over them.
pub(super) fn measure(lab: &Lab, program: &Path) -> Result<Crowd> {
    eprintln!("lab: {OBJECTS} nodes and progress objects");
    let plane = lab.control_plane()?;
    let kubeconfig = plane.admin().kubeconfig();
    let _kubelets = Background::start("leases", kubeconfig, renew)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    let client = runtime.block_on(connect(kubeconfig.to_owned()))?;
    let began = Instant::now();
    runtime.block_on(make(&client))?;
    eprintln!("lab: made in {:.1} s", began.elapsed().as_secs_f64());
    let log = plane.audit_log()?;
    let controller = Controller::start_program(lab, "controller-of-many", program)?;
    let mut most = 0;
    let deadline = Instant::now() + PATIENCE;
    loop {
        most = most.max(memory(&controller, program)?);
        let status = runtime.block_on(status(&client))?;
        // Every node is known, and half of them are through.
        if status["targets"] == OBJECTS && status["ok"] == OBJECTS / 2 {
            break;
        }
        if Instant::now() > deadline {
            bail!("the controller does not get through: {status:#}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    quiet(&log)?;
    let settled = memory(&controller, program)?;
    drop(controller);
    let left = runtime
        .block_on(Api::<OSUpgradeProgress>::all(client.clone()).list(&ListParams::default()))?;
    ensure!(
        left.items.len() >= OBJECTS,
        "only {} progress objects are left",
        left.items.len()
    );
    Ok(Crowd {
        objects: OBJECTS,
        settled,
        most: most.max(settled),
    })
}

fn name(index: usize) -> String {
    format!("{NAME}-{index:03}")
}

/// Keeps all nodes Ready, for as long as it is let.
async fn renew(client: Client) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    loop {
        let began = tokio::time::Instant::now();
        let renewals = (0..OBJECTS).map(|index| {
            let leases = leases.clone();
            async move {
                let name = name(index);
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": name},
                    "spec": {
                        "holderIdentity": name,
                        "leaseDurationSeconds": 40,
                        "renewTime": format!("{:.6}", Timestamp::now()),
                    },
                });
                // The next one follows soon; a node that is given up is seen in what the controller counts.
                let _ = leases
                    .patch(
                        &name,
                        &PatchParams::apply("kubelet").force(),
                        &Patch::Apply(lease),
                    )
                    .await;
            }
        });
        stream::iter(renewals)
            .buffer_unordered(TOGETHER)
            .collect::<Vec<()>>()
            .await;
        tokio::time::sleep_until(began + RENEWAL).await;
    }
}

async fn make(client: &Client) -> Result<()> {
    let upgrade = json!({
        "apiVersion": "monok8s.io/v1alpha1",
        "kind": "OSUpgrade",
        "metadata": {"name": NAME},
        "spec": {
            "version": NEW,
            "imageURL": "http://127.0.0.1:9/crowd.ext4.zst",
            "checksum": CHECKSUM,
            "size": 1 << 30,
            "nodeSelector": {"lab.slotd/crowd": NAME},
        },
    });
    let upgrades: Api<OSUpgrade> = Api::all(client.clone());
    let upgrade = serde_json::from_value(upgrade).context("an OSUpgrade")?;
    let upgrade = upgrades
        .create(&PostParams::default(), &upgrade)
        .await
        .context("making an OSUpgrade")?;
    let uid = upgrade.uid().context("an OSUpgrade without a uid")?;
    stream::iter((0..OBJECTS).map(Ok::<usize, anyhow::Error>))
        .try_for_each_concurrent(TOGETHER, |index| {
            let uid = &uid;
            async move {
                make_one(client, uid, index)
                    .await
                    .with_context(|| format!("making {}", name(index)))
            }
        })
        .await
}

async fn make_one(client: &Client, upgrade: &str, index: usize) -> Result<()> {
    let through = index < OBJECTS / 2;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(node(index, if through { NEW } else { OLD }))?;
    let node: Node = nodes.create(&PostParams::default(), &node).await?;
    let uid = node.uid().context("a Node without a uid")?;
    let all: Api<OSUpgradeProgress> = Api::all(client.clone());
    let object = progress(upgrade, &uid, index);
    let object = all
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    let now = Timestamp::now().to_string();
    let mut status = json!({
        "observedGeneration": 1,
        "attempt": 0,
        "currentVersion": if through { NEW } else { OLD },
        "targetVersion": NEW,
        "phase": if through { "Completed" } else { "Staged" },
        "display": if through { "completed" } else { "staged" },
        "percent": 100,
        "bytesDone": 1 << 30,
        "bytesTotal": 1 << 30,
        "startedAt": now,
        "lastUpdatedAt": now,
        "retryCount": 0,
        "inactivePartition": if through { "A" } else { "B" },
    });
    if through {
        status["completedAt"] = json!(now);
    }
    let patch = Patch::Merge(json!({"status": status}));
    all.patch_status(&object.name_any(), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// A Node as large as a kubelet makes it.
fn node(index: usize, version: &str) -> Value {
    let now = Timestamp::now().to_string();
    let condition = |kind: &str, holds: &str| {
        json!({
            "type": kind,
            "status": holds,
            "reason": "SaidByTheLab",
            "message": "a node that is an object alone",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    };
    let images: Vec<Value> = (0..IMAGES)
        .map(|image| {
            let name = format!("registry.example/some/project/of/containers-{image}");
            json!({
                "names": [format!("{name}@{CHECKSUM}"), format!("{name}:v1.{image}.0")],
                "sizeBytes": 100_000_000 + image,
            })
        })
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name(index),
            "labels": {
                "lab.slotd/crowd": NAME,
                "kubernetes.io/hostname": name(index),
                "kubernetes.io/os": "linux",
                AGENT_LABEL: "true",
                VERSION_LABEL: version,
            },
            "annotations": {VERSION_ANNOTATION: version},
        },
        "status": {
            "conditions": [
                condition("Ready", "True"),
                condition("MemoryPressure", "False"),
                condition("DiskPressure", "False"),
                condition("PIDPressure", "False"),
            ],
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "images": images,
        },
    })
}

fn progress(upgrade: &str, node: &str, index: usize) -> Value {
    json!({
        "apiVersion": "monok8s.io/v1alpha1",
        "kind": "OSUpgradeProgress",
        "metadata": {
            "name": progress_name(upgrade, node),
            "annotations": {UPGRADE_ATTEMPT_ANNOTATION: "0"},
            "ownerReferences": [{
                "apiVersion": "monok8s.io/v1alpha1",
                "kind": "OSUpgrade",
                "name": NAME,
                "uid": upgrade,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "sourceRef": {"name": NAME, "uid": upgrade},
            "nodeName": name(index),
            "nodeUID": node,
            "image": {
                "version": NEW,
                "url": "http://127.0.0.1:9/crowd.ext4.zst",
                "checksum": CHECKSUM,
                "size": 1 << 30,
            },
            "action": "Stage",
            "attempt": 0,
        },
    })
}

async fn status(client: &Client) -> Result<Value> {
    let upgrades: Api<OSUpgrade> = Api::all(client.clone());
    let upgrade = upgrades.get(NAME).await.context("reading an OSUpgrade")?;
    serde_json::to_value(upgrade.status).context("a status")
}
