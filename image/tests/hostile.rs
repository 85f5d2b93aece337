//! Servers that mean harm: what they send never ends, is not what they say it is, or leads elsewhere. Each is given up in
//! bounded time and memory, with an error that says why, and the slot is untouched or empty.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]

mod support;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use slotd_image::{Error, ErrorKind, FetchSettings};
use support::fetching::{Outcome, assert_untouched, fetch, published};
use support::server::{Reply, Server};
use support::{MIB, expecting, frame, image, quick, superblock};

const CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
const CHUNKED: &[u8] =
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";

/// One more attempt, so that giving up is seen.
fn fetch_from(server: &Server) -> Outcome {
    let settings = FetchSettings {
        retries: 1,
        ..quick()
    };
    fetch(
        server.source("/rootfs"),
        &settings,
        &expecting(b"another image"),
    )
}

/// The slot holds no image: not one byte was changed, or its first MiB is zero.
#[track_caller]
fn assert_no_image(outcome: &Outcome) {
    let head = &outcome.slot[..MIB];
    assert!(
        outcome.slot.iter().all(|byte| *byte == 0xAA) || head.iter().all(|byte| *byte == 0),
        "an image was left"
    );
}

/// No image is left, and this is said.
#[track_caller]
fn assert_fails(server: &Server, says: &str, kind: ErrorKind) -> Outcome {
    let outcome = fetch_from(server);
    assert_no_image(&outcome);
    let error = outcome.result.as_ref().unwrap_err();
    assert!(error.to_string().contains(says), "{error}");
    assert_eq!(error.kind(), kind, "{error}");
    outcome
}

/// Refused at once: the image is wrong, and would be again.
#[track_caller]
fn assert_rejected(server: &Server, says: &str) -> Outcome {
    let outcome = assert_fails(server, says, ErrorKind::Reject);
    assert!(outcome.retries.is_empty(), "{:?}", outcome.retries);
    outcome
}

/// Tried again, as a connection that broke is, and given up.
#[track_caller]
fn assert_given_up(server: &Server, says: &str) -> Outcome {
    let outcome = assert_fails(server, says, ErrorKind::Retry);
    assert_eq!(server.requests().len(), 2, "{says}");
    outcome
}

fn endless(start: &[u8], piece: &[u8]) -> Server {
    slow(start, piece, Duration::ZERO)
}

fn slow(start: &[u8], piece: &[u8], pause: Duration) -> Server {
    Server::always(Reply::Endless {
        start: start.to_vec(),
        piece: piece.to_vec(),
        pause,
    })
}

fn answer(head: &str, body: &[u8]) -> Server {
    let head = format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n");
    Server::always(Reply::Bytes([head.as_bytes(), body].concat()))
}

/// A frame that is skipped, of 64 KiB.
fn skipped() -> Vec<u8> {
    let length: u32 = 1 << 16;
    let mut frame = b"\x50\x2a\x4d\x18".to_vec();
    frame.extend(length.to_le_bytes());
    frame.resize(frame.len() + (1 << 16), 0);
    frame
}

#[test]
fn a_body_that_never_ends_and_never_becomes_an_image_is_refused_by_its_length() {
    for piece in [skipped(), frame(b"", true).repeat(1000)] {
        let outcome = assert_rejected(&endless(CLOSE, &piece), "published file of");
        assert_untouched(&outcome);
    }
}

#[test]
fn a_body_that_never_ends_behind_an_image_is_refused_by_its_length() {
    let (_, published) = published();
    let start = [CLOSE, &published[..]].concat();
    assert_rejected(&endless(&start, &skipped()), "published file of");
    // What says that it is a MiB, and goes on.
    let mut content = image(MIB);
    superblock(&mut content, MIB);
    let start = [CLOSE, &content[..]].concat();
    assert_rejected(&endless(&start, &[7; 65_536]), "bytes of the slot");
}

