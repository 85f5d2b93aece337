//! The environment block's file: found below its links, read, written in place, read back.
//!
//! GRUB's `save_env` overwrites the blocks that the file has, and reads no journal: so the file is never truncated and
//! never renamed over, which could leave it empty, or with its new blocks known to the journal only.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind as IoKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use nix::libc;

use super::environment::Environment;
use super::layout::SECTOR;
use crate::direct;
use crate::durable;
use crate::error::{Error, Result};
use crate::system::System;

/// Largest file that is taken for a block, in bytes. The usual ones have 1024.
const LIMIT: u64 = 64 * 1024;
/// Links that are followed one after the other, as the kernel has it.
const LINKS: usize = 40;

/// Where an environment block is.
#[derive(Debug, Clone)]
pub(crate) struct BlockFile {
    system: System,
    /// As it is configured or found, an absolute path of the node.
    path: PathBuf,
}

/// What was read.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) environment: Environment,
    /// The file as it is; `None` where it is missing or empty, and `environment` a fresh one.
    pub(crate) raw: Option<Vec<u8>>,
}

impl BlockFile {
    pub(crate) fn new(system: &System, path: &Path) -> Self {
        Self {
            system: system.clone(),
            path: path.to_owned(),
        }
    }

    /// The path as it is configured or was found.
    pub(crate) fn shown(&self) -> &Path {
        &self.path
    }

    /// The file itself, as the node names it: behind all links. It need not exist; its directory has to.
    ///
    /// # Errors
    /// When a directory on the way is missing, links lead in a circle, or the last one to nothing.
    pub(crate) fn resolved(&self) -> Result<PathBuf> {
        resolve(&self.system, &self.path)
    }

    /// The directory that the file lies in, as this process reaches it.
    pub(crate) fn directory(&self) -> Result<PathBuf> {
        let file = self.system.path(self.resolved()?);
        Ok(file.parent().map(Path::to_owned).unwrap_or(file))
    }

    /// Reads the block. A missing or empty file is a fresh block: `grub-editenv set` leaves an empty one when it is cut off.
    ///
    /// # Errors
    /// When it cannot be read, is no regular file, or no environment block.
    pub(crate) fn read(&self) -> Result<Content> {
        let path = self.system.path(self.resolved()?);
        let fresh = || Content {
            environment: Environment::fresh(),
            raw: None,
        };
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == IoKind::NotFound => return Ok(fresh()),
            Err(error) => return Err(Error::io("stat", &path)(error)),
        };
        if !meta.is_file() {
            return Err(Error::malformed(&path, "not a regular file"));
        }
        if meta.len() == 0 {
            return Ok(fresh());
        }
        if meta.len() > LIMIT {
            let problem = format!("{} bytes are too many for an environment block", meta.len());
            return Err(Error::malformed(&path, problem));
        }
        let raw = read_medium(&path, meta.len())?;
        let environment =
            Environment::parse(&raw).map_err(|fault| Error::malformed(&path, fault.to_string()))?;
        Ok(Content {
            environment,
            raw: Some(raw),
        })
    }

    /// Makes the file with a whole block in it, in place of a missing or an empty one.
    ///
    /// Durable when it returns, on ext4 for GRUB, too, though it reads no journal. A crash in the middle leaves it
    /// missing, or empty, or whole.
    ///
    /// # Errors
    /// When it cannot be written, or does not read back.
    pub(crate) fn create(&self, block: &[u8]) -> Result<()> {
        let path = self.system.path(self.resolved()?);
        let mut temporary = path.clone().into_os_string();
        temporary.push(".slotd.tmp");
        let temporary = PathBuf::from(temporary);
        durable::write_bytes(&temporary, block)
            .and_then(|()| durable::rename(&temporary, &path))
            .inspect_err(|_| discard(&temporary))?;
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        compare(&file, &path, block)
    }

    /// Writes blocks of the file's size over it, one after the other, each only where it differs.
    ///
    /// Every one is durable, and was read back past the page cache, before the next is begun, and when this returns. A crash in the middle of one
    /// leaves each of its 512-byte sectors as it was or as it is to be.
    ///
    /// # Errors
    /// When it cannot be written, or does not read back. An error of the flush is final: what reached the disk is unknown.
    pub(crate) fn write(&self, raw: &[u8], blocks: &[Vec<u8>]) -> Result<()> {
        let path = self.system.path(self.resolved()?);
        let file = open_for_writing(&path)?;
        let meta = file.metadata().map_err(Error::io("stat", &path))?;
        if meta.len() != size(raw) {
            return Err(Error::malformed(&path, "its size changed meanwhile"));
        }
        refuse_holes(&meta, &path)?;
        let mut before = raw;
        for block in blocks {
            let mut at = 0;
            for (old, new) in before.chunks(SECTOR).zip(block.chunks(SECTOR)) {
                if old != new {
                    file.write_all_at(new, at)
                        .map_err(Error::io("write", &path))?;
                }
                at = at.saturating_add(size(new));
            }
            file.sync_data().map_err(Error::io("sync", &path))?;
            compare(&file, &path, block)?;
            before = block;
        }
        Ok(())
    }

    /// Whether the file can be changed: writes its first sector once more as it is, or makes and removes a file beside
    /// where it is to be. Leaves nothing behind.
    ///
    /// # Errors
    /// When it cannot be written, is no environment block, or has no blocks of its own.
    pub(crate) fn test_write(&self) -> Result<()> {
        let Some(raw) = self.read()?.raw else {
            let probe = self.directory()?.join(".slotd-write-test.tmp");
            return durable::write_bytes(&probe, &[])
                .and_then(|()| durable::remove(&probe))
                .inspect_err(|_| discard(&probe));
        };
        let path = self.system.path(self.resolved()?);
        let file = open_for_writing(&path)?;
        refuse_holes(&file.metadata().map_err(Error::io("stat", &path))?, &path)?;
        let sector = raw.get(..SECTOR.min(raw.len())).unwrap_or_default();
        file.write_all_at(sector, 0)
            .map_err(Error::io("write", &path))?;
        file.sync_data().map_err(Error::io("sync", &path))?;
        compare(&file, &path, &raw)
    }
}

