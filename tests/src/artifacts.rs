//! What scenarios start from: slotd's programs, the reference root filesystem, slot images and disks. Made once and kept in
//! the target folder until something that goes into them changes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::cluster::node_image;
use crate::cross::{self, Profile};
use crate::images::{Flavour, Variant};
use crate::loader::{Architecture, Loader};
use crate::{binfmt, process, setup};

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
    /// Builds the programs and the root filesystem.
    pub fn build(architecture: Architecture) -> Result<Self> {
        let target = target_folder()?;
        let (binaries, installed, place) = match architecture {
            Architecture::Amd64 => {
                let binaries = build_programs()?;
                (binaries.clone(), binaries, target.join("lab"))
            }
            Architecture::Arm64 => {
                ensure_arm64_packages()?;
                let binaries = build_image_tool()?;
                let installed = cross::build(Profile::Release)?;
                (binaries, installed, target.join("lab/arm64"))
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
            variant.write_overlay(overlay.path())?;
            // A user other than root unpacks as root of a user namespace, inside slotd-mkimage.
            let rootfs = if nix::unistd::geteuid().is_root() {
                self.rootfs_tree(flavour)?
            } else {
                rootfs(&self.binaries, self.architecture, flavour)?
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
    pub fn disk(&self, variant: &Variant, configuration: &str, loader: Loader) -> Result<PathBuf> {
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
        if path.exists() {
            return Ok(path);
        }
        let data = tempfile::tempdir().context("making a temporary folder")?;
        let etc = data.path().join("etc-slotd");
        fs::create_dir(&etc).context("making a temporary folder")?;
        if !configuration.is_empty() {
            fs::write(etc.join("config.yaml"), configuration).context("writing a configuration")?;
        }
        process::output_with_errors(&self.binary("slotd-mkimage"), |command| {
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
                .arg(&path)
        })?;
        Ok(path)
    }
}

/// What machines of ARM64 need beside the lab's other packages: QEMU, the board's U-Boot and its tools, and what runs the
/// programs of a root filesystem while it is made.
const ARM64_PACKAGES: [&str; 6] = [
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

/// Builds slotd's programs as they are released; the folder that they lie in.
pub(crate) fn build_programs() -> Result<PathBuf> {
    let began = Instant::now();
    eprintln!("lab: building slotd (release)");
    let packages = [
        "--package",
        "slotd",
        "--package",
        "slotd-bootctl",
        "--package",
        "slotd-image",
    ];
    let folder = build_release(&packages)?;
    eprintln!("lab: built in {:.0} s", began.elapsed().as_secs_f64());
    Ok(folder)
}

/// Builds the slot tool alone, as it is released.
pub(crate) fn build_slot_tool() -> Result<PathBuf> {
    eprintln!("lab: building slotd-bootctl (release)");
    let folder = build_release(&["--package", "slotd-bootctl"])?;
    Ok(folder.join("slotd-bootctl"))
}

/// Builds slotd-mkimage alone, as it is released; the folder that it lies in.
pub(crate) fn build_image_tool() -> Result<PathBuf> {
    build_release(&["--package", "slotd-image"])
}

/// Builds a program of the lab's own, optimised as slotd's are.
pub(crate) fn build_own(name: &str) -> Result<PathBuf> {
    eprintln!("lab: building {name} (release)");
    let folder = build_release(&["--package", "slotd-tests", "--bin", name])?;
    Ok(folder.join(name))
}

fn build_release(what: &[&str]) -> Result<PathBuf> {
    let target = target_folder()?;
    process::inherit(&cargo(), |command| {
        command
            .current_dir(repository())
            .args(["build", "--release", "--quiet", "--locked"])
            .args(what)
            .arg("--target-dir")
            .arg(&target)
    })?;
    Ok(target.join("release"))
}

/// Cargo, the one that runs us where it does.
pub(crate) fn cargo() -> PathBuf {
    std::env::var_os("CARGO")
        .unwrap_or_else(|| "cargo".into())
        .into()
}

/// The target folder that this program lies in.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    let folder = program
        .ancestors()
        .nth(2)
        .context("this program lies in no target folder")?;
    Ok(folder.to_owned())
}

/// Digest of what goes into images: programs, units, recipe, the lab's own files, the root filesystem's name.
fn key(binaries: &Path, installed: &Path, rootfs: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    hasher.update(rootfs.as_os_str().as_encoded_bytes());
    for name in cross::PROGRAMS {
        hash_tree(&installed.join(name), &mut hasher)?;
    }
    hash_tree(&binaries.join("slotd-mkimage"), &mut hasher)?;
    for folder in [
        "systemd",
        "image/recipe",
        "tests/guest",
        "tests/guest-arm64",
        "tests/src/images.rs",
        // What the Kubernetes flavour's images hold beside it.
        "tests/src/cluster/node_image.rs",
        "tests/control-plane/go.mod",
        "tests/control-plane/kubelet",
        "tests/control-plane/pause",
    ] {
        hash_tree(&repository().join(folder), &mut hasher)?;
    }
    Ok(hex(&hasher.finalize())[..16].to_owned())
}

fn hash_tree(path: &Path, hasher: &mut Sha256) -> Result<()> {
    let context = || format!("reading {}", path.display());
    hasher.update(path.as_os_str().as_encoded_bytes());
    let metadata = fs::symlink_metadata(path).with_context(context)?;
    if metadata.is_symlink() {
        hasher.update(
            fs::read_link(path)
                .with_context(context)?
                .as_os_str()
                .as_encoded_bytes(),
        );
    } else if metadata.is_dir() {
        let mut entries: Vec<PathBuf> = fs::read_dir(path)
            .with_context(context)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<std::io::Result<_>>()
            .with_context(context)?;
        entries.sort();
        for entry in entries {
            hash_tree(&entry, hasher)?;
        }
    } else {
        hasher.update(fs::read(path).with_context(context)?);
    }
    Ok(())
}

/// Removes what was built for other keys: a gigabyte each. What cannot be removed is left for the next time.
fn forget_others(folder: &Path, key: &str) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if is_key(&name) && name != key {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a folder's name is such a digest.
pub(crate) fn is_key(name: &OsStr) -> bool {
    name.len() == 16
        && name
            .to_str()
            .is_some_and(|name| name.bytes().all(|b| b.is_ascii_hexdigit()))
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

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
