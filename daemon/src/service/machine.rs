//! The machine under the agent: health checks, reboots, PID 1.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use slotd_engine::{ErrorKind, Failure, Verdict};
use slotd_image::Cancel;
use tracing::{info, warn};

use crate::agent::{FAILED_BEFORE, Machine, replace_durably};
use crate::config::Settings;
use crate::health::{self, HealthEvent, HealthSettings};
use crate::login::{self, Reboot, systemctl};

/// Stands among the failed units where a kubelet was configured. No unit can be named so: whoever does not know it passes over
/// it.
const KUBELET: &str = "(kubelet configured)";

/// How the node was when a trial boot was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Baseline {
    /// The units that failed.
    failed: Vec<String>,
    /// Whether a kubelet was configured.
    kubelet: bool,
}

/// This machine.
#[derive(Debug)]
pub struct HostMachine {
    health: HealthSettings,
    /// How the node was when a trial boot was asked for. Lies with the state, so that the other slot reads it.
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

    /// What makes a trial boot healthy, by what was before it.
    fn trial(&self) -> HealthSettings {
        let before = kept(&self.baseline);
        HealthSettings {
            kubelet_before: before.as_ref().is_some_and(|before| before.kubelet),
            failed_before: before.map(|before| before.failed),
            ..self.health.clone()
        }
    }
}

/// Writes the baseline: durable and whole, or as before after a crash. Two OS versions share the file, and neither asks which
/// one wrote it: it is a JSON array of names, and something else would need another file.
fn keep(path: &Path, baseline: &Baseline) -> io::Result<()> {
    let units = baseline.failed.iter().map(String::as_str);
    let names: Vec<&str> = units.chain(baseline.kubelet.then_some(KUBELET)).collect();
    replace_durably(path, &serde_json::to_vec(&names)?)
}

/// The baseline, where there is one that can be read.
fn kept(path: &Path) -> Option<Baseline> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) => {
            info!(%error, path = %path.display(), "failed units do not count: none are known from before");
            return None;
        }
    };
    let mut failed: Vec<String> = serde_json::from_slice(&text)
        .inspect_err(|error| warn!(%error, path = %path.display(), "failed units do not count"))
        .ok()?;
    let kubelet = failed.iter().any(|name| name == KUBELET);
    failed.retain(|name| name != KUBELET);
    Some(Baseline { failed, kubelet })
}

impl Machine for HostMachine {
    fn run_checks(&self, deadline: Instant, cancel: &Cancel) -> Verdict {
        let verdict = health::run(&self.trial(), deadline, cancel, &log);
        match verdict {
            health::Verdict::Healthy => {
                self.forget_failed_units();
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

    fn remember_failed_units(&self) {
        let kept = health::failed_units().and_then(|failed| {
            let kubelet = health::kubelet_configured(&self.health);
            let baseline = Baseline { failed, kubelet };
            keep(&self.baseline, &baseline).map_err(|error| error.to_string())
        });
        if let Err(reason) = kept {
            warn!(reason, "what fails before the upgrade is not known");
            self.forget_failed_units();
        }
    }

    fn forget_failed_units(&self) {
        if let Err(error) = fs::remove_file(&self.baseline)
            && error.kind() != io::ErrorKind::NotFound
        {
            let path = self.baseline.display();
            warn!(%error, %path, "what failed before an upgrade that has ended cannot be forgotten");
        }
    }

    fn reboot(&self, forced: bool) -> Result<(), Failure> {
        let how = if forced {
            Reboot::Forced
        } else {
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
    use super::{Baseline, FAILED_BEFORE, HostMachine, keep, kept};
    use crate::health::HealthSettings;

    #[test]
    fn failed_units_are_written_and_read_as_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FAILED_BEFORE);
        assert_eq!(kept(&path), None);
        let units = ["apt-daily.service", r"dev-disk-by\x2dlabel-old.swap"].map(str::to_owned);
        let baseline = |kubelet| Baseline {
            failed: units.to_vec(),
            kubelet,
        };
        keep(&path, &baseline(false)).unwrap();
        let golden = include_str!("../../tests/golden/v1/failed-before.json");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), golden);
        assert_eq!(kept(&path), Some(baseline(false)));
        // Read as what it always was by one that knows of no kubelet here.
        keep(&path, &baseline(true)).unwrap();
        let golden = include_str!("../../tests/golden/v1/failed-before-kubelet.json");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), golden);
        let names: Vec<String> = serde_json::from_str(golden).unwrap();
        assert!(units.iter().all(|unit| names.contains(unit)));
        assert_eq!(kept(&path), Some(baseline(true)));
        let trial = HostMachine {
            health: HealthSettings::default(),
            baseline: path.clone(),
        }
        .trial();
        assert!(trial.kubelet_before);
        assert_eq!(trial.failed_before, Some(units.to_vec()));
        for other in ["torn", r#"{"version": 2}"#, ""] {
            std::fs::write(&path, other).unwrap();
            assert_eq!(kept(&path), None, "{other}");
        }
    }
}
