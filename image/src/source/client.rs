//! The HTTP client that fits a step of a request: which authorities it trusts, what it presents.

use std::path::Path;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Client, Identity, Proxy, redirect};

use super::redirect::Trail;
use crate::error::{Cause, Error, Result};
use crate::settings::FetchSettings;

/// Headers that this crate needs for itself: a configured one would break length or content.
const RESERVED: [HeaderName; 7] = [
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    header::RANGE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The client of the last step, made anew only when the next one needs another.
pub(super) struct ClientCache<'a> {
    settings: &'a FetchSettings,
    last: Option<(ClientNeeds, Client)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClientNeeds {
    tls: bool,
    identity: bool,
}

impl<'a> ClientCache<'a> {
    pub(super) fn new(settings: &'a FetchSettings) -> Self {
        Self {
            settings,
            last: None,
        }
    }

    /// A client for where `trail` stands.
    pub(super) fn get(&mut self, trail: &Trail) -> Result<Client> {
        let proxy_uses_tls = self
            .settings
            .proxy
            .as_ref()
            .is_some_and(|url| url.scheme() == "https");
        let needs = ClientNeeds {
            tls: trail.url().scheme() == "https" || proxy_uses_tls,
            identity: trail.withholds().is_none(),
        };
        keep_from_proxy(self.settings, trail)?;
        if let Some((made_for, client)) = &self.last
            && *made_for == needs
        {
            return Ok(client.clone());
        }
        let client = build(self.settings, needs)?;
        self.last = Some((needs, client.clone()));
        Ok(client)
    }
}

/// Refuses to send credentials to where `trail` stands through a proxy that would get to see them.
fn keep_from_proxy(settings: &FetchSettings, trail: &Trail) -> Result<()> {
    let Some(proxy) = &settings.proxy else {
        return Ok(());
    };
    let configured = settings.has_credentials() && trail.withholds().is_none();
    let url = trail.url();
    let named = !url.username().is_empty() || url.password().is_some();
    if url.scheme() == "http" && (configured || named) {
        let problem = "it would read the credentials that plain http carries".to_owned();
        return Err(refuse("proxy", problem, None));
    }
    // One set of certificates serves both handshakes, with the proxy and through it.
    let listed = settings.origins.iter().any(|origin| origin.covers(proxy));
    if configured && proxy.scheme() == "https" && settings.client_identity.is_some() && !listed {
        let problem = "the client certificate would be presented to it too, and its origin is not in fetch.origins";
        return Err(refuse("proxy", problem.to_owned(), None));
    }
    Ok(())
}

fn build(settings: &FetchSettings, needs: ClientNeeds) -> Result<Client> {
    let mut builder = Client::builder()
        .user_agent(concat!("slotd/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .referer(false)
        .http1_only()
        .connect_timeout(settings.connect_timeout)
        .tcp_keepalive(settings.idle_timeout)
        .retry(reqwest::retry::never());
    builder = match &settings.proxy {
        None => builder.no_proxy(),
        Some(url) => builder.proxy(Proxy::all(url.clone()).map_err(|error| {
            // Not the URL, which may carry a password.
            refuse(
                "proxy",
                "is no address of a proxy".to_owned(),
                Some(error.without_url().into()),
            )
        })?),
    };
    if !needs.tls {
        // Reading the system's authorities takes memory and time, and fails where there are none.
        builder = builder.tls_certs_only([]);
    } else if let Some(path) = &settings.ca_bundle {
        let pem = read("caBundle", path)?;
        let authorities = Certificate::from_pem_bundle(&pem)
            .map_err(|error| refuse("caBundle", unusable(path), Some(error.into())))?;
        if authorities.is_empty() {
            return Err(refuse(
                "caBundle",
                format!("{} holds no certificate", path.display()),
                None,
            ));
        }
        builder = builder.tls_certs_only(authorities);
    }
    if needs.tls
        && needs.identity
        && let Some(path) = &settings.client_identity
    {
        let pem = read("clientCertificate", path)?;
        let identity = Identity::from_pem(&pem)
            .map_err(|error| refuse("clientCertificate", unusable(path), Some(error.into())))?;
        builder = builder.identity(identity);
    }
    builder.build().map_err(|error| {
        refuse(
            "TLS",
            "cannot be set up from the certificates".to_owned(),
            Some(error.into()),
        )
    })
}

/// What belongs to the configured origins and goes nowhere else.
pub(super) fn credentials(settings: &FetchSettings) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in &settings.headers {
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|error| {
            refuse(
                "headers",
                format!("{name:?} is no name of a header"),
                Some(error.into()),
            )
        })?;
        if RESERVED.contains(&parsed) {
            return Err(refuse("headers", format!("{name:?} cannot be set"), None));
        }
        headers.append(parsed, secret_value("headers", value.expose())?);
    }
    if let Some(token) = &settings.bearer_token {
        let value = secret_value("bearerToken", &format!("Bearer {}", token.expose()))?;
        headers.insert(header::AUTHORIZATION, value);
    }
    Ok(headers)
}

fn secret_value(field: &'static str, value: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        refuse(
            field,
            "a value holds characters that no header can carry".to_owned(),
            None,
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn read(field: &'static str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        refuse(
            field,
            format!("{} cannot be read: {error}", path.display()),
            Some(error.into()),
        )
    })
}

