//! Where a request may be led by redirects, and what it may carry there.
//!
//! The HTTP library follows redirects by itself and drops a few standard headers on the way, not
//! those that an operator configured. So it is told to follow none, and this decides each step.

use url::Url;

use super::{Origin, shown};
use crate::error::{Error, Result};

/// How many redirects are followed; browsers stop at twice as many.
const MOST_REDIRECTS: usize = 10;

/// The way of one request, from the URL that was asked for to where it is now.
#[derive(Debug)]
pub(crate) struct Trail {
    url: Url,
    first: Url,
    visited: Vec<Url>,
    /// Whether it never left the origin of the first URL.
    trusted: bool,
    /// Whether configured credentials belong to that origin.
    listed: bool,
    protected: bool,
}

impl Trail {
    /// Starts at `url`. `protected` says that a checksum binds the content; configured credentials belong to
    /// `origins`.
    ///
    /// # Errors
    ///
    /// [`Error::Unprotected`] for plain http without a checksum.
    pub(crate) fn new(url: &Url, protected: bool, origins: &[Origin]) -> Result<Self> {
        let mut start = url.clone();
        start.set_fragment(None);
        if url.scheme() != "https" && !protected {
            return Err(Error::Unprotected { url: shown(url) });
        }
        Ok(Self {
            first: start.clone(),
            visited: vec![start.clone()],
            url: start,
            trusted: true,
            listed: origins.iter().any(|origin| origin.covers(url)),
            protected,
        })
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// Why configured headers, token and client certificate may not be sent, or `None` where they may: only to an
    /// origin that they belong to, and only while every step so far stayed there. A redirect to another such origin
    /// does not take them along, and one back does not restore them, since where it leads was chosen by a server.
    pub(crate) fn withholds(&self) -> Option<&'static str> {
        if !self.listed {
            Some("no credentials were sent: its origin is not in fetch.origins")
        } else if !self.trusted {
            Some("no credentials were sent: a redirect led here from another origin")
        } else {
            None
        }
    }

    /// Follows a `Location` header.
    pub(crate) fn follow(&mut self, location: &str) -> Result<()> {
        let from = shown(&self.url);
        let refuse = |problem: String| Error::Redirect {
            url: from.clone(),
            problem,
        };
        let mut next = self
            .url
            .join(location)
            .map_err(|error| refuse(format!("redirects to an address that is none: {error}")))?;
        next.set_fragment(None);
        let to = shown(&next);
        match (self.url.scheme(), next.scheme()) {
            (_, "https") => {}
            ("https", "http") => {
                return Err(refuse(format!(
                    "redirects from https to plain http, to {to}"
                )));
            }
            (_, "http") if self.protected => {}
            (_, "http") => return Err(Error::Unprotected { url: to }),
            (_, other) => {
                return Err(refuse(format!(
                    "redirects to `{other}:`, which is not followed"
                )));
            }
        }
        // Opaque origins, which equal nothing, cannot occur: both schemes have a host.
        self.trusted &= next.origin() == self.first.origin();
        let user = if self.trusted { &self.first } else { &next };
        let (name, password) = if self.trusted {
            (
                user.username().to_owned(),
                user.password().map(str::to_owned),
            )
        } else {
            (String::new(), None)
        };
        // Both fail only for URLs without a host, which the schemes above exclude.
        let _ = next.set_username(&name);
        let _ = next.set_password(password.as_deref());
        if self.visited.contains(&next) {
            return Err(refuse(format!("redirect loop: {to} was asked before")));
        }
        if self.visited.len() > MOST_REDIRECTS {
            return Err(refuse(format!(
                "more than {MOST_REDIRECTS} redirects, the last to {to}"
            )));
        }
        self.visited.push(next.clone());
        self.url = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trail(url: &str) -> Trail {
        let origins = [
            "https://one.example",
            "https://two.example",
            "http://localhost",
        ];
        let origins = origins.map(|origin| origin.parse().unwrap());
        Trail::new(&Url::parse(url).unwrap(), true, &origins).unwrap()
    }

    #[test]
    fn credentials_stay_on_the_first_origin_and_never_come_back() {
        let mut trail = trail("https://me:pw@one.example/a");
        trail.follow("/b").unwrap();
        assert_eq!(trail.withholds(), None);
        assert_eq!(trail.url().as_str(), "https://me:pw@one.example/b");
        trail.follow("https://two.example/c").unwrap();
        assert!(trail.withholds().is_some());
        assert_eq!(trail.url().as_str(), "https://two.example/c");
        trail.follow("https://one.example/d").unwrap();
        assert!(trail.withholds().is_some());
        assert_eq!(trail.url().as_str(), "https://one.example/d");
    }

    #[test]
    fn another_port_or_scheme_is_another_origin() {
        for to in [
            "https://localhost/",
            "http://localhost:81/",
            "http://127.0.0.1/",
        ] {
            let mut trail = trail("http://localhost/a");
            assert_eq!(trail.withholds(), None);
            trail.follow(to).unwrap();
            assert!(trail.withholds().is_some(), "{to}");
        }
        let mut same = trail("https://one.example/a");
        same.follow("https://one.example:443/b").unwrap();
        assert_eq!(same.withholds(), None);
    }

    #[test]
    fn an_origin_that_is_not_listed_gets_no_credentials_but_the_user_of_its_url() {
        let mut trail = trail("https://me:pw@three.example/a");
        assert!(trail.withholds().is_some());
        trail.follow("/b").unwrap();
        assert!(trail.withholds().is_some());
        assert_eq!(trail.url().as_str(), "https://me:pw@three.example/b");
        // Nor is it able to spend them elsewhere.
        trail.follow("https://one.example/c").unwrap();
        assert!(trail.withholds().is_some());
    }

    #[test]
    fn a_user_in_the_location_is_not_sent() {
        let mut trail = trail("https://one.example/a");
        trail.follow("https://x:y@two.example/").unwrap();
        assert_eq!(trail.url().as_str(), "https://two.example/");
    }

    #[test]
    fn https_never_goes_to_plain_http() {
        let error = trail("https://one.example/a")
            .follow("http://one.example/a?sig=1")
            .unwrap_err();
        assert!(
            error.to_string().contains("from https to plain http"),
            "{error}"
        );
        assert!(!error.to_string().contains("sig"), "{error}");
    }

    #[test]
    fn plain_http_needs_a_checksum_also_behind_a_redirect() {
        let url = Url::parse("http://one.example/").unwrap();
        assert!(matches!(
            Trail::new(&url, false, &[]),
            Err(Error::Unprotected { .. })
        ));
    }

    #[test]
    fn loops_endless_chains_and_other_schemes_are_named() {
        let mut looping = trail("https://one.example/a");
        looping.follow("/b").unwrap();
        assert!(
            looping
                .follow("/a")
                .unwrap_err()
                .to_string()
                .contains("redirect loop")
        );

        let mut endless = trail("https://one.example/0");
        let error = (1..100)
            .find_map(|n| endless.follow(&format!("/{n}")).err())
            .unwrap();
        assert!(
            error.to_string().contains("more than 10 redirects"),
            "{error}"
        );

        let error = trail("https://one.example/a")
            .follow("file:///etc/passwd")
            .unwrap_err();
        assert!(error.to_string().contains("`file:`"), "{error}");
    }
}
