//! The places that copies of the environment lie in: a block device, an eMMC boot partition, a plain file, NOR flash.
//! Reads go past the page cache; a write is durable and read back when it returns.

mod block;
mod flash;
mod sectors;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use nix::sys::statfs::{MSDOS_SUPER_MAGIC, fstatfs};

use crate::block::BlockDevice;
use crate::direct;
use crate::durable;
use crate::error::{Error, Result};
use crate::system::System;
use crate::uboot::config::CopyLine;
use block::{device_of, size_of, with_writing_allowed};
use flash::{Flash, MtdDevice};
use sectors::{SECTOR, differing_runs};

/// Most bytes that are looked through for a copy of another size.
const SEARCHED: u64 = 1024 * 1024;

/// Where one copy lies, with its device found and its extent checked.
#[derive(Debug)]
pub(crate) struct Place {
    /// As the node names it.
    pub(crate) shown: PathBuf,
    /// As this process reaches it.
    node: PathBuf,
    /// First byte, from the start of the device or file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) size: usize,
    /// Bytes of the device or file.
    device_size: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    File {
        fat: bool,
    },
    Block {
        device: BlockDevice,
        /// `force_ro` of an eMMC boot partition.
        force_ro: Option<PathBuf>,
    },
    Flash {
        flash: Box<dyn Flash>,
        no_lock: bool,
    },
}

impl Place {
    /// Finds the device or file of a line of the configuration. Nothing is written.
    ///
    /// # Errors
    /// When it is not there, is of a kind that cannot be used, or ends before the copy does.
    pub(crate) fn find(system: &System, line: &CopyLine) -> Result<Self> {
        let shown = &line.path;
        let node = system.path(shown);
        let metadata = fs::metadata(&node).map_err(Error::io("find", shown))?;
        let unusable = |problem: String| {
            Error::malformed(
                shown,
                format!("{problem} (fw_env.config, line {})", line.line),
            )
        };
        let kind_of = metadata.file_type();
        let fixture_device = system.is_fixture() && shown.starts_with("/dev");
        let (kind, device_size) = if kind_of.is_block_device() || fixture_device {
            let device = device_of(system, &node, &metadata)?;
            let force_ro = system
                .sys("class/block")
                .join(&device.name)
                .join("force_ro");
            let force_ro = force_ro.exists().then_some(force_ro);
            let size = size_of(&node, shown)?;
            (Kind::Block { device, force_ro }, size)
        } else if kind_of.is_file() {
            let file = File::open(&node).map_err(Error::io("open", shown))?;
            let fat = fstatfs(&file)
                .is_ok_and(|statistics| statistics.filesystem_type() == MSDOS_SUPER_MAGIC);
            (Kind::File { fat }, metadata.len())
        } else if kind_of.is_char_device() {
            let flash = MtdDevice::open(&node, shown)?;
            let size = flash.info().size;
            let flash: Box<dyn Flash> = Box::new(flash);
            let no_lock = line.no_lock;
            (Kind::Flash { flash, no_lock }, size)
        } else {
            return Err(unusable("this is no device and no file".to_owned()));
        };
        let offset = if line.offset < 0 {
            device_size.checked_sub(line.offset.unsigned_abs())
        } else {
            Some(line.offset.unsigned_abs())
        };
        let fits = |offset: u64| {
            offset
                .checked_add(line.size)
                .is_some_and(|end| end <= device_size)
        };
        let Some(offset) = offset.filter(|offset| fits(*offset)) else {
            return Err(unusable(format!(
                "it has {device_size:#x} bytes, a copy of {:#x} at offset {:#x} does not lie in it",
                line.size, line.offset
            )));
        };
        let size = usize::try_from(line.size).map_err(|_| unusable("too large".to_owned()))?;
        if let Kind::Flash { flash, .. } = &kind {
            flash::check(flash.info(), offset, line.size, line.sectors).map_err(unusable)?;
        }
        Ok(Self {
            shown: shown.clone(),
            node,
            offset,
            size,
            device_size,
            kind,
        })
    }

