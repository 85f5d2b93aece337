//! The machine under the agent: health checks, reboots, PID 1.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use slotd_engine::{ErrorKind, Failure, Verdict};
use slotd_image::Cancel;
use tracing::{info, warn};

use crate::agent::{FAILED_BEFORE, Machine};
use crate::config::Settings;
use crate::health::{self, HealthEvent, HealthSettings};
use crate::login::{self, Reboot, systemctl};

/// This machine.
#[derive(Debug)]
pub struct HostMachine {
    health: HealthSettings,
    /// The units that failed when a trial boot was asked for. Lies with the state, so that the other slot reads it.
    baseline: PathBuf,
}

impl HostMachine {
    /// The machine with these settings.
    pub fn new(settings: &Settings) -> Self {
        Self {
            health: settings.health.clone(),
            baseline: settings.state_directory.join(FAILED_BEFORE),
        }
    }

    /// Remembers what fails before an upgrade. Not being able to only means that failed units will not count.
    fn remember_failed_units(&self) {
        let kept = health::failed_units()
            .and_then(|units| keep(&self.baseline, &units).map_err(|error| error.to_string()));
        if let Err(reason) = kept {
            warn!(reason, "what fails before the upgrade is not known");
            let _ = fs::remove_file(&self.baseline);
        }
    }
}

/// Writes the list of units: durable and whole, or as before after a crash.
fn keep(path: &Path, units: &[String]) -> io::Result<()> {
    let new = path.with_extension("json.new");
    let mut file = fs::File::create(&new)?;
    file.write_all(&serde_json::to_vec(units)?)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(folder) => fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// The list, where there is one that can be read.
fn kept(path: &Path) -> Option<Vec<String>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) => {
            info!(%error, path = %path.display(), "failed units do not count: none are known from before");
            return None;
        }
    };
    serde_json::from_slice(&text)
        .inspect_err(|error| warn!(%error, path = %path.display(), "failed units do not count"))
        .ok()
}

impl Machine for HostMachine {
    fn run_checks(&self, deadline: Instant, cancel: &Cancel) -> Verdict {
        let settings = HealthSettings {
            failed_before: kept(&self.baseline),
            ..self.health.clone()
        };
        let verdict = health::run(&settings, deadline, cancel, &log);
        match verdict {
            health::Verdict::Healthy => {
                // It belongs to this upgrade alone: a trial that somebody else begins later is not to be held to it.
                let _ = fs::remove_file(&self.baseline);
                Verdict::Healthy
            }
            health::Verdict::Unhealthy { check, output } => Verdict::Unhealthy { check, output },
            health::Verdict::Late { check, output } => Verdict::Late {
                check: Some(check),
                output,
            },
            // Whoever raised the flag does not look at the verdict.
            health::Verdict::Cancelled => Verdict::Late {
                check: None,
                output: "the checks were stopped".to_owned(),
            },
        }
    }

    fn reboot(&self, forced: bool) -> Result<(), Failure> {
        let how = if forced {
            Reboot::Forced
        } else {
            // What is about to be booted is a trial, or a slot that was proven before: then nobody reads this.
            self.remember_failed_units();
            Reboot::Normal
        };
        info!(?how, "reboot");
        login::reboot(how).map_err(|error| Failure::new(ErrorKind::Retry, error.to_string()))
    }

    fn reload_units(&self) -> Result<(), Failure> {
        systemctl(&["daemon-reload"]).map_err(|reason| Failure::new(ErrorKind::Retry, reason))
    }
}

fn log(event: HealthEvent) {
    match event {
        HealthEvent::Waiting { check, seen } => info!(check, seen, "health: waiting"),
        HealthEvent::Passed { check } => info!(check, "health: passed"),
        HealthEvent::WantedFailed { check, output } => {
            warn!(check, output, "health: a wanted check failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FAILED_BEFORE, keep, kept};

    #[test]
    fn failed_units_are_read_as_they_were_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FAILED_BEFORE);
        assert_eq!(kept(&path), None);
        keep(&path, &["a.service".to_owned()]).unwrap();
        assert_eq!(kept(&path), Some(vec!["a.service".to_owned()]));
        std::fs::write(&path, "torn").unwrap();
        assert_eq!(kept(&path), None);
    }
}
