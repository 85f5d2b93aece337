//! Servers that fail, redirect, break off or say nothing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]

mod support;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slotd_image::{Error, ErrorKind, FetchSettings, ImageSource};
use support::fetching::{assert_untouched, fetch, fetch_from, published};
use support::server::{Reply, Server};
use support::{MIB, expecting, quick};

#[test]
fn an_image_arrives_over_http() {
    let (content, published) = published();
    let server = Server::always(Reply::Content(published));
    let outcome = fetch_from(&server);
    outcome.result.unwrap();
    assert!(outcome.slot[..content.len()] == content);
    let request = &server.requests()[0];
    assert_eq!(request.target, "/rootfs.ext4.zst");
    assert_eq!(request.header("accept-encoding"), Some("identity"));
}

#[test]
fn not_found_and_forbidden_are_final_and_nothing_was_written() {
    for status in ["404 Not Found", "403 Forbidden", "410 Gone"] {
        let server = Server::always(Reply::Status(status));
        let url = server.url("/i?sig=secret");
        let outcome = fetch(
            ImageSource::parse(&url).unwrap(),
            &quick(),
            &expecting(b"anything"),
        );
        assert_untouched(&outcome);
        let error = outcome.result.unwrap_err();
        let says = format!("{}: the server answered {status}", server.url("/i"));
        assert_eq!(error.to_string(), says);
        assert_eq!(error.kind(), ErrorKind::Reject);
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn a_server_error_is_tried_again_until_it_passes() {
    let (content, published) = published();
    let statuses = [
        "500 Internal Server Error",
        "503 Service Unavailable",
        "429 Too Many Requests",
    ];
    let server = Server::new(move |number, _| match statuses.get(number) {
        Some(status) => Reply::Status(status),
        None => Reply::Content(Arc::clone(&published)),
    });
    let outcome = fetch_from(&server);
    outcome.result.unwrap();
    assert!(outcome.slot[..content.len()] == content);
    assert_eq!(outcome.retries.len(), 3);
    assert!(
        outcome.retries[1].contains("503 Service Unavailable"),
        "{:?}",
        outcome.retries
    );
}

#[test]
fn a_server_error_that_stays_is_given_up_after_the_allowed_attempts() {
    let server = Server::always(Reply::Status("502 Bad Gateway"));
    let outcome = fetch_from(&server);
    assert_untouched(&outcome);
    let error = outcome.result.unwrap_err();
    assert!(
        error.to_string().starts_with("gave up after 4 attempts"),
        "{error}"
    );
    assert!(error.to_string().contains("502 Bad Gateway"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn a_refused_connection_is_named() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let source = ImageSource::parse(&format!("http://127.0.0.1:{port}/i")).unwrap();
    let settings = FetchSettings {
        retries: 1,
        ..quick()
    };
    let outcome = fetch(source, &settings, &expecting(b"anything"));
    assert_untouched(&outcome);
    let error = outcome.result.unwrap_err().to_string();
    assert!(
        error.contains("no connection: Connection refused"),
        "{error}"
    );
}

#[test]
fn a_name_that_does_not_resolve_is_named() {
    let source = ImageSource::parse("http://host.invalid/i").unwrap();
    let settings = FetchSettings {
        retries: 0,
        ..quick()
    };
    let error = fetch(source, &settings, &expecting(b"anything"))
        .result
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("http://host.invalid/i: no connection"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Retry);
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let server = Server::always(Reply::Silence);
    let settings = FetchSettings {
        connect_timeout: Duration::from_millis(200),
        retries: 1,
        ..quick()
    };
    let outcome = fetch(server.source("/i"), &settings, &expecting(b"anything"));
    assert_untouched(&outcome);
    let error = outcome.result.unwrap_err().to_string();
    assert!(
        error.contains("the server does not answer for 0.6 seconds"),
        "{error}"
    );
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn a_connection_that_breaks_starts_again_from_the_beginning() {
    let (content, published) = published();
    let most = published.len() - 100;
    let server = Server::new(move |number, _| match number {
        0 => Reply::BreaksAt(Arc::clone(&published), most),
        1 => Reply::StallsAt(Arc::clone(&published), most),
        2 => Reply::BreaksAt(Arc::clone(&published), 2),
        _ => Reply::Content(Arc::clone(&published)),
    });
    let outcome = fetch_from(&server);
    outcome.result.unwrap();
    assert!(outcome.slot[..content.len()] == content);
    assert_eq!(outcome.retries.len(), 3, "{:?}", outcome.retries);
    let says = format!("the server sent nothing after byte {most} for 0.4 seconds");
    assert!(outcome.retries[1].contains(&says), "{:?}", outcome.retries);
}

#[test]
fn a_connection_that_keeps_breaking_leaves_the_slot_empty() {
    let (_, published) = published();
    let most = published.len() / 2;
    let server = Server::always(Reply::BreaksAt(published, most));
    let outcome = fetch_from(&server);
    let error = outcome.result.unwrap_err();
    assert!(
        error.to_string().contains(&format!("after {most} bytes")),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(outcome.slot[..MIB].iter().all(|byte| *byte == 0));
}

#[test]
fn an_end_without_a_length_may_be_a_break_and_is_tried_again() {
    let (content, published) = published();
    let server = Server::new(move |number, _| {
        let length = if number == 0 {
            published.len() / 2
        } else {
            published.len()
        };
        Reply::Unframed(published[..length].to_vec())
    });
    let outcome = fetch_from(&server);
    outcome.result.unwrap();
    assert!(outcome.slot[..content.len()] == content);
    assert!(
        outcome.retries[0].contains("ends too early"),
        "{:?}",
        outcome.retries
    );
}

#[test]
fn a_truncated_file_with_a_true_length_is_not_tried_again() {
    let (_, published) = published();
    let half = Arc::new(published[..published.len() / 2].to_vec());
    let server = Server::always(Reply::Content(half));
    let error = fetch_from(&server).result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Reject);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn chunked_content_arrives_and_a_missing_last_chunk_is_a_break() {
    let (content, published) = published();
    let mut chunked =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".to_vec();
    for part in published.chunks(100_000) {
        chunked.extend(format!("{:x}\r\n", part.len()).bytes());
        chunked.extend_from_slice(part);
        chunked.extend_from_slice(b"\r\n");
    }
    let server = Server::new(move |number, _| {
        let end: &[u8] = if number == 0 { b"" } else { b"0\r\n\r\n" };
        Reply::Bytes([&chunked[..], end].concat())
    });
    let outcome = fetch_from(&server);
    outcome.result.unwrap();
    assert!(outcome.slot[..content.len()] == content);
    assert_eq!(outcome.retries.len(), 1);
}

#[test]
fn an_error_page_with_status_200_is_refused_before_anything_is_written() {
    let server = Server::always(Reply::Content(Arc::new(
        b"<html>Please log in</html>".to_vec(),
    )));
    let outcome = fetch_from(&server);
    assert_untouched(&outcome);
    let error = outcome.result.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("not an image: it starts with the text \"<html>"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Reject);
}

#[test]
fn the_total_deadline_ends_retries() {
    let server = Server::always(Reply::Status("503 Service Unavailable"));
    let settings = FetchSettings {
        total_deadline: Duration::from_millis(300),
        retries: 1_000_000,
        backoff_min: Duration::from_millis(20),
        ..quick()
    };
    let started = Instant::now();
    let error = fetch(server.source("/i"), &settings, &expecting(b"anything"))
        .result
        .unwrap_err();
    assert!(matches!(error, Error::GaveUp { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
}
