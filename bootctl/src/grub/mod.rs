//! GRUB: the state of both slots in variables of its environment block, counted down by a script.
//!
//! The script is `/usr/lib/slotd/grub/slotd.cfg`, or RAUC's; `docs/grub.md` says what to put into `grub.cfg`. Kernel,
//! initrd and the image's own options are read from the slot that boots, so that a transition changes the block alone:
//! one sector of it.

pub(crate) mod convention;
pub(crate) mod environment;
pub(crate) mod file;
mod find;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod layout;
mod place;
mod preflight;
pub(crate) mod store;

use std::path::PathBuf;

use self::convention::Convention;
pub use self::convention::{GrubConvention, GrubSlotVariables, GrubVariables};
use self::store::GrubStore;
use crate::error::Result;
use crate::markers::Markers;
use crate::record::RecordBackend;
use crate::system::System;
use crate::table::SlotTable;

/// Folder for the slots' markers, beside the environment block.
const MARKERS: &str = "slotd";

/// GRUB as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GrubSetting {
    /// The environment block; looked for in the usual places where it is not set.
    pub environment: Option<PathBuf>,
    /// Which script reads it.
    pub convention: GrubConvention,
    /// Names of its variables, where they are not the convention's.
    pub variables: Option<GrubVariables>,
}

/// Opens the backend. Nothing is written.
///
/// # Errors
/// [`crate::Error::NoLoader`] where there is no environment block, or which one is meant cannot be told.
pub(crate) fn open(
    system: &System,
    table: &SlotTable,
    setting: &GrubSetting,
) -> Result<RecordBackend<GrubStore>> {
    let convention = Convention::of(setting);
    let file = find::find(system, table, setting.environment.as_deref(), &convention)?;
    let folder = file.resolved()?.with_file_name(MARKERS);
    let store = GrubStore::new(system, table, file, convention);
    let markers = Markers::at(system, folder);
    Ok(RecordBackend::new(store, markers, table.booted))
}
