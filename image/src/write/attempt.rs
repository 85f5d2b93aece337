//! One pass from the source to the medium:
//!
//! ```text
//! image-fetch ── chunks ──▶ image-decode ──┬─▶ image-digest
//! (receive, digest of        (expand into  │
//!  the published file)        the pool)    └─▶ image-write ── written ──▶ image-readback
//! ```
//!
//! Memory is the decoder's window, the pool, and a few chunks of the published file; every
//! channel is bounded. Each thread ends when one of its neighbours does.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::head;
use super::meter::Meter;
use super::pieces::{self, Piece, Tail, Writer, Written};
use super::readback::ReadBack;
use super::relay::{FirstError, Halt, no_thread};
use super::{Matched, WriteReport};
use crate::buffer::{PIECE, Pool};
use crate::cancel::Cancel;
use crate::checksum::Checksum;
use crate::error::{Error, Result};
use crate::event::Opened;
use crate::medium::Medium;
use crate::settings::Expectation;
use crate::stream::{Filled, ImageStream, Intake, Sizes, Unpacker};

/// Buffers of one MiB: one withheld, one each being filled, digested and written, the rest evens
/// out their different paces.
const BUFFERS: usize = 10;

/// Chunks of the published file between the network and the decoder; at most 400 KiB each.
const CHUNKS: usize = 4;

/// Written pieces that may wait for being read back.
const READ_BACK_LAG: usize = 1024;

/// What came through the threads.
struct Transferred {
    published: Published,
    expanded: (Checksum, u64),
    head: Arc<Piece>,
    tail: Tail,
}

/// Digest and length of a published file.
pub(super) type Published = (Checksum, u64);

/// Runs one attempt to its end. See [`write`](super::write()) for what it leaves behind. `earlier` is what the attempt
/// before this one got and found wrong.
pub(super) fn run(
    stream: ImageStream,
    medium: &dyn Medium,
    expectation: &Expectation,
    capacity: u64,
    earlier: &mut Option<Published>,
    cancel: &Cancel,
    meter: &Meter,
) -> Result<WriteReport> {
    let (info, end) = (stream.info.clone(), stream.unpacker.end());
    let sizes = Sizes {
        location: &info.location,
        expected: expectation.size,
        capacity,
    };
    let transferred = transfer(stream, medium, sizes, cancel, meter)?;
    let matched = judge(&info, expectation, sizes, &transferred).map_err(|error| {
        // The same bytes twice are what the server has: no connection breaks at one place by chance. A connection that closes
        // is how bodies of HTTP/1.0 end, and how broken ones look.
        let same = earlier.replace(transferred.published) == Some(transferred.published);
        if same { error } else { end.blame(error) }
    })?;
    let Transferred {
        published,
        expanded,
        head,
        tail,
    } = transferred;

    // The last write: from here on the slot holds an image.
    cancel.check()?;
    head::complete(medium, &head, cancel, meter).map_err(|error| head::take_back(medium, error))?;

    Ok(WriteReport {
        published: published.0,
        published_size: published.1,
        expanded: expanded.0,
        expanded_size: expanded.1,
        matched,
        written: tail.written.saturating_add(head.padded as u64),
        zeroed: tail.zeroed,
        elapsed: Duration::ZERO,
    })
}

/// Everything but the first piece: fetched, expanded, digested, written, and read back.
fn transfer(
    stream: ImageStream,
    medium: &dyn Medium,
    sizes: Sizes<'_>,
    cancel: &Cancel,
    meter: &Meter,
) -> Result<Transferred> {
    let ImageStream {
        intake,
        unpacker,
        head,
        ..
    } = stream;
    let stop = cancel.child();
    let first = FirstError::new(stop.clone());
    let writer = Writer::new(medium, &stop, meter);
    pieces::clear_head(medium)?;

    let outcome = thread::scope(|scope| -> Result<Option<Transferred>> {
        let (first, stop) = (&first, &stop);
        let (chunks_in, chunks) = sync_channel(CHUNKS);
        let (digest_in, to_digest) = sync_channel(BUFFERS);
        let (write_in, to_write) = sync_channel(BUFFERS);
        let (written_in, written) = sync_channel(READ_BACK_LAG);
        let (all_flushed, wait_for_flush) = sync_channel(1);

        let fetching = spawn(scope, "image-fetch", move || {
            first.note(fetch(intake, &chunks_in, stop, meter))
        })?;
        let decoding = spawn(scope, "image-decode", move || {
            let expander = Expander {
                unpacker,
                head,
                sizes,
                alignment: medium.alignment(),
            };
            first.note(expander.run(&chunks, &[digest_in, write_in]))
        })?;
        let digesting = spawn(scope, "image-digest", move || digest(&to_digest))?;
        let reading = spawn(scope, "image-readback", move || {
            first.note(ReadBack::new(medium, stop, meter).follow(&written, &all_flushed))
        })?;

        let output = first.note(write_pieces(writer, &to_write, &written_in));
        drop((written_in, to_write));
        // What was zeroed is read here while the last data is still being read over there.
        let zeros_hold = output.as_ref().and_then(|(_, tail)| {
            let () = wait_for_flush.recv().ok()?;
            let checked = ReadBack::new(medium, stop, meter).check_zeros(&tail.runs);
            first.note(checked.map_err(Halt::from))
        });

        let published = join(fetching, first).flatten();
        let expanded_size = join(decoding, first).flatten();
        let expanded = join(digesting, first);
        let read_back = join(reading, first).flatten();
        Ok((|| {
            read_back?;
            zeros_hold?;
            let (head, tail) = output?;
            let (published, expanded) = (published?, (expanded?, expanded_size?));
            Some(Transferred {
                published,
                expanded,
                head: head?,
                tail,
            })
        })())
    })?;
    outcome.ok_or_else(|| first.into_error())
}

