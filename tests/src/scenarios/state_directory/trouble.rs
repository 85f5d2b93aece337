//! What becomes of a state directory, and how that is undone.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::process;
use crate::standin::Alone;

/// What is wrong with the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Full,
    ReadOnly,
    /// Not even root may write there.
    Immutable,
    /// A later release wrote the record.
    Newer,
    /// A directory lies where the record is.
    Directory,
    Garbage,
    /// Everything in it is gone.
    Emptied,
}

impl Trouble {
    pub(super) const ALL: [Self; 7] = [
        Self::Full,
        Self::ReadOnly,
        Self::Immutable,
        Self::Newer,
        Self::Directory,
        Self::Garbage,
        Self::Emptied,
    ];

    /// What is said to whoever asks for an upgrade meanwhile; `None` where it is done all the same.
    pub(super) fn says(self) -> Option<&'static str> {
        match self {
            Self::Full => Some("No space left on device"),
            Self::ReadOnly => Some("Read-only file system"),
            Self::Immutable => Some("Operation not permitted"),
            Self::Newer => Some("needs a reader of version 1000"),
            Self::Directory => Some("Is a directory"),
            Self::Garbage | Self::Emptied => None,
        }
    }

    /// Whether the record of before counts again when the trouble is over.
    pub(super) fn keeps_the_record(self) -> bool {
        self.says().is_some()
    }
}

/// The directory, on a file system of its own; unmounted when it goes.
pub(super) struct Place {
    path: PathBuf,
    aside: PathBuf,
}

/// A record that is not to be read today.
const NEWER: &str = r#"{"version":1000,"min_reader":1000,"record":{}}"#;
const GARBAGE: &[u8] = b"\x01\xff{not json";

impl Place {
    pub(super) fn mount(node: &Alone, folder: &Path) -> Result<Self> {
        let place = Self {
            path: node.state(),
            aside: folder.join("aside"),
        };
        let image = folder.join("state.img");
        if image.exists() {
            fs::remove_file(&image).context("removing a file system")?;
        }
        fs::create_dir_all(&place.path).context("making a folder")?;
        process::run("mke2fs", |command| {
            command
                .args(["-q", "-t", "ext4", "-m", "0", "-O", "^has_journal"])
                .arg(&image)
                .arg("1M")
        })?;
        process::run("mount", |command| {
            command.args(["-o", "loop"]).args([&image, &place.path])
        })?;
        Ok(place)
    }

    fn record(&self) -> PathBuf {
        self.path.join("state.json")
    }

    pub(super) fn begin(&self, trouble: Trouble) -> Result<()> {
        let record = self.record();
        match trouble {
            Trouble::Full => self.fill(),
            Trouble::ReadOnly => self.remount("ro"),
            Trouble::Immutable => self.attribute("+i"),
            Trouble::Newer | Trouble::Directory | Trouble::Garbage => {
                if record.exists() {
                    fs::copy(&record, &self.aside)
                        .and_then(|_| fs::remove_file(&record))
                        .context("putting a record aside")?;
                }
                match trouble {
                    Trouble::Newer => fs::write(&record, NEWER),
                    Trouble::Directory => fs::create_dir(&record),
                    _ => fs::write(&record, GARBAGE),
                }
                .context("putting something else there")
            }
            Trouble::Emptied => {
                for file in fs::read_dir(&self.path).context("listing the state")? {
                    let file = file.context("listing the state")?;
                    if file.path().is_file() {
                        fs::remove_file(file.path()).context("removing a file")?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Ends it, after a look whether what was there still is.
    pub(super) fn end(&self, trouble: Trouble) -> Result<()> {
        let record = self.record();
        match trouble {
            Trouble::Full => fs::remove_file(self.ballast()).context("making room"),
            Trouble::ReadOnly => self.remount("rw"),
            Trouble::Immutable => self.attribute("-i"),
            Trouble::Newer => {
                let text = fs::read_to_string(&record).context("reading a record")?;
                ensure!(text == NEWER, "it was replaced by {text}");
                fs::remove_file(&record).context("removing a record")?;
                self.put_back()
            }
            Trouble::Directory => {
                fs::remove_dir(&record).context("the folder is gone or holds something")?;
                self.put_back()
            }
            Trouble::Garbage => {
                let kept = fs::read(self.path.join("state.json.broken-1"))
                    .context("reading what was moved aside")?;
                ensure!(kept == GARBAGE, "{kept:?} was moved aside");
                Ok(())
            }
            Trouble::Emptied => Ok(()),
        }
    }

    fn put_back(&self) -> Result<()> {
        if self.aside.exists() {
            fs::copy(&self.aside, self.record())
                .and_then(|_| fs::remove_file(&self.aside))
                .context("putting a record back")?;
        }
        Ok(())
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }

    fn fill(&self) -> Result<()> {
        let mut file = File::create(self.ballast()).context("creating a file")?;
        loop {
            match file.write_all(&[0x5a; 1024]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => bail!("filling a disk: {error}"),
            }
        }
        file.sync_all().context("filling a disk")
    }

    fn remount(&self, how: &str) -> Result<()> {
        process::run("mount", |command| {
            command
                .arg("-o")
                .arg(format!("remount,{how}"))
                .arg(&self.path)
        })
    }

    fn attribute(&self, change: &str) -> Result<()> {
        process::run("chattr", |command| command.arg(change).arg(&self.path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = process::run("umount", |command| command.arg("--lazy").arg(&self.path))
        {
            eprintln!("lab: {} stays mounted: {error:#}", self.path.display());
        }
    }
}
