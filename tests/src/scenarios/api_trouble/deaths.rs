//! Agents, API server and controller die, each in every phase that a node is seen in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::lab::Lab;
use crate::runner::Test;
use crate::scenarios::api::installed;
use crate::scenarios::on_stand_ins;
use crate::scenarios::wish::{PATIENCE, Wish, places_given_back, run_version};
use crate::standin::{Controller, Fleet, FleetOptions, Health};

pub(super) fn tests() -> Vec<Test> {
    vec![on_stand_ins(
        "cluster/agents-the-server-and-the-controller-die-in-every-phase-and-all-goes-on",
        deaths,
    )]
}

const VERSION: &str = "v1.1.0";

/// Phases that each kind of victim has to have died in: they last until they were seen. The others pass by as they come.
const PHASES: [&str; 2] = ["Draining", "Confirming"];

/// Who dies when a node shows a phase for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    /// The node's own agent.
    Agent,
    /// The API server, with what was asked of it.
    Server,
    /// The controller.
    Controller,
}

/// Of nodes in this order: two nodes each, so that what the first one is too quick for may be seen with the second one.
const VICTIMS: [Victim; 3] = [Victim::Agent, Victim::Server, Victim::Controller];

fn deaths(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let options = FleetOptions {
        nodes: 2 * VICTIMS.len(),
        ..FleetOptions::slowly("4MiB")
    };
    let fleet = Fleet::start_with(lab, &options)?;
    let mut controller = Controller::start(lab, "controller")?;
    fleet.deploy("web", 12, None)?;
    // Neither draining nor confirming ends before it was seen.
    for node in fleet.nodes() {
        node.set_health(VERSION, Health::Waiting)?;
        node.keep_pods_ending();
    }
    fleet.observer().forget();
    let change = json!({"rollout": {"maxUnavailable": 2}});
    let wish = Wish::apply(&fleet, &fleet.publish(VERSION)?, &change)?;

    let mut died: BTreeMap<Victim, BTreeSet<String>> = BTreeMap::new();
    let deadline = Instant::now() + PATIENCE * 3;
    loop {
        let status = wish.status()?;
        if status["phase"] == "Completed" {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "after the deaths of {died:?} its status is {status:#}"
        );
        for (node, victim) in fleet.nodes().iter().zip(VICTIMS.iter().cycle()) {
            // Before the controller made it there is none.
            let Ok(object) = wish.progress(node) else {
                continue;
            };
            let Some(phase) = object["status"]["phase"].as_str() else {
                continue;
            };
            if died.entry(*victim).or_default().insert(phase.to_owned()) {
                match victim {
                    Victim::Agent => node.kill_agent()?,
                    Victim::Server => fleet.plane().stop_api_server()?.end()?,
                    Victim::Controller => {
                        controller.kill()?;
                        controller = Controller::start(lab, "controller")?;
                    }
                }
            }
            match phase {
                "Draining" => node.let_pods_end(),
                "Confirming" => node.set_health(VERSION, Health::Healthy)?,
                _ => {}
            }
        }
    }
    lab.note(format!("{died:?}"));
    for (victim, phases) in &died {
        for phase in PHASES {
            ensure!(
                phases.contains(phase),
                "{victim:?} died in {phases:?}, not in {phase}"
            );
        }
    }

    wish.wait_for("Completed", 6, 6, 0)?;
    run_version(&fleet, VERSION)?;
    for node in fleet.nodes() {
        let boots = node.boots();
        ensure!(boots.len() == 2, "{}: {boots:?}", node.name());
    }
    places_given_back(admin)?;
    let observer = fleet.observer();
    ensure!(observer.most_taken_down() <= 2, "{}", observer.log());
    wish.delete()
}
