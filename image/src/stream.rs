//! A connected source together with its decoder, looked into far enough to know that it is an image.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::cancel::Cancel;
use crate::checksum::Checksum;
use crate::error::{Error, Result};
use crate::event::Opened;
use crate::format::decoder::Decoder;
use crate::format::{self, Filesystem, Format, FrameProbe, PROBE_LENGTH};
use crate::settings::Expectation;
use crate::source::Published;

/// Bytes that a published file may have beside its content, however small the slot is: headers, tables, frames to be skipped.
const PACKING_LEAST: u64 = 1 << 20;

/// The published file: received, counted and digested. No more is taken than a slot could ever hold.
pub(crate) struct Intake {
    body: Box<dyn Published>,
    digest: Sha256,
    received: u64,
    location: String,
    capacity: u64,
}

impl Intake {
    fn new(body: Box<dyn Published>, location: &str, capacity: u64) -> Self {
        Self {
            body,
            digest: Sha256::new(),
            received: 0,
            location: location.to_owned(),
            capacity,
        }
    }

    /// The next bytes; `None` at the end of the file.
    pub(crate) fn next(&mut self, cancel: &Cancel) -> Result<Option<Bytes>> {
        let chunk = self.body.next(cancel)?;
        if let Some(chunk) = &chunk {
            self.digest.update(chunk);
            self.received = self.received.saturating_add(chunk.len() as u64);
            check_published(&self.location, self.capacity, self.received)?;
        }
        Ok(chunk)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Digest and length of all that was received.
    pub(crate) fn finish(self) -> (Checksum, u64) {
        (
            Checksum::from(<[u8; 32]>::from(self.digest.finalize())),
            self.received,
        )
    }
}

/// Turns chunks of the published file into filled buffers.
pub(crate) struct Unpacker {
    decoder: Decoder,
    input: Bytes,
    /// Whether the decoder may hold expanded bytes that found no room.
    held_back: bool,
    end: End,
}

/// What the end of the published file is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The source says where it is; a connection that breaks before it is an error of its own.
    Marked,
    /// The connection is closed there, as a broken one may be.
    Unmarked,
}

impl End {
    /// The error for content that is complete as far as the source can tell, and wrong.
    pub(crate) fn blame(self, error: Error) -> Error {
        match self {
            Self::Marked => error,
            Self::Unmarked => Error::EndedEarly {
                source: Box::new(error),
            },
        }
    }
}

/// How far a buffer was filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filled {
    /// Bytes in the buffer.
    pub(crate) length: usize,
    /// Whether the image is complete with them.
    pub(crate) ended: bool,
}

impl Unpacker {
    /// Fills `output`, of which the first `length` bytes are there already, with input from
    /// `more`. Stops early only at the end of the image.
    pub(crate) fn fill<E: From<Error>>(
        &mut self,
        output: &mut [u8],
        mut length: usize,
        mut more: impl FnMut() -> Result<Option<Bytes>, E>,
    ) -> Result<Filled, E> {
        loop {
            let Some(room) = output.get_mut(length..).filter(|room| !room.is_empty()) else {
                return Ok(Filled {
                    length,
                    ended: false,
                });
            };
            if self.input.is_empty() && !self.held_back {
                match more()? {
                    Some(chunk) => self.input = chunk,
                    None => {
                        self.decoder
                            .finish()
                            .map_err(|error| self.end.blame(error))?;
                        return Ok(Filled {
                            length,
                            ended: true,
                        });
                    }
                }
            }
            let capacity = room.len();
            let (taken, made) = self.decoder.step(&self.input, room)?;
            let _ = self.input.split_to(taken);
            length = length.saturating_add(made);
            self.held_back = made == capacity;
        }
    }

    /// What the end of the published file is worth.
    pub(crate) fn end(&self) -> End {
        self.end
    }

    /// Bytes of the expanded image so far.
    pub(crate) fn expanded(&self) -> u64 {
        self.decoder.expanded()
    }
}

/// An image whose beginning is known and whose rest is still to come.
pub(crate) struct ImageStream {
    pub(crate) intake: Intake,
    pub(crate) unpacker: Unpacker,
    /// The first bytes of the expanded image.
    pub(crate) head: Vec<u8>,
    pub(crate) info: Opened,
}

