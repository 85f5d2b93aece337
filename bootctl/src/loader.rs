//! Which boot loader drives the slots, and its backend opened.

use crate::backend::Backend;
use crate::efi;
use crate::error::Result;
use crate::system::System;
use crate::systemd_boot::{EspSetting, SystemdBoot};
use crate::table::SlotTable;

/// The boot loader as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LoaderSetting {
    /// The one whose data is there.
    #[default]
    Auto,
    /// systemd-boot on the EFI system partition.
    SystemdBoot,
    /// The boot manager of EFI firmware, without a loader.
    Efi,
}

impl LoaderSetting {
    /// Opens the backend for a slot table. Nothing is written.
    ///
    /// # Errors
    /// [`crate::Error::NoLoader`] where the data of such a loader is not there.
    pub fn open(
        &self,
        system: &System,
        table: &SlotTable,
        esp: &EspSetting,
    ) -> Result<Box<dyn Backend>> {
        match self {
            Self::Auto | Self::SystemdBoot => Ok(Box::new(SystemdBoot::open(system, table, esp)?)),
            Self::Efi => Ok(Box::new(efi::open(system, table, esp)?)),
        }
    }
}
