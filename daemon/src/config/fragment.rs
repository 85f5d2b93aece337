//! The first stage: one file, as it was written. Every key is optional, none is unknown, each value knows its line.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;
use slotd_image::Secret;

use super::scalar::{AutoPath, Bytes, FilePath, HttpProbe, LoaderChoice, Locator, Span, WebUrl};

/// A value with the line it stands on.
pub(super) type Leaf<T> = Option<Spanned<T>>;

/// One configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Fragment {
    pub(super) slots: Option<SlotsFragment>,
    pub(super) loader: Leaf<LoaderChoice>,
    pub(super) esp: Leaf<AutoPath>,
    pub(super) state_directory: Leaf<FilePath>,
    pub(super) version_key: Leaf<String>,
    pub(super) trial: Option<TrialFragment>,
    pub(super) boot: Option<BootFragment>,
    pub(super) health: Option<HealthFragment>,
    pub(super) fetch: Option<FetchFragment>,
    pub(super) install: Option<InstallFragment>,
}

/// `slots:`
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct SlotsFragment {
    pub(super) a: Leaf<Locator>,
    pub(super) b: Leaf<Locator>,
}

/// `trial:`
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct TrialFragment {
    pub(super) tries: Leaf<u32>,
    pub(super) deadline: Leaf<Span>,
}

/// `boot:`
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct BootFragment {
    pub(super) options: Leaf<String>,
    pub(super) panic: Leaf<u32>,
}

/// `health:`
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct HealthFragment {
    pub(super) units: Leaf<Vec<String>>,
    pub(super) http: Leaf<Vec<HttpProbe>>,
    pub(super) script_timeout: Leaf<Span>,
    pub(super) attempts: Leaf<u32>,
}

/// `fetch:`
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct FetchFragment {
    pub(super) ca_bundle: Leaf<FilePath>,
    pub(super) bearer_token_file: Leaf<FilePath>,
    pub(super) headers: Option<BTreeMap<String, Spanned<Secret>>>,
    pub(super) client_certificate: Leaf<FilePath>,
    pub(super) proxy: Leaf<WebUrl>,
    pub(super) connect_timeout: Leaf<Span>,
    pub(super) idle_timeout: Leaf<Span>,
    pub(super) deadline: Leaf<Span>,
    pub(super) retries: Leaf<u32>,
    pub(super) rate_limit: Leaf<Bytes>,
    pub(super) window_limit: Leaf<Bytes>,
}

/// `install:`
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct InstallFragment {
    pub(super) require_agent: Leaf<bool>,
    pub(super) require_checksum: Leaf<bool>,
}
