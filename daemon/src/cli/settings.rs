//! `slotd config show`.

use super::arguments::OutputFormat;
use super::error::CliError;
use super::{print, print_json, table, warn};
use crate::config::Settings;

/// Prints every value and where it came from, and warnings on standard error.
pub(super) fn show(settings: &Settings, output: OutputFormat) -> Result<(), CliError> {
    for warning in settings.warnings() {
        warn(warning, output);
    }
    match output {
        OutputFormat::Json => print_json(&settings.shown()),
        OutputFormat::Table => {
            let mut table = table(&["KEY", "VALUE", "FROM"]);
            for shown in settings.shown() {
                let value = match &shown.value {
                    serde_json::Value::String(text) if !text.is_empty() => text.clone(),
                    serde_json::Value::Null => "-".to_owned(),
                    other => other.to_string(),
                };
                table.add_row([&shown.key, &value, &shown.origin]);
            }
            print(&table.trim_fmt());
            Ok(())
        }
    }
}
