//! The node's settings as the agent takes them.

use slotd_engine::{ErrorKind, Failure};

use crate::config::Settings;
use crate::node::NodeSettings;

/// What the agent has to know, out of the configuration.
pub fn node_settings(settings: &Settings) -> NodeSettings {
    let fetch = settings.clone();
    NodeSettings {
        slots: settings.slots.clone(),
        state_directory: settings.state_directory.clone(),
        version_key: settings.version_key.clone(),
        tries: settings.trial.tries,
        deadline: settings.trial.deadline,
        boot_options: settings.boot.options.clone(),
        panic_seconds: settings.boot.panic_seconds,
        require_agent: settings.install.require_agent,
        require_checksum: settings.install.require_checksum,
        ..NodeSettings::new(
            settings.loader.clone(),
            Box::new(move || {
                fetch
                    .fetch()
                    .map_err(|error| Failure::new(ErrorKind::Configuration, error.to_string()))
            }),
        )
    }
}
