//! The stand-in's images: small real file systems that hold what the agent looks for in a slot.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::artifacts::{self, Image};
use crate::process;
use crate::server::{Body, Fault, Server};

/// Size of an image in bytes; a slot holds more.
const SIZE: u64 = 6 << 20;

/// Bytes in it that cannot be compressed, so that there is something to download.
const BALLAST: usize = 2 << 20;

/// As much of a program as says which machine it is for.
const PROGRAM_HEAD: usize = 4096;

const PROGRAMS: [&str; 3] = [
    "usr/lib/systemd/systemd",
    "usr/bin/slotd",
    "usr/lib/systemd/system-generators/slotd-boot-generator",
];

/// Units, and the folder of `/etc/systemd/system` that enables each.
const UNITS: [(&str, &str); 3] = [
    ("slotd.service", "multi-user.target.wants"),
    ("slotd-confirm.service", "multi-user.target.wants"),
    ("slotd-health.service", "boot-complete.target.requires"),
];

/// An image of a version, as a file of its own and as it is published.
#[derive(Debug, Clone)]
pub struct StandInImage {
    /// What is published.
    pub image: Image,
    /// The expanded image.
    pub expanded: PathBuf,
}

impl StandInImage {
    /// Makes the image of a version in a folder. The version stands in its os-release alone; no two versions share their content.
    pub fn make(folder: &Path, version: &str) -> Result<Self> {
        let tree = tempfile::tempdir().context("making a folder")?;
        fill(tree.path(), version)?;
        let expanded = folder.join(format!("{version}.ext4"));
        process::run("mke2fs", |command| {
            command
                .args(["-q", "-t", "ext4", "-b", "4096", "-O", "^has_journal", "-d"])
                .arg(tree.path())
                .arg(&expanded)
                .arg(format!("{}k", SIZE / 1024))
        })?;
        let path = folder.join(format!("{version}.ext4.zst"));
        process::run("zstd", |command| {
            command
                .args(["-q", "-f", "-3", "-o"])
                .arg(&path)
                .arg(&expanded)
        })?;
        let size = fs::metadata(&expanded)
            .with_context(|| format!("looking at {}", expanded.display()))?
            .len();
        ensure!(size == SIZE, "mke2fs made an image of {size} bytes");
        Ok(Self {
            image: Image {
                checksum: checksum(&path)?,
                expanded_checksum: checksum(&expanded)?,
                size,
                version: version.to_owned(),
                path,
            },
            expanded,
        })
    }

    /// Serves it under its own name, and returns the URL for this machine.
    pub fn publish(&self, server: &Server) -> String {
        let path = format!("/{}.ext4.zst", self.image.version);
        server.serve(&path, Body::File(self.image.path.clone()), Fault::None);
        server.url(&path)
    }
}

fn fill(tree: &Path, version: &str) -> Result<()> {
    // The lab's own program says which machine it is for.
    let program = fs::read("/proc/self/exe").context("reading this program")?;
    let head = program
        .get(..PROGRAM_HEAD)
        .context("this program is short")?;
    for name in PROGRAMS {
        put(tree, name, head, 0o755)?;
    }
    let release =
        format!("ID=slotd-lab\nPRETTY_NAME=\"stand-in {version}\"\nIMAGE_VERSION={version}\n");
    put(tree, "usr/lib/os-release", release.as_bytes(), 0o644)?;
    let kernel = format!("the kernel of {version}\n");
    put(
        tree,
        "usr/lib/modules/6.1.0/vmlinuz",
        kernel.as_bytes(),
        0o644,
    )?;
    for (unit, enabled_by) in UNITS {
        let place = format!("usr/lib/systemd/system/{unit}");
        put(tree, &place, b"[Unit]\n", 0o644)?;
        let folder = tree.join("etc/systemd/system").join(enabled_by);
        fs::create_dir_all(&folder)
            .and_then(|()| symlink(format!("/{place}"), folder.join(unit)))
            .with_context(|| format!("enabling {unit}"))?;
    }
    put(tree, "usr/share/ballast", &ballast(version), 0o644)
}

fn put(tree: &Path, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let path = tree.join(name);
    let parent = path.parent().context("a file without a folder")?;
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(&path, bytes))
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("writing {}", path.display()))
}

/// Bytes without any pattern, each version's own.
fn ballast(version: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BALLAST);
    let mut block = Sha256::digest(version);
    while bytes.len() < BALLAST {
        bytes.extend_from_slice(&block);
        block = Sha256::digest(block);
    }
    bytes
}

fn checksum(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(format!("sha256:{}", artifacts::hex(&Sha256::digest(bytes))))
}
