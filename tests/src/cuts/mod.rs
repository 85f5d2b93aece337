//! Power cuts, all of them: what a machine wrote to its disk is recorded, every disk that a cut can leave is made of the record,
//! and of each it is judged what the boot loader would start.
//!
//! The record is QEMU's (`blklogwrites`, in the format of Linux's dm-log-writes): what reached the disk of a guest, or of a loop device
//! whose file QEMU's storage daemon has, in order, with every flush. A cut leaves all that was flushed; of what was written since then
//! each write is there or not, and the last one may be torn between two sectors. A sector is whole or absent (NVM Express Base
//! Specification, "Atomic Operations"; for disks without power-fail atomicity of more than one block).

mod enumerate;
mod fat;
mod judge;
mod materialised;
mod recorder;
mod reference;
mod view;
mod write_log;

pub(crate) use self::enumerate::{Budget, State, every_state, reach};
pub(crate) use self::judge::{Digests, Judge, LoaderRules, Slots, Startable, order_of};
pub(crate) use self::materialised::Materialised;
pub(crate) use self::recorder::Recorder;
pub(crate) use self::reference::{Reference, held_by_raw_pair};
pub(crate) use self::view::View;
pub(crate) use self::write_log::{Kind, WriteLog};

/// Bytes of a sector of the record.
pub(crate) const SECTOR: u64 = 512;
