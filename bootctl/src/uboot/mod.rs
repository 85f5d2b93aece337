//! U-Boot: the state of both slots in variables of its environment.
//!
//! `/etc/fw_env.config` says where the environment is. All variables of a transition are one write; of a redundant
//! pair it is the copy that does not count which is written. `bootctl/docs/uboot.md` is the page for people, the
//! script that U-Boot runs is in `systemd/usr/lib/slotd/uboot/`.

mod choice;
mod config;
mod conventions;
mod environment;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod medium;
mod storage;
mod store;

use std::path::PathBuf;

use crate::error::Result;
use crate::markers::Markers;
use crate::record::RecordBackend;
use crate::system::System;
use crate::table::SlotTable;

pub use store::UbootConvention;
pub(crate) use store::UbootStore;

/// Where the usual tools look for the environment's place.
const CONFIG: &str = "/etc/fw_env.config";

/// U-Boot as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UbootSetting {
    /// The file that says where the environment is, in the form of `fw_env.config`.
    pub config: PathBuf,
    /// Which script reads the environment.
    pub convention: UbootConvention,
}

impl Default for UbootSetting {
    fn default() -> Self {
        Self {
            config: CONFIG.into(),
            convention: UbootConvention::default(),
        }
    }
}

/// Opens the backend. Nothing is read yet, so that preflight can name what is missing.
///
/// # Errors
/// When the convention's setting cannot be used.
pub(crate) fn open(
    system: &System,
    table: &SlotTable,
    setting: &UbootSetting,
    markers: Markers,
) -> Result<RecordBackend<UbootStore>> {
    let store = UbootStore::new(system, &setting.config, table, &setting.convention)?;
    Ok(RecordBackend::new(store, markers, table.booted))
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod oracle;
