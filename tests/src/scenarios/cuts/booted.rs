//! States that a machine is switched on with, and its upgrade is seen through to the end.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Recorded;
use super::looked_at::Data;
use crate::artifacts::ReferenceDisk;
use crate::cuts::{Judge, Materialised, Reference, State};
use crate::images::V1;
use crate::lab::{Lab, NodeOptions};
use crate::node::{Expected, FRESH, Node};
use crate::server::Server;

/// Switches a machine on with each of these states.
pub(super) fn boot(
    lab: &Lab,
    recorded: &Recorded,
    judge: &Judge<Reference>,
    states: &[State],
    server: Server,
) -> Result<()> {
    let size = recorded.base.metadata().context("the disk's size")?.len();
    let path = lab.folder().join("booted.img");
    let mut disk = Materialised::new(&recorded.disk, 0..size, &path)?;
    let mut data = Data::new(lab, recorded, judge.rules())?;
    // The agent goes on with the image that it was told of, from that server.
    let mut server = Some(server);
    for (index, state) in states.iter().enumerate() {
        let view = recorded.at(judge, state)?;
        disk.follow(&view)?;
        let record = data.record(&view)?;
        let reference = ReferenceDisk {
            path: disk.path().to_owned(),
            variables: None,
        };
        let options = NodeOptions {
            loader: recorded.loader,
            ..NodeOptions::new(&V1)
        };
        let machine = lab.machine_on(&format!("booted-{index}"), reference, &options)?;
        let folder = machine.folder().to_owned();
        let mut node = Node {
            machine,
            server: server.take().context("the server is elsewhere")?,
        };
        sees_it_through(&mut node, recorded, record.as_ref())
            .with_context(|| format!("switched on after {state}, with {record:?}"))?;
        server = Some(node.server);
        drop(node.machine);
        std::fs::remove_dir_all(&folder)
            .with_context(|| format!("removing {}", folder.display()))?;
    }
    lab.note(format!(
        "{} of them switched on, and seen through to the end of their upgrades",
        states.len()
    ));
    Ok(())
}

/// Whatever the agent was doing when the power was cut is done in the end, once.
fn sees_it_through(node: &mut Node, recorded: &Recorded, record: Option<&Value>) -> Result<()> {
    let begun = record
        .and_then(|record| record["lastId"].as_u64())
        .unwrap_or(0);
    let begun = usize::try_from(begun)?;
    node.machine.power_on()?;
    let patience = node.machine.patience(300);
    let boot = node.settle(patience)?;
    let Some(last) = begun.checked_sub(1) else {
        boot.expect('A', &recorded.first.version)?;
        return node.expect(&FRESH);
    };
    let image = recorded
        .images
        .get(last)
        .with_context(|| format!("upgrade {begun} was never asked for"))?;
    let slot = ['B', 'A'][last];
    boot.expect(slot, &image.version)?;
    node.expect(&Expected::both_good(slot, &image.version))?;
    ensure!(
        format!("sha256:{}", node.machine.disk().slot_digest(slot)?) == image.expanded_checksum,
        "slot {slot} does not hold the image's bytes"
    );
    let history = node.history()?;
    let told: Vec<(u64, &str)> = history
        .iter()
        .map(|entry| {
            (
                entry["id"].as_u64().unwrap_or_default(),
                entry["result"].as_str().unwrap_or_default(),
            )
        })
        .collect();
    let expected: Vec<(u64, &str)> = (1..=begun as u64).map(|id| (id, "Completed")).collect();
    ensure!(told == expected, "the history says {told:?}");
    Ok(())
}
