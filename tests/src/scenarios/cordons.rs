//! Whose cordon it is: a node takes back its own, also one that was left over, and never another's.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::api::installed;
use super::on_stand_ins;
use super::told::{Told, schedulable};
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{Fleet, StandIn};

/// Many times what anything takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/a-cordon-of-somebody-else-is-left-alone",
            foreign_cordon,
        ),
        on_stand_ins(
            "cluster/a-cordon-that-an-agent-left-behind-is-taken-back-at-its-next-start",
            left_over,
        ),
    ]
}

fn foreign_cordon(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let node = fleet.node(0);
    fleet.admin().run(&["cordon", node.name()])?;
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
    told.wait_for("Completed")?;
    let object = node.object()?;
    ensure!(
        object["spec"]["unschedulable"] == true
            && object["metadata"]["annotations"]["monok8s.io/cordoned-by"].is_null(),
        "{object:#}"
    );
    fleet.admin().run(&["uncordon", node.name()])?;
    told.delete()
}

/// Cordoned while no agent runs; what an agent says of itself goes, too, so that it is seen when the next one has looked.
fn left_over(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let fleet = Fleet::start(lab, 1)?;
    let node = fleet.node(0);
    labelled(node)?;
    for (mark, ours) in [("slotd/osupgrade-gone", true), ("somebody", false)] {
        node.stop_agent()?;
        let patch = json!({
            "metadata": {
                "labels": {"monok8s.io/agent": null},
                "annotations": {"monok8s.io/cordoned-by": mark},
            },
            "spec": {"unschedulable": true},
        });
        let patch = format!("--patch={patch}");
        fleet
            .admin()
            .run(&["patch", "node", node.name(), "--type=merge", &patch])?;
        node.start_agent()?;
        let object = labelled(node)?;
        if ours {
            ensure!(schedulable(node)?, "{object:#}");
        } else {
            ensure!(
                object["spec"]["unschedulable"] == true
                    && object["metadata"]["annotations"]["monok8s.io/cordoned-by"] == mark,
                "{object:#}"
            );
        }
    }
    Ok(())
}

/// Waits until an agent has said on the Node that it is there; a cordon is taken back with the same write.
fn labelled(node: &StandIn) -> Result<Value> {
    wait_until("the agent's label", PATIENCE, || {
        let object = node.object()?;
        let label = &object["metadata"]["labels"]["monok8s.io/agent"];
        ensure!(label == "true", "{object:#}");
        Ok(object)
    })
}
