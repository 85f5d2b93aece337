//! Servers of catalogs that hang, or come to no end, though byte after byte comes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::PATIENCE;
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::runner::Test;
use crate::scenarios::api::installed;
use crate::scenarios::on_stand_ins;
use crate::scenarios::wish::{Wish, condition};
use crate::server::{Body, Fault};
use crate::standin::{Controller, Fleet};

/// The most that is waited for one answer, and some seconds.
const ANSWER: Duration = Duration::from_secs(28);

/// Between two bytes of an answer that drips: no pause at which anybody would give up.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn tests() -> Vec<Test> {
    vec![on_stand_ins(
        "cluster/a-catalog-that-does-not-come-holds-up-no-other-upgrade",
        hanging,
    )]
}

fn hanging(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 4)?;
    let _controller = Controller::start(lab, "controller")?;
    let (url, image) = fleet.publish("v1.1.0")?;
    let catalog = json!({
        "stable": "v1.1.0",
        "images": [{"version": "v1.1.0", "url": url, "checksum": image.checksum, "size": image.size}],
    })
    .to_string();
    // For minutes, one that drips.
    let catalog = format!("{catalog}\n# {}\n", ".".repeat(5000));
    let serve = |path: &str, fault: Fault| {
        let body = Body::Bytes(catalog.clone().into_bytes().into());
        fleet.server().serve(path, body, fault)
    };
    let from = |path: &str, node: usize| -> Value {
        json!({
            "version": "stable", "imageURL": null, "checksum": null, "size": null,
            "catalog": {"URL": fleet.server().url(path)},
            "nodeSelector": {"kubernetes.io/hostname": fleet.node(node).name()},
        })
    };
    serve("/silent.yaml", Fault::Silent);
    serve("/stalls.yaml", Fault::StallAt(20));
    serve("/drips.yaml", Fault::Drip(PAUSE));
    serve("/good.yaml", Fault::None);
    let named = |name: &str| {
        let mut image = image.clone();
        image.version = name.to_owned();
        (url.clone(), image)
    };
    let began = Instant::now();
    let silent = Wish::apply(&fleet, &named("silent"), &from("/silent.yaml", 0))?;
    let stalls = Wish::apply(&fleet, &named("stalls"), &from("/stalls.yaml", 1))?;
    let drips = Wish::apply(&fleet, &named("drips"), &from("/drips.yaml", 2))?;
    let good = Wish::apply(&fleet, &named("good"), &from("/good.yaml", 3))?;
    good.wait_for("Completed", 1, 1, 0)?;
    let meanwhile = began.elapsed();
    ensure!(meanwhile < ANSWER, "it waited for the others");
    for wish in [&silent, &stalls, &drips] {
        let status = wait_until(
            "a catalog that is said not to be reachable",
            PATIENCE,
            || {
                let status = wish.status()?;
                let reachable = condition(&status, "CatalogReachable")?;
                ensure!(
                    reachable["status"] == "False" && reachable["reason"] == "Timeout",
                    "{reachable}"
                );
                Ok(status)
            },
        )?;
        ensure!(status["phase"] == "Pending", "{status:#}");
    }
    let waited = began.elapsed();
    lab.note(format!(
        "given up after {:.1} s, another upgrade completed after {:.1} s",
        waited.as_secs_f64(),
        meanwhile.as_secs_f64()
    ));
    ensure!(waited < ANSWER, "only after {waited:?}");
    for path in ["silent", "stalls", "drips"] {
        let requests = fleet.server().requests();
        let asked = requests.iter().filter(|one| one.line.contains(path));
        let asked = asked.count();
        ensure!(
            (1..=3).contains(&asked),
            "{path} was asked for {asked} times"
        );
    }
    // Mended, they are asked again by themselves.
    serve("/silent.yaml", Fault::None);
    serve("/stalls.yaml", Fault::None);
    serve("/drips.yaml", Fault::None);
    for wish in [silent, stalls, drips] {
        wish.wait_for("Completed", 1, 1, 0)?;
        wish.delete()?;
    }
    good.delete()
}