#[test]
fn a_length_beyond_what_any_packing_takes_is_refused_before_anything_is_written() {
    let (_, published) = published();
    let server = answer("200 OK\r\nContent-Length: 1000000000000000", &published);
    let says =
        "published file of 1000000000000000 bytes is more than the 8388608 bytes of the slot";
    assert_untouched(&assert_rejected(&server, says));
}

#[test]
fn a_bomb_is_never_written_past_the_end_of_the_slot() {
    // A quarter of a GiB of zeros behind a superblock that says one MiB.
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let mut first = vec![0; MIB];
    superblock(&mut first, MIB);
    encoder.write_all(&first).unwrap();
    let zeros = vec![0; MIB];
    for _ in 1..256 {
        encoder.write_all(&zeros).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < MIB / 8, "{} bytes", bomb.len());
    let server = Server::always(Reply::Content(Arc::new(bomb)));
    assert_rejected(&server, "bytes of the slot");
}

#[test]
fn a_window_that_is_too_large_is_refused_in_whichever_frame_it_is_asked_for() {
    // As `zstd --ultra --long=31` writes it: 2 GiB.
    let greedy = b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00";
    let server = answer("200 OK", greedy);
    assert_untouched(&assert_rejected(
        &server,
        "needs a window of 2147483648 bytes",
    ));
    let (_, published) = published();
    let server = answer("200 OK", &[&published[..], greedy].concat());
    assert_rejected(&server, "too much memory");
}

#[test]
fn gzip_is_named_and_not_unpacked_though_the_header_says_that_it_is_only_on_the_way() {
    let zipped = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03";
    let server = answer("200 OK\r\nContent-Encoding: gzip", zipped);
    assert_untouched(&assert_rejected(&server, "compressed with gzip"));
}

#[test]
fn redirects_without_end_in_a_ring_and_to_other_schemes_are_not_followed() {
    let server = Server::new(|number, _| Reply::To(format!("/{}", number + 1)));
    let outcome = assert_rejected(&server, "more than 10 redirects");
    assert_untouched(&outcome);
    assert_eq!(server.requests().len(), 11);

    let server = Server::new(|number, _| Reply::To(format!("/{}", (number + 1) % 3)));
    assert_untouched(&assert_rejected(&server, "redirect loop"));

    for to in [
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "data:,x",
        "javascript:x",
    ] {
        let server = Server::always(Reply::To(to.to_owned()));
        assert_untouched(&assert_rejected(&server, "which is not followed"));
        assert_eq!(server.requests().len(), 1, "{to}");
    }
    let server = answer("302 Found\r\nLocation: \u{e9}\u{ff}", b"");
    assert_untouched(&assert_rejected(&server, "an address that is no text"));
    // To nowhere at all.
    assert_rejected(&answer("302 Found", b""), "the server answered 302 Found");
}

#[test]
fn headers_without_end_are_given_up() {
    let says = "message head is too large";
    let many = "X-Flood: 1\r\n".repeat(10_000);
    for server in [
        answer(&format!("200 OK\r\n{}", many.trim_end()), b""),
        endless(b"HTTP/1.1 200 OK\r\n", b"X-Flood: 1\r\n"),
        endless(b"HTTP/1.1 200 OK\r\nX-Flood: ", &[b'x'; 4096]),
        endless(b"HTTP/1.1 200 ", &[b'x'; 4096]),
    ] {
        assert_untouched(&assert_given_up(&server, says));
    }
}

