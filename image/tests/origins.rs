//! Where redirects may lead, and what is sent to whom.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]

mod support;

use std::sync::Arc;

use slotd_image::{Error, ErrorKind, Expectation, FetchSettings, ImageSource, Origin, Secret};
use support::fetching::{assert_untouched, fetch, published};
use support::server::{Reply, Request, Server};
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

/// The origin of a server's URLs.
fn origin(server: &Server) -> Origin {
    server.url("").parse().unwrap()
}

fn with_secrets(origins: Vec<Origin>) -> FetchSettings {
    FetchSettings {
        origins,
        bearer_token: Some(Secret::new("hunter2")),
        headers: vec![("X-Api-Key".to_owned(), Secret::new("hunter3"))],
        ..quick()
    }
}

fn fetch_published(source: ImageSource, settings: &FetchSettings) -> slotd_image::Result<()> {
    fetch(source, settings, &expecting(&published().1))
        .result
        .map(|_| ())
}

fn assert_got_secrets(request: &Request) {
    assert_eq!(
        request.header("authorization"),
        Some("Bearer hunter2"),
        "{request:?}"
    );
    assert_eq!(request.header("x-api-key"), Some("hunter3"), "{request:?}");
}

fn assert_got_none(server: &Server, requests: usize) {
    for request in server.requests() {
        let text = format!("{request:?}").to_lowercase();
        assert!(
            !text.contains("hunter") && !text.contains("authorization") && !text.contains("x-api"),
            "{text}"
        );
    }
    assert_eq!(server.requests().len(), requests);
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
    // Not even where the other one is listed: no server decides who is sent a secret.
    let settings = with_secrets(vec![origin(&first), origin(&last)]);
    fetch_published(first.source("/first"), &settings).unwrap();
    first.requests().iter().for_each(assert_got_secrets);
    assert_eq!(first.requests().len(), 2);
    assert_got_none(&other, 1);
    assert_got_none(&last, 1);
}

#[test]
fn no_configured_header_reaches_an_origin_that_is_not_listed() {
    let (_, published) = published();
    let server = Server::always(Reply::Content(Arc::clone(&published)));
    let listed = Server::always(Reply::Content(published));
    let port = listed.url("").rsplit_once(':').unwrap().1.to_owned();
    for origins in [
        vec![],
        vec![origin(&listed)],
        // Another name of the same machine, another scheme.
        vec![
            server
                .url("")
                .replace("127.0.0.1", "localhost")
                .parse()
                .unwrap(),
        ],
        vec![server.url("").replace("http", "https").parse().unwrap()],
        vec![format!("https://127.0.0.1:{port}").parse().unwrap()],
    ] {
        let before = server.requests().len();
        fetch_published(server.source("/i"), &with_secrets(origins)).unwrap();
        assert_got_none(&server, before + 1);
    }
    fetch_published(
        listed.source("/i"),
        &with_secrets(vec![origin(&server), origin(&listed)]),
    )
    .unwrap();
    listed.requests().iter().for_each(assert_got_secrets);
    assert_eq!(listed.requests().len(), 1);
}

#[test]
fn an_origin_that_is_not_listed_cannot_spend_credentials_on_one_that_is() {
    let (_, published) = published();
    let listed = Server::always(Reply::Content(published));
    let there = listed.url("/private");
    let stranger = Server::always(Reply::To(there));
    let settings = with_secrets(vec![origin(&listed)]);
    fetch_published(stranger.source("/i"), &settings).unwrap();
    assert_got_none(&stranger, 1);
    assert_got_none(&listed, 1);
}

#[test]
fn a_refusal_says_that_no_credentials_were_sent() {
    let private = Server::always(Reply::Status("401 Unauthorized"));
    let source = || private.source("/i");
    let said = |settings| {
        fetch_published(source(), &settings)
            .unwrap_err()
            .to_string()
    };
    let text = said(with_secrets(vec![]));
    assert!(text.contains("401 Unauthorized (no credentials"), "{text}");
    assert!(text.contains("fetch.origins"), "{text}");
    let there = private.url("/i");
    let first = Server::always(Reply::To(there));
    let settings = with_secrets(vec![origin(&first), origin(&private)]);
    let text = fetch_published(first.source("/i"), &settings)
        .unwrap_err()
        .to_string();
    assert!(text.contains("a redirect led here"), "{text}");
    for settings in [quick(), with_secrets(vec![origin(&private)])] {
        let text = said(settings);
        assert!(text.ends_with("401 Unauthorized"), "{text}");
    }
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
