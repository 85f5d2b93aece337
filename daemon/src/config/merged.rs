//! The second stage: all files merged, every value with the place it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_saphyr::Spanned;
use slotd_image::Secret;

use super::fragment::{Fragment, Leaf};
use super::scalar::{
    AutoPath, Bytes, FilePath, HttpProbe, LoaderChoice, Locator, Shown, Span, WebUrl,
};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// slotd's own default.
    Default,
    /// A line of a file.
    File(Arc<PathBuf>, u64),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
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

    fn take(&mut self, leaf: Leaf<T>, file: &Arc<PathBuf>) {
        if let Some(spanned) = leaf {
            *self = sourced(spanned, file);
        }
    }
}

fn sourced<T>(spanned: Spanned<T>, file: &Arc<PathBuf>) -> Sourced<T> {
    Sourced {
        origin: Origin::File(Arc::clone(file), spanned.referenced.line()),
        value: spanned.value,
    }
}

/// One line of `slotd config show`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ShownValue {
    /// The key, with dots.
    pub key: String,
    /// The value; a secret is `***`, and `null` is nothing.
    pub value: serde_json::Value,
    /// `default`, or file and line.
    pub origin: String,
}

/// All inputs merged: the defaults, then each file in order, key by key.
#[derive(Debug, Clone)]
pub(super) struct Merged {
    pub(super) slot_a: Sourced<Option<Locator>>,
    pub(super) slot_b: Sourced<Option<Locator>>,
    pub(super) loader: Sourced<LoaderChoice>,
    pub(super) esp: Sourced<AutoPath>,
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
    pub(super) bearer_token_file: Sourced<Option<FilePath>>,
    pub(super) headers: BTreeMap<String, Sourced<Secret>>,
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
}

impl Default for Merged {
    fn default() -> Self {
        let fetch = slotd_image::FetchSettings::default();
        let seconds = |n| Sourced::preset(Span(std::time::Duration::from_secs(n)));
        Self {
            slot_a: Sourced::preset(None),
            slot_b: Sourced::preset(None),
            loader: Sourced::preset(LoaderChoice::Auto),
            esp: Sourced::preset(AutoPath::Auto),
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
        }
    }
}

fn optional<T>(leaf: Leaf<T>) -> Leaf<Option<T>> {
    leaf.map(|spanned| Spanned {
        value: Some(spanned.value),
        referenced: spanned.referenced,
        defined: spanned.defined,
    })
}

impl Merged {
    /// Lays one file over what is there: each key that it has wins; maps are merged, lists replaced.
    pub(super) fn take(&mut self, fragment: Fragment, file: &Path) {
        let file = &Arc::new(file.to_path_buf());
        self.loader.take(fragment.loader, file);
        self.esp.take(fragment.esp, file);
        self.state_directory.take(fragment.state_directory, file);
        self.version_key.take(fragment.version_key, file);
        if let Some(slots) = fragment.slots {
            self.slot_a.take(optional(slots.a), file);
            self.slot_b.take(optional(slots.b), file);
        }
        if let Some(trial) = fragment.trial {
            self.tries.take(trial.tries, file);
            self.trial_deadline.take(trial.deadline, file);
        }
        if let Some(boot) = fragment.boot {
            self.boot_options.take(boot.options, file);
            self.panic.take(boot.panic, file);
        }
        if let Some(health) = fragment.health {
            self.units.take(health.units, file);
            self.http.take(optional(health.http), file);
            self.script_timeout.take(health.script_timeout, file);
            self.attempts.take(health.attempts, file);
        }
        if let Some(fetch) = fragment.fetch {
            self.ca_bundle.take(optional(fetch.ca_bundle), file);
            self.bearer_token_file
                .take(optional(fetch.bearer_token_file), file);
            for (name, value) in fetch.headers.unwrap_or_default() {
                self.headers.insert(name, sourced(value, file));
            }
            self.client_certificate
                .take(optional(fetch.client_certificate), file);
            self.proxy.take(optional(fetch.proxy), file);
            self.connect_timeout.take(fetch.connect_timeout, file);
            self.idle_timeout.take(fetch.idle_timeout, file);
            self.fetch_deadline.take(fetch.deadline, file);
            self.retries.take(fetch.retries, file);
            self.rate_limit.take(optional(fetch.rate_limit), file);
            self.window_limit.take(fetch.window_limit, file);
        }
        if let Some(install) = fragment.install {
            self.require_agent.take(install.require_agent, file);
            self.require_checksum.take(install.require_checksum, file);
        }
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
            "loader" loader, "esp" esp, "stateDirectory" state_directory, "versionKey" version_key,
            "trial.tries" tries, "trial.deadline" trial_deadline,
            "boot.options" boot_options, "boot.panic" panic,
            "health.units" units, "health.http" http,
            "health.scriptTimeout" script_timeout, "health.attempts" attempts,
            "fetch.caBundle" ca_bundle, "fetch.bearerTokenFile" bearer_token_file,
        }
        for (name, value) in &self.headers {
            add(
                &format!("fetch.headers.{name}"),
                serde_json::Value::String("***".to_owned()),
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
        }
        all
    }
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> serde_json::Value {
        self.as_ref().map_or(serde_json::Value::Null, Shown::shown)
    }
}