fn open_for_writing(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .map_err(Error::io("open for writing", path))
}

fn size(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn discard(temporary: &Path) {
    if let Err(error) = fs::remove_file(temporary)
        && error.kind() != IoKind::NotFound
    {
        tracing::warn!(file = %temporary.display(), %error, "stays behind");
    }
}

/// GRUB writes the blocks that a file has, and allocates none.
fn refuse_holes(meta: &fs::Metadata, path: &Path) -> Result<()> {
    let allocated = meta.blocks().saturating_mul(512);
    if allocated >= meta.len() {
        return Ok(());
    }
    Err(Error::malformed(
        path,
        format!(
            "a sparse file: {allocated} of its {} bytes are allocated, and GRUB's save_env, which allocates none, \
             refuses it; make it anew with `cp --sparse=never`",
            meta.len()
        ),
    ))
}

/// So many bytes from the file's start, past the page cache as far as the file system lets that happen: GRUB reads the medium.
fn read_medium(path: &Path, length: u64) -> Result<Vec<u8>> {
    let length = usize::try_from(length.min(LIMIT)).unwrap_or(usize::MAX);
    direct::read(path, 0, length).map_err(Error::io("read", path))
}

/// Whether the medium holds `expected`, past the page cache as far as the file system lets that happen.
fn compare(file: &File, path: &Path, expected: &[u8]) -> Result<()> {
    let length = file.metadata().map_err(Error::io("stat", path))?.len();
    let found = read_medium(path, length)?;
    if found == expected {
        return Ok(());
    }
    let differs = found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected);
    Err(Error::ReadBack {
        path: path.to_owned(),
        problem: match differs {
            Some(offset) => format!("byte {offset} differs"),
            None => format!("{} bytes, expected {}", found.len(), expected.len()),
        },
    })
}

/// Follows every link of an absolute path of the node, with the node's root as theirs.
fn resolve(system: &System, path: &Path) -> Result<PathBuf> {
    let mut pending: VecDeque<OsString> = parts(path);
    let mut real = PathBuf::from("/");
    let mut links = 0;
    // The last link on the way to the file itself, for the message.
    let mut led: Option<PathBuf> = None;
    while let Some(part) = pending.pop_front() {
        if part == ".." {
            real.pop();
            continue;
        }
        let place = real.join(&part);
        let reached = system.path(&place);
        let meta = match fs::symlink_metadata(&reached) {
            Ok(meta) => meta,
            Err(error) if error.kind() == IoKind::NotFound && pending.is_empty() => {
                if let Some(link) = led {
                    let problem = format!(
                        "a link to {}, which is not there: is its partition mounted?",
                        place.display()
                    );
                    return Err(Error::malformed(&link, problem));
                }
                return Ok(place);
            }
            Err(error) => return Err(Error::io("find", &reached)(error)),
        };
        if !meta.is_symlink() {
            real = place;
            continue;
        }
        links += 1;
        if links > LINKS {
            return Err(Error::malformed(
                &system.path(path),
                "its links lead in a circle",
            ));
        }
        let target = fs::read_link(&reached).map_err(Error::io("read the link", &reached))?;
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        if pending.is_empty() {
            led = Some(reached);
        }
        for part in parts(&target).into_iter().rev() {
            pending.push_front(part);
        }
    }
    Ok(real)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(part) => Some(part.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
