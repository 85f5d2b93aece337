//! The boot loaders that a machine of the lab can have, and what they hold of the slots, seen from outside by their own tools.

mod attributes;
mod efi;
mod uboot;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{esp, process};

pub(crate) use self::attributes::Attributes;
pub(crate) use self::efi::EMPTY_STORE;
pub(crate) use self::uboot::{SIZE as UBOOT_COPY, held as held_by_uboot};

/// Name of a machine's variable store, which lies beside its disk.
pub(crate) const VARIABLE_STORE: &str = "vars.fd";

/// GRUB's environment block on the ESP.
const GRUB_ENVIRONMENT: &str = "/grub/grubenv";

/// A boot loader and its firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loader {
    /// systemd-boot on UEFI.
    SystemdBoot,
    /// GRUB on UEFI.
    Grub,
    /// GRUB on a BIOS.
    GrubBios,
    /// U-Boot with its environment in two files of the boot partition.
    Uboot,
    /// U-Boot with its environment as one file of the boot partition.
    UbootFile,
    /// U-Boot with its environment as two raw copies in a partition.
    UbootRaw,
    /// None: UEFI firmware's own boot manager.
    Efi,
}

/// A processor architecture of the lab's machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Architecture {
    /// 64-bit x86.
    Amd64,
    /// 64-bit ARM, emulated.
    Arm64,
}

impl Architecture {
    /// Debian's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The loader that machines have where none is named.
    pub const fn usual_loader(self) -> Loader {
        match self {
            Self::Amd64 => Loader::SystemdBoot,
            Self::Arm64 => Loader::Uboot,
        }
    }
}

/// What starts the loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    /// Debian's OVMF.
    Uefi,
    /// QEMU's SeaBIOS.
    Bios,
    /// Debian's U-Boot for QEMU's ARM64 board.
    Uboot,
}

/// What a loader's own data say.
#[derive(Debug, PartialEq, Eq)]
pub struct Held {
    /// `good`, `trial`, `bad` or `empty`, of slots A and B.
    pub states: [&'static str; 2],
    /// The slot that is tried first, in upper case.
    pub first: char,
    /// Boots left of slots that are tried.
    pub tries_left: [Option<u32>; 2],
}

impl Held {
    /// The slot that is started next: the first of the order that may be.
    pub fn next(&self) -> Option<char> {
        let [a, b] = self.states;
        let order = match self.first {
            'A' => [('A', a), ('B', b)],
            _ => [('B', b), ('A', a)],
        };
        let startable = |state: &str| matches!(state, "good" | "trial");
        order
            .into_iter()
            .find(|(_, state)| startable(state))
            .map(|(slot, _)| slot)
    }
}

impl Loader {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::SystemdBoot,
        Self::Grub,
        Self::GrubBios,
        Self::Uboot,
        Self::UbootFile,
        Self::UbootRaw,
        Self::Efi,
    ];

