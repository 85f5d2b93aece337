//! See [`crate::fuzzing`].

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use std::collections::BTreeMap;

use super::convention::{Convention, GrubConvention};
use super::environment::{Environment, Fault, record as record_of};
use super::layout::{NoPlace, SECTOR, lay_out};
use crate::backend::SlotState;
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;

pub(crate) fn environment(input: &[u8]) -> bool {
    let environment = match Environment::parse(input) {
        Ok(environment) => environment,
        Err(Fault::Signature) => return false,
        Err(Fault::Broken { offset }) => {
            assert!(offset < input.len(), "byte {offset} of {}", input.len());
            return false;
        }
    };
    let whole = environment.bytes();
    assert_eq!(whole.len(), input.len());
    assert_eq!(whole == input, !environment.is_damaged());
    let again = Environment::parse(whole).expect("what it should be");
    assert!(!again.is_damaged());
    assert_eq!(again.values(), environment.values());
    for kind in GrubConvention::ALL {
        let names = kind.variables();
        change(&environment, input, &Convention { kind, names });
    }
    true
}

/// Puts another record in: others' variables stay, and each block on the way holds the old record or the new one.
fn change(environment: &Environment, raw: &[u8], convention: &Convention) {
    let booted = Booted::Slot(SlotName::A);
    let found = convention.decode(|name| environment.get(name), booted, false);
    assert!(found.known || found.odd.is_empty());
    let record = Record {
        a: SlotState::Good,
        b: SlotState::Trial { left: 1, done: 0 },
        first: SlotName::B,
    };
    let wanted = convention.encode(&record);
    let blocks = match lay_out(environment, raw, &wanted, convention.reserve()) {
        Ok(blocks) => blocks,
        Err(NoPlace::TooSmall { .. }) => return,
        Err(NoPlace::Inconsistent(problem)) => {
            // Names that GRUB itself could not be told of or that come twice, and what a sector's end cuts in two.
            let names = || {
                environment
                    .pieces
                    .iter()
                    .filter_map(|piece| piece.name.as_deref())
            };
            let twice = names().count() != environment.values().len();
            let escaped = raw.len() > SECTOR && raw[..SECTOR].ends_with(b"\\");
            let full = environment.pieces.last().is_some_and(|piece| {
                piece.at < SECTOR && SECTOR < piece.end() && piece.end() == raw.len()
            });
            assert!(twice || escaped || full || names().any(odd), "{problem}");
            return;
        }
    };
    let own = |name: &[u8]| wanted.iter().any(|(own, _)| own.as_bytes() == name);
    let others = |environment: &Environment| -> BTreeMap<Vec<u8>, Vec<u8>> {
        environment
            .values()
            .into_iter()
            .filter(|(name, _)| !own(name))
            .collect()
    };
    let held = |block: &Environment| -> Vec<_> {
        wanted.iter().map(|(name, _)| block.get(name)).collect()
    };
    let unchanged = held(environment);
    // Values that are longer than ours ever are go in two sectors.
    let length: usize = wanted
        .iter()
        .zip(&unchanged)
        .filter_map(|((name, _), value)| Some(record_of(name, value.as_deref()?).len()))
        .sum();
    let ours = length <= convention.reserve();
    let mut before = environment.bytes().to_vec();
    for (at, block) in blocks.iter().enumerate() {
        let read = Environment::parse(block).expect("what is written is a block");
        assert_eq!(block.len(), raw.len());
        assert_eq!(others(&read), others(environment));
        if at + 1 == blocks.len() {
            for (name, value) in &wanted {
                let found = read.get(name).filter(|value| !value.is_empty());
                assert_eq!(&found, value, "{name}");
            }
            let first = SECTOR.min(block.len());
            let one = block[first..] == before[first..];
            assert!(
                one || !ours || held(&read) == unchanged,
                "two sectors change"
            );
        } else if ours {
            assert_eq!(held(&read), unchanged, "it changes before the last block");
        }
        before.clone_from(block);
    }
}

/// Names that no tool writes.
fn odd(name: &[u8]) -> bool {
    name.is_empty() || name.iter().any(|byte| !byte.is_ascii_graphic())
}
