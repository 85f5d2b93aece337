//! `slotd status`.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use indicatif::HumanBytes;

use super::arguments::OutputFormat;
use super::error::CliError;
use super::report::sentence;
use super::{print, print_json, table};
use crate::agent::{Host, NodeHost};
use crate::config::{self, Settings};
use crate::dbus::client::{Client, ClientError};
use crate::error::ErrorKind;
use crate::service::{HostMachine, node_settings};
use crate::status::{
    Condition, HistoryEntry, STATUS_VERSION, SlotStatus, StatusDocument, UpgradeStatus,
};

/// Prints the status: the daemon's, or what can be seen without it.
pub(super) async fn show(config_root: &Path, output: OutputFormat) -> Result<(), CliError> {
    let asked = match Client::connect().await {
        Ok(client) => client.status().await,
        Err(error) => Err(error),
    };
    let document = match asked {
        Ok(document) => document,
        Err(error) if error.kind() == ErrorKind::NotRunning => {
            without_daemon(&config::load(config_root)?, &error)
        }
        Err(error) => return Err(error.into()),
    };
    output_of(&document, output)
}

fn output_of(document: &StatusDocument, output: OutputFormat) -> Result<(), CliError> {
    match output {
        OutputFormat::Json => print_json(document),
        OutputFormat::Table => {
            print(&text(document));
            Ok(())
        }
    }
}

/// Slots and loader as they are, and the record as it was kept. Reads only.
fn without_daemon(settings: &Settings, error: &ClientError) -> StatusDocument {
    let host = NodeHost::new(
        node_settings(settings),
        Arc::new(HostMachine::new(settings)),
    );
    let view = host.survey();
    let mut conditions = vec![Condition::new("DaemonNotRunning", error.to_string())];
    conditions.extend(view.conditions);
    let path = settings.state_directory.join("state.json");
    let record = match std::fs::read(&path) {
        Ok(bytes) => slotd_engine::decode(&bytes).map_err(|error| error.to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(slotd_engine::Record::default())
        }
        Err(error) => Err(error.to_string()),
    };
    let record = record.unwrap_or_else(|error| {
        let message = format!("{}: {error}", path.display());
        conditions.push(Condition::new("StateUnreadable", message));
        slotd_engine::Record::default()
    });
    StatusDocument {
        version: STATUS_VERSION,
        daemon: env!("CARGO_PKG_VERSION").to_owned(),
        booted: view.booted,
        slots: view.slots,
        loader: view.loader,
        upgrade: UpgradeStatus::of(&record, None),
        last_result: record.last.as_ref().map(HistoryEntry::from),
        conditions,
    }
}

/// Shows the status again and again as it changes, until interrupted; waits for a daemon that is not there.
pub(super) async fn watch(output: OutputFormat) -> Result<(), CliError> {
    loop {
        match watch_once(output).await {
            Err(error) if error.kind() == ErrorKind::NotRunning => {
                show_again(&format!("{error}; waiting for it"), output);
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            other => return other,
        }
    }
}

async fn watch_once(output: OutputFormat) -> Result<(), CliError> {
    let client = Client::connect().await?;
    let lost = |error: zbus::Error| CliError::from(ClientError::from(error));
    let mut progress = client.proxy().receive_progress().await.map_err(lost)?;
    let mut owner = client
        .proxy()
        .inner()
        .receive_owner_changed()
        .await
        .map_err(lost)?;
    loop {
        let document = client.status().await?;
        match output {
            OutputFormat::Json => {
                print(&serde_json::to_string(&document).map_err(CliError::internal)?);
            }
            OutputFormat::Table => show_again(&text(&document), output),
        }
        tokio::select! {
            _ = progress.next() => {}
            _ = owner.next() => {}
            () = client.connection().closed() => {}
        }
        // Signals that come close to each other are one change.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// In place on a terminal, one after the other elsewhere.
fn show_again(text: &str, output: OutputFormat) {
    if output == OutputFormat::Json {
        eprintln!("{text}");
        return;
    }
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        let _ = write!(out, "\x1b[H\x1b[2J");
    }
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn text(document: &StatusDocument) -> String {
    let mut parts = Vec::new();
    for condition in &document.conditions {
        parts.push(format!("! {}: {}", condition.kind, condition.message));
    }
    if !document.conditions.is_empty() {
        parts.push(String::new());
    }
    if !document.slots.is_empty() {
        let mut table = table(&[
            "SLOT", "STATE", "BOOTED", "VERSION", "DEVICE", "LABEL", "SIZE",
        ]);
        for slot in &document.slots {
            table.add_row([
                slot.slot.to_string(),
                state(slot),
                if slot.booted { "yes" } else { "no" }.to_owned(),
                slot.version.clone().unwrap_or_else(|| "-".to_owned()),
                slot.device.display().to_string(),
                slot.label.clone(),
                HumanBytes(slot.size).to_string(),
            ]);
        }
        parts.push(table.trim_fmt());
        parts.push(String::new());
    }
    let mut facts = Vec::new();
    if let Some(loader) = &document.loader {
        let trial = if loader.trial_boot {
            "; this boot is a trial"
        } else {
            ""
        };
        facts.push((
            "Boot loader",
            format!("{}, next boot: {}{trial}", loader.backend, loader.next_boot),
        ));
    }
    facts.push(("Upgrade", upgrade(&document.upgrade)));
    if let Some(last) = &document.last_result {
        facts.push(("Last result", last_result(last)));
    }
    for (name, value) in facts {
        parts.push(format!("{name:<12} {value}"));
    }
    parts.join("\n")
}

fn state(slot: &SlotStatus) -> String {
    match slot.tries_left {
        Some(left) => format!("{} ({left} left)", slot.state),
        None => slot.state.clone(),
    }
}

fn upgrade(upgrade: &UpgradeStatus) -> String {
    if upgrade.phase == "Idle" {
        return "none".to_owned();
    }
    let mut text = sentence(upgrade);
    if let Some(id) = upgrade.id {
        text = format!("{id}: {text}");
    }
    if let Some(percent) = upgrade.progress.and_then(|progress| progress.percent) {
        text = format!("{text}, {percent} %");
    }
    if let Some(failure) = upgrade.failure.as_ref().filter(|_| !upgrade.at_rest()) {
        text = format!("{text}; last trouble: {}", failure.reason);
    }
    text
}

fn last_result(last: &HistoryEntry) -> String {
    let version = last.version.as_deref().unwrap_or("an image");
    let mut text = format!(
        "{}: {} of {version} in slot {}: {}, {:.0}",
        last.id, last.kind, last.slot, last.result, last.completed_at
    );
    if let Some(failure) = &last.failure {
        text = format!("{text}\n{:<13}{}", "", failure.reason);
        if let Some(check) = &failure.check {
            text = format!("{text}\n{:<13}check: {check}", "");
        }
        for line in failure.output.as_deref().unwrap_or_default().lines() {
            text = format!("{text}\n{:<13}| {line}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests;
