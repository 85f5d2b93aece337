//! What was refused, held against the schema: each of its fields and each of its rules.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::cluster::Client;

/// What a rule of the schema looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Judges {
    /// A document by itself.
    Documents,
    /// What becomes of a document that is there.
    Changes,
}

/// What was refused so far.
#[derive(Default)]
pub(super) struct Refusals {
    /// The fields of specs that were wrong, with dots.
    fields: BTreeSet<String>,
    /// What kubectl said each time.
    said: Vec<String>,
}

impl Refusals {
    /// Applies a document with a change to its spec, which has to be refused for this reason.
    pub(super) fn add(
        &mut self,
        admin: &Client,
        mut document: Value,
        change: &Value,
        reason: &str,
    ) -> Result<()> {
        merge(&mut document["spec"], change);
        let output = admin.try_apply(&document.to_string())?;
        let shown: String = change.to_string().chars().take(200).collect();
        ensure!(!output.status.success(), "{shown} was admitted");
        self.heard(
            &shown,
            String::from_utf8_lossy(&output.stderr).into_owned(),
            reason,
        )?;
        name_fields("spec", change, &mut self.fields);
        Ok(())
    }

    /// Writes a status with a change to the image in it, which has to be refused for this reason.
    pub(super) fn add_resolved(
        &mut self,
        admin: &Client,
        change: &Value,
        reason: &str,
    ) -> Result<()> {
        let mut resolved =
            json!({"version": "v1.35.3", "url": "https://host/x", "checksum": "sha256:0"});
        let command = |resolved: &Value| {
            let patch = format!("--patch={}", json!({"status": {"resolved": resolved}}));
            let command = "patch osupgrade wrong --subresource=status --type=merge";
            let words = command.split(' ').map(str::to_owned);
            words.chain([patch]).collect::<Vec<_>>()
        };
        admin.run(&command(&resolved))?;
        merge(&mut resolved, change);
        let said = admin.refusal(&command(&resolved))?;
        self.heard(&change.to_string(), said, reason)
    }

    fn heard(&mut self, change: &str, said: String, reason: &str) -> Result<()> {
        ensure!(said.contains(reason), "of {change} kubectl says {said}");
        self.said.push(said);
        Ok(())
    }

    /// An error unless each field of the spec was wrong once, where documents are judged, and each rule has spoken.
    pub(super) fn ensure_whole(&self, schema: &Value, judges: Judges) -> Result<()> {
        if judges == Judges::Documents {
            let mut all = BTreeSet::new();
            schema_fields("spec", &schema["properties"]["spec"], &mut all);
            let never: Vec<_> = all.difference(&self.fields).collect();
            ensure!(never.is_empty(), "never wrong: {never:?}");
        }
        let mut rules = Vec::new();
        schema_rules("", schema, &mut rules);
        let silent: Vec<_> = rules
            .into_iter()
            .filter(|rule| rule.judges == judges)
            .filter(|rule| {
                let field = format!("{}: ", rule.field);
                !self
                    .said
                    .iter()
                    .any(|said| said.contains(&field) && said.contains(&rule.message))
            })
            .map(|rule| format!("{}: {}", rule.field, rule.message))
            .collect();
        ensure!(silent.is_empty(), "rules that refused nothing: {silent:#?}");
        Ok(())
    }
}

/// Puts a change into a document: maps are gone into, null takes a field away.
pub(super) fn merge(document: &mut Value, change: &Value) {
    let Some(fields) = change.as_object() else {
        *document = change.clone();
        return;
    };
    if !document.is_object() {
        *document = json!({});
    }
    for (key, value) in fields {
        if !value.is_null() {
            merge(&mut document[key], value);
        } else if let Some(document) = document.as_object_mut() {
            document.remove(key);
        }
    }
}

fn name_fields(path: &str, change: &Value, fields: &mut BTreeSet<String>) {
    for (key, value) in change.as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        name_fields(&path, value, fields);
        fields.insert(path);
    }
}

/// The schema of a kind as the API server has it.
pub(super) fn schema(admin: &Client, plural: &str) -> Result<Value> {
    let definition = admin.json(&["get", "crd", &format!("{plural}.monok8s.io")])?;
    Ok(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
}

fn schema_fields(path: &str, schema: &Value, fields: &mut BTreeSet<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        schema_fields(&path, property, fields);
        fields.insert(path);
    }
}

/// A rule of the schema.
struct Rule {
    field: String,
    message: String,
    judges: Judges,
}

fn schema_rules(path: &str, schema: &Value, rules: &mut Vec<Rule>) {
    let own = schema["x-kubernetes-validations"].as_array();
    for rule in own.into_iter().flatten() {
        let changes = rule["rule"]
            .as_str()
            .unwrap_or_default()
            .contains("oldSelf");
        rules.push(Rule {
            field: path.trim_start_matches('.').to_owned(),
            message: rule["message"].as_str().unwrap_or_default().to_owned(),
            judges: if changes {
                Judges::Changes
            } else {
                Judges::Documents
            },
        });
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        schema_rules(&format!("{path}.{name}"), property, rules);
    }
}
