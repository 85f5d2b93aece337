//! The controller and its fleet: stand-ins with real agents, moved by OSUpgrades alone.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::json;

use super::api::installed;
use super::on_stand_ins;
use super::wish::{Wish, places_given_back, run_version};
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{Controller, FLEET_LABEL, Fleet, FleetOptions, Health, StandIn};

/// API writes of agents and controller together for one node and one upgrade, evictions and Leases left out: what a storm
/// would be above. How few they are is measured by the benchmark.
const WRITES: usize = 18;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/a-roll-out-moves-five-nodes-one-after-the-other",
            one_by_one,
        ),
        on_stand_ins(
            "cluster/a-roll-out-keeps-to-two-and-to-half-of-the-targets",
            several,
        ),
        on_stand_ins(
            "cluster/a-failing-image-halts-the-roll-out-until-somebody-goes-on",
            halted,
        ),
        on_stand_ins(
            "cluster/nodes-that-are-unavailable-anyway-take-the-places",
            unavailable,
        ),
        on_stand_ins(
            "cluster/a-suspended-upgrade-and-a-held-node-wait-and-a-late-node-follows",
            waiting,
        ),
        on_stand_ins(
            "cluster/two-controllers-and-their-deaths-break-no-limit",
            two_controllers,
        ),
    ]
}

fn one_by_one(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 5,
            control_plane_nodes: 1,
            ..FleetOptions::default()
        },
    )?;
    let _controller = Controller::start(lab, "controller")?;
    fleet.deploy("web", 10, Some(2))?;
    fleet.observer().forget();
    let log = fleet.plane().audit_log()?;
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    let status = wish.wait_for("Completed", 5, 5, 0)?;
    ensure!(
        status["resolved"]["version"] == "v1.1.0" && status["observedGeneration"] == 1,
        "{status:#}"
    );
    run_version(&fleet, "v1.1.0")?;
    let observer = fleet.observer();
    ensure!(observer.most_unavailable() == 1, "{}", observer.log());
    let least = observer.least_ready_pods(fleet.name());
    ensure!(
        least >= 8,
        "{least} of 10 pods were Ready\n{}",
        observer.log()
    );
    places_given_back(admin)?;
    for node in fleet.nodes() {
        let object = wish.progress(node)?;
        ensure!(
            object["status"]["phase"] == "Completed" && object["metadata"]["finalizers"].is_null(),
            "{object:#}"
        );
    }
    let table = admin.run(&["get", "osupgrades"])?;
    lab.note(table.trim().to_owned());

    let requests = log.requests()?.filter(|request| {
        request.user == "slotd-controller" || request.user.starts_with("system:node:")
    });
    let writes = requests
        .writes()
        .filter(|request| request.subresource != "eviction");
    let each = writes.count().div_ceil(5);
    lab.note(format!(
        "{each} API writes for each node, {:?} in all",
        writes.by_kind()
    ));
    ensure!(
        each <= WRITES,
        "{each} writes for each node: {:#?}",
        writes.all()
    );
    wish.delete()
}

fn several(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 5)?;
    let _controller = Controller::start(lab, "controller")?;
    for (version, limit) in [("v1.1.0", json!(2)), ("v1.2.0", json!("50%"))] {
        fleet.observer().forget();
        let from = fleet.publish(version)?;
        let wish = Wish::apply(
            &fleet,
            &from,
            // Staged ahead, so that there are always some who wait for a place.
            &json!({"rollout": {"maxUnavailable": limit, "maxStaging": "100%"}}),
        )?;
        wish.wait_for("Completed", 5, 5, 0)?;
        run_version(&fleet, version)?;
        let observer = fleet.observer();
        ensure!(
            observer.most_unavailable() == 2,
            "{limit}: {}",
            observer.log()
        );
        wish.delete()?;
    }
    Ok(())
}

