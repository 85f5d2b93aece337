//! `slotd history`.

use super::arguments::OutputFormat;
use super::error::CliError;
use super::{print, print_json, table, warn};
use crate::agent::{history_path, read_history};
use crate::config::Settings;
use crate::status::HistoryEntry;

/// Prints the finished upgrades, the latest last, and on standard error how many lines could not be read.
pub(super) fn show(settings: &Settings, output: OutputFormat) -> Result<(), CliError> {
    let path = history_path(&settings.state_directory);
    let history =
        read_history(&settings.state_directory).map_err(|source| CliError::io(&path, source))?;
    if history.skipped > 0 {
        let (lines, are) = match history.skipped {
            1 => ("1 line".to_owned(), "is"),
            more => (format!("{more} lines"), "are"),
        };
        let path = path.display();
        warn(
            &format!("{lines} of {path} cannot be read and {are} left out"),
            output,
        );
    }
    match output {
        OutputFormat::Json => print_json(&history.entries),
        OutputFormat::Table if history.entries.is_empty() => {
            if history.skipped == 0 {
                print("No upgrade has ended on this node yet.");
            }
            Ok(())
        }
        OutputFormat::Table => {
            print(&text(&history.entries));
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
                code: None,
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
