//! Where the log goes: the journal, with its fields, where standard error is the journal; standard error elsewhere.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Its own line for each answer that is no success, budgets that keep a pod included: whoever asked tells of it, and only once.
const UNTOLD: &str = "kube_client::client::builder=off";

/// Starts logging. `SLOTD_LOG` chooses what is told, as `RUST_LOG` does elsewhere; else it is `default`.
///
/// # Errors
/// When the journal's socket cannot be opened, or logging was started before.
pub fn start(default: &str) -> anyhow::Result<()> {
    let filter = match std::env::var("SLOTD_LOG") {
        Ok(filter) => EnvFilter::try_new(filter)?,
        Err(_) => EnvFilter::try_new(format!("{default},{UNTOLD}"))?,
    };
    let registry = tracing_subscriber::registry().with(filter);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        let journal = tracing_journald::layer()?
            .with_field_prefix(Some("SLOTD".to_owned()))
            .with_syslog_identifier("slotd".to_owned());
        registry.with(journal).try_init()?;
    } else {
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false);
        registry.with(lines).try_init()?;
    }
    Ok(())
}
