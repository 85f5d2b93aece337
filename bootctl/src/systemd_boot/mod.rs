//! systemd-boot: Boot Loader Specification entries with counters in their file names.

use std::path::{Path, PathBuf};

use crate::backend::{
    Backend, BootOptions, LoaderState, PlannedChange, PreflightRequest, Refusal, StagedImage,
    Transition,
};
use crate::error::{Error, Result};
use crate::inspect::SlotView;
use crate::proof::{InactiveSlot, InvalidatedSlot, VerifiedSlot};
use crate::slot::SlotName;
use crate::system::System;
use crate::table::SlotTable;

/// Where the EFI system partition is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EspSetting {
    /// `/efi`, `/boot/efi` or `/boot`, whichever is mounted from the disk of the running root.
    #[default]
    Auto,
    /// This directory.
    Path(PathBuf),
}

/// The systemd-boot backend.
#[derive(Debug)]
pub struct SystemdBoot {
    esp: PathBuf,
}

impl SystemdBoot {
    /// Opens the boot loader's data. Nothing is written.
    ///
    /// # Errors
    /// [`Error::NoLoader`] where no EFI system partition with systemd-boot's layout is mounted.
    pub fn open(_system: &System, _table: &SlotTable, esp: &EspSetting) -> Result<Self> {
        let EspSetting::Path(esp) = esp else {
            return Err(not_found());
        };
        Ok(Self { esp: esp.clone() })
    }

    /// Where the EFI system partition is mounted.
    #[must_use]
    pub fn esp(&self) -> &Path {
        &self.esp
    }
}

fn not_found() -> Error {
    Error::NoLoader {
        problem: "no EFI system partition is mounted".to_owned(),
    }
}

impl Backend for SystemdBoot {
    fn name(&self) -> &'static str {
        "systemd-boot"
    }

    fn state(&self) -> Result<LoaderState> {
        Err(not_found())
    }

    fn preflight(&self, _request: &PreflightRequest) -> Vec<Refusal> {
        Vec::new()
    }

    fn invalidate(&self, _slot: InactiveSlot) -> Result<InvalidatedSlot> {
        Err(not_found())
    }

    fn install_boot_files(
        &self,
        _slot: &VerifiedSlot,
        _view: &SlotView,
        _staged: &StagedImage,
        _options: &BootOptions,
    ) -> Result<()> {
        Err(not_found())
    }

    fn verified(&self, _table: &SlotTable, _slot: SlotName) -> Result<Option<VerifiedSlot>> {
        Err(not_found())
    }

    fn arm(&self, _slot: &VerifiedSlot, _tries: u32, _options: &BootOptions) -> Result<()> {
        Err(not_found())
    }

    fn disarm(&self, _slot: SlotName) -> Result<()> {
        Err(not_found())
    }

    fn mark_good(&self, _slot: SlotName) -> Result<()> {
        Err(not_found())
    }

    fn mark_bad(&self, _slot: SlotName) -> Result<()> {
        Err(not_found())
    }

    fn select(&self, _slot: SlotName) -> Result<()> {
        Err(not_found())
    }

    fn plan_sequence(&self, _transitions: &[Transition]) -> Result<Vec<PlannedChange>> {
        Err(not_found())
    }
}
