//! HTTP probes.

use std::io::Read;
use std::time::Duration;

use url::Url;

use super::OUTPUT_LIMIT;
use super::node::Probed;
use crate::error::causes;

/// Something that an HTTP request has to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCheck {
    /// Its name in verdicts.
    pub name: String,
    /// What is asked; any answer from 200 to 399 is healthy.
    pub url: Url,
    /// How long one request may take.
    pub timeout: Duration,
}

impl HttpCheck {
    /// How long one request may take where nothing is said.
    pub const TIMEOUT: Duration = Duration::from_secs(5);

    /// The kubelet's own healthz, at its default address.
    pub(super) fn kubelet() -> Option<Self> {
        Some(Self {
            name: "kubelet".to_owned(),
            url: Url::parse("http://127.0.0.1:10248/healthz").ok()?,
            timeout: Self::TIMEOUT,
        })
    }

    /// Asks once, for at most `left`.
    pub(super) fn ask(&self, left: Duration) -> Probed {
        let timeout = self.timeout.min(left.max(Duration::from_millis(100)));
        match self.request(timeout) {
            Ok(()) => Probed::Passed,
            Err(seen) => Probed::NotYet(seen),
        }
    }

    fn request(&self, timeout: Duration) -> Result<(), String> {
        // What the node answers itself, never what a proxy says of it.
        let client = reqwest::blocking::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(timeout)
            .build()
            .map_err(|error| causes(&error))?;
        let response = client
            .get(self.url.clone())
            .send()
            .map_err(|error| causes(&error.without_url()))?;
        let status = response.status();
        if status.is_success() || status.is_redirection() {
            return Ok(());
        }
        let mut body = Vec::new();
        let limit = u64::try_from(OUTPUT_LIMIT).unwrap_or(u64::MAX);
        // A body that breaks off says less, the status still counts.
        let _ = response.take(limit).read_to_end(&mut body);
        let body = String::from_utf8_lossy(&body);
        Err(format!("answered {status}: {}", body.trim()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use super::{HttpCheck, Probed};

    /// Asks a server that answers each of these once.
    fn asked(answer: &'static str) -> Probed {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let check = HttpCheck {
            name: "x".to_owned(),
            url: format!("http://{address}/healthz").parse().unwrap(),
            timeout: HttpCheck::TIMEOUT,
        };
        let probed = check.ask(Duration::from_secs(10));
        server.join().unwrap();
        probed
    }

    #[test]
    fn an_answer_of_200_passes() {
        let probed = asked("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(probed, Probed::Passed);
    }

    #[test]
    fn an_answer_of_500_is_shown_with_its_body() {
        let probed =
            asked("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 12\r\n\r\n[-]ping nope");
        let Probed::NotYet(seen) = probed else {
            panic!("{probed:?}")
        };
        assert!(
            seen.contains("500") && seen.contains("[-]ping nope"),
            "{seen}"
        );
    }

    #[test]
    fn nobody_listening_is_named_as_that() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let check = HttpCheck {
            name: "x".to_owned(),
            url: format!("http://{address}/").parse().unwrap(),
            timeout: HttpCheck::TIMEOUT,
        };
        let probed = check.ask(Duration::from_secs(10));
        assert!(
            matches!(&probed, Probed::NotYet(seen) if seen.contains("refused")),
            "{probed:?}"
        );
    }
}