    /// Its name, as the lab's command line has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SystemdBoot => "systemd-boot",
            Self::Grub => "grub",
            Self::GrubBios => "grub-bios",
            Self::Uboot => "uboot",
            Self::UbootFile => "uboot-file",
            Self::UbootRaw => "uboot-raw",
            Self::Efi => "efi",
        }
    }

    /// What slotd-mkimage is told of it.
    pub const fn disk_arguments(self) -> &'static [&'static str] {
        match self {
            Self::SystemdBoot => &["--loader", "systemd-boot"],
            Self::Grub => &["--loader", "grub"],
            Self::GrubBios => &["--loader", "grub-bios"],
            Self::Uboot => &["--loader", "uboot", "--uboot-environment", "files"],
            Self::UbootFile => &["--loader", "uboot", "--uboot-environment", "file"],
            Self::UbootRaw => &["--loader", "uboot", "--uboot-environment", "raw"],
            Self::Efi => &["--loader", "efi"],
        }
    }

    /// The architecture of the machines that have it.
    pub const fn architecture(self) -> Architecture {
        match self {
            Self::SystemdBoot | Self::Grub | Self::GrubBios | Self::Efi => Architecture::Amd64,
            Self::Uboot | Self::UbootFile | Self::UbootRaw => Architecture::Arm64,
        }
    }

    /// The backend that drives it.
    pub const fn backend(self) -> &'static str {
        match self {
            Self::SystemdBoot => "systemd-boot",
            Self::Grub | Self::GrubBios => "grub",
            Self::Uboot | Self::UbootFile | Self::UbootRaw => "uboot",
            Self::Efi => "efi",
        }
    }

    /// How many boots a trial has where the configuration says `tries`.
    pub const fn boots_of_a_trial(self, tries: u32) -> u32 {
        match self {
            // The firmware forgets BootNext before it starts it.
            Self::Efi => 1,
            _ => tries,
        }
    }

    /// What starts it.
    pub const fn firmware(self) -> Firmware {
        match self {
            Self::SystemdBoot | Self::Grub | Self::Efi => Firmware::Uefi,
            Self::GrubBios => Firmware::Bios,
            Self::Uboot | Self::UbootFile | Self::UbootRaw => Firmware::Uboot,
        }
    }

    /// Makes the variable store of a machine whose firmware was told of a disk, with the commands that slotd-mkimage printed.
    pub(crate) fn tell_firmware(disk: &Path, commands: &str, store: &Path) -> Result<()> {
        efi::tell_firmware(disk, commands, store)
    }

    /// What the loader holds of the slots of a machine's disk; `None` for systemd-boot, whose entries are compared by their names.
    pub fn held(self, disk: &Path) -> Result<Option<Held>> {
        match self {
            Self::SystemdBoot => Ok(None),
            Self::Grub | Self::GrubBios => {
                let copy = tempfile::NamedTempFile::new().context("making a temporary file")?;
                esp::copy_out(disk, GRUB_ENVIRONMENT, copy.path())?;
                let listing = process::output("grub-editenv", |command| {
                    command.arg(copy.path()).arg("list")
                })?;
                held_by_grub(&listing).map(Some)
            }
            Self::Uboot | Self::UbootFile | Self::UbootRaw => {
                self.environment(disk)?.held().map(Some)
            }
            Self::Efi => efi::Variables::of(&store_beside(disk))?.held().map(Some),
        }
    }

    /// A variable of U-Boot's environment on a disk.
    pub fn variable(self, disk: &Path, name: &str) -> Result<Option<String>> {
        self.environment(disk)?.variable(name)
    }

    /// U-Boot's environment on a disk.
    fn environment(self, disk: &Path) -> Result<uboot::Environment<'_>> {
        match self {
            Self::Uboot => uboot::Environment::of_files(disk),
            Self::UbootFile => uboot::Environment::of_file(disk),
            Self::UbootRaw => uboot::Environment::of_partition(disk),
            Self::SystemdBoot | Self::Grub | Self::GrubBios | Self::Efi => {
                bail!("{} has no environment of U-Boot's", self.name())
            }
        }
    }

    /// Sets variables of the loader on the disk of a machine that is off, with the loader's own tool.
    pub fn set(self, disk: &Path, variables: &[(&str, &str)]) -> Result<()> {
        match self {
            Self::SystemdBoot | Self::Efi => bail!("{} has no variables on its disk", self.name()),
            Self::Grub | Self::GrubBios => {
                let copy = tempfile::NamedTempFile::new().context("making a temporary file")?;
                esp::copy_out(disk, GRUB_ENVIRONMENT, copy.path())?;
                process::run("grub-editenv", |command| {
                    let words = variables
                        .iter()
                        .map(|(name, value)| format!("{name}={value}"));
                    command.arg(copy.path()).arg("set").args(words)
                })?;
                esp::copy_in(disk, copy.path(), GRUB_ENVIRONMENT)
            }
            Self::Uboot | Self::UbootFile | Self::UbootRaw => {
                self.environment(disk)?.set(variables)
            }
        }
    }

    /// Runs commands of a shell in which `efibootmgr` works on the variables of a machine that is off; `$DISK` is its disk.
    pub fn with_firmware(self, disk: &Path, commands: &str) -> Result<()> {
        ensure!(
            self.firmware() == Firmware::Uefi,
            "{} has no boot variables",
            self.name()
        );
        let store = store_beside(disk);
        let variables = efi::Variables::of(&store)?;
        variables.change(disk, commands)?;
        variables.store(&store)
    }

    /// What it says on the console, and stays at, where neither slot can be started; `None` where it starts one all the same.
    pub const fn stops_with(self) -> Option<&'static str> {
        match self {
            Self::SystemdBoot => None,
            Self::Grub | Self::GrubBios => Some("slotd: NEITHER SLOT CAN BE STARTED"),
            Self::Uboot | Self::UbootFile | Self::UbootRaw => Some("slotd: no slot can be started"),
            Self::Efi => Some("UEFI Interactive Shell"),
        }
    }
}

