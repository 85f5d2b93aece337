//! The second stage: all files merged, every value with the place it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slotd_bootctl::{GrubConvention, LoaderKind, UbootConvention, UbootSetting};
use slotd_crds::names::DEFAULT_NAMESPACE;
use slotd_image::Secret;

use super::ConfigError;
use super::fragment::{Fragment, Leaf};
use super::scalar::{
    AutoPath, Bytes, FilePath, HttpProbe, Locator, Namespace, Shown, Span, WebUrl, Word,
};
use crate::cluster::ClusterAccess;
use crate::controller::ControllerAccess;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// slotd's own default.
    Default,
    /// A line of a file.
    File(Arc<PathBuf>, u64),
    /// slotd's own default, to which this line of a file went back.
    Reset(Arc<PathBuf>, u64),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Reset(path, line) => write!(f, "{}:{line} (default)", path.display()),
        }
    }
}

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub origin: Origin,
}

impl<T> Sourced<T> {
    fn preset(value: T) -> Self {
        Self {
            value,
            origin: Origin::Default,
        }
    }

    /// Lays what a file says over what is there; `preset` is the default.
    fn take<U: Into<T>>(&mut self, leaf: Leaf<U>, preset: Self, file: &Arc<PathBuf>) {
        *self = match leaf {
            Leaf::Absent => return,
            Leaf::Reset(line) => Self {
                value: preset.value,
                origin: Origin::Reset(Arc::clone(file), line),
            },
            Leaf::Value(value, line) => Self {
                value: value.into(),
                origin: Origin::File(Arc::clone(file), line),
            },
        };
    }
}

/// One line of `slotd config show`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ShownValue {
    /// The key, with dots.
    pub key: String,
    /// The value; a secret is `***`, and `null` is nothing.
    pub value: serde_json::Value,
    /// `default`, or file and line; behind these ` (default)` where a `null` there went back to it.
    pub origin: String,
}

/// All inputs merged: the defaults, then each file in order, key by key.
#[derive(Debug, Clone)]
pub(super) struct Merged {
    pub(super) slot_a: Sourced<Option<Locator>>,
    pub(super) slot_b: Sourced<Option<Locator>>,
    pub(super) loader: Sourced<Word<LoaderKind>>,
    pub(super) esp: Sourced<AutoPath>,
    pub(super) grub_environment: Sourced<AutoPath>,
    pub(super) grub_convention: Sourced<Word<GrubConvention>>,
    pub(super) uboot_config: Sourced<FilePath>,
    pub(super) uboot_convention: Sourced<Word<UbootConvention>>,
    pub(super) state_directory: Sourced<FilePath>,
    pub(super) version_key: Sourced<String>,
    pub(super) tries: Sourced<u32>,
    pub(super) trial_deadline: Sourced<Span>,
    pub(super) boot_options: Sourced<String>,
    pub(super) panic: Sourced<u32>,
    pub(super) units: Sourced<Vec<String>>,
    pub(super) http: Sourced<Option<Vec<HttpProbe>>>,
    pub(super) script_timeout: Sourced<Span>,
    pub(super) attempts: Sourced<u32>,
    pub(super) ca_bundle: Sourced<Option<FilePath>>,
    pub(super) origins: Sourced<Vec<slotd_image::Origin>>,
    pub(super) bearer_token_file: Sourced<Option<FilePath>>,
    /// `None` where one was taken away again.
    pub(super) headers: BTreeMap<String, Sourced<Option<Secret>>>,
    pub(super) client_certificate: Sourced<Option<FilePath>>,
    pub(super) proxy: Sourced<Option<WebUrl>>,
    pub(super) connect_timeout: Sourced<Span>,
    pub(super) idle_timeout: Sourced<Span>,
    pub(super) fetch_deadline: Sourced<Span>,
    pub(super) retries: Sourced<u32>,
    pub(super) rate_limit: Sourced<Option<Bytes>>,
    pub(super) window_limit: Sourced<Bytes>,
    pub(super) require_agent: Sourced<bool>,
    pub(super) require_checksum: Sourced<bool>,
    pub(super) cluster: Sourced<ClusterAccess>,
    pub(super) controller: Sourced<ControllerAccess>,
    pub(super) namespace: Sourced<Namespace>,
}

