//! Connections that break are fetched again, however the server marks the end of an image; wrong images are not.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]

mod support;

use std::time::Duration;

use slotd_image::{ErrorKind, Expectation, FetchSettings};
use support::fetching::{Outcome, assert_untouched, fetch};
use support::server::{Reply, Server};
use support::{MIB, expecting, frame, image, quick, sha256, superblock};

/// How the server says where the body ends (RFC 9112, section 6.3).
#[derive(Debug, Clone, Copy)]
enum Framing {
    Length,
    Chunks,
    Close,
}

const FRAMINGS: [Framing; 3] = [Framing::Length, Framing::Chunks, Framing::Close];

impl Framing {
    /// The whole answer, and where the body starts in it.
    fn answer(self, body: &[u8]) -> (Vec<u8>, usize) {
        let field = match self {
            Self::Length => format!("Content-Length: {}\r\n", body.len()),
            Self::Chunks => "Transfer-Encoding: chunked\r\n".to_owned(),
            Self::Close => String::new(),
        };
        let mut answer =
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{field}\r\n").into_bytes();
        let start = answer.len();
        match self {
            Self::Chunks => {
                for part in body.chunks(70_000) {
                    answer.extend(format!("{:x}\r\n", part.len()).bytes());
                    answer.extend_from_slice(part);
                    answer.extend_from_slice(b"\r\n");
                }
                answer.extend_from_slice(b"0\r\n\r\n");
            }
            Self::Length | Self::Close => answer.extend_from_slice(body),
        }
        (answer, start)
    }
}

fn fetch_from(server: &Server, expectation: &Expectation) -> Outcome {
    // No silence of a slow machine is to be taken for a break.
    let settings = FetchSettings {
        idle_timeout: Duration::from_secs(20),
        ..quick()
    };
    fetch(server.source("/rootfs"), &settings, expectation)
}

#[test]
fn a_break_is_fetched_again_wherever_and_however_it_comes() {
    let content = image(2 * MIB);
    let mut longer = content.clone();
    superblock(&mut longer, MIB);
    for (name, content, published) in [
        ("raw", &content, content.clone()),
        (
            "raw with data behind its filesystem",
            &longer,
            longer.clone(),
        ),
        ("zstd", &content, frame(&content, true)),
        // A break between two frames leaves a proper zstd file.
        (
            "zstd of two frames",
            &longer,
            [&longer[..MIB], &longer[MIB..]]
                .map(|part| frame(part, true))
                .concat(),
        ),
    ] {
        let between = frame(&longer[..MIB], true).len();
        let length = published.len();
        for framing in FRAMINGS {
            let (answer, start) = framing.answer(&published);
            // Within the magic number, before the superblock, in the middle, almost at the end.
            for at in [0, 2, 700, between, length / 2, length - 100] {
                // Where it is reset makes no difference, as that is never taken for an end.
                for reset in [false, true]
                    .into_iter()
                    .take(1 + usize::from(at == length / 2))
                {
                    let cut = answer[..start + at].to_vec();
                    let whole = answer.clone();
                    let server = Server::new(move |number, _| match (number, reset) {
                        (0, false) => Reply::Bytes(cut.clone()),
                        (0, true) => Reply::Reset(cut.clone()),
                        _ => Reply::Bytes(whole.clone()),
                    });
                    let outcome = fetch_from(&server, &expecting(&published));
                    let case = format!("{name}, {framing:?}, cut at {at}, reset: {reset}");
                    if let Err(error) = outcome.result {
                        panic!("{case}: {error}");
                    }
                    assert!(outcome.slot[..content.len()] == content[..], "{case}");
                    assert_eq!(outcome.retries.len(), 1, "{case}: {:?}", outcome.retries);
                }
            }
        }
    }
}

#[test]
fn a_break_is_found_by_whatever_is_known_of_the_image() {
    let content = image(2 * MIB);
    let mut longer = content.clone();
    superblock(&mut longer, MIB);
    let (answer, start) = Framing::Close.answer(&longer);
    for expectation in [
        expecting(&longer),
        Expectation {
            expanded_checksum: Some(sha256(&longer)),
            ..Default::default()
        },
        Expectation {
            size: Some(longer.len() as u64),
            ..expecting(&longer)
        },
    ] {
        let (cut, whole) = (answer[..start + MIB + 4096].to_vec(), answer.clone());
        let server = Server::new(move |number, _| match number {
            0 => Reply::Bytes(cut.clone()),
            _ => Reply::Bytes(whole.clone()),
        });
        let outcome = fetch_from(&server, &expectation);
        outcome.result.unwrap();
        assert!(outcome.slot[..longer.len()] == longer);
        assert_eq!(outcome.retries.len(), 1, "{:?}", outcome.retries);
        let says = "the server named no length";
        assert!(outcome.retries[0].contains(says), "{:?}", outcome.retries);
    }
}

#[test]
fn a_wrong_image_whose_end_is_marked_is_fetched_once() {
    let content = image(2 * MIB);
    let half = &content[..MIB];
    for framing in [Framing::Length, Framing::Chunks] {
        for published in [
            half.to_vec(),
            frame(half, true),
            frame(&content, true)[..200_000].to_vec(),
        ] {
            let server = Server::always(Reply::Bytes(framing.answer(&published).0));
            let error = fetch_from(&server, &expecting(&content))
                .result
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Reject, "{framing:?}: {error}");
            assert_eq!(server.requests().len(), 1, "{framing:?}: {error}");
        }
    }
}

#[test]
fn a_wrong_image_without_a_marked_end_is_fetched_until_the_same_came_twice() {
    let content = image(2 * MIB);
    let (answer, start) = Framing::Close.answer(&content[..MIB]);
    let server = Server::new(move |number, _| {
        // A break at first, then twice the same.
        let length = if number == 0 { MIB / 2 } else { MIB };
        Reply::Bytes(answer[..start + length].to_vec())
    });
    let outcome = fetch_from(&server, &expecting(&content));
    let error = outcome.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
    assert!(error.to_string().contains("ends too early"), "{error}");
    assert_eq!(server.requests().len(), 3);
    assert!(outcome.slot[..MIB].iter().all(|byte| *byte == 0));
}

#[test]
fn an_error_page_without_a_length_is_refused_at_once() {
    let page = b"<!DOCTYPE html>\n<html><body>Please log in</body></html>";
    for framing in FRAMINGS {
        let server = Server::always(Reply::Bytes(framing.answer(page).0));
        let outcome = fetch_from(&server, &expecting(page));
        assert_untouched(&outcome);
        let error = outcome.result.unwrap_err();
        assert!(error.to_string().contains("Please log in"), "{error}");
        assert_eq!(server.requests().len(), 1, "{framing:?}");
    }
}
