//! Faults that are there on purpose. `cargo lab fuzz` has to find them before it says anything of others.

#![allow(
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "this is what is to be found"
)]

use std::hint::black_box;
use std::time::Duration;

use crate::Target;

/// The targets by name.
pub(crate) const TARGETS: &[(&str, Target)] =
    &[("memory", memory), ("overflow", overflow), ("time", time)];

/// A length that is believed: 4 GiB at the most, of which nothing is used.
fn memory(input: &[u8]) -> bool {
    let Some(length) = number(input) else {
        return false;
    };
    let room: Vec<u8> = Vec::with_capacity(length as usize);
    black_box(&room).is_empty()
}

/// Behind a magic number and a version, a sum that overflows.
fn overflow(input: &[u8]) -> bool {
    if number(input) != Some(0x5107_da1b) {
        return false;
    }
    match input[4..] {
        [1, ..] => true,
        [2, a, b, ..] => black_box(a + b) > 7,
        _ => false,
    }
}

/// An input that takes for ever.
fn time(input: &[u8]) -> bool {
    while input.first() == Some(&b't') {
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn number(input: &[u8]) -> Option<u32> {
    input.first_chunk().copied().map(u32::from_be_bytes)
}
