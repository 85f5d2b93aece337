//! Whether a trial boot is healthy: units, HTTP probes, scripts, and no unit failing that did not fail before.
//!
//! In this order: `basic.target` and the required units are active and the probes answer, waited for until the
//! deadline; the boot has come to rest, waited for a while only; the required scripts succeed; no unit failed that
//! did not fail before the upgrade. Nothing here waits for `multi-user.target`: that may wait for us. The scripts in
//! `wanted.d` run last and decide nothing.
//!
//! A script's own answer is final after [`HealthSettings::attempts`], so that a bad image is left quickly. What is
//! merely not there yet is asked again until the deadline, except a unit that stays failed.

mod http;
mod node;
mod process;
mod round;
mod scripts;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use slotd_image::Cancel;

use crate::cluster::KUBELET_KUBECONFIG;

use round::Round;

pub use http::HttpCheck;
pub use node::{Node, Probed, ScriptEnd, SystemdNode, UnitState};
pub use scripts::{Script, ScriptsError};

/// Where kubeadm puts the kubelet's configuration.
const KUBELET_CONFIGURATION: &str = "/var/lib/kubelet/config.yaml";

/// What is kept of a check's output: its end.
pub const OUTPUT_LIMIT: usize = 4096;

/// What makes a boot healthy.
#[derive(Debug, Clone)]
pub struct HealthSettings {
    /// Units that have to be active, beside `basic.target`.
    pub units: Vec<String>,
    /// Probes; `None` for the kubelet's healthz where a kubelet is configured.
    pub http: Option<Vec<HttpCheck>>,
    /// A kubelet is configured where one of these files is: its configuration as kubeadm writes it, or its credential.
    pub kubelet: Vec<PathBuf>,
    /// Whether one was configured before the upgrade: an image that loses these files is to be told from a node without one.
    pub kubelet_before: bool,
    /// How long one script may run.
    pub script_timeout: Duration,
    /// How often a failing script is run before its answer is final.
    pub attempts: u32,
    /// The units that failed before the upgrade, and may fail still; `None` where that is not known, and then no
    /// failed unit counts.
    pub failed_before: Option<Vec<String>>,
    /// Folders that hold `required.d` and `wanted.d`; the later one wins by name.
    pub script_folders: Vec<PathBuf>,
    /// Pauses between looks, doubled from the first to the second.
    pub pauses: (Duration, Duration),
    /// How long a unit may stay failed before that is final.
    pub patience: Duration,
    /// How long starting units are waited for before the scripts run; never more than a quarter of what is left.
    pub rest: Duration,
}

impl HealthSettings {
    /// Whether a kubelet is configured on this node.
    fn has_kubelet(&self, node: &dyn Node) -> bool {
        self.kubelet.iter().any(|file| node.has(file))
    }
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self {
            units: Vec::new(),
            http: None,
            kubelet: [KUBELET_CONFIGURATION, KUBELET_KUBECONFIG]
                .map(PathBuf::from)
                .to_vec(),
            kubelet_before: false,
            script_timeout: Duration::from_secs(60),
            attempts: 1,
            failed_before: None,
            script_folders: vec![
                PathBuf::from("/usr/lib/slotd/health"),
                PathBuf::from("/etc/slotd/health"),
            ],
            pauses: (Duration::from_millis(500), Duration::from_secs(4)),
            patience: Duration::from_secs(20),
            rest: Duration::from_secs(60),
        }
    }
}

/// What the checks came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All required checks passed.
    Healthy,
    /// A required check failed.
    Unhealthy {
        /// Its name, such as `unit kubelet.service` or `required.d/10-api`.
        check: String,
        /// The end of what it printed, or what was seen.
        output: String,
    },
    /// The deadline passed while a required check did not pass yet.
    Late {
        /// Its name.
        check: String,
        /// What was seen of it last.
        output: String,
    },
    /// The checks were told to stop; there is no verdict.
    Cancelled,
}

/// What happens while the checks run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthEvent {
    /// A required check is not fulfilled yet; said once for each thing that is seen.
    Waiting {
        /// The check.
        check: String,
        /// What was seen.
        seen: String,
    },
    /// A check passed.
    Passed {
        /// The check.
        check: String,
    },
    /// A script of `wanted.d` failed; it decides nothing.
    WantedFailed {
        /// The check.
        check: String,
        /// The end of what it printed.
        output: String,
    },
}

/// Runs all checks on this machine, until the verdict or the deadline. Blocks.
pub fn run(
    settings: &HealthSettings,
    deadline: Instant,
    cancel: &Cancel,
    on_event: &dyn Fn(HealthEvent),
) -> Verdict {
    run_on(
        &SystemdNode::default(),
        settings,
        deadline,
        cancel,
        on_event,
    )
}

/// The units that are failed now, for [`HealthSettings::failed_before`].
///
/// # Errors
/// When PID 1 does not answer; the text says how.
pub fn failed_units() -> Result<Vec<String>, String> {
    SystemdNode::default().failed_units()
}

/// Whether a kubelet is configured now, for [`HealthSettings::kubelet_before`].
#[must_use]
pub fn kubelet_configured(settings: &HealthSettings) -> bool {
    settings.has_kubelet(&SystemdNode::default())
}

/// [`run`], on a machine that may be made up.
pub fn run_on(
    node: &dyn Node,
    settings: &HealthSettings,
    deadline: Instant,
    cancel: &Cancel,
    on_event: &dyn Fn(HealthEvent),
) -> Verdict {
    let round = Round {
        node,
        settings,
        deadline,
        cancel,
        on_event,
    };
    match round.all() {
        Ok(()) => Verdict::Healthy,
        Err(verdict) => verdict,
    }
}

#[cfg(test)]
mod tests;
