//! Which servers configured credentials belong to.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};
use url::{Host, Url};

use crate::error::{Error, Result};

/// Scheme, host and port of a server that may be sent credentials (RFC 6454): one of https, or this machine itself.
///
/// Plain http to another machine is none: everybody on the way can read what it carries, and nobody there has to prove
/// who he is, so a secret would not stay with the origin that it was given for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(url::Origin);

impl Origin {
    /// Whether a request for `url` goes to this origin.
    pub(crate) fn covers(&self, url: &Url) -> bool {
        url.origin() == self.0
    }
}

impl FromStr for Origin {
    type Err = Error;

    /// Understands `https://host`, `https://host:port`, and the same of `http` for `localhost` and loopback addresses.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOrigin`] for everything else, such as a path, a user or a wildcard. It does not repeat the text.
    fn from_str(text: &str) -> Result<Self> {
        let refuse = |problem: String| Err(Error::InvalidOrigin { problem });
        let say = |problem: &str| refuse(problem.to_owned());
        let Some((scheme @ ("http" | "https"), place)) = text.split_once("://") else {
            return say("it starts with neither `https://` nor `http://`");
        };
        if place.contains('@') {
            return say("it holds a user");
        }
        // What the parser of URLs would put up with is no origin, and what matches nothing is a mistake.
        if place.contains(['/', '\\', '?', '#']) {
            return say("something follows its host and port");
        }
        if place.contains(|c: char| c == '*' || c.is_whitespace() || c.is_control()) {
            return say("its host is no name and no address");
        }
        if place.ends_with(':') {
            return say("its port is missing");
        }
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(error) => return refuse(error.to_string()),
        };
        // `%2A` and wide forms become it within the parser.
        if url.host_str().is_some_and(|host| host.contains('*')) {
            return say("its host is no name and no address");
        }
        if scheme == "http" && !url.host().is_some_and(is_this_machine) {
            return say(
                "plain http shows credentials to everybody on the way, so only this machine itself may be meant",
            );
        }
        Ok(Self(url.origin()))
    }
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.ascii_serialization())
    }
}

fn is_this_machine(host: Host<&str>) -> bool {
    match host {
        Host::Domain(name) => name == "localhost",
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_covers_its_scheme_host_and_port_only() {
        for (origin, covered, others) in [
            (
                "https://updates.example.com",
                &[
                    "https://updates.example.com/a/b?c",
                    "https://updates.example.com:443/",
                    "https://UPDATES.example.com/",
                    "https://me:pw@updates.example.com/",
                ][..],
                &[
                    "http://updates.example.com/",
                    "https://updates.example.com:8443/",
                    "https://example.com/",
                    "https://updates.example.com.evil.example/",
                    "https://updates.example.com@evil.example/",
                    "https://a.updates.example.com/",
                    "https://updates.example.com./",
                ][..],
            ),
            (
                "https://[2001:DB8::1]:8443",
                &["https://[2001:db8:0::1]:8443/"],
                &["https://[2001:db8::1]/"],
            ),
            (
                "http://127.0.0.1:8000",
                &["http://127.0.0.1:8000/"],
                &["http://localhost:8000/", "http://127.0.0.1/"],
            ),
        ] {
            let origin: Origin = origin.parse().unwrap();
            for url in covered {
                assert!(origin.covers(&Url::parse(url).unwrap()), "{origin} {url}");
            }
            for url in others {
                assert!(!origin.covers(&Url::parse(url).unwrap()), "{origin} {url}");
            }
        }
    }

    #[test]
    fn what_is_no_origin_is_refused_without_repeating_it() {
        for (text, says) in [
            ("", "neither"),
            ("hunter2.example", "neither"),
            ("ftp://hunter2.example", "neither"),
            ("https:hunter2.example", "neither"),
            (" https://hunter2.example", "neither"),
            ("https://", "empty host"),
            ("https://hunter2.example/", "something follows"),
            ("https://hunter2.example/images", "something follows"),
            ("https://hunter2.example?a", "something follows"),
            ("https://hunter2.example#a", "something follows"),
            ("https://hunter2.example\\a", "something follows"),
            ("https://me:hunter2@h.example", "a user"),
            ("https://hunter2@h.example", "a user"),
            ("https://*.hunter2.example", "no name"),
            ("https://%2a.hunter2.example", "no name"),
            ("https://\u{ff0a}.hunter2.example", "no name"),
            ("https://hunter2.example ", "no name"),
            ("https://hunter2\n.example", "no name"),
            ("https://hunter2.example:", "port is missing"),
            ("https://hunter2.example:port", "port"),
            ("https://hunter2.example:99999", "port"),
            ("http://hunter2.example", "plain http"),
            ("http://10.0.2.2:8000", "plain http"),
            ("http://localhost.hunter2.example", "plain http"),
        ] {
            let error = text.parse::<Origin>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{text}: {error}");
        }
        for text in ["http://localhost:8000", "http://[::1]", "http://127.8.9.1"] {
            assert_eq!(text.parse::<Origin>().unwrap().to_string(), text);
        }
    }
}
