//! The sectors of a whole disk, read and written past the page cache.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

use crate::error::{Error, Result};
use crate::ioctl;

/// Alignment of memory for direct transfers, in bytes: enough for every disk.
const ALIGNMENT: usize = 4096;

/// A disk as a row of sectors.
pub(crate) trait Disk {
    /// The device, for errors.
    fn path(&self) -> &Path;
    /// Bytes of a sector.
    fn sector(&self) -> u64;
    /// Number of sectors.
    fn count(&self) -> u64;
    /// Reads `count` sectors from the medium.
    fn read(&self, lba: u64, count: u64) -> Result<Vec<u8>>;
    /// Writes whole sectors. Not durable until [`Disk::flush`].
    fn write(&self, lba: u64, bytes: &[u8]) -> Result<()>;
    /// Everything that was written is durable when it returns.
    fn flush(&self) -> Result<()>;
}

/// Where a disk is, and what the kernel says of it.
#[derive(Debug, Clone)]
pub(crate) struct DiskNode {
    /// The device node.
    pub(super) path: PathBuf,
    /// Bytes of a sector.
    pub(super) sector: u32,
    /// Size in bytes.
    pub(super) size: u64,
    /// Whether it may be a plain file (a fixture).
    pub(super) fixture: bool,
}

impl DiskNode {
    /// Opens the disk for reading.
    pub(super) fn open(&self) -> Result<OpenDisk> {
        self.open_for(false)
    }

    /// Opens the disk for writing, too. Nothing is written. Not alone (`O_EXCL`): its partitions are mounted.
    pub(super) fn open_for_writing(&self) -> Result<OpenDisk> {
        self.open_for(true)
    }

    fn open_for(&self, write: bool) -> Result<OpenDisk> {
        // Not every file system that tests run on takes O_DIRECT.
        let plain = self.fixture && self.path.is_file();
        let direct = if plain { 0 } else { libc::O_DIRECT };
        let file = OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(libc::O_CLOEXEC | direct)
            .open(&self.path)
            .map_err(Error::io(
                if write { "open for writing" } else { "open" },
                &self.path,
            ))?;
        let kind = file
            .metadata()
            .map_err(Error::io("stat", &self.path))?
            .file_type();
        if !plain && !kind.is_block_device() {
            return Err(Error::Refused {
                reason: format!("{} is not a block device", self.path.display()),
            });
        }
        if write
            && !plain
            && ioctl::read_only(&file).map_err(Error::sys("ask whether read-only", &self.path))?
        {
            let read_only = std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem);
            return Err(Error::io("write to", &self.path)(read_only));
        }
        Ok(OpenDisk {
            file,
            path: self.path.clone(),
            sector: u64::from(self.sector.max(1)),
            count: self.size / u64::from(self.sector.max(1)),
        })
    }
}

/// An open disk.
#[derive(Debug)]
pub(crate) struct OpenDisk {
    file: File,
    path: PathBuf,
    sector: u64,
    count: u64,
}

impl Disk for OpenDisk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn sector(&self) -> u64 {
        self.sector
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn read(&self, lba: u64, count: u64) -> Result<Vec<u8>> {
        let length = count
            .checked_mul(self.sector)
            .and_then(|length| usize::try_from(length).ok());
        let (Some(length), Some(at)) = (length, lba.checked_mul(self.sector)) else {
            return Err(Error::Internal(format!("{count} sectors at sector {lba}")));
        };
        let mut buffer = Aligned::new(length);
        let bytes = buffer.bytes();
        self.file
            .read_exact_at(bytes, at)
            .map_err(Error::io("read", &self.path))?;
        Ok(bytes.to_vec())
    }

    fn write(&self, lba: u64, bytes: &[u8]) -> Result<()> {
        let Some(at) = lba.checked_mul(self.sector).filter(|at| *at > 0) else {
            return Err(Error::Internal(format!(
                "sector {lba} is not to be written"
            )));
        };
        let mut buffer = Aligned::new(bytes.len());
        for (place, byte) in buffer.bytes().iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.file
            .write_all_at(buffer.bytes(), at)
            .map_err(Error::io("write", &self.path))
    }

    fn flush(&self) -> Result<()> {
        self.file
            .sync_data()
            .map_err(Error::io("flush", &self.path))
    }
}

/// Memory that a direct transfer can use.
struct Aligned {
    memory: Vec<u8>,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        Self {
            memory: vec![0; length.saturating_add(ALIGNMENT)],
            length,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        let end = start.saturating_add(self.length);
        self.memory.get_mut(start..end).unwrap_or_default()
    }
}
