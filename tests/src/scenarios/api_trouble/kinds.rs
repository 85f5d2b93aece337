//! The kinds themselves missing: at the start, and taken away in the midst of a roll-out.

use anyhow::{Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{PATIENCE, asked_seldom};
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::scenarios::api::installed;
use crate::scenarios::on_stand_ins;
use crate::scenarios::told::schedulable;
use crate::scenarios::wish::{Wish, places_given_back, run_version};
use crate::standin::{Controller, Fleet, Health};

const KINDS: [&str; 2] = [
    "crd/osupgrades.monok8s.io",
    "crd/osupgradeprogresses.monok8s.io",
];

pub(super) fn tests() -> Vec<Test> {
    vec![on_stand_ins(
        "cluster/kinds-that-are-missing-or-taken-away-are-waited-for",
        kinds,
    )]
}

/// Puts the kinds back, whatever happens.
struct Missing<'a>(&'a Lab);

impl Drop for Missing<'_> {
    fn drop(&mut self) {
        if let Err(error) = installed(self.0) {
            eprintln!("lab: the kinds are missing still: {error:#}");
        }
    }
}

fn delete(admin: &Client, wait: &str) -> Result<()> {
    admin
        .run(&[&["delete", wait][..], &KINDS].concat())
        .map(drop)
}

fn kinds(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let missing = Missing(lab);
    delete(admin, "--timeout=60s")?;
    let fleet = Fleet::start(lab, 2)?;
    let _controller = Controller::start(lab, "controller")?;
    let began = Timestamp::now();
    let log = fleet.plane().audit_log()?;
    let said = |path: &std::path::Path, words: &str| {
        wait_until(&format!("a log that says {words:?}"), PATIENCE, || {
            let text = std::fs::read_to_string(path)?;
            ensure!(text.contains(words), "it says {text}");
            Ok(())
        })
    };
    said(
        &lab.folder().join("controller.log"),
        "the watch failed and begins again",
    )?;
    for node in fleet.nodes() {
        said(node.log(), "ClusterUnwatched")?;
    }
    drop(missing);
    let over = Timestamp::now();

    // They are there, and go in the midst of a roll-out, with all objects.
    for node in fleet.nodes() {
        node.set_health("v1.1.0", Health::Waiting)?;
    }
    let from = fleet.publish("v1.1.0")?;
    Wish::apply(&fleet, &from, &json!({}))?;
    wait_until("a node on trial", PATIENCE, || {
        ensure!(
            fleet.nodes().iter().any(|node| node.boots().len() == 2),
            "none reboots"
        );
        Ok(())
    })?;
    let missing = Missing(lab);
    let taken = Timestamp::now();
    delete(admin, "--wait=false")?;
    // What is on trial ends first; then its finalizer is taken off, and the kinds are gone.
    for node in fleet.nodes() {
        node.set_health("v1.1.0", Health::Healthy)?;
    }
    wait_until("the end of both kinds", PATIENCE, || {
        for kind in KINDS {
            let refusal = admin.refusal(&["get", kind])?;
            ensure!(refusal.contains("NotFound"), "{refusal}");
        }
        Ok(())
    })?;
    fleet.wait_until_available()?;
    places_given_back(admin)?;
    for node in fleet.nodes() {
        ensure!(schedulable(node)?, "{:#}", node.object()?);
    }
    let boots = fleet.nodes().iter().map(|node| node.boots().len());
    ensure!(boots.sum::<usize>() == 3, "another one rebooted");
    drop(missing);
    let back = Timestamp::now();

    let from = fleet.publish("v1.2.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    wish.wait_for("Completed", 2, 2, 0)?;
    run_version(&fleet, "v1.2.0")?;
    let observer = fleet.observer();
    ensure!(observer.most_unavailable() == 1, "{}", observer.log());
    let requests = log.requests()?;
    for (from, to) in [(began, over), (taken, back)] {
        let meanwhile = requests.filter(|one| from <= one.received && one.received < to);
        asked_seldom(lab, &fleet, &meanwhile)?;
    }
    wish.delete()
}
