//! Turns what the HTTP library reports into errors that say what happened.

use std::error::Error as StdError;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::CertificateError;

use crate::error::Error;

/// 2026-01-01: this program is younger, so a clock before that was never set.
const EARLIEST_PLAUSIBLE_CLOCK: u64 = 1_767_225_600;

/// The error for a request that failed, or a body that broke off after `received` bytes.
pub(super) fn connection_failed(url: &str, error: reqwest::Error, received: Option<u64>) -> Error {
    let url = url.to_owned();
    if let Some(problem) = certificate_problem(&error) {
        let clock = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs());
        return judge_certificate(url, problem, clock);
    }
    let cause = innermost(&error);
    let problem = match received {
        Some(received) => format!("the connection broke after {received} bytes: {cause}"),
        None if error.is_timeout() => "no connection within the time allowed".to_owned(),
        None if error.is_connect() => format!("no connection: {cause}"),
        None => format!("the request failed: {cause}"),
    };
    // Without its URL, which may carry a user or a signed query.
    Error::Connection {
        url,
        problem,
        source: Some(Box::new(error.without_url())),
    }
}

/// A certificate that is not valid yet says more about the clock, where that is plainly unset.
fn judge_certificate(url: String, problem: &CertificateError, clock: u64) -> Error {
    let early = matches!(
        problem,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }
    );
    if early && clock < EARLIEST_PLAUSIBLE_CLOCK {
        Error::ClockNotSet { url, clock }
    } else {
        Error::Certificate {
            url,
            problem: problem.to_string(),
        }
    }
}

/// The certificate error somewhere down the chain. Errors hide inside `io::Error`s, whose
/// `source` skips what they wrap.
fn certificate_problem<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a CertificateError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(problem)) = error.downcast_ref() {
            return Some(problem);
        }
        next = match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

fn innermost(error: &reqwest::Error) -> String {
    let mut last: &dyn StdError = error;
    while let Some(source) = last.source() {
        last = source;
    }
    if std::ptr::addr_eq(last, error) {
        // Its own text would name the URL.
        return "no further reason is known".to_owned();
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_certificate_from_the_future_is_blamed_on_an_unset_clock_only() {
        let problem = CertificateError::NotValidYet;
        let unset = judge_certificate("https://h/".to_owned(), &problem, 86_400);
        assert!(
            unset
                .to_string()
                .contains("clock of this machine is not set"),
            "{unset}"
        );
        assert_eq!(unset.kind(), ErrorKind::Retry);
        let set = judge_certificate("https://h/".to_owned(), &problem, 1_900_000_000);
        assert_eq!(set.kind(), ErrorKind::Configuration);
        let other = judge_certificate("https://h/".to_owned(), &CertificateError::UnknownIssuer, 0);
        assert_eq!(other.kind(), ErrorKind::Configuration);
    }

    #[test]
    fn certificate_errors_are_found_inside_input_output_errors() {
        let inner = rustls::Error::InvalidCertificate(CertificateError::Expired);
        let error = io::Error::other(io::Error::other(inner));
        assert_eq!(
            certificate_problem(&error),
            Some(&CertificateError::Expired)
        );
        assert_eq!(certificate_problem(&io::Error::other("else")), None);
    }
}