impl Default for Merged {
    fn default() -> Self {
        let fetch = slotd_image::FetchSettings::default();
        let uboot = UbootSetting::default();
        let seconds = |n| Sourced::preset(Span(std::time::Duration::from_secs(n)));
        Self {
            slot_a: Sourced::preset(None),
            slot_b: Sourced::preset(None),
            loader: Sourced::preset(Word(LoaderKind::Auto)),
            esp: Sourced::preset(AutoPath::Auto),
            grub_environment: Sourced::preset(AutoPath::Auto),
            grub_convention: Sourced::preset(Word(GrubConvention::Slotd)),
            uboot_config: Sourced::preset(FilePath(uboot.config)),
            uboot_convention: Sourced::preset(Word(uboot.convention)),
            state_directory: Sourced::preset(FilePath(PathBuf::from("/var/lib/slotd"))),
            version_key: Sourced::preset("IMAGE_VERSION".to_owned()),
            tries: Sourced::preset(3),
            trial_deadline: seconds(600),
            boot_options: Sourced::preset(String::new()),
            panic: Sourced::preset(10),
            units: Sourced::preset(Vec::new()),
            http: Sourced::preset(None),
            script_timeout: seconds(60),
            attempts: Sourced::preset(1),
            ca_bundle: Sourced::preset(None),
            origins: Sourced::preset(Vec::new()),
            bearer_token_file: Sourced::preset(None),
            headers: BTreeMap::new(),
            client_certificate: Sourced::preset(None),
            proxy: Sourced::preset(None),
            connect_timeout: Sourced::preset(Span(fetch.connect_timeout)),
            idle_timeout: Sourced::preset(Span(fetch.idle_timeout)),
            fetch_deadline: Sourced::preset(Span(fetch.total_deadline)),
            retries: Sourced::preset(fetch.retries),
            rate_limit: Sourced::preset(None),
            window_limit: Sourced::preset(Bytes(fetch.window_limit)),
            require_agent: Sourced::preset(true),
            require_checksum: Sourced::preset(true),
            cluster: Sourced::preset(ClusterAccess::Auto),
            controller: Sourced::preset(ControllerAccess::default()),
            namespace: Sourced::preset(Namespace(DEFAULT_NAMESPACE.to_owned())),
        }
    }
}

impl Merged {
    /// Lays one file over what is there: each key that it has wins; maps are merged, lists replaced, and `null` goes
    /// back to the default, for a map in all of it.
    ///
    /// # Errors
    /// When the file says two things of one header.
    pub(super) fn take(&mut self, fragment: Fragment, file: &Path) -> Result<(), ConfigError> {
        let file = &Arc::new(file.to_path_buf());
        let preset = Self::default();
        let slots = fragment.slots.section();
        let grub = fragment.grub.section();
        let uboot = fragment.uboot.section();
        let trial = fragment.trial.section();
        let boot = fragment.boot.section();
        let health = fragment.health.section();
        let fetch = fragment.fetch.section();
        let install = fragment.install.section();
        let kubernetes = fragment.kubernetes.section();
        let controller = fragment.controller.section();
        self.take_headers(fetch.headers, file)?;
        macro_rules! take {
            ($($field:ident: $from:ident.$key:ident,)*) => {
                $(self.$field.take($from.$key, preset.$field, file);)*
            };
        }
        take! {
            slot_a: slots.a, slot_b: slots.b,
            loader: fragment.loader, esp: fragment.esp,
            grub_environment: grub.environment, grub_convention: grub.convention,
            uboot_config: uboot.config, uboot_convention: uboot.convention,
            state_directory: fragment.state_directory, version_key: fragment.version_key,
            tries: trial.tries, trial_deadline: trial.deadline,
            boot_options: boot.options, panic: boot.panic,
            units: health.units, http: health.http,
            script_timeout: health.script_timeout, attempts: health.attempts,
            ca_bundle: fetch.ca_bundle, origins: fetch.origins,
            bearer_token_file: fetch.bearer_token_file,
            client_certificate: fetch.client_certificate, proxy: fetch.proxy,
            connect_timeout: fetch.connect_timeout, idle_timeout: fetch.idle_timeout,
            fetch_deadline: fetch.deadline, retries: fetch.retries,
            rate_limit: fetch.rate_limit, window_limit: fetch.window_limit,
            require_agent: install.require_agent, require_checksum: install.require_checksum,
            cluster: kubernetes.kubeconfig,
            controller: controller.kubeconfig, namespace: controller.namespace,
        }
        Ok(())
    }

