//! The last write of an attempt, which makes an image of what lies behind it, and how it is taken back.

use super::meter::Meter;
use super::pieces::{self, Piece, Written, ZeroRun};
use super::readback::ReadBack;
use crate::buffer::PIECE;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::medium::Medium;

/// Writes the first piece and reads it back; durable when it returns. A crash in the middle leaves any part of it, an
/// error may leave all of it.
pub(super) fn complete(
    medium: &dyn Medium,
    head: &Piece,
    cancel: &Cancel,
    meter: &Meter,
) -> Result<()> {
    let block = head.block();
    let written = Written::of(head.offset, block);
    pieces::write_at(medium, block, head.offset)?;
    meter.add_written(head.length as u64);
    pieces::flush(medium, head.offset)?;
    ReadBack::new(medium, cancel, meter).check(written)
}

/// Clears the first piece after `error`, which found it written perhaps, and reads that back: what is reported as
/// failed or stopped is no image. Durable when it returns `error` itself; otherwise the error says that an image may
/// be left.
pub(super) fn take_back(medium: &dyn Medium, error: Error) -> Error {
    // Not stopped by what stopped the attempt, and no progress of it.
    let (never, apart) = (Cancel::new(), Meter::default());
    let head = ZeroRun {
        offset: 0,
        length: medium.capacity().min(PIECE as u64),
    };
    let cleared = pieces::clear_head(medium)
        .and_then(|()| ReadBack::new(medium, &never, &apart).check_zeros(&[head]));
    match cleared {
        Ok(()) => error,
        Err(clearing) => Error::NotTakenBack {
            source: Box::new(error),
            clearing: Box::new(clearing),
        },
    }
}
