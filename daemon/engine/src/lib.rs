//! The node's upgrade as a pure state machine, and the planner of a roll-out ([`rollout`]): no I/O, no clock, no async.
//!
//! The engine is driven, it does not drive: [`next()`] takes the durable [`Record`], an [`Observation`]
//! of the world and the [`Outcome`] of the last command, and answers with the record to keep and the
//! one [`Command`] to run. The driver writes the record durably before it runs the command whenever
//! the record changed. Every command is idempotent, so that a crash at any point is answered by
//! calling [`next()`] again with no outcome: the world outranks the record.
//!
//! All transitions are rows of one table ([`table::TABLE`]); [`diagram()`] prints it.

mod admit;
mod answer;
mod assign;
mod diagram;
mod envelope;
mod follow;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod next;
mod read;
mod record;
pub mod rollout;
pub mod table;
mod world;

pub use admit::{Refusal, admit};
pub use assign::{Assignment, assign};
pub use diagram::diagram;
pub use envelope::{DecodeError, MIN_READER, VERSION, decode, encode};
pub use next::{Command, Outcome, Step, next};
pub use record::{
    Drain, Ended, Ending, ErrorKind, Failure, Image, ImageRequest, Kind, Record, RefusedImage,
    Result, Task, Upgrade,
};
pub use table::{Event, Phase, Point};
pub use world::{
    Digest, Limits, Observation, ProvenSlot, Request, Slot, SlotState, StagedSlot, Verdict, World,
};
