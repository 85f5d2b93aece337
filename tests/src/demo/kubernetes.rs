//! `lab demo --kubernetes`: `kubectl apply` moves two real nodes, and a bad image moves only one, which falls back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::say;
use crate::artifacts::Image;
use crate::cluster::up;
use crate::images::{NODE_NEW, NODE_OLD, NODE_WITHOUT_KUBELET};
use crate::lab::Lab;
use crate::vm::Acceleration;
use crate::vm_fleet::{DEPLOYMENT, VmFleet};

/// How many pods run, and how many of them the budget lets be missing.
const PODS: usize = 3;
const MAY_BE_MISSING: usize = 1;

/// Between two looks at the tables.
const INTERVAL: Duration = Duration::from_secs(2);

/// Shows it all; with `keep` the cluster stays until Ctrl-C.
pub fn run(lab: &Lab, keep: bool) -> Result<()> {
    let artifacts = lab.artifacts()?;
    say("making three images, each with its own kubelet; the first time that takes some minutes");
    artifacts.image(&NODE_OLD)?;
    let good = artifacts.image(&NODE_NEW)?;
    let bad = artifacts.image(&NODE_WITHOUT_KUBELET)?;
    if lab.acceleration()? == Acceleration::Tcg {
        say("this machine has no usable KVM: the guests are emulated, everything takes longer");
    }
    let mut fleet = VmFleet::start(lab, &say)?;
    say(&format!(
        "{PODS} pods of a Deployment, with a PodDisruptionBudget of maxUnavailable {MAY_BE_MISSING}"
    ));
    fleet.deploy(PODS, MAY_BE_MISSING)?;
    show(&fleet, &["get", "nodes,deployments,poddisruptionbudgets"])?;
    fleet.observer.forget();

    say("the owner's document, with this image's URL and checksum put in");
    upgrade(&mut fleet, "my-upgrade-2", &good, |status| {
        status["phase"] == "Completed" && status["ok"] == 2
    })?;
    fleet.wait_until_available()?;
    show(&fleet, &["get", "osupgrades,osupgradeprogress,nodes"])?;
    let (nodes, pods) = (
        fleet.observer.most_unavailable(),
        fleet.observer.least_ready_pods("default"),
    );
    say(&format!(
        "both nodes run {}; never more than {nodes} was unavailable, never fewer than {pods} of {PODS} pods were Ready",
        good.version
    ));
    ensure!(
        nodes == 1 && pods >= PODS - MAY_BE_MISSING,
        "the budget was broken:\n{}",
        fleet.observer.log()
    );

    println!();
    say("an image in which the kubelet does not start");
    fleet.observer.forget();
    upgrade(&mut fleet, "without-kubelet", &bad, |status| {
        status["phase"] == "Halted"
    })?;
    fleet.wait_until_available()?;
    show(&fleet, &["get", "osupgrades,osupgradeprogress,nodes"])?;
    show(&fleet, &["describe", "osupgrade", "without-kubelet"])?;
    let touched = fleet.observer.ever_unavailable();
    say(&format!(
        "the roll-out halted: {} fell back to {}, no other node was touched",
        list(&touched),
        good.version
    ));
    ensure!(touched.len() == 1, "{} were touched", list(&touched));
    if keep {
        println!("\nThe cluster keeps running. In another terminal:");
        up::say_environment(&fleet.plane);
        println!("  kubectl get osupgrades,osupgradeprogress,nodes");
        println!("  kubectl get pods --output wide --selector app={DEPLOYMENT}");
        for node in &mut fleet.nodes {
            node.machine.open_console()?;
            println!("  cargo lab console {}", node.machine.folder().display());
        }
        println!("Ctrl-C here ends it.");
        up::until_told(|| fleet.plane.alive())?;
    }
    Ok(())
}

/// Applies the document for an image, and prints each row of the tables when it changes, until the upgrade's status is as wanted.
fn upgrade(
    fleet: &mut VmFleet,
    name: &str,
    image: &Image,
    ended: impl Fn(&Value) -> bool,
) -> Result<()> {
    let document = fleet.document(name, image)?;
    println!("\n{}", document.trim_end());
    print!(
        "\n$ kubectl apply --filename osupgrade.yaml\n{}",
        fleet.admin().apply(&document)?
    );
    say("kubectl get osupgrades,osupgradeprogress,nodes: each row when it changes");
    let began = Instant::now();
    let deadline = began + fleet.patience() * 8;
    let mut before = BTreeSet::new();
    loop {
        let rows = rows(&fleet.tables()?);
        for row in rows.difference(&before) {
            println!("{:4.0} s  {row}", began.elapsed().as_secs_f64());
        }
        before = rows;
        if ended(&fleet.status(name)?) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{name} does not end: {}",
            fleet.tables()?
        );
        fleet.plane.alive()?;
        std::thread::sleep(INTERVAL);
    }
}

/// The rows of tables, without titles and ages, which change by themselves.
fn rows(tables: &str) -> BTreeSet<String> {
    tables
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("NAME "))
        .map(|line| {
            let cells: Vec<&str> = line
                .split_whitespace()
                .filter(|cell| !is_age(cell))
                .collect();
            cells.join("  ")
        })
        .collect()
}

/// Whether a cell is an age, such as `4m12s`.
fn is_age(cell: &str) -> bool {
    cell.starts_with(|character: char| character.is_ascii_digit())
        && cell.ends_with(['s', 'm', 'h', 'd'])
        && cell
            .chars()
            .all(|character| character.is_ascii_digit() || "smhd".contains(character))
}

fn list(names: &BTreeSet<String>) -> String {
    names.iter().cloned().collect::<Vec<_>>().join(", ")
}

fn show(fleet: &VmFleet, arguments: &[&str]) -> Result<()> {
    println!("\n$ kubectl {}", arguments.join(" "));
    println!("{}", fleet.admin().run(arguments)?.trim_end());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn a_row_that_only_became_older_has_not_changed() {
        let at = |age: &str, status: &str| {
            rows(&format!(
                "NAME            STATUS   ROLES    AGE   VERSION\nnode/node-1     {status}    <none>   {age}    v1.35.1\n\n"
            ))
        };
        assert_eq!(at("9s", "Ready"), at("4m12s", "Ready"));
        assert_ne!(at("9s", "Ready"), at("9s", "NotReady"));
        assert_eq!(
            at("9s", "Ready").into_iter().collect::<Vec<_>>(),
            ["node/node-1  Ready  <none>  v1.35.1"]
        );
    }
}
