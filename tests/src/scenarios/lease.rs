//! The controllers' Lease, whoever holds it and whatever their clock says.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::api::installed;
use super::in_cluster;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::Controller;

/// Many times what anything takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long the holder says that its Lease lasts without being renewed.
const LENGTH: Duration = Duration::from_secs(15);

/// Between two renewals of the holder's.
const RENEWAL: Duration = Duration::from_secs(1);

const LEASE: [&str; 3] = ["lease", "slotd-controller", "--namespace=kube-system"];

const HOLDER: &str = "somebody-else";

pub(super) fn tests() -> Vec<Test> {
    vec![in_cluster(
        "cluster/a-lease-is-judged-by-its-renewals-and-by-nobodys-clock",
        clocks,
    )]
}

/// A holder whose clock is an hour slow, and then one whose clock is an hour fast and who has died.
fn clocks(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    admin.run(&[&["delete", "--ignore-not-found"], &LEASE[..]].concat())?;
    let hour = SignedDuration::from_hours(1);
    renew(admin, -hour)?;
    let _controller = Controller::start(lab, "controller")?;
    let nobodys = json!({
        "apiVersion": "monok8s.io/v1alpha1",
        "kind": "OSUpgrade",
        "metadata": {"name": "lease"},
        "spec": {
            "version": "v1.1.0",
            "imageURL": "http://h/x",
            "checksum": format!("sha256:{}", "a".repeat(64)),
            "nodeSelector": {"lab.slotd/fleet": "nobody"},
        },
    });
    admin.apply(&nobodys.to_string())?;
    let status = || -> Result<Value> {
        let object = admin.json(&["get", "osupgrade", "lease"])?;
        Ok(object["status"].clone())
    };
    // Twice as long as a Lease lasts that nobody renews.
    let began = Instant::now();
    while began.elapsed() < 2 * LENGTH {
        std::thread::sleep(RENEWAL);
        let held = holder(admin)?;
        ensure!(held == HOLDER, "it was taken by {held}");
        ensure!(status()?.is_null(), "somebody leads: {:#}", status()?);
        renew(admin, -hour)?;
    }

    let renewed = Instant::now();
    renew(admin, hour)?;
    wait_until("another holder", PATIENCE, || {
        let held = holder(admin)?;
        ensure!(held != HOLDER, "it is held by {held}");
        Ok(())
    })?;
    ensure!(
        renewed.elapsed() >= LENGTH,
        "it was taken after {:?}",
        renewed.elapsed()
    );
    wait_until("what a leader says", PATIENCE, || {
        let status = status()?;
        ensure!(status["resolved"]["version"] == "v1.1.0", "{status:#}");
        Ok(())
    })?;
    admin.run(&["delete", "osupgrade", "lease"]).map(drop)
}

/// What the holder writes, by a clock that is off by so much.
fn renew(admin: &Client, off: SignedDuration) -> Result<()> {
    let time = (Timestamp::now() + off).strftime("%Y-%m-%dT%H:%M:%S.%6fZ");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "slotd-controller", "namespace": "kube-system"},
        "spec": {
            "holderIdentity": HOLDER,
            "leaseDurationSeconds": LENGTH.as_secs(),
            "renewTime": time.to_string(),
        },
    });
    admin.apply(&lease.to_string()).map(drop)
}

fn holder(admin: &Client) -> Result<Value> {
    let lease = admin.json(&[&["get"], &LEASE[..]].concat())?;
    Ok(lease["spec"]["holderIdentity"].clone())
}