    fn take_headers(
        &mut self,
        headers: Leaf<BTreeMap<String, Leaf<Secret>>>,
        file: &Arc<PathBuf>,
    ) -> Result<(), ConfigError> {
        match headers {
            Leaf::Absent => {}
            Leaf::Reset(line) => {
                for header in self.headers.values_mut() {
                    header.take(Leaf::<Secret>::Reset(line), Sourced::preset(None), file);
                }
            }
            // Names of headers are equal whatever their case (RFC 9110, 5.1).
            Leaf::Value(headers, _) => {
                each_header_once(&headers, file)?;
                for (name, leaf) in headers {
                    self.headers
                        .retain(|known, _| !known.eq_ignore_ascii_case(&name));
                    let mut header = Sourced::preset(None);
                    header.take(leaf, Sourced::preset(None), file);
                    self.headers.insert(name, header);
                }
            }
        }
        Ok(())
    }

    /// Every value, in the order of the documentation.
    pub(super) fn shown(&self) -> Vec<ShownValue> {
        let mut all = Vec::new();
        let mut add = |key: &str, value: serde_json::Value, origin: &Origin| {
            all.push(ShownValue {
                key: key.to_owned(),
                value,
                origin: origin.to_string(),
            });
        };
        macro_rules! show {
            ($($key:literal $field:ident,)*) => {
                $(add($key, self.$field.value.shown(), &self.$field.origin);)*
            };
        }
        show! {
            "slots.a" slot_a, "slots.b" slot_b,
            "loader" loader, "esp" esp,
            "grub.environment" grub_environment, "grub.convention" grub_convention,
            "uboot.config" uboot_config, "uboot.convention" uboot_convention,
            "stateDirectory" state_directory, "versionKey" version_key,
            "trial.tries" tries, "trial.deadline" trial_deadline,
            "boot.options" boot_options, "boot.panic" panic,
            "health.units" units, "health.http" http,
            "health.scriptTimeout" script_timeout, "health.attempts" attempts,
            "fetch.caBundle" ca_bundle, "fetch.origins" origins,
            "fetch.bearerTokenFile" bearer_token_file,
        }
        for (name, value) in &self.headers {
            add(
                &format!("fetch.headers.{name}"),
                value.value.shown(),
                &value.origin,
            );
        }
        macro_rules! show {
            ($($key:literal $field:ident,)*) => {
                $(add($key, self.$field.value.shown(), &self.$field.origin);)*
            };
        }
        show! {
            "fetch.clientCertificate" client_certificate, "fetch.proxy" proxy,
            "fetch.connectTimeout" connect_timeout, "fetch.idleTimeout" idle_timeout,
            "fetch.deadline" fetch_deadline, "fetch.retries" retries,
            "fetch.rateLimit" rate_limit, "fetch.windowLimit" window_limit,
            "install.requireAgent" require_agent, "install.requireChecksum" require_checksum,
            "kubernetes.kubeconfig" cluster,
            "controller.kubeconfig" controller, "controller.namespace" namespace,
        }
        all
    }
}

/// One file's headers: of two spellings of one name, one would be lost. YAML's own rule finds equal spellings only.
fn each_header_once(
    headers: &BTreeMap<String, Leaf<Secret>>,
    file: &Arc<PathBuf>,
) -> Result<(), ConfigError> {
    let mut in_order: Vec<(u64, &String)> = headers
        .iter()
        .map(|(name, leaf)| (leaf.line(), name))
        .collect();
    in_order.sort();
    let mut earlier: Vec<(u64, &String)> = Vec::new();
    for (line, name) in in_order {
        if let Some((first, other)) = earlier
            .iter()
            .find(|(_, other)| other.eq_ignore_ascii_case(name))
        {
            return Err(ConfigError::value(
                "fetch.headers",
                &Origin::File(Arc::clone(file), line),
                &format!(
                    "{name} is the header {other} of line {first}: names of headers are equal whatever their case"
                ),
            ));
        }
        earlier.push((line, name));
    }
    Ok(())
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> serde_json::Value {
        self.as_ref().map_or(serde_json::Value::Null, Shown::shown)
    }
}