/// The variable store of the machine that has this disk.
fn store_beside(disk: &Path) -> PathBuf {
    disk.with_file_name(VARIABLE_STORE)
}

impl std::str::FromStr for Loader {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.iter().find(|loader| loader.name() == text) {
            Some(loader) => Ok(*loader),
            None => bail!(
                "{text:?} is no boot loader of the lab: {} are",
                Self::ALL.map(Self::name).join(", ")
            ),
        }
    }
}

/// Reads the listing of `grub-editenv`: a slot that is proven is good, one with boots left tried, one that is neither bad, and one
/// of which nothing is said empty.
pub(crate) fn held_by_grub(listing: &str) -> Result<Held> {
    let value = |name: &str| {
        listing
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    let order = value("slotd_order").context("no slotd_order in the environment block")?;
    let state = |slot: &str| {
        let proven = value(&format!("slotd_{slot}_ok"));
        let tries = value(&format!("slotd_{slot}_tries"));
        match (proven, tries) {
            (Some("1"), _) => "good",
            (None, None) => "empty",
            (_, None | Some("" | "0")) => "bad",
            (_, Some(_)) => "trial",
        }
    };
    let first = order.chars().next().context("slotd_order is empty")?;
    ensure!(matches!(first, 'a' | 'b'), "slotd_order is {order:?}");
    let states = ["a", "b"].map(state);
    let tries_left = ["a", "b"].map(|slot| {
        let tries = value(&format!("slotd_{slot}_tries"))?;
        tries.parse().ok()
    });
    Ok(Held {
        states,
        first: first.to_ascii_uppercase(),
        tries_left,
    })
}

#[cfg(test)]
mod tests {
    use super::{Held, Loader, held_by_grub};

    #[test]
    fn a_listing_of_grub_editenv_says_what_each_slot_is_worth() {
        let held =
            held_by_grub("slotd_order=b a\nslotd_a_ok=1\nslotd_b_ok=0\nslotd_b_tries=2\n").unwrap();
        assert_eq!(
            held,
            Held {
                states: ["good", "trial"],
                first: 'B',
                tries_left: [None, Some(2)],
            }
        );
        let held = held_by_grub("slotd_order=a b\nslotd_a_ok=1\nslotd_b_ok=0\n").unwrap();
        assert_eq!(held.states, ["good", "bad"]);
        assert_eq!(held.next(), Some('A'));
        let held =
            held_by_grub("slotd_order=b a\nslotd_a_ok=1\nslotd_b_ok=0\nslotd_b_tries=0\n").unwrap();
        assert_eq!((held.first, held.next()), ('B', Some('A')));
        let held = held_by_grub("slotd_order=b a\nslotd_a_ok=0\nslotd_b_ok=0\n").unwrap();
        assert_eq!(held.next(), None);
        let held = held_by_grub("slotd_order=a b\nslotd_a_ok=1\n").unwrap();
        assert_eq!(held.states, ["good", "empty"]);
        assert!(held_by_grub("ORDER=A B\n").is_err());
    }

    #[test]
    fn loaders_are_named_as_on_the_command_line() {
        for loader in Loader::ALL {
            assert_eq!(loader.name().parse::<Loader>().unwrap(), loader);
        }
        let error = "lilo".parse::<Loader>().unwrap_err();
        assert!(error.to_string().contains("grub-bios"), "{error}");
    }
}
