//! Which boot loader drives the slots, and its backend opened.

use std::fmt;
use std::str::FromStr;

use crate::backend::Backend;
use crate::efi;
use crate::efivar::LoaderVariables;
use crate::error::{Error, Result};
use crate::gptprio;
use crate::grub::{self, GrubSetting};
use crate::markers::Markers;
use crate::record::RecordBackend;
use crate::system::System;
use crate::systemd_boot::{EspSetting, SystemdBoot};
use crate::table::SlotTable;
use crate::uboot::{self, UbootSetting, UbootStore};

/// Where markers lie that have no place beside the loader's own data. The folder outlives a slot.
const MARKERS: &str = "/var/lib/slotd/slots";

/// A boot loader that slotd can drive, or the wish to find out which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoaderKind {
    /// The one whose data is there.
    #[default]
    Auto,
    /// systemd-boot on the EFI system partition.
    SystemdBoot,
    /// GRUB, with its environment block.
    Grub,
    /// U-Boot, with its environment.
    Uboot,
    /// Attributes of the slots' entries in a GUID partition table.
    Gptprio,
    /// The boot manager of EFI firmware, without a loader.
    Efi,
}

impl LoaderKind {
    /// All of them, as documented.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::SystemdBoot,
        Self::Grub,
        Self::Uboot,
        Self::Gptprio,
        Self::Efi,
    ];

    /// Its name, in configurations and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::SystemdBoot => "systemd-boot",
            Self::Grub => "grub",
            Self::Uboot => "uboot",
            Self::Gptprio => "gptprio",
            Self::Efi => "efi",
        }
    }
}

impl fmt::Display for LoaderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for LoaderKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                format!(
                    "{text:?} is no boot loader: {} are",
                    Self::ALL.map(Self::name).join(", ")
                )
            })
    }
}

/// The boot loader as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoaderSetting {
    /// Which one.
    pub kind: LoaderKind,
    /// Where the EFI system partition is mounted, for those that have their data there.
    pub esp: EspSetting,
    /// GRUB's environment block.
    pub grub: GrubSetting,
    /// U-Boot's environment.
    pub uboot: UbootSetting,
}

impl LoaderSetting {
    /// A setting that finds the loader by its data.
    #[must_use]
    pub fn auto(esp: EspSetting) -> Self {
        Self {
            esp,
            ..Self::default()
        }
    }

    /// Opens the backend for a slot table. Nothing is written.
    ///
    /// # Errors
    /// [`Error::NoLoader`] where the data of such a loader is not there, or where several loaders' data is and which of
    /// them starts this machine cannot be told.
    pub fn open(&self, system: &System, table: &SlotTable) -> Result<Box<dyn Backend>> {
        match self.kind {
            LoaderKind::Auto => self.find(system, table),
            LoaderKind::SystemdBoot => Ok(Box::new(SystemdBoot::open(system, table, &self.esp)?)),
            LoaderKind::Grub => Ok(Box::new(grub::open(system, table, &self.grub)?)),
            LoaderKind::Uboot => Ok(Box::new(self.uboot(system, table)?)),
            LoaderKind::Gptprio => Ok(Box::new(gptprio::open(system, table, markers(system))?)),
            LoaderKind::Efi => Ok(Box::new(efi::open(system, table, &self.esp)?)),
        }
    }

    fn uboot(&self, system: &System, table: &SlotTable) -> Result<RecordBackend<UbootStore>> {
        uboot::open(system, table, &self.uboot, markers(system))
    }

    /// The loader that says it started this system, else the only one whose data speaks of slots. What cannot be read is an
    /// error, not a loader less: the others' data may be left over from another time.
    fn find(&self, system: &System, table: &SlotTable) -> Result<Box<dyn Backend>> {
        let of = |kind| Self {
            kind,
            ..self.clone()
        };
        if started_by_systemd_boot(system)? {
            return of(LoaderKind::SystemdBoot).open(system, table);
        }
        let mut speak = Vec::new();
        let mut silent = Vec::new();
        for kind in LoaderKind::ALL {
            match self.speaks_of_slots(kind, system, table) {
                Ok(None) => {}
                Ok(Some(true)) => speak.push(kind),
                Ok(Some(false)) => silent.push(format!("{kind}: its data says nothing of slots")),
                Err(Error::NoLoader { problem }) => silent.push(format!("{kind}: {problem}")),
                Err(error) => return Err(error),
            }
        }
        if speak.len() > 1 {
            // Attributes stay on a disk that got another loader, and nothing tells whether they are still gone by.
            speak.retain(|kind| *kind != LoaderKind::Gptprio);
        }
        match speak.as_slice() {
            [kind] => of(*kind).open(system, table),
            [] => Err(Error::NoLoader {
                problem: silent.join("; "),
            }),
            several => {
                let names: Vec<&str> = several.iter().map(|kind| kind.name()).collect();
                Err(Error::NoLoader {
                    problem: format!(
                        "{} could all be meant: each has data that speaks of slots; set `loader` to the one that \
                         starts this machine",
                        names.join(" and ")
                    ),
                })
            }
        }
    }

    /// Whether a loader's data says anything of slots; `None` for what is no loader.
    fn speaks_of_slots(
        &self,
        kind: LoaderKind,
        system: &System,
        table: &SlotTable,
    ) -> Result<Option<bool>> {
        let speaks = match kind {
            LoaderKind::Auto => return Ok(None),
            LoaderKind::SystemdBoot => SystemdBoot::open(system, table, &self.esp).map(|_| true),
            LoaderKind::Grub => grub::open(system, table, &self.grub)?.speaks_of_slots(),
            LoaderKind::Uboot => match system.path(&self.uboot.config).is_file() {
                true => self.uboot(system, table)?.speaks_of_slots(),
                false => Err(Error::NoLoader {
                    problem: format!("there is no {}", self.uboot.config.display()),
                }),
            },
            LoaderKind::Gptprio => gptprio::carries_attributes(system, table),
            LoaderKind::Efi => efi::open(system, table, &self.esp)?.speaks_of_slots(),
        };
        speaks.map(Some)
    }
}

fn markers(system: &System) -> Markers {
    Markers::at(system, MARKERS)
}

/// Whether systemd-boot says that it started this system.
fn started_by_systemd_boot(system: &System) -> Result<bool> {
    let info = LoaderVariables::read(system)?.info;
    Ok(info.is_some_and(|info| info.starts_with("systemd-boot")))
}
