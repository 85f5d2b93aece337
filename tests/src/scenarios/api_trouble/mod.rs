//! The API server in every kind of trouble, with real agents and the real controller: they wait, ask seldom, say what is wrong,
//! and go on by themselves.

mod catalogs;
mod credentials;
mod deaths;
mod handed_over;
mod kinds;
mod phases;
mod recreated;
mod refused;
mod watches;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::cluster::Requests;
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{Fleet, USER};

/// Many times what anything takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The span over which requests are counted.
const SPAN: Duration = Duration::from_secs(10);

/// Requests that one agent may make in that span while nothing can work.
const BUSY_AGENT: usize = 15;

/// The same of the controller, which has five watches and a Lease beside its work.
const BUSY_CONTROLLER: usize = 20;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = refused::tests();
    tests.extend(credentials::tests());
    tests.extend(handed_over::tests());
    tests.extend(watches::tests());
    tests.extend(phases::tests());
    tests.extend(deaths::tests());
    tests.extend(kinds::tests());
    tests.extend(recreated::tests());
    tests.extend(catalogs::tests());
    tests
}

/// An error where one of those who are in trouble asked more often than they should, or not at all.
fn asked_seldom(lab: &Lab, fleet: &Fleet<'_>, requests: &Requests) -> Result<()> {
    let mut busiest = 0;
    for node in fleet.nodes() {
        let own = requests.of_user(&format!("system:node:{}", node.name()));
        busiest = busiest.max(own.most_within(SPAN));
    }
    let controller = requests.of_user(USER).most_within(SPAN);
    lab.note(format!(
        "in trouble at most {busiest} requests of an agent and {controller} of the controller in {} s",
        SPAN.as_secs()
    ));
    let agents = requests.filter(|request| request.user.starts_with("system:node:"));
    ensure!(
        busiest <= BUSY_AGENT,
        "{busiest} requests of an agent, among these of all: {:#?}",
        agents.by_kind()
    );
    ensure!(
        controller <= BUSY_CONTROLLER,
        "{controller} requests of the controller, among {:#?}",
        requests.of_user(USER).by_kind()
    );
    Ok(())
}
