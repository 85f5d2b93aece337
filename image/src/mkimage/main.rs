//! `slotd-mkimage`: builds root filesystems, slot images, A/B disks and catalog entries.
//!
//! Everything is made with ordinary tools on plain files: no loop device and no mount.

mod architecture;
mod catalog;
mod command;
mod disk;
mod efi;
mod esp;
mod ext4;
mod grub;
mod layout;
mod recipe;
mod rootfs;
mod size;
mod slot;
mod slotd;
mod sparse;
mod tree;
mod uboot;
mod userns;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::architecture::Architecture;
use crate::recipe::Recipe;
use crate::size::Size;

/// Builds images for A/B machines.
#[derive(Debug, Parser)]
#[command(name = "slotd-mkimage", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the recipe's root filesystem as a tar file with mmdebstrap; prints its path
    Rootfs(RootfsArguments),
    /// Make a slot image from a root filesystem; prints its catalog entry
    Slot(SlotArguments),
    /// Make a whole A/B disk from slot images
    Disk(DiskArguments),
    /// Print the catalog entry of an image
    CatalogEntry(CatalogArguments),
}

#[derive(Debug, clap::Args)]
struct RecipeArguments {
    /// The recipe's folder
    #[arg(long, default_value = recipe::DEFAULT)]
    recipe: PathBuf,
    /// A flavour of the recipe, such as kubernetes, which adds packages and files; may be given several times
    #[arg(long)]
    flavour: Vec<String>,
    /// The processor that images are made for; a root filesystem of another one needs qemu-user-static in binfmt_misc
    #[arg(long, value_enum, default_value_t = Architecture::Amd64)]
    arch: Architecture,
}

impl RecipeArguments {
    fn load(&self) -> Result<Recipe> {
        Recipe::load(&self.recipe, self.arch, &self.flavour)
    }
}

#[derive(Debug, clap::Args)]
struct RootfsArguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Where to write the tar; by default the user's cache folder, where it is made once per recipe
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// apt's sources: a file in one-line or deb822 format
    #[arg(long)]
    apt_sources: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct SlotArguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// The root filesystem: a tar file, or a folder (of which hard links are taken)
    #[arg(long)]
    rootfs: PathBuf,
    /// Folders laid over the tree in this order, after the recipe's own overlay
    #[arg(long)]
    overlay: Vec<PathBuf>,
    /// Install slotd and slotd-bootctl from this folder, with units, policy and presets
    #[arg(long, value_name = "BIN_DIR")]
    install_slotd: Option<PathBuf>,
    /// The tree of units, policy and presets that --install-slotd installs
    #[arg(long, default_value = slotd::DEFAULT_UNITS)]
    units: PathBuf,
    /// IMAGE_VERSION of the image's os-release
    #[arg(long)]
    version: String,
    /// Size of the filesystem
    #[arg(long, default_value = "512MiB")]
    size: Size,
    /// The image to write; compressed when it ends in .zst
    #[arg(short, long)]
    output: PathBuf,
    /// URL for the catalog entry; by default the file's name
    #[arg(long)]
    url: Option<String>,
}

#[derive(Debug, clap::Args)]
struct DiskArguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// What a slot holds: A=IMAGE or B=IMAGE, raw or .zst; a slot that is not named stays empty
    #[arg(long = "slot", required = true, value_name = "SLOT=IMAGE")]
    slots: Vec<disk::SlotContent>,
    /// Machine id of the disk, 32 hex digits; random by default
    #[arg(long)]
    machine_id: Option<String>,
    /// Folder laid over the data partition
    #[arg(long)]
    data_overlay: Vec<PathBuf>,
    /// Kernel options added to each entry
    #[arg(long, default_value = "")]
    options: String,
    /// Size of the EFI system partition
    #[arg(long, default_value = "256MiB")]
    esp_size: Size,
    /// Size of each slot
    #[arg(long, default_value = "512MiB")]
    slot_size: Size,
    /// Size of the data partition
    #[arg(long, default_value = "256MiB")]
    data_size: Size,
    /// The boot loader
    #[arg(long, value_enum, default_value_t = disk::Loader::SystemdBoot)]
    loader: disk::Loader,
    /// Where U-Boot's environment lies
    #[arg(long, value_enum, default_value_t = uboot::Environment::Files)]
    uboot_environment: uboot::Environment,
    /// The tree of units, policy and presets, which has the scripts for boot loaders, too
    #[arg(long, default_value = slotd::DEFAULT_UNITS)]
    units: PathBuf,
    /// The systemd-boot binary; by default the one in slot A's image, else this machine's
    #[arg(long)]
    systemd_boot: Option<PathBuf>,
    /// The disk image to write
    #[arg(short, long)]
    output: PathBuf,
}

#[derive(Debug, clap::Args)]
struct CatalogArguments {
    /// The image as it will be published
    image: PathBuf,
    /// Where it will be published
    #[arg(long)]
    url: String,
    /// Its version; by default IMAGE_VERSION of the image's os-release
    #[arg(long)]
    version: Option<String>,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slotd-mkimage: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Rootfs(arguments) => {
            let recipe = arguments.recipe.load()?;
            let path = rootfs::make(
                &recipe,
                arguments.output.as_deref(),
                arguments.apt_sources.as_deref(),
            )?;
            println!("{}", path.display());
        }
        Command::Slot(arguments) => {
            userns::enter_unless_root().context("becoming root in a user namespace")?;
            let recipe = arguments.recipe.load()?;
            let slotd = arguments.install_slotd.map(|binaries| slotd::Installation {
                binaries,
                units: arguments.units,
            });
            let entry = slot::make(&slot::Request {
                recipe: &recipe,
                rootfs: &arguments.rootfs,
                overlays: &arguments.overlay,
                slotd: slotd.as_ref(),
                version: &arguments.version,
                size: arguments.size,
                output: &arguments.output,
                url: arguments.url.as_deref(),
            })?;
            print!("{entry}");
        }
        Command::Disk(arguments) => {
            userns::enter_unless_root().context("becoming root in a user namespace")?;
            let recipe = arguments.recipe.load()?;
            let boot_options = disk::make(&disk::Request {
                recipe: &recipe,
                slots: &arguments.slots,
                machine_id: arguments.machine_id.as_deref(),
                data_overlays: &arguments.data_overlay,
                options: &arguments.options,
                esp_size: arguments.esp_size,
                slot_size: arguments.slot_size,
                data_size: arguments.data_size,
                loader: arguments.loader,
                uboot_environment: arguments.uboot_environment,
                units: &arguments.units,
                systemd_boot: arguments.systemd_boot.as_deref(),
                output: &arguments.output,
            })?;
            println!("{}", arguments.output.display());
            if !boot_options.is_empty() {
                println!(
                    "\n# Its machine's firmware has to be told of it, there, with DISK set to the disk:"
                );
            }
            for option in boot_options {
                println!("{option}");
            }
        }
        Command::CatalogEntry(arguments) => {
            let mut entry = catalog::describe(&arguments.image)?;
            entry.url = arguments.url;
            if arguments.version.is_some() {
                entry.version = arguments.version;
            }
            print!("{entry}");
        }
    }
    Ok(())
}