    /// Whether flags are booleans here, as on NOR flash.
    pub(crate) fn is_flash(&self) -> bool {
        matches!(self.kind, Kind::Flash { .. })
    }

    /// The block device and the first byte on its disk, where it is one.
    pub(crate) fn on_disk(&self) -> Option<(&BlockDevice, u64)> {
        match &self.kind {
            Kind::Block { device, .. } => Some((device, device.start.saturating_add(self.offset))),
            _ => None,
        }
    }

    /// Whether any byte that a write touches is also one of the other place.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let one_device = match (self.on_disk(), other.on_disk()) {
            (Some((a, _)), Some((b, _))) => a.disk == b.disk,
            (None, None) => same_file(&self.node, &other.node),
            _ => false,
        };
        let (a, b) = (self.touched(), other.touched());
        one_device && a.0 < b.1 && b.0 < a.1
    }

    /// First and last byte that a write touches, on the disk where it is one.
    fn touched(&self) -> (u64, u64) {
        let size = u64::try_from(self.size).unwrap_or(u64::MAX);
        match &self.kind {
            Kind::Flash { flash, .. } => {
                let end = flash::area(flash.info(), size).saturating_add(self.offset);
                (self.offset, end)
            }
            _ => {
                let start = self.on_disk().map_or(self.offset, |(_, start)| start);
                (start, start.saturating_add(size))
            }
        }
    }

    /// Whether a power cut in the middle of replacing the only copy can leave neither the old nor the new one.
    pub(crate) fn can_tear(&self) -> bool {
        match &self.kind {
            Kind::File { fat } => !fat && self.size > SECTOR,
            Kind::Block { .. } => self.size > SECTOR,
            Kind::Flash { .. } => true,
        }
    }

    /// The copy as it lies on the medium.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        self.read_bytes(self.size)
    }

    /// What lies from the copy's first byte on, for finding out which size it has.
    pub(crate) fn read_beyond(&self) -> Result<Vec<u8>> {
        let rest = self.device_size.saturating_sub(self.offset);
        self.read_bytes(usize::try_from(rest.min(SEARCHED)).unwrap_or(self.size))
    }

    fn read_bytes(&self, length: usize) -> Result<Vec<u8>> {
        match &self.kind {
            Kind::Flash { flash, .. } => flash.read(self.offset, length),
            _ => direct::read(&self.node, self.offset, length)
                .map_err(Error::io("read", &self.shown)),
        }
    }

    /// Writes a copy over the one that is there; `only` where there is no other. Durable and read back when it
    /// returns.
    ///
    /// A crash in the middle leaves a copy whose CRC is wrong, so another one has to be good. Where it is the only
    /// one: a file on FAT is replaced by a rename and is the old or the new one, whole. Elsewhere only the sectors
    /// that differ are written, and it is whole only where that is a single one ([`Place::can_tear`]).
    pub(crate) fn write(&self, old: &[u8], new: &[u8], only: bool) -> Result<()> {
        match &self.kind {
            Kind::File { fat: true } if only => self.replace_file(new)?,
            Kind::File { .. } => self.write_sectors(old, new)?,
            Kind::Block { device, force_ro } => {
                self.writable(device, force_ro.as_deref())?;
                with_writing_allowed(force_ro.as_deref(), || self.write_sectors(old, new))?;
            }
            Kind::Flash { flash, no_lock } => {
                flash::write(flash.as_ref(), self.offset, new, *no_lock)?;
            }
        }
        let found = self.read()?;
        match found.iter().zip(new).position(|(a, b)| a != b) {
            None if found.len() == new.len() => Ok(()),
            at => Err(Error::ReadBack {
                path: self.shown.clone(),
                problem: format!(
                    "byte {:#x} of the environment differs",
                    at.unwrap_or(found.len())
                ),
            }),
        }
    }

    /// Sets one byte of the copy, which on flash only clears bits. Durable when it returns.
    pub(crate) fn write_flags(&self, at: usize, flags: u8) -> Result<()> {
        let at = u64::try_from(at).unwrap_or(u64::MAX);
        let offset = self.offset.saturating_add(at);
        match &self.kind {
            Kind::Flash { flash, no_lock } => {
                flash::program(flash.as_ref(), offset, &[flags], *no_lock)
            }
            _ => Err(Error::Internal(format!(
                "boolean flags are only for flash, not {}",
                self.shown.display()
            ))),
        }
    }

    /// A write that changes nothing: the copy's first sector with what it holds. On flash, and for a file that is
    /// replaced, as far as that can be tried without a change.
    pub(crate) fn test_write(&self, only: bool) -> Result<()> {
        match &self.kind {
            Kind::File { fat: true } if only => {
                let temporary = self.temporary();
                let content = vec![0; self.size];
                durable::write_bytes(&temporary, &content)?;
                durable::remove(&temporary)
            }
            Kind::File { .. } => self.rewrite_first_sector(),
            Kind::Block { device, force_ro } => {
                self.writable(device, force_ro.as_deref())?;
                with_writing_allowed(force_ro.as_deref(), || self.rewrite_first_sector())
            }
            Kind::Flash { flash, .. } => flash.writable(),
        }
    }

    /// Whether it looks as if it could be written; nothing is.
    pub(crate) fn may_write(&self) -> Result<()> {
        match &self.kind {
            Kind::File { .. } => self.opened_for_writing().map(drop),
            Kind::Block { device, force_ro } => self.writable(device, force_ro.as_deref()),
            Kind::Flash { flash, .. } => flash.writable(),
        }
    }

    fn opened_for_writing(&self) -> Result<File> {
        OpenOptions::new()
            .write(true)
            .open(&self.node)
            .map_err(Error::io("open for writing", &self.shown))
    }

    fn writable(&self, device: &BlockDevice, force_ro: Option<&Path>) -> Result<()> {
        if device.read_only && force_ro.is_none() {
            let read_only = std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem);
            return Err(Error::io(
                "write to a device that is set read-only,",
                &self.shown,
            )(read_only));
        }
        Ok(())
    }

    fn rewrite_first_sector(&self) -> Result<()> {
        let first = self.read_bytes(self.size.min(SECTOR))?;
        self.write_runs(&[(0, first.as_slice())])
    }

    fn write_sectors(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let runs = differing_runs(self.offset, old, new);
        if runs.is_empty() {
            return Ok(());
        }
        self.write_runs(&runs)
    }

    fn write_runs(&self, runs: &[(usize, &[u8])]) -> Result<()> {
        let file = self.opened_for_writing()?;
        for (at, bytes) in runs {
            let at = u64::try_from(*at).unwrap_or(u64::MAX);
            file.write_all_at(bytes, self.offset.saturating_add(at))
                .map_err(Error::io("write", &self.shown))?;
        }
        file.sync_data().map_err(Error::io("sync", &self.shown))
    }

    fn replace_file(&self, new: &[u8]) -> Result<()> {
        let mut content = fs::read(&self.node).map_err(Error::io("read", &self.shown))?;
        let start = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(self.size);
        let place = content
            .get_mut(start..end)
            .filter(|place| place.len() == new.len());
        place
            .ok_or_else(|| Error::malformed(&self.shown, "it became shorter"))?
            .copy_from_slice(new);
        let temporary = self.temporary();
        durable::write_bytes(&temporary, &content)?;
        durable::rename(&temporary, &self.node)
    }

    fn temporary(&self) -> PathBuf {
        // Symlinks are followed, so that the file itself is replaced.
        let node = fs::canonicalize(&self.node).unwrap_or_else(|_| self.node.clone());
        node.with_extension("tmp")
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (fs::canonicalize(a), fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
pub(super) use flash::tests::FixtureFlash;

#[cfg(test)]
pub(super) mod tests;
