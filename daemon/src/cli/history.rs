//! `slotd history`.

use super::arguments::OutputFormat;
use super::error::CliError;
use super::{print, print_json, table};
use crate::agent::read_history;
use crate::config::Settings;
use crate::status::HistoryEntry;

/// Prints the finished upgrades, the latest last.
pub(super) fn show(settings: &Settings, output: OutputFormat) -> Result<(), CliError> {
    let history = read_history(&settings.state_directory)
        .map_err(|source| CliError::io(&settings.state_directory.join("history.jsonl"), source))?;
    match output {
        OutputFormat::Json => print_json(&history),
        OutputFormat::Table if history.is_empty() => {
            print("No upgrade has ended on this node yet.");
            Ok(())
        }
        OutputFormat::Table => {
            print(&text(&history));
            Ok(())
        }
    }
}

fn text(history: &[HistoryEntry]) -> String {
    let mut table = table(&["ID", "WHAT", "RESULT", "SLOT", "VERSION", "ENDED", "REASON"]);
    for entry in history {
        let reason = entry.failure.as_ref().map_or_else(String::new, |failure| {
            let check = failure.check.as_ref();
            let check = check.map_or_else(String::new, |check| format!(" ({check})"));
            format!("{}{check}", failure.reason)
        });
        table.add_row([
            entry.id.to_string(),
            entry.kind.clone(),
            entry.result.clone(),
            entry.slot.to_string(),
            entry.version.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{:.0}", entry.completed_at),
            reason,
        ]);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::status::{FailureStatus, HistoryEntry, SlotLetter};

    #[test]
    fn each_upgrade_is_a_line_with_its_reason() {
        let text = text(&[HistoryEntry {
            id: 3,
            kind: "install".to_owned(),
            result: "RolledBack".to_owned(),
            slot: SlotLetter::B,
            version: Some("1.2".to_owned()),
            digest: None,
            source: None,
            failure: Some(FailureStatus {
                kind: "Reject".to_owned(),
                reason: "a health check failed".to_owned(),
                check: Some("required.d/api".to_owned()),
                output: None,
            }),
            started_at: jiff::Timestamp::UNIX_EPOCH,
            completed_at: jiff::Timestamp::UNIX_EPOCH,
        }]);
        let line = text.lines().last().unwrap();
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>().join(" "),
            "3 install RolledBack B 1.2 1970-01-01T00:00:00Z a health check failed (required.d/api)"
        );
    }
}
