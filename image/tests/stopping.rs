//! A transfer that is asked to stop does so within a second, wherever it waits.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]

mod support;

use std::time::{Duration, Instant};

use slotd_image::{Cancel, Error, Event, FetchSettings, ImageSource, open, write};
use support::fetching::published;
use support::server::{Reply, Server};
use support::{MIB, expecting, old_slot, quick, target};

/// Cancels as soon as `ready` says so, and returns how long it took to come back.
fn cancel_when(
    source: ImageSource,
    settings: &FetchSettings,
    ready: impl Fn(&Event) -> bool,
) -> (Error, Duration) {
    let file = old_slot(8 * MIB);
    let mut target = target(file.path());
    let cancel = Cancel::new();
    let asked = std::cell::Cell::new(Instant::now());
    let tell = |event: Event| {
        if ready(&event) && !cancel.is_cancelled() {
            asked.set(Instant::now());
            cancel.cancel();
        }
    };
    let expectation = expecting(b"anything");
    let outcome = open(
        source,
        settings,
        &expectation,
        target.capacity(),
        &cancel,
        &tell,
    )
    .and_then(|opened| write(opened, &mut target, &expectation, &cancel, &tell));
    (outcome.unwrap_err(), asked.get().elapsed())
}

#[test]
fn a_stop_ends_a_stalled_transfer_within_a_second() {
    let (_, published) = published();
    let server = Server::always(Reply::StallsAt(published, 2 * MIB / 2));
    let settings = FetchSettings {
        idle_timeout: Duration::from_secs(600),
        ..quick()
    };
    let (error, time) = cancel_when(
        server.source("/i"),
        &settings,
        |event| matches!(event, Event::Progress(progress) if progress.published > 0),
    );
    assert!(error.is_cancelled(), "{error}");
    assert!(time < Duration::from_secs(1), "{time:?}");
}

#[test]
fn a_stop_ends_a_wait_between_attempts_within_a_second() {
    let server = Server::always(Reply::Status("503 Service Unavailable\r\nRetry-After: 60"));
    let settings = FetchSettings {
        total_deadline: Duration::from_secs(3600),
        ..quick()
    };
    let cancel = Cancel::new();
    let asked = std::cell::Cell::new(Instant::now());
    let tell = |event: Event| {
        let Event::Retrying { delay, .. } = event else {
            panic!("{event:?}")
        };
        assert!(delay >= Duration::from_secs(60), "{delay:?}");
        let cancel = cancel.clone();
        asked.set(Instant::now());
        std::thread::spawn(move || cancel.cancel());
    };
    let expectation = expecting(b"anything");
    let outcome = open(
        server.source("/i"),
        &settings,
        &expectation,
        1 << 30,
        &cancel,
        &tell,
    );
    assert!(outcome.unwrap_err().is_cancelled());
    assert!(asked.get().elapsed() < Duration::from_secs(1));
}

#[test]
fn a_stop_ends_the_wait_for_an_answer_within_a_second() {
    let server = Server::always(Reply::Silence);
    let settings = FetchSettings {
        idle_timeout: Duration::from_secs(600),
        ..quick()
    };
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let source = server.source("/i");
            open(
                source,
                &settings,
                &expecting(b"x"),
                1 << 30,
                &cancel,
                &|_| (),
            )
            .map(|_| ())
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        while server.requests().is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        cancel.cancel();
        let asked = Instant::now();
        assert!(waiting.join().unwrap().unwrap_err().is_cancelled());
        assert!(asked.elapsed() < Duration::from_secs(1));
    });
}
