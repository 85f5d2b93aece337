//! Where redirects may lead, and what is sent to whom.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]

mod support;

use std::sync::Arc;

use slotd_image::{Error, ErrorKind, Expectation, FetchSettings, ImageSource, Secret};
use support::fetching::{assert_untouched, fetch, published};
use support::server::{Reply, Server};
use support::{MIB, expecting, frame, image, quick};

#[test]
fn a_redirect_loop_is_named_and_final() {
    let server = Server::new(|_, request| {
        Reply::To(if request.target == "/a" {
            "/b".to_owned()
        } else {
            "/a".to_owned()
        })
    });
    let outcome = fetch(server.source("/a"), &quick(), &expecting(b"anything"));
    assert_untouched(&outcome);
    let error = outcome.result.unwrap_err();
    assert!(error.to_string().contains("redirect loop"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Reject);
}

#[test]
fn plain_http_without_a_checksum_is_refused_before_any_request() {
    let server = Server::always(Reply::Content(published().1));
    let outcome = fetch(server.source("/i"), &quick(), &Expectation::default());
    assert_untouched(&outcome);
    assert!(matches!(
        outcome.result.unwrap_err(),
        Error::Unprotected { .. }
    ));
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn no_configured_header_reaches_another_origin_or_comes_back() {
    let (_, published) = published();
    let last = Arc::new(Server::always(Reply::Content(published)));
    let there = last.url("/there");
    let other = Server::always(Reply::To(there));
    let elsewhere = other.url("/elsewhere");
    let first = Server::new(move |_, request| match request.target.as_str() {
        "/first" => Reply::To("/second".to_owned()),
        _ => Reply::To(elsewhere.clone()),
    });
    let settings = FetchSettings {
        bearer_token: Some(Secret::new("hunter2")),
        headers: vec![("X-Api-Key".to_owned(), Secret::new("hunter3"))],
        ..quick()
    };
    fetch(
        first.source("/first"),
        &settings,
        &expecting(&support::frame(&image(5 * MIB), true)),
    )
    .result
    .unwrap();
    for request in first.requests() {
        assert_eq!(
            request.header("authorization"),
            Some("Bearer hunter2"),
            "{request:?}"
        );
        assert_eq!(request.header("x-api-key"), Some("hunter3"), "{request:?}");
    }
    assert_eq!(first.requests().len(), 2);
    for request in other.requests().iter().chain(&last.requests()) {
        let text = format!("{request:?}");
        assert!(
            !text.contains("hunter") && !text.to_lowercase().contains("authorization"),
            "{text}"
        );
    }
    assert_eq!((other.requests().len(), last.requests().len()), (1, 1));
}

#[test]
fn a_user_in_the_url_is_sent_to_its_server_and_shown_nowhere() {
    let server = Server::always(Reply::Status("401 Unauthorized"));
    let url = server.url("/i").replace("http://", "http://me:hunter2@");
    let outcome = fetch(
        ImageSource::parse(&url).unwrap(),
        &quick(),
        &expecting(b"anything"),
    );
    let error = outcome.result.unwrap_err();
    assert!(
        !format!("{error} {error:?}").contains("hunter2"),
        "{error:?}"
    );
    // RFC 7617: base64 of `me:hunter2`.
    let sent = server.requests()[0]
        .header("authorization")
        .map(str::to_owned);
    assert_eq!(sent.as_deref(), Some("Basic bWU6aHVudGVyMg=="));
}

#[test]
fn a_proxy_is_asked_for_the_whole_address() {
    let (_, published) = published();
    let proxy = Server::always(Reply::Content(published));
    let settings = FetchSettings {
        proxy: Some(proxy.url("/").parse().unwrap()),
        ..quick()
    };
    let source = ImageSource::parse("http://updates.invalid/i.zst").unwrap();
    fetch(source, &settings, &expecting(&frame(&image(5 * MIB), true)))
        .result
        .unwrap();
    assert_eq!(proxy.requests()[0].target, "http://updates.invalid/i.zst");
}