fn halted(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 5)?;
    let _controller = Controller::start(lab, "controller")?;
    for node in fleet.nodes() {
        let failing = Health::Failing {
            check: "required.d/50-app".to_owned(),
            output: "refused".to_owned(),
        };
        node.set_health("v1.1.0", failing)?;
    }
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    let status = wish.wait_for("Halted", 5, 0, 1)?;
    let text = status["conditions"].to_string();
    ensure!(
        text.contains("required.d/50-app") && text.contains(fleet.name()),
        "the conditions do not name node and reason: {status:#}"
    );
    fleet.wait_until_available()?;
    let tried: BTreeSet<&str> = fleet
        .nodes()
        .iter()
        .filter(|node| node.boots().len() > 1)
        .map(StandIn::name)
        .collect();
    ensure!(tried.len() == 1, "{tried:?} were tried");
    for node in fleet
        .nodes()
        .iter()
        .filter(|node| !tried.contains(node.name()))
    {
        wish.waits(node, "Halted")?;
    }

    // Mended, and asked anew.
    for node in fleet.nodes() {
        node.set_health("v1.1.0", Health::Healthy)?;
    }
    wish.patch(&json!({"attempt": 1}))?;
    wish.wait_for("Completed", 5, 5, 0)?;
    run_version(&fleet, "v1.1.0")?;
    ensure!(
        fleet.observer().most_unavailable() == 1,
        "{}",
        fleet.observer().log()
    );
    wish.ensure_events(&[
        ("Accepted", "Normal", "v1.1.0"),
        ("RollingOut", "Normal", "v1.1.0"),
        ("Halted", "Warning", "required.d/50-app"),
        ("Completed", "Normal", "v1.1.0"),
    ])?;
    wish.delete()
}

fn unavailable(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 5)?;
    let _controller = Controller::start(lab, "controller")?;
    let (sick, cordoned, well) = (fleet.node(0), fleet.node(1), fleet.node(4));
    sick.say_not_ready()?;
    fleet.observer().forget();
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    wish.waits(well, "NoPlace")?;
    wish.waits(sick, "NotReady")?;
    ensure!(well.boots().len() == 1, "{:?}", well.boots());
    // Ready again, and another one is cordoned by somebody: that one counts instead.
    admin.run(&["cordon", cordoned.name()])?;
    sick.say_ready()?;
    wish.waits(well, "NoPlace")?;
    ensure!(well.boots().len() == 1, "{:?}", well.boots());
    let observer = fleet.observer();
    let theirs = [sick.name(), cordoned.name()].map(str::to_owned).into();
    ensure!(observer.ever_unavailable() == theirs, "{}", observer.log());
    observer.forget();
    admin.run(&["uncordon", cordoned.name()])?;
    wish.wait_for("Completed", 5, 5, 0)?;
    run_version(&fleet, "v1.1.0")?;
    ensure!(observer.most_unavailable() == 1, "{}", observer.log());
    wish.delete()
}

fn waiting(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 5)?;
    let _controller = Controller::start(lab, "controller")?;
    let (held, late) = (fleet.node(0), fleet.node(1));
    admin.run(&[
        "annotate",
        "node",
        held.name(),
        "monok8s.io/hold=looked at by Ann",
    ])?;
    let label = format!("{FLEET_LABEL}-");
    admin.run(&["label", "node", late.name(), &label])?;
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({"suspend": true}))?;
    wish.waits(fleet.node(2), "Suspended")?;
    wish.patch(&json!({"suspend": false}))?;
    wish.wait_until("has all but one through", |status| status["ok"] == 3)?;
    wish.waits(held, "Held")?;
    ensure!(
        held.boots().len() == 1 && late.boots().len() == 1,
        "{:?}",
        held.boots()
    );
    admin.run(&["annotate", "node", held.name(), "monok8s.io/hold-"])?;
    wish.wait_for("Completed", 4, 4, 0)?;
    // It joins after the end.
    let label = format!("{FLEET_LABEL}={}", fleet.name());
    admin.run(&["label", "node", late.name(), &label])?;
    wish.wait_for("Completed", 5, 5, 0)?;
    run_version(&fleet, "v1.1.0")?;
    wish.delete()
}

fn two_controllers(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 5)?;
    let mut first = Controller::start(lab, "one")?;
    let mut second = Controller::start(lab, "two")?;
    fleet.observer().forget();
    let from = fleet.publish("v1.1.0")?;
    let wish = Wish::apply(&fleet, &from, &json!({"rollout": {"maxUnavailable": 2}}))?;
    for done in 1..=4 {
        wish.wait_until("goes on", |status| status["ok"].as_u64() >= Some(done))?;
        // Killed, not told to stop: whatever was about to be written is lost, and the Lease runs out by itself.
        let dying = if done % 2 == 1 {
            &mut first
        } else {
            &mut second
        };
        dying.kill()?;
        *dying = Controller::start(lab, if done % 2 == 1 { "one" } else { "two" })?;
    }
    wish.wait_for("Completed", 5, 5, 0)?;
    run_version(&fleet, "v1.1.0")?;
    let observer = fleet.observer();
    ensure!(observer.most_unavailable() <= 2, "{}", observer.log());
    for node in fleet.nodes() {
        ensure!(
            node.boots().len() == 2,
            "{}: {:?}",
            node.name(),
            node.boots()
        );
    }
    wish.delete()
}