/// Receives the published file and hands it on.
fn fetch(
    mut intake: Intake,
    chunks: &SyncSender<Option<Bytes>>,
    stop: &Cancel,
    meter: &Meter,
) -> Result<(Checksum, u64), Halt> {
    while let Some(chunk) = intake.next(stop)? {
        meter.set_published(intake.received());
        chunks.send(Some(chunk)).map_err(|_| Halt::Peer)?;
    }
    meter.set_published(intake.received());
    // Hanging up without this means that the file is not complete.
    chunks.send(None).map_err(|_| Halt::Peer)?;
    Ok(intake.finish())
}

/// Expands chunks into pieces.
struct Expander<'a> {
    unpacker: Unpacker,
    head: Vec<u8>,
    sizes: Sizes<'a>,
    alignment: u64,
}

impl Expander<'_> {
    /// Returns the length of the expanded image.
    fn run(
        mut self,
        chunks: &Receiver<Option<Bytes>>,
        consumers: &[SyncSender<Arc<Piece>>],
    ) -> Result<u64, Halt> {
        let pool = Pool::new(BUFFERS);
        let mut offset = 0u64;
        let mut present = std::mem::take(&mut self.head);
        loop {
            let mut data = pool.take()?;
            let buffer = data.bytes_mut();
            if let Some(start) = buffer.get_mut(..present.len()) {
                start.copy_from_slice(&present);
            }
            let more = || chunks.recv().map_err(|_| Halt::Peer);
            let Filled { length, ended } = self.unpacker.fill(buffer, present.len(), more)?;
            present = Vec::new();
            self.sizes
                .check_bound("expanded image", self.unpacker.expanded())?;
            if length > 0 {
                let padded = self.padded(length);
                if let Some(padding) = buffer.get_mut(length..padded) {
                    padding.fill(0);
                }
                let piece = Arc::new(Piece {
                    offset,
                    length,
                    padded,
                    data,
                });
                for consumer in consumers {
                    consumer.send(Arc::clone(&piece)).map_err(|_| Halt::Peer)?;
                }
                offset = offset.saturating_add(length as u64);
            }
            if ended {
                return Ok(offset);
            }
        }
    }

    fn padded(&self, length: usize) -> usize {
        let alignment = usize::try_from(self.alignment).unwrap_or(PIECE);
        let padded = length.next_multiple_of(alignment).min(PIECE);
        if padded > length {
            tracing::info!(
                location = self.sizes.location,
                zeros = padded - length,
                "the image's length is no multiple of the device's block; filled up with zeros"
            );
        }
        padded
    }
}

/// The digest of the expanded image. Where it was cut short, another thread knows that.
fn digest(pieces: &Receiver<Arc<Piece>>) -> Checksum {
    let mut digest = Sha256::new();
    while let Ok(piece) = pieces.recv() {
        digest.update(piece.content());
    }
    Checksum::from(<[u8; 32]>::from(digest.finalize()))
}

/// Writes all pieces but the first, which it returns.
fn write_pieces(
    mut writer: Writer<'_>,
    pieces: &Receiver<Arc<Piece>>,
    announce: &SyncSender<Written>,
) -> Result<(Option<Arc<Piece>>, Tail), Halt> {
    let mut head = None;
    while let Ok(piece) = pieces.recv() {
        if piece.offset == 0 {
            head = Some(piece);
        } else {
            writer.put(&piece, announce)?;
        }
    }
    Ok((head, writer.finish()?))
}

/// Compares what came with what was expected; nothing in the slot can be an image yet.
fn judge(
    info: &Opened,
    expectation: &Expectation,
    sizes: Sizes<'_>,
    transferred: &Transferred,
) -> Result<Matched> {
    let (published, expanded) = (transferred.published.0, transferred.expanded.0);
    let size = transferred.expanded.1;
    let location = || info.location.clone();
    if let Some(needed) = info.filesystem.size
        && size < needed
    {
        return Err(Error::Truncated {
            location: location(),
            problem: format!(
                "its {} filesystem takes {needed} bytes",
                info.filesystem.kind
            ),
            published: transferred.published.1,
            expanded: size,
        });
    }
    sizes.check_exact("expanded image", size)?;
    let matched = match expectation.checksum {
        Some(wanted) if wanted == published => Matched::PublishedFile,
        Some(wanted) if wanted == expanded => Matched::ExpandedImage,
        Some(expected) => {
            return Err(Error::ChecksumMismatch {
                location: location(),
                expected,
                published,
                expanded,
            });
        }
        None => Matched::Nothing,
    };
    match expectation.expanded_checksum {
        Some(expected) if expected != expanded => Err(Error::ExpandedMismatch {
            location: location(),
            expected,
            actual: expanded,
        }),
        Some(_) if matched == Matched::Nothing => Ok(Matched::ExpandedImage),
        _ => Ok(matched),
    }
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, work)
        .map_err(no_thread)
}

fn join<T>(thread: ScopedJoinHandle<'_, T>, first: &FirstError) -> Option<T> {
    let name = thread.thread().name().unwrap_or_default().to_owned();
    thread.join().ok().or_else(|| {
        let what = format!("thread {name} panicked");
        first.note(Err(Error::Internal { what }.into()))
    })
}
