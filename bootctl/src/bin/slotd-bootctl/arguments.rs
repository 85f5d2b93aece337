//! The arguments. Nothing here but what is read: `slotd` parses the command line that it prints with these.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use slotd_bootctl::{
    EspSetting, GrubConvention, GrubSetting, LoaderKind, LoaderSetting, SlotLocator, SlotName,
    UbootConvention, UbootSetting,
};

/// Shows and changes what the boot loader holds of an A/B node's slots.
///
/// Works without a daemon and without a configuration on a disk with a usual label pair
/// (root-a/root-b and the like).
#[derive(Debug, Parser)]
#[command(name = "slotd-bootctl", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    /// How to print what is found.
    #[arg(long, value_enum, default_value_t = Output::Table, global = true)]
    pub(crate) output: Output,
    /// Also every partition that was looked at with the reason why it was taken or not, and the mounts.
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
    /// Slot A: PARTLABEL=, PARTUUID= or a device path, instead of a known label pair.
    #[arg(long, value_name = "LOCATOR", requires = "slot_b", global = true)]
    pub(crate) slot_a: Option<SlotLocator>,
    /// Slot B, likewise.
    #[arg(long, value_name = "LOCATOR", requires = "slot_a", global = true)]
    pub(crate) slot_b: Option<SlotLocator>,
    /// Where the EFI system partition is mounted, instead of /efi, /boot/efi or /boot.
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) esp: Option<PathBuf>,
    /// The boot loader: auto, systemd-boot, grub, uboot, gptprio or efi. By itself slotd takes the only one whose data speaks of slots.
    #[arg(long, value_name = "KIND", default_value_t = LoaderKind::Auto, global = true)]
    pub(crate) loader: LoaderKind,
    /// GRUB's environment block, instead of the only one in the usual places.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) grub_environment: Option<PathBuf>,
    /// Whose script reads GRUB's environment block: slotd or rauc.
    #[arg(long, value_name = "NAME", default_value_t = GrubConvention::Slotd, global = true)]
    pub(crate) grub_convention: GrubConvention,
    /// Where U-Boot's environment is, in the form of fw_env.config, instead of /etc/fw_env.config.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) uboot_config: Option<PathBuf>,
    /// Whose script reads U-Boot's environment: slotd, rauc, or bootcount:VARIABLE=A,B with the variable that names the slot.
    #[arg(long, value_name = "NAME", default_value_t = UbootConvention::Slotd, global = true)]
    pub(crate) uboot_convention: UbootConvention,
    /// A directory that stands for the node: sys/, proc/ and dev/ below it.
    #[arg(long, value_name = "DIR", hide = true, global = true)]
    pub(crate) system_root: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

impl Arguments {
    /// The boot loader as the command line names it.
    pub(crate) fn loader_setting(&self) -> LoaderSetting {
        LoaderSetting {
            kind: self.loader,
            esp: self.esp.clone().map_or(EspSetting::Auto, EspSetting::Path),
            grub: GrubSetting {
                environment: self.grub_environment.clone(),
                convention: self.grub_convention,
                variables: None,
            },
            uboot: UbootSetting {
                config: self
                    .uboot_config
                    .clone()
                    .unwrap_or_else(|| UbootSetting::default().config),
                convention: self.uboot_convention.clone(),
            },
        }
    }
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 internal error, 2 usage, 3 the configuration or the \
machine's layout has to change, 4 request rejected, 5 refused to protect the node, 6 temporary, a \
retry may help.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table for people.
    Table,
    /// A document for programs; its schema is in the crate's README.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show both slots, what boots next, and how that is known.
    Status,
    /// Show one line for each slot.
    List,
    /// Make the next boot a trial of a verified slot, or go back to a good one.
    Activate {
        /// A or B.
        slot: SlotName,
        #[command(flatten)]
        trial: Trial,
    },
    /// Record that the running system is proven.
    MarkGood {
        /// A or B; the booted slot if left out.
        slot: Option<SlotName>,
    },
    /// Give a slot up.
    MarkBad {
        /// A or B.
        slot: SlotName,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Trial {
    /// Boots that the trial gets.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) tries: u32,
    /// Seconds that a trial boot gets to prove itself.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) deadline: u64,
    /// Seconds after which a panicked kernel reboots.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) panic: u32,
    /// Kernel options besides the image's own.
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    pub(crate) options: String,
}
