//! See [`crate::fuzzing`].

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use url::Url;

use super::Published;
use super::http::HttpBody;
use crate::cancel::Cancel;
use crate::error::Error;
use crate::settings::FetchSettings;

/// A server that answers every request with the same bytes and hangs up.
struct Server {
    url: Url,
    answer: Arc<Mutex<Vec<u8>>>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let answer = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let bytes = shared
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let mut stream = stream;
            // A client that hangs up is no fault of the server.
            if stream.read(&mut [0; 4096]).unwrap_or(0) > 0 {
                let _ = stream.write_all(&bytes);
            }
        }
    });
    let url = format!("http://127.0.0.1:{port}/").parse().expect("a URL");
    Server { url, answer }
});

/// One answer, taken by the client as it is on a node. The server is the proxy, too: wherever a redirect leads, it leads there.
pub(crate) fn answer(input: &[u8]) -> bool {
    let server = &*SERVER;
    *server.answer.lock().unwrap_or_else(PoisonError::into_inner) = input.to_vec();
    let settings = FetchSettings {
        proxy: Some(server.url.clone()),
        // No authorities are read for a redirect to https, which fails at the proxy.
        ca_bundle: Some("/dev/null".into()),
        connect_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(5),
        ..FetchSettings::default()
    };
    let url: Url = "http://image.invalid/i".parse().expect("a URL");
    let (cancel, deadline) = (Cancel::new(), Instant::now() + Duration::from_secs(8));
    let mut body = match HttpBody::request(&url, &settings, true, deadline, &cancel) {
        Ok(body) => body,
        Err(error) => {
            judge(&error);
            return false;
        }
    };
    // Empty lines in front are put up with (RFC 9112, 2.2).
    let start = input.trim_ascii_start();
    assert!(start.starts_with(b"HTTP/1."), "another protocol");
    let mut received: u64 = 0;
    loop {
        match body.next(&cancel) {
            Ok(Some(chunk)) => {
                assert!(!chunk.is_empty());
                received += chunk.len() as u64;
                // Nothing is unpacked on the way.
                assert!(received <= input.len() as u64);
            }
            Ok(None) => {
                assert!(body.total().is_none_or(|total| total == received));
                return true;
            }
            Err(error) => {
                judge(&error);
                return false;
            }
        }
    }
}

/// Whatever an answer is, it is blamed on the server, by its URL, without what redirects may have put into it.
fn judge(error: &Error) {
    let url = match error {
        Error::Status { url, .. }
        | Error::Redirect { url, .. }
        | Error::Connection { url, .. }
        | Error::Unprotected { url }
        | Error::Certificate { url, .. } => url,
        // An authority is needed for https, and there is none.
        Error::Settings { .. } => return,
        other => panic!("another error than one of a server: {other}"),
    };
    let url: Url = url.parse().expect("a URL is shown");
    assert!(
        url.query().is_none() && url.username().is_empty(),
        "{error}"
    );
}
