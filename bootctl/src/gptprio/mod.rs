//! Slots whose state is in the attributes of their partitions, as ChromeOS, Flatcar and Bottlerocket have them.
//!
//! Nothing but attribute bits and checksums is ever changed: numbers, gaps, sizes of entries and array, the first sector
//! and everything else of the table stay as they are, byte for byte. See `docs/gptprio.md` for what each crash leaves.

mod attributes;
mod disk;
mod findings;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod mbr;
mod record_store;
mod states;
mod store;
mod table;
mod tables;

use crate::error::Result;
use crate::markers::Markers;
use crate::record::RecordBackend;
use crate::system::System;
use crate::table::SlotTable;

pub(crate) use store::{Gptprio, carries_attributes};

/// Opens the backend. Nothing is written.
///
/// # Errors
/// [`crate::Error::NoLoader`] where the slots are not partitions of one disk.
pub(crate) fn open(
    system: &System,
    table: &SlotTable,
    markers: Markers,
) -> Result<RecordBackend<Gptprio>> {
    let store = Gptprio::open(system, table)?;
    Ok(RecordBackend::new(store, markers, table.booted))
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod input_tests;
#[cfg(test)]
mod lie_tests;
#[cfg(test)]
pub(crate) mod loader_model;
#[cfg(test)]
mod tool_tests;
