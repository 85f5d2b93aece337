//! The writer's side: pieces to the medium, zero runs gathered, the first piece withheld.

use std::sync::mpsc::SyncSender;

use twox_hash::XxHash3_128;

use super::meter::Meter;
use super::relay::Halt;
use crate::buffer::{AlignedBuffer, Lease, PIECE, is_zero};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::medium::Medium;

/// The most that is zeroed by one call, so that a stop does not have to wait long for it.
const ZERO_STEP: u64 = 16 << 20;

/// Zero runs are handed to the medium at this length, so that its work overlaps with ours.
const LONGEST_GATHERED_RUN: u64 = 256 << 20;

/// A part of the expanded image in memory.
pub(super) struct Piece {
    /// Where it belongs, in bytes; a multiple of [`PIECE`].
    pub(super) offset: u64,
    /// Bytes of the image in the buffer.
    pub(super) length: usize,
    /// The same, with zeros up to a whole block of the medium.
    pub(super) padded: usize,
    /// The buffer.
    pub(super) data: Lease,
}

impl Piece {
    /// The part that belongs to the image.
    pub(super) fn content(&self) -> &[u8] {
        self.data.get(..self.length).unwrap_or_default()
    }

    /// What is written.
    pub(super) fn block(&self) -> &[u8] {
        self.data.get(..self.padded).unwrap_or_default()
    }
}

/// A range of the medium and the digest of what it has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) offset: u64,
    pub(super) length: usize,
    pub(super) digest: u128,
}

impl Written {
    pub(super) fn of(offset: u64, block: &[u8]) -> Self {
        Self {
            offset,
            length: block.len(),
            digest: XxHash3_128::oneshot(block),
        }
    }
}

/// A range of the medium that has to read as zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZeroRun {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Writes pieces in order.
pub(super) struct Writer<'a> {
    medium: &'a dyn Medium,
    stop: &'a Cancel,
    meter: &'a Meter,
    written: u64,
    zeroed: u64,
    gathered: Option<ZeroRun>,
    runs: Vec<ZeroRun>,
}

/// What is left to do when all pieces but the first are on the medium.
pub(super) struct Tail {
    /// Bytes written as data.
    pub(super) written: u64,
    /// Bytes zeroed.
    pub(super) zeroed: u64,
    /// Where.
    pub(super) runs: Vec<ZeroRun>,
}

/// Zeroes the first piece. When this returns, that is durable, and nothing on the target can be taken for an
/// image by its first blocks. A crash in the middle leaves some of the old.
pub(super) fn clear_head(medium: &dyn Medium) -> Result<()> {
    let zeros = AlignedBuffer::new();
    let length = usize::try_from(medium.capacity())
        .unwrap_or(PIECE)
        .min(PIECE);
    write_at(medium, zeros.bytes().get(..length).unwrap_or_default(), 0)?;
    flush(medium, 0)
}

impl<'a> Writer<'a> {
    pub(super) fn new(medium: &'a dyn Medium, stop: &'a Cancel, meter: &'a Meter) -> Self {
        Self {
            medium,
            stop,
            meter,
            written: 0,
            zeroed: 0,
            gathered: None,
            runs: Vec::new(),
        }
    }

    /// Writes a piece that is not the first one, or adds it to a run of zeros. What was written is
    /// announced to whoever reads it back. Nothing of it is durable before the next flush.
    pub(super) fn put(
        &mut self,
        piece: &Piece,
        announce: &SyncSender<Written>,
    ) -> Result<(), Halt> {
        self.stop.check()?;
        let block = piece.block();
        if is_zero(block) {
            self.gather(piece.offset, block.len() as u64)?;
        } else {
            self.release()?;
            let written = Written::of(piece.offset, block);
            write_at(self.medium, block, piece.offset)?;
            self.written = self.written.saturating_add(block.len() as u64);
            announce.send(written).map_err(|_| Halt::Peer)?;
        }
        self.meter.add_written(piece.length as u64);
        Ok(())
    }

    /// All pieces are there: zeroes what is still gathered.
    pub(super) fn finish(mut self) -> Result<Tail> {
        self.release()?;
        Ok(Tail {
            written: self.written,
            zeroed: self.zeroed,
            runs: self.runs,
        })
    }

    fn gather(&mut self, offset: u64, length: u64) -> Result<()> {
        match &mut self.gathered {
            Some(run) => run.length = run.length.saturating_add(length),
            None => self.gathered = Some(ZeroRun { offset, length }),
        }
        if self
            .gathered
            .is_some_and(|run| run.length >= LONGEST_GATHERED_RUN)
        {
            self.release()?;
        }
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        let Some(run) = self.gathered.take() else {
            return Ok(());
        };
        let end = run.offset.saturating_add(run.length);
        let mut offset = run.offset;
        while offset < end {
            self.stop.check()?;
            let length = (end - offset).min(ZERO_STEP);
            self.medium
                .zero(offset, length)
                .map_err(|source| device_error(self.medium, "zeroing", offset, source))?;
            offset = offset.saturating_add(length);
        }
        self.zeroed = self.zeroed.saturating_add(run.length);
        self.runs.push(run);
        Ok(())
    }
}

/// Writes one block range; not durable before the next flush.
pub(super) fn write_at(medium: &dyn Medium, bytes: &[u8], offset: u64) -> Result<()> {
    let end = offset.saturating_add(bytes.len() as u64);
    if end > medium.capacity() {
        // The stream's length was checked before; this is the last line.
        let what = format!(
            "a write up to byte {end} is beyond {}",
            medium.path().display()
        );
        return Err(Error::Internal { what });
    }
    medium
        .write_at(bytes, offset)
        .map_err(|source| device_error(medium, "write", offset, source))
}

/// Makes all completed writes durable; `offset` is where the first of them starts.
pub(super) fn flush(medium: &dyn Medium, offset: u64) -> Result<()> {
    medium
        .flush()
        .map_err(|source| device_error(medium, "flush", offset, source))
}

/// An error of the device at an offset.
pub(super) fn device_error(
    medium: &dyn Medium,
    action: &'static str,
    offset: u64,
    source: std::io::Error,
) -> Error {
    Error::Device {
        device: medium.path().to_owned(),
        action,
        offset,
        source,
    }
}
