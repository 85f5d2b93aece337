//! Slots whose state is in the attributes of their partitions, as ChromeOS, Flatcar and Bottlerocket have them.
//!
//! Nothing but attribute bits and checksums is ever changed: numbers, gaps, sizes of entries and array, the first sector
//! and everything else of the table stay as they are, byte for byte. See `docs/gptprio.md` for what each crash leaves.

mod attributes;
mod disk;
mod mbr;
mod states;
mod store;
mod table;
mod tables;

pub(crate) use store::{Gptprio, carries_attributes};

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod input_tests;
#[cfg(test)]
pub(crate) mod loader_model;
#[cfg(test)]
mod tool_tests;
