//! NOR flash behind an MTD character device: erased in blocks, programmed by clearing bits.
//!
//! NAND is refused: bad blocks move a copy, and that cannot be tried here. As `flash_write_buf` in U-Boot's
//! `tools/env/fw_env.c`, what lies behind a copy in its last erase block is kept.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::ioctl;

/// What a flash is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlashInfo {
    pub(super) size: u64,
    pub(super) erase_block: u64,
}

/// A flash, real or made of a file for tests.
pub(super) trait Flash: fmt::Debug + Send + Sync {
    fn info(&self) -> FlashInfo;
    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>>;
    /// Fails where it cannot be written; changes nothing.
    fn writable(&self) -> Result<()>;
    /// Unlocks blocks; whether they were locked.
    fn unlock(&self, offset: u64, length: u64) -> Result<bool>;
    fn lock(&self, offset: u64, length: u64) -> Result<()>;
    /// Sets all bits of whole blocks. Durable when it returns.
    fn erase(&self, offset: u64, length: u64) -> Result<()>;
    /// Clears bits. Durable when it returns.
    fn program(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// Bytes of the whole erase blocks that a copy of `size` takes up.
pub(super) fn area(info: FlashInfo, size: u64) -> u64 {
    size.checked_next_multiple_of(info.erase_block)
        .unwrap_or(u64::MAX)
}

/// Whether a copy can lie there.
pub(super) fn check(info: FlashInfo, offset: u64, size: u64, sectors: u64) -> Result<(), String> {
    let block = info.erase_block;
    if offset.checked_rem(block) != Some(0) {
        return Err(format!(
            "offset {offset:#x} is not at the start of an erase block of {block:#x} bytes"
        ));
    }
    let end = offset.saturating_add(area(info, size));
    if end > info.size {
        return Err(format!(
            "the copy's erase blocks end at {end:#x}, the flash at {:#x}",
            info.size
        ));
    }
    let given = sectors.saturating_mul(block);
    if sectors != 0 && given < size {
        return Err(format!(
            "{sectors} sectors of {block:#x} bytes do not hold a copy of {size:#x}"
        ));
    }
    Ok(())
}

/// Erases a copy's blocks and writes it. Durable when it returns; a crash in the middle leaves no copy there.
pub(super) fn write(flash: &dyn Flash, offset: u64, copy: &[u8], no_lock: bool) -> Result<()> {
    let size = u64::try_from(copy.len()).unwrap_or(u64::MAX);
    let length = area(flash.info(), size);
    let whole = usize::try_from(length)
        .map_err(|_| Error::Internal(format!("{length} bytes of erase blocks")))?;
    let mut content = flash.read(offset, whole)?;
    content.splice(..copy.len().min(whole), copy.iter().copied());
    unlocked(flash, (offset, length), no_lock, || {
        flash.erase(offset, length)?;
        flash.program(offset, &content)
    })
}

/// Clears bits without erasing.
pub(super) fn program(flash: &dyn Flash, offset: u64, bytes: &[u8], no_lock: bool) -> Result<()> {
    let block = flash.info().erase_block;
    let into = offset.checked_rem(block).unwrap_or(0);
    let start = offset.saturating_sub(into);
    unlocked(flash, (start, block), no_lock, || {
        flash.program(offset, bytes)
    })
}

fn unlocked(
    flash: &dyn Flash,
    (offset, length): (u64, u64),
    no_lock: bool,
    change: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let was_locked = !no_lock && flash.unlock(offset, length)?;
    let changed = change();
    if was_locked {
        return changed.and(flash.lock(offset, length));
    }
    changed
}

/// An MTD character device.
#[derive(Debug)]
pub(super) struct MtdDevice {
    node: PathBuf,
    shown: PathBuf,
    info: FlashInfo,
}

impl MtdDevice {
    /// Opens it for reading. Nothing is written.
    ///
    /// # Errors
    /// When it is no MTD device, or no NOR flash.
    pub(super) fn open(node: &Path, shown: &Path) -> Result<Self> {
        let file = File::open(node).map_err(Error::io("open", shown))?;
        let info = ioctl::mtd_info(&file).map_err(Error::sys("ask for the flash of", shown))?;
        if info.kind != ioctl::MTD_NORFLASH {
            return Err(Error::malformed(
                shown,
                format!(
                    "flash of type {}: slotd writes the environment on NOR flash (type {}) only; \
                     NAND, UBI and DataFlash are not supported",
                    info.kind,
                    ioctl::MTD_NORFLASH
                ),
            ));
        }
        if info.erase_block == 0 {
            return Err(Error::malformed(shown, "an erase block of 0 bytes"));
        }
        Ok(Self {
            node: node.to_owned(),
            shown: shown.to_owned(),
            info: FlashInfo {
                size: info.size.into(),
                erase_block: info.erase_block.into(),
            },
        })
    }

    fn opened(&self) -> Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.node)
            .map_err(Error::io("open for writing", &self.shown))
    }

    /// Offset and length as the kernel's structure has them.
    fn extent(&self, offset: u64, length: u64) -> Result<(u32, u32)> {
        match (u32::try_from(offset), u32::try_from(length)) {
            (Ok(offset), Ok(length)) => Ok((offset, length)),
            _ => Err(Error::malformed(
                &self.shown,
                format!("offset {offset:#x} is beyond 4 GiB"),
            )),
        }
    }
}

impl Flash for MtdDevice {
    fn info(&self) -> FlashInfo {
        self.info
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        // The character device has no page cache.
        let file = File::open(&self.node).map_err(Error::io("open", &self.shown))?;
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset)
            .map_err(Error::io("read", &self.shown))?;
        Ok(bytes)
    }

    fn writable(&self) -> Result<()> {
        self.opened().map(drop)
    }

    fn unlock(&self, offset: u64, length: u64) -> Result<bool> {
        let (offset, length) = self.extent(offset, length)?;
        let file = self.opened()?;
        // Flash that knows no locks has none.
        if !ioctl::mtd_is_locked(&file, offset, length).unwrap_or(false) {
            return Ok(false);
        }
        ioctl::mtd_unlock(&file, offset, length).map_err(Error::sys("unlock", &self.shown))?;
        Ok(true)
    }

    fn lock(&self, offset: u64, length: u64) -> Result<()> {
        let (offset, length) = self.extent(offset, length)?;
        ioctl::mtd_lock(&self.opened()?, offset, length).map_err(Error::sys("lock", &self.shown))
    }

    fn erase(&self, offset: u64, length: u64) -> Result<()> {
        let (offset, length) = self.extent(offset, length)?;
        ioctl::mtd_erase(&self.opened()?, offset, length).map_err(Error::sys("erase", &self.shown))
    }

    fn program(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.opened()?;
        file.write_all_at(bytes, offset)
            .map_err(Error::io("write", &self.shown))
    }
}

#[cfg(test)]
pub(super) mod tests;
