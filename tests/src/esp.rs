//! The EFI system partition of a disk that is off, read and changed from outside with mtools.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// The ESP is the first partition of the reference disk and begins at its first MiB.
const OFFSET: u64 = 1 << 20;

fn image(disk: &Path) -> OsString {
    let mut image = disk.as_os_str().to_owned();
    image.push(format!("@@{OFFSET}"));
    image
}

fn mtool<'a>(command: &'a mut Command, disk: &Path) -> &'a mut Command {
    command
        .env("MTOOLS_SKIP_CHECK", "1")
        .arg("-i")
        .arg(image(disk))
}

/// Names in a folder of the ESP, sorted.
pub fn list(disk: &Path, folder: &str) -> Result<Vec<String>> {
    let output = process::output("mdir", |command| {
        mtool(command, disk).arg("-b").arg(format!("::{folder}"))
    })?;
    let mut names: Vec<String> = output
        .lines()
        .filter_map(|line| line.trim().trim_end_matches('/').rsplit('/').next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    names.sort();
    Ok(names)
}

/// The text of a file on the ESP.
pub fn read(disk: &Path, path: &str) -> Result<String> {
    process::output("mtype", |command| {
        mtool(command, disk).arg(format!("::{path}"))
    })
}

/// Copies a file from the ESP.
pub fn copy_out(disk: &Path, path: &str, to: &Path) -> Result<()> {
    process::run("mcopy", |command| {
        mtool(command, disk)
            .args(["-n", "-o"])
            .arg(format!("::{path}"))
            .arg(to)
    })
}

/// Writes a file on the ESP of a machine that is off.
pub fn write(disk: &Path, path: &str, text: &str) -> Result<()> {
    let copy = tempfile::NamedTempFile::new().context("making a temporary file")?;
    std::fs::write(copy.path(), text).context("writing a temporary file")?;
    copy_in(disk, copy.path(), path)
}

/// Copies a file to the ESP of a machine that is off.
pub fn copy_in(disk: &Path, from: &Path, path: &str) -> Result<()> {
    process::run("mcopy", |command| {
        mtool(command, disk)
            .args(["-n", "-o"])
            .arg(from)
            .arg(format!("::{path}"))
    })
}

/// Removes a file of the ESP of a machine that is off.
pub fn remove(disk: &Path, path: &str) -> Result<()> {
    process::run("mdel", |command| {
        mtool(command, disk).arg(format!("::{path}"))
    })
}