#[test]
fn an_answer_that_never_comes_to_its_point_is_given_up() {
    let settings = FetchSettings {
        connect_timeout: Duration::from_millis(200),
        retries: 0,
        ..quick()
    };
    for server in [
        // Each byte comes in time for itself.
        slow(b"HTTP/1.1 200 OK\r\n", b"X", Duration::from_millis(50)),
        // Promises of an answer, as fast as they are read.
        endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    ] {
        let outcome = fetch(server.source("/i"), &settings, &expecting(b"another image"));
        assert_untouched(&outcome);
        let error = outcome.result.unwrap_err();
        let says = "the server does not answer for 0.6 seconds";
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_drip_is_given_up_when_the_time_is_over() {
    let (_, published) = published();
    let start = [CLOSE, &published[..100]].concat();
    let server = slow(&start, &published[100..101], Duration::from_millis(50));
    let settings = FetchSettings {
        total_deadline: Duration::from_secs(2),
        ..quick()
    };
    let outcome = fetch(server.source("/i"), &settings, &expecting(&published));
    assert_untouched(&outcome);
    let error = outcome.result.unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error}");
    let says = "the total deadline is over";
    assert!(error.to_string().contains(says), "{error}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn the_time_is_also_over_for_a_server_that_never_stops_sending() {
    let settings = FetchSettings {
        total_deadline: Duration::from_secs(1),
        ..quick()
    };
    // What was taken first is paid for with more time than there is.
    let settings = FetchSettings {
        rate_limit: Some(1 << 10),
        ..settings
    };
    let server = endless(CLOSE, &skipped());
    let outcome = fetch(server.source("/i"), &settings, &expecting(b"another image"));
    assert_untouched(&outcome);
    let error = outcome.result.unwrap_err();
    // Not that it sent nothing.
    let says = "/i: the total deadline is over";
    assert!(error.to_string().ends_with(says), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retry);
}

#[test]
fn parts_that_nobody_asked_for_are_refused() {
    let (_, published) = published();
    for head in [
        "206 Partial Content\r\nContent-Range: bytes 0-99/1000\r\nContent-Length: 100",
        "206 Partial Content\r\nContent-Range: bytes 900-999/50\r\nContent-Length: 100",
        "206 Partial Content\r\nContent-Range: nonsense",
        "416 Range Not Satisfiable\r\nContent-Range: bytes */0",
    ] {
        let server = answer(head, &published[..100]);
        let says = format!("the server answered {}", head.split('\r').next().unwrap());
        assert_untouched(&assert_rejected(&server, &says));
    }
}

#[test]
fn a_length_that_lies_is_found() {
    let (_, published) = published();
    let half = published.len() / 2;
    let shorter = answer(&format!("200 OK\r\nContent-Length: {half}"), &published);
    assert_rejected(&shorter, "is not complete");
    let more = published.len() + 1;
    let longer = answer(&format!("200 OK\r\nContent-Length: {more}"), &published);
    assert_given_up(&longer, &format!("after {} ", published.len()));
    let two = answer(
        "200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
        &published,
    );
    assert_untouched(&assert_given_up(&two, "the request failed"));
    let negative = answer("200 OK\r\nContent-Length: -1", &published);
    assert_untouched(&assert_given_up(&negative, "the request failed"));
}

#[test]
fn what_follows_the_marked_end_is_not_read() {
    let (content, published) = published();
    let length = format!("200 OK\r\nContent-Length: {}", published.len());
    let server = answer(&length, &[&published[..], &[b'x'; 100_000]].concat());
    let outcome = fetch(server.source("/i"), &quick(), &expecting(&published));
    outcome.result.unwrap();
    assert!(outcome.slot[..content.len()] == content);
}

#[test]
fn chunks_that_never_come_to_an_end_are_given_up() {
    let broke = "the connection broke after";
    let cases: [(&[u8], &[u8], &str); 3] = [
        (b"5;", &[b'x'; 4096], broke),
        // These are a size as it may be written, so far.
        (
            b"",
            b"00000000000000000000000000000000",
            "the server sent nothing after byte 0 for 0.4 seconds",
        ),
        (b"1\r\nx\r\n0\r\n", b"Trailer: 1\r\n", broke),
    ];
    for (start, piece, says) in cases {
        let server = endless(&[CHUNKED, start].concat(), piece);
        assert_untouched(&assert_given_up(&server, says));
    }
    // Chunks of one byte each, as many as there is room for.
    let outcome = fetch_from(&endless(CHUNKED, b"1;x\r\n\x28\r\n"));
    assert_untouched(&outcome);
    outcome.result.unwrap_err();
}