impl ImageStream {
    /// Looks at the first bytes: format, window, filesystem, and every length that is known by
    /// then, against the slot and against what was declared.
    pub(crate) fn begin(
        body: Box<dyn Published>,
        location: &str,
        expectation: &Expectation,
        capacity: u64,
        window_limit: u64,
        cancel: &Cancel,
    ) -> Result<Self> {
        let sizes = Sizes {
            location,
            expected: expectation.size,
            capacity,
        };
        let published_total = body.total();
        let end = if body.may_end_early() {
            End::Unmarked
        } else {
            End::Marked
        };
        let mut intake = Intake::new(body, sizes.location, sizes.capacity);

        let first = at_least_four_bytes(&mut intake, cancel)?;
        let format = Format::of(&first);
        if format == Format::Raw
            && let Some(total) = published_total
        {
            sizes.check_exact("published raw image", total)?;
        }
        if let Some(total) = published_total {
            check_published(sizes.location, sizes.capacity, total)?;
        }
        let decoder = Decoder::new(location, format, window_limit)?;
        let mut unpacker = Unpacker {
            decoder,
            input: Bytes::new(),
            held_back: false,
            end,
        };

        let mut probe = (format == Format::Zstd).then(FrameProbe::default);
        let mut frame_content = None;
        let mut pending = Some(first).filter(|first| !first.is_empty());
        let mut head = vec![0u8; PROBE_LENGTH];
        let filled = unpacker.fill(&mut head, 0, || {
            let chunk = match pending.take() {
                Some(chunk) => Some(chunk),
                None => intake.next(cancel)?,
            };
            if let (Some(chunk), Some(watching)) = (&chunk, &mut probe)
                && let Some(header) = watching.feed(chunk)
            {
                probe = None;
                if header.window > window_limit {
                    return Err(Error::WindowTooLarge {
                        location: location.to_owned(),
                        window: header.window,
                        limit: window_limit,
                    });
                }
                if let Some(content) = header.content {
                    sizes.check_bound("content of its first zstd frame", content)?;
                }
                frame_content = header.content;
            }
            Ok(chunk)
        })?;
        head.truncate(filled.length);

        let filesystem = Filesystem::probe(&head).ok_or_else(|| {
            let error = Error::NotAnImage {
                location: location.to_owned(),
                seen: format::describe(&head),
            };
            // More of an error page would not be an image either.
            if filled.ended && format::foreign(&head).is_none() {
                end.blame(error)
            } else {
                error
            }
        })?;
        if let Some(size) = filesystem.size {
            sizes.check_bound("filesystem in it", size)?;
        }
        let raw_total = published_total.filter(|_| format == Format::Raw);
        let expanded_total = expectation
            .size
            .or(raw_total)
            .or(filesystem.size.max(frame_content));
        let info = Opened {
            location: location.to_owned(),
            format,
            filesystem,
            published_total,
            expanded_total,
        };
        Ok(Self {
            intake,
            unpacker,
            head,
            info,
        })
    }
}

/// The first chunks, put together until the magic number is there; less only at the end.
fn at_least_four_bytes(intake: &mut Intake, cancel: &Cancel) -> Result<Bytes> {
    let mut first = Bytes::new();
    while first.len() < 4 {
        match intake.next(cancel)? {
            Some(chunk) if first.is_empty() => first = chunk,
            Some(chunk) => first = [first, chunk].concat().into(),
            None => break,
        }
    }
    Ok(first)
}

/// What lengths have to fit: the slot, and what was declared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes<'a> {
    pub(crate) location: &'a str,
    pub(crate) expected: Option<u64>,
    pub(crate) capacity: u64,
}

/// A published file of this size is not more than any packing of what fits into a slot of that capacity takes up, in bytes. Frames
/// that are skipped or empty could go on for ever otherwise, without a byte that comes out of them.
fn check_published(location: &str, capacity: u64, size: u64) -> Result<()> {
    // zstd itself adds less than one part in a hundred to what cannot be compressed.
    let packing = (capacity / 4).saturating_add(PACKING_LEAST);
    if size > capacity.saturating_add(packing) {
        return Err(Error::TooLarge {
            location: location.to_owned(),
            what: "published file",
            size,
            capacity,
        });
    }
    Ok(())
}

impl Sizes<'_> {
    /// `size` is at most what comes out in the end.
    pub(crate) fn check_bound(&self, what: &'static str, size: u64) -> Result<()> {
        self.check_fits(what, size)?;
        match self.expected {
            Some(expected) if size > expected => Err(self.mismatch(what, expected, size)),
            _ => Ok(()),
        }
    }

    /// `size` is exactly what comes out in the end.
    pub(crate) fn check_exact(&self, what: &'static str, size: u64) -> Result<()> {
        self.check_fits(what, size)?;
        match self.expected {
            Some(expected) if size != expected => Err(self.mismatch(what, expected, size)),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_fits(&self, what: &'static str, size: u64) -> Result<()> {
        if size > self.capacity {
            return Err(Error::TooLarge {
                location: self.location.to_owned(),
                what,
                size,
                capacity: self.capacity,
            });
        }
        Ok(())
    }

    fn mismatch(&self, what: &'static str, expected: u64, actual: u64) -> Error {
        Error::SizeMismatch {
            location: self.location.to_owned(),
            what,
            expected,
            actual,
        }
    }
}
