//! Small images with one thing wrong, made here in a moment.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::artifacts::hex;
use crate::process;
use crate::random::Random;

/// A published file and its checksum.
#[derive(Debug, Clone)]
pub(super) struct Published {
    pub(super) path: PathBuf,
    pub(super) checksum: String,
}

/// What a small image holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contents {
    /// IMAGE_VERSION.
    pub(super) version: &'static str,
    pub(super) kernel: bool,
    /// Bytes of noise, which no compression makes smaller.
    pub(super) noise: usize,
}

/// `NAME.ext4` of so many bytes in this folder, as mke2fs makes it. Nothing in it runs: what looks into a slot reads a header
/// for the architecture, a version and a kernel's name.
pub(super) fn filesystem(
    folder: &Path,
    name: &str,
    size: u64,
    contents: &Contents,
) -> Result<PathBuf> {
    let tree = tempfile::tempdir().context("making a temporary folder")?;
    let write = |path: &str, bytes: &[u8]| -> Result<()> {
        let target = tree.path().join(path);
        let context = || format!("writing {}", target.display());
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).with_context(context)?;
        }
        fs::write(&target, bytes).with_context(context)
    };
    let release = format!("NAME=Small\nIMAGE_VERSION={}\n", contents.version);
    write("usr/lib/os-release", release.as_bytes())?;
    write("usr/lib/systemd/systemd", &elf_header())?;
    if contents.kernel {
        write("boot/vmlinuz-6.1.0-small", &noise(256 << 10))?;
    }
    write("noise", &noise(contents.noise))?;
    let image = folder.join(format!("{name}.ext4"));
    File::create(&image)
        .and_then(|file| file.set_len(size))
        .with_context(|| format!("creating {}", image.display()))?;
    process::run("mke2fs", |command| {
        command
            .args(["-q", "-t", "ext4", "-F", "-E", "root_owner=0:0", "-d"])
            .arg(tree.path())
            .arg(&image)
    })?;
    Ok(image)
}

/// A file as it is.
pub(super) fn raw(path: &Path) -> Result<Published> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(Published {
        path: path.to_owned(),
        checksum: format!("sha256:{}", hex(&Sha256::digest(&bytes))),
    })
}

/// The file compressed: with its size in the frame's header, or without, as a pipe leaves it.
pub(super) fn compressed(path: &Path, with_size: bool) -> Result<Published> {
    let mut name = path.as_os_str().to_owned();
    name.push(if with_size { ".zst" } else { ".pipe.zst" });
    let target = PathBuf::from(name);
    let size = if with_size {
        "--content-size"
    } else {
        "--no-content-size"
    };
    process::run("zstd", |command| {
        command
            .args(["-q", "-f", "-1", size])
            .arg(path)
            .arg("-o")
            .arg(&target)
    })?;
    raw(&target)
}

/// The first part of a file, as a file of its own.
pub(super) fn first_part(published: &Published, bytes: u64) -> Result<PathBuf> {
    let target = published.path.with_extension("part");
    let context = || format!("writing {}", target.display());
    fs::copy(&published.path, &target).with_context(context)?;
    File::options()
        .write(true)
        .open(&target)
        .and_then(|file| file.set_len(bytes))
        .with_context(context)?;
    Ok(target)
}

/// Lets a file grow with zeros.
pub(super) fn grown(path: &Path, name: &str, size: u64) -> Result<PathBuf> {
    let target = path.with_file_name(name);
    let context = || format!("writing {}", target.display());
    fs::copy(path, &target).with_context(context)?;
    let mut file = File::options()
        .write(true)
        .open(&target)
        .with_context(context)?;
    file.set_len(size).with_context(context)?;
    file.flush().with_context(context)?;
    Ok(target)
}

/// The header of a program for x86-64, by the ELF specification: class, byte order and version, type 2, machine 62.
fn elf_header() -> [u8; 64] {
    let mut header = [0; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16] = 2;
    header[18] = 62;
    header[20] = 1;
    header
}

/// Bytes without a pattern, always the same.
fn noise(length: usize) -> Vec<u8> {
    let mut random = Random::new(0);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
