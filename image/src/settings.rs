//! How to fetch, and what to expect.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::checksum::Checksum;
use crate::secret::Secret;

/// The largest window that is allowed by default, in bytes: what `zstd --long=27` asks for.
pub const DEFAULT_WINDOW_LIMIT: u64 = 128 << 20;

/// How an image is fetched. Only the window limit concerns files and standard input.
///
/// Bearer token, headers, user information of the URL and the client certificate belong to the
/// origin of the image's URL: a redirect to another scheme, host or port drops all of them, and a
/// redirect back does not bring them back.
#[derive(Debug, Clone)]
pub struct FetchSettings {
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