fn unusable(path: &Path) -> String {
    format!("{} is not usable PEM", path.display())
}

fn refuse(field: &'static str, problem: String, source: Option<Cause>) -> Error {
    Error::Settings {
        field,
        problem,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    #[test]
    fn a_token_with_a_line_break_is_refused_without_showing_it() {
        let settings = FetchSettings {
            bearer_token: Some(Secret::new("a\nb")),
            ..Default::default()
        };
        let message = format!("{:?}", credentials(&settings).unwrap_err());
        assert!(
            message.contains("bearerToken") && !message.contains("a\\nb"),
            "{message}"
        );
    }

    #[test]
    fn headers_that_lengths_depend_on_cannot_be_set() {
        let headers = vec![("Range".to_owned(), Secret::new("bytes=0-1"))];
        let settings = FetchSettings {
            headers,
            ..Default::default()
        };
        assert!(
            credentials(&settings)
                .unwrap_err()
                .to_string()
                .contains("\"Range\" cannot be set")
        );
    }

    type Change = fn(&mut FetchSettings);

    #[test]
    fn no_proxy_gets_to_see_credentials() {
        let header = |settings: &mut FetchSettings| {
            settings.headers = vec![("X-Api-Key".to_owned(), Secret::new("hunter2"))];
        };
        let identity = |settings: &mut FetchSettings| {
            settings.client_identity = Some("/nowhere/node.pem".into());
        };
        let nothing = |_: &mut FetchSettings| ();
        let cases: [(&str, &str, Change, bool); 11] = [
            ("http://localhost/i", "http://proxy:3128", header, false),
            ("http://localhost/i", "https://proxy:3128", header, false),
            ("http://localhost/i", "http://proxy:3128", nothing, true),
            // User and password of a URL are credentials as well, wherever it leads.
            ("http://me:pw@other/i", "http://proxy:3128", nothing, false),
            ("http://me@other/i", "https://proxy:3128", nothing, false),
            ("https://me:pw@other/i", "http://proxy:3128", nothing, true),
            (
                "https://updates.example/i",
                "http://proxy:3128",
                header,
                true,
            ),
            (
                "https://updates.example/i",
                "https://proxy:3128",
                header,
                true,
            ),
            (
                "https://updates.example/i",
                "http://proxy:3128",
                identity,
                true,
            ),
            (
                "https://updates.example/i",
                "https://proxy:3128",
                identity,
                false,
            ),
            (
                "https://updates.example/i",
                "https://listed:3128",
                identity,
                true,
            ),
        ];
        for (url, proxy, credentials, allowed) in cases {
            let origins = [
                "http://localhost",
                "https://updates.example",
                "https://listed:3128",
            ];
            let mut settings = FetchSettings {
                origins: origins.map(|origin| origin.parse().unwrap()).to_vec(),
                proxy: Some(proxy.parse().unwrap()),
                ..Default::default()
            };
            credentials(&mut settings);
            let trail = Trail::new(&url.parse().unwrap(), true, &settings.origins).unwrap();
            let kept = keep_from_proxy(&settings, &trail);
            assert_eq!(kept.is_ok(), allowed, "{url} {proxy} {kept:?}");
        }
    }

    #[test]
    fn a_missing_bundle_is_named() {
        let settings = FetchSettings {
            ca_bundle: Some("/nowhere/ca.pem".into()),
            ..Default::default()
        };
        let error = build(
            &settings,
            ClientNeeds {
                tls: true,
                identity: true,
            },
        )
        .unwrap_err();
        assert!(
            error.to_string().contains("caBundle: /nowhere/ca.pem"),
            "{error}"
        );
    }
}
