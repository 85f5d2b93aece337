//! From an opened image to bytes that were read back from the medium.

mod attempt;
mod head;
mod meter;
mod pieces;
mod readback;
mod relay;

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cancel::Cancel;
use crate::checksum::Checksum;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::medium::WriteTarget;
use crate::open::{OpenedImage, Reconnect};
use crate::settings::Expectation;
use crate::stream::ImageStream;
use attempt::Published;
use meter::{Meter, Pace};

/// How often progress is told, at most.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// Which of the two possible digests the given checksum was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Matched {
    /// The file as published.
    PublishedFile,
    /// The expanded image.
    ExpandedImage,
    /// No checksum was given.
    Nothing,
}

/// What was written and read back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteReport {
    /// Digest of the file as published.
    pub published: Checksum,
    /// Digest of the expanded image, which is what the slot now holds.
    pub expanded: Checksum,
    /// Bytes of the file as published.
    pub published_size: u64,
    /// Bytes of the expanded image, without the zeros that fill up its last block.
    pub expanded_size: u64,
    /// What the given checksum turned out to be the digest of.
    pub matched: Matched,
    /// Bytes that were written as data.
    pub written: u64,
    /// Bytes that were zeroed.
    pub zeroed: u64,
    /// Time since [`write()`] was called, with all retries.
    pub elapsed: Duration,
}

/// Writes an opened image to `target` and reads back every byte of it.
///
/// The first MiB is zeroed and flushed before anything else, withheld, and written only after all
/// the rest was flushed, read back past the page cache and found right, and after lengths and
/// digests matched. When this returns with a report, the whole image is durable. When it returns
/// with an error, or after a crash at any moment before that, the target's first MiB is zero (or,
/// for a crash during its own write, torn) and what follows is any mixture of old and new: no
/// error leaves a complete image. An error or a stop behind the write of the first MiB clears it
/// again, durably; a crash just then can leave the image, which nobody was told of as written.
/// Two errors say themselves that the first MiB may hold something: one of the device at its
/// first clearing, before which nothing was touched, and [`Error::NotTakenBack`].
///
/// An image whose length is no multiple of the device's block is filled up with zeros to the next
/// one. Whatever the target holds beyond that stays as it is.
///
/// A connection that breaks starts the transfer again from the first byte, within the limits of
/// the settings given to [`open`](crate::open()); so does content that is wrong where the server
/// marked no end of it. An error of the device is final. `events` is called
/// on the calling thread.
///
/// # Errors
///
/// `Reject` for an image that is damaged, too large, or not the expected one; `Retry` for network
/// and device; [`Error::Cancelled`] within about a second after `cancel` was set.
pub fn write(
    opened: OpenedImage,
    target: &mut WriteTarget,
    expectation: &Expectation,
    cancel: &Cancel,
    events: &dyn Fn(Event),
) -> Result<WriteReport> {
    let started = Instant::now();
    let (mut stream, mut reconnect) = opened.into_parts();
    reconnect.narrow(expectation, target.capacity())?;
    let mut earlier = None;
    loop {
        events(Event::Opened(stream.info.clone()));
        match run_attempt(stream, target, &reconnect, &mut earlier, cancel, events) {
            Ok(mut report) => {
                report.elapsed = started.elapsed();
                tracing::info!(
                    target = %target.path().display(),
                    published = %report.published,
                    expanded = %report.expanded,
                    matched = ?report.matched,
                    bytes = report.expanded_size,
                    "image written and read back"
                );
                events(Event::Verified(report.clone()));
                return Ok(report);
            }
            Err(error) => stream = reconnect.again(error, cancel, events)?,
        }
    }
}

/// Zeroes the target's first MiB, so that what lies there is not taken for an image any more: for an image that
/// was written and refused afterwards. Durable when it returns; a crash in the middle leaves some of the old.
///
/// # Errors
///
/// What the device says.
pub fn clear_head(target: &WriteTarget) -> Result<()> {
    pieces::clear_head(target.medium())
}

/// One attempt on its own threads, while this one tells how far it is.
fn run_attempt(
    stream: ImageStream,
    target: &WriteTarget,
    reconnect: &Reconnect,
    earlier: &mut Option<Published>,
    cancel: &Cancel,
    events: &dyn Fn(Event),
) -> Result<WriteReport> {
    let meter = Meter::default();
    let mut pace = Pace::new(&stream.info);
    thread::scope(|scope| {
        let (finished, wait) = sync_channel::<()>(0);
        let (meter, medium, expectation) = (&meter, target.medium(), &reconnect.expectation);
        let capacity = reconnect.capacity;
        let worker = thread::Builder::new()
            .name("image-write".to_owned())
            .spawn_scoped(scope, move || {
                let outcome = attempt::run(
                    stream,
                    medium,
                    expectation,
                    capacity,
                    earlier,
                    cancel,
                    meter,
                );
                drop(finished);
                outcome
            });
        let worker = worker.map_err(relay::no_thread)?;
        while let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(TELL_EVERY) {
            pace.tell(meter, events);
        }
        pace.tell(meter, events);
        worker.join().unwrap_or_else(|_| {
            let what = "the writing thread panicked".to_owned();
            Err(head::take_back(medium, Error::Internal { what }))
        })
    })
}
