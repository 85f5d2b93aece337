//! The third stage: what the program works with, checked as a whole.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use slotd_bootctl::{EspSetting, GrubSetting, LoaderSetting, SlotSettings, UbootSetting};
use slotd_image::{FetchSettings, Secret};

use super::ConfigError;
use super::merged::{Merged, Origin, ShownValue, Sourced};
use super::scalar::AutoPath;
use crate::cluster::ClusterAccess;
use crate::controller::ControllerAccess;
use crate::health::{HealthSettings, HttpCheck};

/// The node's settings.
#[derive(Clone)]
pub struct Settings {
    /// Where the slots are.
    pub slots: SlotSettings,
    /// Which boot loader drives them.
    pub loader: LoaderSetting,
    /// Where the agent keeps what outlives a slot.
    pub state_directory: PathBuf,
    /// The key of os-release that holds an image's version.
    pub version_key: String,
    /// How a trial boot goes.
    pub trial: TrialSettings,
    /// What is added to the kernel's command line.
    pub boot: BootSettings,
    /// What makes a boot healthy.
    pub health: HealthSettings,
    /// What an install asks for.
    pub install: InstallSettings,
    /// Where the node's cluster is.
    pub cluster: ClusterAccess,
    /// How the fleet's controller works.
    pub controller: ControllerSettings,
    fetch: FetchSettings,
    bearer_token_file: Option<Sourced<PathBuf>>,
    shown: Vec<ShownValue>,
    warnings: Vec<String>,
}

/// The values as `slotd config show` prints them: a proxy's password and headers are secrets.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.shown.iter().map(|shown| (&shown.key, &shown.value)))
            .finish()
    }
}

/// How a trial boot goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialSettings {
    /// How often the loader tries the slot.
    pub tries: u32,
    /// How long after the kernel's start a trial boot has to be healthy.
    pub deadline: Duration,
}

/// What is added to the kernel's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootSettings {
    /// Options beside the image's own.
    pub options: String,
    /// Seconds from a panic to the reboot on a trial boot.
    pub panic_seconds: u32,
}

/// What an install asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstallSettings {
    /// Refuse images without an enabled slotd.
    pub require_agent: bool,
    /// Refuse to fetch an image without a checksum of it.
    pub require_checksum: bool,
}

/// How the fleet's controller works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSettings {
    /// How it reaches the cluster.
    pub access: ControllerAccess,
    /// Whether a file says so: what nobody asked for may give way.
    pub asked_for: bool,
    /// The namespace of slotd's own objects.
    pub namespace: String,
}

