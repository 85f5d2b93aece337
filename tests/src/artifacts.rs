//! What scenarios start from: slotd's programs, the reference root filesystem, slot images and disks. Made once and kept in
//! the target folder until something that goes into them changes.

mod key;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use self::key::{forget_others, key};
pub(crate) use self::key::{hex, is_key};
use crate::build::{Profile, target_folder};
use crate::cluster::node_image;
use crate::images::{Flavour, Variant};
use crate::loader::{Architecture, Loader};
use crate::{binfmt, cross, process, setup};

/// The repository that this program was built from.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A slot image and its catalog entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The published file.
    pub path: PathBuf,
    /// `sha256:…` of the published file.
    pub checksum: String,
    /// `sha256:…` of the expanded image.
    pub expanded_checksum: String,
    /// Size of the expanded image in bytes.
    pub size: u64,
    /// IMAGE_VERSION.
    pub version: String,
}

/// A disk, and what its machine's firmware knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceDisk {
    /// The disk's file.
    pub path: PathBuf,
    /// The firmware's variable store, where the firmware itself starts the slots.
    pub variables: Option<PathBuf>,
}

/// Everything that is built, and where.
#[derive(Debug)]
pub struct Artifacts {
    architecture: Architecture,
    /// Programs of this machine.
    binaries: PathBuf,
    /// Programs that images get.
    installed: PathBuf,
    folder: PathBuf,
    key: String,
    /// One at a time: two scenarios may want the same image.
    images: Mutex<BTreeMap<String, Image>>,
}

impl Artifacts {
    /// Makes the root filesystem for programs of this machine, and builds those of another one.
    pub fn build(architecture: Architecture, binaries: &Path, profile: Profile) -> Result<Self> {
        let target = target_folder()?;
        let binaries = binaries.to_owned();
        let (installed, place) = match architecture {
            Architecture::Amd64 => (binaries.clone(), target.join("lab")),
            Architecture::Arm64 => {
                ensure_arm64_packages()?;
                (cross::build(profile)?, target.join("lab/arm64"))
            }
        };
        let rootfs = rootfs(&binaries, architecture, Flavour::Plain)?;
        let key = key(&binaries, &installed, &rootfs)?;
        let folder = place.join(&key);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        forget_others(&place, &key);
        Ok(Self {
            architecture,
            binaries,
            installed,
            folder,
            key,
            images: Mutex::new(BTreeMap::new()),
        })
    }

    /// A program that was built.
    pub fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(name)
    }

    /// The folder of what is kept.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A digest of all that went into the images.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// A flavour's root filesystem as a folder, of which images take hard links.
    fn rootfs_tree(&self, flavour: Flavour) -> Result<PathBuf> {
        let name = flavour.recipe().unwrap_or("plain");
        let tree = self.folder.join(format!("rootfs-{name}"));
        if tree.exists() {
            return Ok(tree);
        }
        let rootfs = rootfs(&self.binaries, self.architecture, flavour)?;
        let partial = self.folder.join(format!("rootfs-{name}.partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial)
                .with_context(|| format!("removing {}", partial.display()))?;
        }
        fs::create_dir(&partial).with_context(|| format!("creating {}", partial.display()))?;
        process::run("tar", |command| {
            command
                .args([
                    "--extract",
                    "--numeric-owner",
                    "--preserve-permissions",
                    "--exclude=./dev/*",
                ])
                .arg("--file")
                .arg(&rootfs)
                .arg("--directory")
                .arg(&partial)
        })?;
        fs::rename(&partial, &tree).with_context(|| format!("creating {}", tree.display()))?;
        Ok(tree)
    }

    /// A slot image of this variant.
    pub fn image(&self, variant: &Variant) -> Result<Image> {
        let mut images = self
            .images
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(image) = images.get(variant.name()) {
            return Ok(image.clone());
        }
        let path = self.folder.join(format!("{}.ext4.zst", variant.name()));
        let entry_path = self.folder.join(format!("{}.yaml", variant.name()));
        if !(path.exists() && entry_path.exists()) {
            // In the folder of what is kept, so that large files can be linked into it.
            let overlay =
                tempfile::tempdir_in(&self.folder).context("making a temporary folder")?;
            let flavour = variant.flavour();
            if flavour == Flavour::Kubernetes {
                node_image::write_overlay(overlay.path(), variant.version())?;
            }
            // A user other than root unpacks as root of a user namespace, inside slotd-mkimage.
            let tree = match nix::unistd::geteuid().is_root() {
                true => Some(self.rootfs_tree(flavour)?),
                false => None,
            };
            variant.write_overlay(overlay.path(), tree.as_deref())?;
            let rootfs = match tree {
                Some(tree) => tree,
                None => rootfs(&self.binaries, self.architecture, flavour)?,
            };
            let entry = process::output_with_errors(&self.binary("slotd-mkimage"), |command| {
                recipe(command.arg("slot"), self.architecture, flavour)
                    .arg("--rootfs")
                    .arg(rootfs)
                    .arg("--install-slotd")
                    .arg(&self.installed)
                    .arg("--units")
                    .arg(repository().join("systemd"))
                    .arg("--overlay")
                    .arg(repository().join("tests/guest"))
                    .args(guest_overlay(self.architecture))
                    .arg("--overlay")
                    .arg(overlay.path())
                    .args(["--size", flavour.slot_size()])
                    .args(["--version", variant.version(), "--output"])
                    .arg(&path)
            })?;
            fs::write(&entry_path, entry)
                .with_context(|| format!("writing {}", entry_path.display()))?;
        }
        let entry = fs::read_to_string(&entry_path)
            .with_context(|| format!("reading {}", entry_path.display()))?;
        let image = parse_entry(&entry, &path)
            .with_context(|| format!("{} is no catalog entry", entry_path.display()))?;
        ensure!(
            image.version == variant.version(),
            "{} has another version",
            path.display()
        );
        images.insert(variant.name().to_owned(), image.clone());
        Ok(image)
    }

    /// A disk with this boot loader, whose slot A holds this variant and whose data partition holds this configuration of slotd.
    pub fn disk(
        &self,
        variant: &Variant,
        configuration: &str,
        loader: Loader,
    ) -> Result<ReferenceDisk> {
        let image = self.image(variant)?;
        let digest = hex(&Sha256::digest(configuration.as_bytes()));
        let path = self.folder.join(format!(
            "disk-{}-{}-{}.img",
            variant.name(),
            loader.name(),
            &digest[..8]
        ));
        let _one_at_a_time = self
            .images
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let disk = ReferenceDisk {
            variables: (loader == Loader::Efi).then(|| path.with_extension("vars.fd")),
            path,
        };
        let made = |path: &PathBuf| path.exists();
        if made(&disk.path) && disk.variables.as_ref().is_none_or(made) {
            return Ok(disk);
        }
        let data = tempfile::tempdir().context("making a temporary folder")?;
        let etc = data.path().join("etc-slotd");
        fs::create_dir(&etc).context("making a temporary folder")?;
        if !configuration.is_empty() {
            fs::write(etc.join("config.yaml"), configuration).context("writing a configuration")?;
        }
        let printed = process::output_with_errors(&self.binary("slotd-mkimage"), |command| {
            recipe(command.arg("disk"), self.architecture, variant.flavour())
                .args(["--slot-size", variant.flavour().slot_size()])
                .args(loader.disk_arguments())
                .arg("--units")
                .arg(repository().join("systemd"))
                .arg("--slot")
                .arg(format!("A={}", image.path.display()))
                .arg("--data-overlay")
                .arg(data.path())
                .arg("--output")
                .arg(&disk.path)
        })?;
        if let Some(store) = &disk.variables {
            // The first line is the disk's path.
            let (_, commands) = printed
                .split_once('\n')
                .context("slotd-mkimage printed no commands")?;
            Loader::tell_firmware(&disk.path, commands, store)?;
        }
        Ok(disk)
    }
}

