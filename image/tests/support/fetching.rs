//! Fetching from a server into a small slot.

use std::sync::Arc;

use slotd_image::{Event, Expectation, FetchSettings, ImageSource, Result, WriteReport};

use super::server::Server;
use super::{MIB, expecting, flash, frame, image, old_slot, quick, target};

pub struct Outcome {
    pub result: Result<WriteReport>,
    /// Why it started again, each time.
    pub retries: Vec<String>,
    /// What the slot holds then.
    pub slot: Vec<u8>,
}

/// Fetches into a slot of 8 MiB.
pub fn fetch(source: ImageSource, settings: &FetchSettings, expectation: &Expectation) -> Outcome {
    let file = old_slot(8 * MIB);
    let (result, events) = flash(source, &mut target(file.path()), settings, expectation);
    let retries = events.into_iter().filter_map(|event| match event {
        Event::Retrying { error, .. } => Some(error),
        _ => None,
    });
    Outcome {
        result,
        retries: retries.collect(),
        slot: std::fs::read(file.path()).unwrap(),
    }
}

pub fn published() -> (Vec<u8>, Arc<Vec<u8>>) {
    let content = image(5 * MIB);
    let published = Arc::new(frame(&content, true));
    (content, published)
}

pub fn fetch_from(server: &Server) -> Outcome {
    fetch(
        server.source("/rootfs.ext4.zst"),
        &quick(),
        &expecting(&published().1),
    )
}

#[track_caller]
pub fn assert_untouched(outcome: &Outcome) {
    assert!(outcome.slot.iter().all(|byte| *byte == 0xAA));
}
