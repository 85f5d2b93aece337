//! What fuzzers run: the record as it may be found on the disk. True where the input was accepted. Not part of the product:
//! only tests and fuzzers build this.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use crate::envelope::{DecodeError, VERSION, decode, encode};
use crate::next::{Command, next};
use crate::record::Record;
use crate::world::{Limits, Observation, Slot, SlotState, World};

/// Reads an input, and judges what came of it; whether it was accepted.
pub type Target = fn(&[u8]) -> bool;

/// The targets by name. Inputs of each lie in `tests/fuzz/corpus/engine`.
pub const TARGETS: &[(&str, Target)] = &[("record", record)];

/// What the loader may hold of a slot.
const STATES: [SlotState; 5] = [
    SlotState::Good,
    SlotState::Trial { left: 2, done: 0 },
    SlotState::Trial { left: 0, done: 1 },
    SlotState::Bad,
    SlotState::Empty,
];

fn record(input: &[u8]) -> bool {
    let record = match decode(input) {
        Ok(record) => record,
        Err(DecodeError::Future {
            version,
            min_reader,
        }) => {
            assert!(version > VERSION || min_reader > VERSION);
            return false;
        }
        Err(DecodeError::Empty) => {
            assert!(
                input
                    .iter()
                    .all(|byte| *byte == 0 || byte.is_ascii_whitespace())
            );
            return false;
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let written = encode(&record).expect("a record is JSON");
    assert_eq!(decode(&written).expect("what was written"), record);
    for a in STATES {
        for b in STATES {
            for booted in [None, Some(Slot::A), Some(Slot::B)] {
                start(&record, booted, [a, b]);
            }
        }
    }
    true
}

/// A start of the daemon with that record, whatever the world looks like: no command harms the slot that runs, and what is
/// kept can be read again.
fn start(record: &Record, booted: Option<Slot>, loader: [SlotState; 2]) {
    let seen = Observation {
        world: World {
            booted,
            loader: Some(loader),
            trouble: None,
            next_boot: None,
            images: [None, None],
            boot_id: "2b3a5a3c-9f0b-4a53-9a3e-0d7d0f2b8a11".to_owned(),
            uptime: 40,
            now: 1_796_000_000,
            settled: false,
        },
        request: None,
        limits: Limits::default(),
    };
    let step = next(record, &seen, None);
    let written = encode(&step.record).expect("a record is JSON");
    assert_eq!(decode(&written).expect("what was written"), step.record);
    if let Command::Invalidate { slot } | Command::Write { slot } | Command::Discard { slot } =
        &step.command
    {
        assert_ne!(Some(*slot), booted, "{:?}", step.command);
    }
    if let Command::Arm(staged) = &step.command {
        panic!("nothing is staged, and {staged:?} is armed");
    }
}

#[cfg(test)]
#[path = "../../../tests/fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{TARGETS, corpus};

    #[test]
    fn inputs_that_are_checked_in_are_read_as_their_names_say() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/engine");
        corpus::check(&folder, TARGETS);
    }
}