/// What machines of ARM64 need beside the lab's other packages: QEMU, the board's U-Boot and its tools, and what runs the
/// programs of a root filesystem while it is made.
const ARM64_PACKAGES: [&str; 7] = [
    "device-tree-compiler",
    "qemu-system-arm",
    "u-boot-qemu",
    "u-boot-tools",
    "libubootenv-tool",
    "qemu-user-static",
    "arch-test",
];

/// Installs what machines of ARM64 need.
pub(crate) fn ensure_arm64_packages() -> Result<()> {
    setup::ensure_installed(&ARM64_PACKAGES)
}

/// What guests of another architecture have beside `tests/guest`: their consoles.
fn guest_overlay(architecture: Architecture) -> Vec<PathBuf> {
    match architecture {
        Architecture::Amd64 => Vec::new(),
        Architecture::Arm64 => vec!["--overlay".into(), repository().join("tests/guest-arm64")],
    }
}

/// Makes a flavour's root filesystem, once: a tar file in the user's cache folder.
fn rootfs(binaries: &Path, architecture: Architecture, flavour: Flavour) -> Result<PathBuf> {
    let _runs_here = match architecture {
        Architecture::Amd64 => None,
        Architecture::Arm64 => Some(binfmt::Registration::new()?),
    };
    let path = process::output_with_errors(&binaries.join("slotd-mkimage"), |command| {
        recipe(command.arg("rootfs"), architecture, flavour)
    })?;
    Ok(PathBuf::from(path.trim()))
}

/// Names the recipe to slotd-mkimage.
fn recipe(command: &mut Command, architecture: Architecture, flavour: Flavour) -> &mut Command {
    command
        .arg("--recipe")
        .arg(repository().join("image/recipe"))
        .args(["--arch", architecture.name()])
        .args(flavour.recipe().map(|name| format!("--flavour={name}")))
}

/// Reads the catalog entry that slotd-mkimage prints.
fn parse_entry(entry: &str, path: &Path) -> Option<Image> {
    let value = |key: &str| {
        entry
            .lines()
            .map(|line| line.trim_start_matches(['-', ' ']))
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
            .map(|value| value.trim_matches('"').to_owned())
    };
    Some(Image {
        path: path.to_owned(),
        checksum: value("checksum")?,
        expanded_checksum: value("expandedChecksum")?,
        size: value("size")?.parse().ok()?,
        version: value("version")?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::parse_entry;

    #[test]
    fn a_catalog_entry_is_read_as_slotd_mkimage_prints_it() {
        let text = "- version: \"v1\"\n  url: \"v1.ext4.zst\"\n  checksum: sha256:b6\n  size: 536870912\n  expandedChecksum: sha256:e1\n";
        let image = parse_entry(text, Path::new("x")).unwrap();
        assert_eq!(image.version, "v1");
        assert_eq!(image.checksum, "sha256:b6");
        assert_eq!(image.expanded_checksum, "sha256:e1");
        assert_eq!(image.size, 536_870_912);
    }
}
