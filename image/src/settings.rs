//! How to fetch, and what to expect.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::checksum::Checksum;
use crate::secret::Secret;
use crate::source::{Origin, shown};

/// The largest window that is allowed by default, in bytes: what `zstd --long=27` asks for.
pub const DEFAULT_WINDOW_LIMIT: u64 = 128 << 20;

/// How an image is fetched. Only the window limit concerns files and standard input.
///
/// Bearer token, headers and the client certificate belong to [`origins`](Self::origins): an image's
/// URL elsewhere is asked for without them. User information of that URL belongs to its origin. A
/// redirect to another scheme, host or port drops all of them, wherever it leads, and a redirect
/// back does not bring them back: where to go was chosen by a server.
#[derive(Clone)]
pub struct FetchSettings {
    /// The only origins that are sent credentials.
    pub origins: Vec<Origin>,
    /// PEM file with the only certification authorities that are trusted, instead of the system's.
    pub ca_bundle: Option<PathBuf>,
    /// Sent as `Authorization: Bearer …`.
    pub bearer_token: Option<Secret>,
    /// Sent as they are, besides those that this crate needs itself.
    pub headers: Vec<(String, Secret)>,
    /// PEM file with a client certificate and its private key.
    pub client_identity: Option<PathBuf>,
    /// Proxy for http and https; the environment is not looked at.
    pub proxy: Option<Url>,
    /// Longest time for name resolution, connection and TLS handshake.
    pub connect_timeout: Duration,
    /// Longest silence of the server, before its answer and within it.
    pub idle_timeout: Duration,
    /// Longest time for the whole fetch, with all retries.
    pub total_deadline: Duration,
    /// How often a failed fetch starts again.
    pub retries: u32,
    /// Shortest wait before the next attempt; doubled each time, with up to as much again at random.
    pub backoff_min: Duration,
    /// Longest wait before the next attempt, before the random part.
    pub backoff_max: Duration,
    /// Bytes of the published file per second, at most.
    pub rate_limit: Option<u64>,
    /// Largest window of a zstd frame, in bytes; that much memory is needed.
    pub window_limit: u64,
}

impl Default for FetchSettings {
    fn default() -> Self {
        Self {
            origins: Vec::new(),
            ca_bundle: None,
            bearer_token: None,
            headers: Vec::new(),
            client_identity: None,
            proxy: None,
            connect_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            total_deadline: Duration::from_secs(6 * 3600),
            retries: 10,
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
            rate_limit: None,
            window_limit: DEFAULT_WINDOW_LIMIT,
        }
    }
}

impl FetchSettings {
    /// Whether there is anything that belongs to [`origins`](Self::origins) alone.
    pub(crate) fn has_credentials(&self) -> bool {
        self.bearer_token.is_some() || !self.headers.is_empty() || self.client_identity.is_some()
    }
}

impl fmt::Debug for FetchSettings {
    /// Without what is secret, which the proxy's URL can hold too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchSettings")
            .field("origins", &self.origins)
            .field("ca_bundle", &self.ca_bundle)
            .field("bearer_token", &self.bearer_token)
            .field("headers", &self.headers)
            .field("client_identity", &self.client_identity)
            .field("proxy", &self.proxy.as_ref().map(shown))
            .field("connect_timeout", &self.connect_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("total_deadline", &self.total_deadline)
            .field("retries", &self.retries)
            .field("backoff_min", &self.backoff_min)
            .field("backoff_max", &self.backoff_max)
            .field("rate_limit", &self.rate_limit)
            .field("window_limit", &self.window_limit)
            .finish()
    }
}

/// What is known of the image beforehand and has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expectation {
    /// Digest of the file as published, or of the expanded image: either is accepted.
    pub checksum: Option<Checksum>,
    /// Digest of the expanded image.
    pub expanded_checksum: Option<Checksum>,
    /// Length of the expanded image in bytes.
    pub size: Option<u64>,
}

impl Expectation {
    /// Whether the content is bound by a digest.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.checksum.is_some() || self.expanded_checksum.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_of_settings_holds_no_secret() {
        let settings = FetchSettings {
            bearer_token: Some(Secret::new("hunter2")),
            headers: vec![("X-Api-Key".to_owned(), Secret::new("hunter2"))],
            proxy: Some(Url::parse("http://me:hunter2@proxy:3128/").unwrap()),
            ..Default::default()
        };
        let text = format!("{settings:?}");
        assert!(
            text.contains("X-Api-Key") && text.contains("proxy:3128"),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
    }
}
