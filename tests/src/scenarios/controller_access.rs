//! The controller's own credential: on a host by the documented commands, in the cluster as a Deployment.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::api::installed;
use super::in_cluster;
use crate::artifacts::repository;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::Controller;

/// Many times what anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The user that a token of the service account speaks for.
const ACCOUNT: &str = "system:serviceaccount:kube-system:slotd-controller";

const NAMESPACE: &str = "--namespace=kube-system";

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_cluster(
            "cluster/the-documented-commands-make-a-hosts-controllers-kubeconfig",
            on_a_host,
        ),
        in_cluster(
            "cluster/the-deployment-is-admitted-and-a-controller-runs-by-a-pods-service-account",
            in_the_cluster,
        ),
    ]
}

/// The commands that the documentation gives.
fn documented() -> Result<String> {
    let path = repository().join("crds/README.md");
    let text = fs::read_to_string(path).context("reading the documentation")?;
    let (_, after) = text
        .split_once("## The controller on hosts")
        .context("no such section")?;
    let block = after
        .split_once("```sh\n")
        .and_then(|(_, block)| block.split_once("```"));
    Ok(block.context("no commands")?.0.to_owned())
}

fn on_a_host(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let folder = lab.folder().join("controller-credential");
    fs::create_dir_all(&folder).context("making a folder")?;
    run_script(&documented()?, admin, &folder)?;
    let kubeconfig = folder.join("controller.kubeconfig");
    let text = fs::read_to_string(&kubeconfig).context("reading what was made")?;
    ensure!(
        text.contains("certificate-authority-data") && !text.contains("ca.crt"),
        "it names files, which the unit cannot read"
    );
    let log = lab.control_plane()?.audit_log()?;
    let controller = Controller::start_by(lab, "controller-of-a-host", &kubeconfig)?;
    leads(admin, &controller)?;
    let answers = log.requests()?.of_user(ACCOUNT);
    let refused = answers.filter(|request| request.code == 403);
    ensure!(answers.count() > 0 && refused.count() == 0, "{refused:#?}");
    drop(controller);
    admin.run(&["delete", "secret", NAMESPACE, "slotd-controller-host"])?;
    Ok(())
}

/// Runs commands as an operator would who speaks with the cluster as an admin.
fn run_script(script: &str, admin: &Client, folder: &std::path::Path) -> Result<()> {
    let programs = folder.join("bin");
    fs::create_dir_all(&programs).context("making a folder")?;
    let link = programs.join("kubectl");
    if !link.exists() {
        std::os::unix::fs::symlink(admin.program(), &link).context("linking kubectl")?;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-eu", "-c", script])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("KUBECONFIG", admin.kubeconfig())
        .env("HOME", folder)
        .output()
        .context("starting a shell")?;
    ensure!(
        output.status.success(),
        "the commands failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Waits until this controller holds the Lease.
fn leads(admin: &Client, controller: &Controller) -> Result<()> {
    let process = controller.process().context("the controller is gone")?;
    wait_until("the controller leads", PATIENCE, || {
        let lease = admin.json(&["get", "lease", NAMESPACE, "slotd-controller"])?;
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        // Its name has the process in the middle.
        let held = holder.split('_').nth(1) == Some(process.to_string().as_str());
        ensure!(held, "the holder is {holder:?}, the process {process}");
        Ok(())
    })
}

fn in_the_cluster(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    admin.apply_folder(&repository().join("crds/deployment"))?;
    let pods = wait_until("two pods", PATIENCE, || {
        let label = "--selector=app.kubernetes.io/name=slotd-controller";
        let pods = admin.json(&["get", "pods", NAMESPACE, label])?["items"].clone();
        let pods: Vec<Value> = serde_json::from_value(pods)?;
        ensure!(pods.len() == 2, "there are {}", pods.len());
        Ok(pods)
    })?;
    for pod in &pods {
        // What admission made of them: the class known, the account's token mounted.
        let spec = &pod["spec"];
        let container = &spec["containers"][0];
        let mount = &container["volumeMounts"][0];
        ensure!(
            spec["priority"] == 2_000_000_000
                && spec["serviceAccountName"] == "slotd-controller"
                && mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
                && container["securityContext"]["readOnlyRootFilesystem"] == true,
            "{spec:#}"
        );
    }
    // Into a namespace that holds pods to the strictest of the standards.
    let strict = ["create", "namespace", "slotd-strict"];
    admin.run(&strict)?;
    let enforce = "pod-security.kubernetes.io/enforce=restricted";
    admin.run(&["label", "namespace", "slotd-strict", enforce])?;
    let template =
        &admin.json(&["get", "deployment", NAMESPACE, "slotd-controller"])?["spec"]["template"];
    let mut pod = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": "slotd-strict"},
        "spec": template["spec"],
    });
    for key in ["serviceAccount", "serviceAccountName"] {
        pod["spec"][key] = Value::from("default");
    }
    wait_until("an account in a new namespace", PATIENCE, || {
        admin.apply(&pod.to_string())
    })?;
    admin.run(&["delete", "namespace", "slotd-strict", "--wait=false"])?;
    admin.run(&["delete", "deployment", NAMESPACE, "slotd-controller"])?;

    // No kubelet runs these pods here: what a pod finds is laid out for a process in its own mount namespace.
    let token = admin.run(&["create", "token", NAMESPACE, "slotd-controller"])?;
    let controller = Controller::start_in_pod(lab, "controller-in-a-pod", token.trim())?;
    leads(admin, &controller)
}
