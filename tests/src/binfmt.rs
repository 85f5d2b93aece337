//! Lets this machine's kernel run ARM64 programs through an emulator, for as long as something needs it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process;

/// Where the kernel keeps what it was told.
const FOLDER: &str = "/proc/sys/fs/binfmt_misc";
/// What Debian's qemu-user-static would register at the next boot.
const LINE: &str = "/usr/lib/binfmt.d/qemu-aarch64.conf";
/// The name in that line.
const NAME: &str = "qemu-aarch64";

/// The registration, undone when this goes unless it was there before.
#[derive(Debug)]
pub(crate) struct Registration {
    entry: Option<PathBuf>,
    mounted: bool,
}

impl Registration {
    /// Registers the emulator. Needs root.
    pub(crate) fn new() -> Result<Self> {
        let folder = Path::new(FOLDER);
        let mut registration = Self {
            entry: None,
            mounted: false,
        };
        let register = folder.join("register");
        if !register.exists() {
            process::run("mount", |command| {
                command.args(["-t", "binfmt_misc", "binfmt_misc", FOLDER])
            })
            .context("ARM64 programs can be run as root only, where the kernel has binfmt_misc")?;
            registration.mounted = true;
        }
        let entry = folder.join(NAME);
        if !entry.exists() {
            let text = fs::read_to_string(LINE).with_context(|| format!("reading {LINE}"))?;
            let Some(line) = text.lines().find(|line| line.starts_with(':')) else {
                bail!("{LINE} registers nothing");
            };
            fs::write(&register, line)
                .with_context(|| format!("writing to {}", register.display()))?;
            registration.entry = Some(entry);
        }
        Ok(registration)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry
            && let Err(error) = fs::write(entry, "-1")
        {
            eprintln!("lab: {} stays registered: {error}", entry.display());
        }
        if self.mounted
            && let Err(error) = process::run("umount", |command| command.arg(FOLDER))
        {
            eprintln!("lab: {FOLDER} stays mounted: {error:#}");
        }
    }
}
