//! What the API server takes of a document, and what it refuses, with every rule of the schema and what the rules cost.

mod cases;
mod cost;
mod rules;

use anyhow::Result;
use serde_json::json;

use self::rules::{Judges, Refusals, merge, schema};
use super::api::{installed, progress, upgrade};
use super::in_cluster;
use crate::lab::Lab;
use crate::runner::Test;

const UPGRADES: &str = "osupgrades";

const PROGRESSES: &str = "osupgradeprogresses";

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_cluster("cluster/wrong-documents-are-refused-with-a-reason", wrong),
        in_cluster(
            "cluster/what-was-written-for-a-node-is-not-given-to-another",
            immutable,
        ),
        in_cluster(
            "cluster/the-rules-of-the-schema-cost-far-less-than-the-server-allows",
            cost::cost,
        ),
    ]
}

/// Every field is wrong once, and every rule is broken once.
fn wrong(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let mut of_upgrades = Refusals::default();
    for (change, reason) in cases::upgrades() {
        of_upgrades.add(admin, upgrade(), &change, reason)?;
    }
    let mut of_progresses = Refusals::default();
    for (change, reason) in cases::progresses() {
        of_progresses.add(admin, progress("wrong", "n1"), &change, reason)?;
    }
    // Each of them was right but for that change.
    admin.apply(&upgrade().to_string())?;
    admin.apply(&progress("wrong", "n1").to_string())?;
    for (change, reason) in [
        (
            json!({"version": "latest"}),
            "version must be a version such as v1.35.3",
        ),
        (
            json!({"url": "https://user:word@host/x"}),
            "without a user or password",
        ),
    ] {
        of_upgrades.add_resolved(admin, &change, reason)?;
    }
    admin.run(&["delete", "osupgrade/wrong", "osupgradeprogress/wrong"])?;
    of_upgrades.ensure_whole(&schema(admin, UPGRADES)?, Judges::Documents)?;
    of_progresses.ensure_whole(&schema(admin, PROGRESSES)?, Judges::Documents)
}

fn immutable(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let mut refusals = Refusals::default();
    // By hand, and for an upgrade.
    let mut by_hand = progress("bound", "n1");
    by_hand["spec"]["attempt"] = json!(2);
    admin.apply(&by_hand.to_string())?;
    let source = json!({"name": "u", "uid": "1"});
    let mut asked = progress("asked", "n1");
    merge(
        &mut asked["spec"],
        &json!({"nodeUID": "n", "sourceRef": source}),
    );
    admin.apply(&asked.to_string())?;
    let of_source = "sourceRef cannot be set, changed or removed later";
    for (document, change, reason) in [
        (
            &by_hand,
            json!({"nodeName": "n2"}),
            "nodeName cannot be changed",
        ),
        (
            &by_hand,
            json!({"nodeUID": "1"}),
            "nodeUID cannot be set, changed or removed later",
        ),
        (
            &by_hand,
            json!({"attempt": 1}),
            "attempt can only be raised",
        ),
        (
            &by_hand,
            json!({"nodeUID": "n", "sourceRef": source}),
            of_source,
        ),
        (&asked, json!({"sourceRef": {"uid": "2"}}), of_source),
        (&asked, json!({"sourceRef": {"name": "v"}}), of_source),
        (&asked, json!({"sourceRef": null}), of_source),
        (
            &asked,
            json!({"nodeUID": "m"}),
            "nodeUID cannot be set, changed or removed later",
        ),
    ] {
        refusals.add(admin, document.clone(), &change, reason)?;
    }
    by_hand["spec"]["action"] = json!("Activate");
    by_hand["spec"]["attempt"] = json!(3);
    admin.apply(&by_hand.to_string())?;
    admin.run(&["delete", "osupgradeprogress", "bound", "asked"])?;
    refusals.ensure_whole(&schema(admin, PROGRESSES)?, Judges::Changes)
}