impl Settings {
    pub(super) fn from_merged(merged: Merged, warnings: Vec<String>) -> Result<Self, ConfigError> {
        let shown = merged.shown();
        credentials_have_origins(&merged)?;
        let slots = match (merged.slot_a.value, merged.slot_b.value) {
            (None, None) => SlotSettings::Auto,
            (Some(a), Some(b)) if a == b => {
                return Err(ConfigError::value(
                    "slots.b",
                    &merged.slot_b.origin,
                    "both slots are the same",
                ));
            }
            (Some(a), Some(b)) => SlotSettings::Explicit { a: a.0, b: b.0 },
            (Some(_), None) => {
                return Err(ConfigError::value(
                    "slots.a",
                    &merged.slot_a.origin,
                    "slots.b is missing: give both slots or none",
                ));
            }
            (None, Some(_)) => {
                return Err(ConfigError::value(
                    "slots.b",
                    &merged.slot_b.origin,
                    "slots.a is missing: give both slots or none",
                ));
            }
        };
        let wrong = |key, origin: &Origin, problem| Err(ConfigError::value(key, origin, problem));
        if !(1..=15).contains(&merged.tries.value) {
            return wrong("trial.tries", &merged.tries.origin, "it has to be 1 to 15");
        }
        if merged.trial_deadline.value.0 < Duration::from_secs(30) {
            let problem = "a trial boot needs at least 30s";
            return wrong("trial.deadline", &merged.trial_deadline.origin, problem);
        }
        if merged.panic.value == 0 {
            let problem = "0 would leave a panicked trial boot hanging";
            return wrong("boot.panic", &merged.panic.origin, problem);
        }
        if merged.boot_options.value.contains(['\n', '\r']) {
            return wrong(
                "boot.options",
                &merged.boot_options.origin,
                "it spans lines",
            );
        }
        if merged.attempts.value == 0 {
            return wrong(
                "health.attempts",
                &merged.attempts.origin,
                "it has to be 1 or more",
            );
        }
        if merged.version_key.value.is_empty() {
            return wrong("versionKey", &merged.version_key.origin, "it is empty");
        }
        let http = merged.http.value.map(|probes| {
            probes
                .into_iter()
                .map(|probe| HttpCheck {
                    name: probe.name,
                    url: probe.url.0,
                    timeout: probe.timeout.map_or(HttpCheck::TIMEOUT, |span| span.0),
                })
                .collect()
        });
        let mut health = HealthSettings::default();
        if let ClusterAccess::Kubeconfig(path) = &merged.cluster.value {
            health.kubelet.push(path.clone());
        }
        Ok(Self {
            slots,
            loader: LoaderSetting {
                kind: merged.loader.value.0,
                esp: match merged.esp.value {
                    AutoPath::Auto => EspSetting::Auto,
                    AutoPath::Path(path) => EspSetting::Path(path),
                },
                grub: GrubSetting {
                    environment: match merged.grub_environment.value {
                        AutoPath::Auto => None,
                        AutoPath::Path(path) => Some(path),
                    },
                    convention: merged.grub_convention.value.0,
                    variables: None,
                },
                uboot: UbootSetting {
                    config: merged.uboot_config.value.0,
                    convention: merged.uboot_convention.value.0,
                },
            },
            state_directory: merged.state_directory.value.0,
            version_key: merged.version_key.value,
            trial: TrialSettings {
                tries: merged.tries.value,
                deadline: merged.trial_deadline.value.0,
            },
            boot: BootSettings {
                options: merged.boot_options.value,
                panic_seconds: merged.panic.value,
            },
            health: HealthSettings {
                units: merged.units.value,
                http,
                script_timeout: merged.script_timeout.value.0,
                attempts: merged.attempts.value,
                ..health
            },
            install: InstallSettings {
                require_agent: merged.require_agent.value,
                require_checksum: merged.require_checksum.value,
            },
            cluster: merged.cluster.value,
            controller: ControllerSettings {
                asked_for: matches!(merged.controller.origin, Origin::File(..)),
                access: merged.controller.value,
                namespace: merged.namespace.value.0,
            },
            fetch: FetchSettings {
                origins: merged.origins.value,
                ca_bundle: merged.ca_bundle.value.map(|path| path.0),
                headers: merged
                    .headers
                    .into_iter()
                    .filter_map(|(name, header)| Some((name, header.value?)))
                    .collect(),
                client_identity: merged.client_certificate.value.map(|path| path.0),
                proxy: merged.proxy.value.map(|url| url.0),
                connect_timeout: merged.connect_timeout.value.0,
                idle_timeout: merged.idle_timeout.value.0,
                total_deadline: merged.fetch_deadline.value.0,
                retries: merged.retries.value,
                rate_limit: merged.rate_limit.value.map(|bytes| bytes.0),
                window_limit: merged.window_limit.value.0,
                ..FetchSettings::default()
            },
            bearer_token_file: merged.bearer_token_file.value.map(|path| Sourced {
                value: path.0,
                origin: merged.bearer_token_file.origin,
            }),
            shown,
            warnings,
        })
    }

    /// How images are fetched. Reads the bearer token's file each time, so that a renewed token is used.
    ///
    /// # Errors
    /// When the file cannot be read, or holds nothing.
    pub fn fetch(&self) -> Result<FetchSettings, ConfigError> {
        let mut settings = self.fetch.clone();
        if let Some(file) = &self.bearer_token_file {
            let text = std::fs::read_to_string(&file.value)
                .map_err(|source| ConfigError::read(&file.value, source))?;
            if text.trim().is_empty() {
                return Err(ConfigError::value(
                    "fetch.bearerTokenFile",
                    &file.origin,
                    &format!("{} is empty", file.value.display()),
                ));
            }
            settings.bearer_token = Some(Secret::new(text));
        }
        Ok(settings)
    }

    /// Every value and where it came from, for `slotd config show`.
    pub fn shown(&self) -> &[ShownValue] {
        &self.shown
    }

    /// What is not wrong, and not what somebody may think either: sentences for the log and `slotd config show`.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Credentials without origins could be sent nowhere.
fn credentials_have_origins(merged: &Merged) -> Result<(), ConfigError> {
    if !merged.origins.value.is_empty() {
        return Ok(());
    }
    let (token, certificate) = (&merged.bearer_token_file, &merged.client_certificate);
    let header = merged
        .headers
        .values()
        .find(|header| header.value.is_some());
    let (key, origin) = if token.value.is_some() {
        ("fetch.bearerTokenFile", &token.origin)
    } else if let Some(header) = header {
        ("fetch.headers", &header.origin)
    } else if certificate.value.is_some() {
        ("fetch.clientCertificate", &certificate.origin)
    } else {
        return Ok(());
    };
    let problem = "fetch.origins is missing: list the only origins that it may be sent to, such as \
                   https://updates.example.com";
    Err(ConfigError::value(key, origin, problem))
}
