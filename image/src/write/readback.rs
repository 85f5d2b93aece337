//! Reading back what was written, past the page cache and behind the flush that covers it.

use std::sync::mpsc::{Receiver, SyncSender};

use twox_hash::XxHash3_128;

use super::meter::Meter;
use super::pieces::{Written, ZeroRun, device_error, flush};
use super::relay::Halt;
use crate::buffer::{AlignedBuffer, PIECE, is_zero};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::medium::Medium;

/// How much is written between two flushes. Each flush makes the medium finish what it has, so
/// fewer are faster; each also bounds how much is read in one go behind it.
const FLUSH_EVERY: u64 = 32 << 20;

/// Compares the medium with the digests of what was written to it.
pub(super) struct ReadBack<'a> {
    medium: &'a dyn Medium,
    stop: &'a Cancel,
    meter: &'a Meter,
    buffer: AlignedBuffer,
}

impl<'a> ReadBack<'a> {
    pub(super) fn new(medium: &'a dyn Medium, stop: &'a Cancel, meter: &'a Meter) -> Self {
        Self {
            medium,
            stop,
            meter,
            buffer: AlignedBuffer::new(),
        }
    }

    /// Flushes and checks behind a writer until it hangs up. When this returns, everything that was
    /// announced is durable and was found on the medium, and everything else that the writer did
    /// is durable; the latter is told to `all_flushed` as soon as it holds.
    pub(super) fn follow(
        &mut self,
        written: &Receiver<Written>,
        all_flushed: &SyncSender<()>,
    ) -> Result<(), Halt> {
        let mut pending: Vec<Written> = Vec::new();
        let mut bytes = 0u64;
        loop {
            let next = written.recv();
            let last = next.is_err();
            if let Ok(written) = next {
                bytes = bytes.saturating_add(written.length as u64);
                pending.push(written);
                if bytes < FLUSH_EVERY {
                    continue;
                }
            }
            self.stop.check()?;
            flush(self.medium, pending.first().map_or(0, |first| first.offset))?;
            if last {
                all_flushed.send(()).map_err(|_| Halt::Peer)?;
            }
            for piece in pending.drain(..) {
                self.check(piece)?;
            }
            if last {
                return Ok(());
            }
            bytes = 0;
        }
    }

    /// Reads one range and compares its digest.
    pub(super) fn check(&mut self, expected: Written) -> Result<()> {
        let held = self.read(expected.offset, expected.length)?;
        if XxHash3_128::oneshot(held) != expected.digest {
            return Err(self.differs(expected.offset, "it differs from what was written"));
        }
        self.meter.add_verified(expected.length as u64);
        Ok(())
    }

    /// Reads ranges that have to be zero.
    pub(super) fn check_zeros(&mut self, runs: &[ZeroRun]) -> Result<()> {
        for run in runs {
            let end = run.offset.saturating_add(run.length);
            let mut offset = run.offset;
            while offset < end {
                let length = usize::try_from(end - offset).unwrap_or(PIECE).min(PIECE);
                if !is_zero(self.read(offset, length)?) {
                    return Err(self.differs(offset, "it is not zero although it was zeroed"));
                }
                self.meter.add_verified(length as u64);
                offset = offset.saturating_add(length as u64);
            }
        }
        Ok(())
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<&[u8]> {
        self.stop.check()?;
        let room = self
            .buffer
            .bytes_mut()
            .get_mut(..length)
            .unwrap_or_default();
        self.medium
            .read_at(room, offset)
            .map_err(|source| device_error(self.medium, "read-back", offset, source))?;
        Ok(room)
    }

    fn differs(&self, offset: u64, problem: &'static str) -> Error {
        Error::ReadBack {
            device: self.medium.path().to_owned(),
            offset,
            problem,
        }
    }
}
