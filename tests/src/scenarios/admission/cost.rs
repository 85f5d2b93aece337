//! What the schema's rules cost the API server.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{PROGRESSES, UPGRADES};
use crate::cluster::Client;
use crate::lab::Lab;
use crate::scenarios::api::installed;

/// How many times longer texts could be before a rule cost too much.
const MARGIN: u64 = 10;

/// The API server estimates what a rule costs at worst from how long texts may be, and refuses a definition with one that is too
/// expensive.
pub(super) fn cost(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    for plural in [UPGRADES, PROGRESSES] {
        let definition = scratch(admin, plural)?;
        let mut long = definition.clone();
        limits(&mut long, &|limit| Some(limit.as_u64()? * MARGIN));
        admitted(lab, admin, &long).with_context(|| format!("texts {MARGIN} times as long"))?;
        // It does look: without any limit they cost too much.
        let mut endless = definition;
        limits(&mut endless, &|_| None);
        let refusal = admitted(lab, admin, &endless);
        let said = format!("{:#}", refusal.err().context("no limit was admitted")?);
        ensure!(
            said.contains("estimated rule cost exceeds budget"),
            "{said}"
        );
    }
    Ok(())
}

/// The definition of a kind under another group, where the API server judges it as a new one.
fn scratch(admin: &Client, plural: &str) -> Result<Value> {
    const GROUP: &str = "scratch.slotd.test";
    let mut definition = admin.json(&["get", "crd", &format!("{plural}.monok8s.io")])?;
    let mut spec = definition["spec"].take();
    spec["group"] = json!(GROUP);
    let names = spec["names"].as_object_mut().context("names")?;
    names.remove("shortNames");
    names.remove("categories");
    Ok(json!({
        "apiVersion": definition["apiVersion"],
        "kind": definition["kind"],
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": spec,
    }))
}

/// Changes how long texts may be, wherever that is limited.
fn limits(value: &mut Value, change: &dyn Fn(&Value) -> Option<u64>) {
    match value {
        Value::Object(fields) => {
            if let Some(limit) = fields.get("maxLength").filter(|limit| limit.is_u64()) {
                match change(limit) {
                    Some(limit) => fields.insert("maxLength".to_owned(), json!(limit)),
                    None => fields.remove("maxLength"),
                };
            }
            fields.values_mut().for_each(|value| limits(value, change));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| limits(item, change)),
        _ => {}
    }
}

/// An error unless the API server would take it.
fn admitted(lab: &Lab, admin: &Client, definition: &Value) -> Result<()> {
    let file = lab.folder().join("definition.json");
    fs::write(&file, definition.to_string()).context("writing a definition")?;
    let file = file.display().to_string();
    admin
        .run(&["create", "--dry-run=server", "--filename", &file])
        .map(drop)
}
