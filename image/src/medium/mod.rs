//! The boundary between the writer and what it writes to.

mod direct;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Result;

/// Something with a fixed length that can be written and read back past any cache.
///
/// Offsets, lengths and the addresses of buffers are multiples of [`Medium::alignment`]; callers
/// never go beyond [`Medium::capacity`]. Calls come from two threads at a time.
pub trait Medium: Send + Sync {
    /// What messages call it.
    fn path(&self) -> &Path;

    /// Length in bytes, a multiple of the alignment.
    fn capacity(&self) -> u64;

    /// What offsets and lengths have to be multiples of, in bytes; a power of two.
    fn alignment(&self) -> u64;

    /// Writes all of `bytes`. Not durable before [`Medium::flush`]; a crash leaves any part of it.
    ///
    /// # Errors
    ///
    /// What the device says. Nothing is known of the range then.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes a range read as zero. Not durable before [`Medium::flush`].
    ///
    /// # Errors
    ///
    /// What the device says. Nothing is known of the range then.
    fn zero(&self, offset: u64, length: u64) -> io::Result<()>;

    /// When this returns, everything whose write had returned before is durable.
    ///
    /// # Errors
    ///
    /// What the device says, once: nothing is known of any earlier write then, and asking again
    /// would only hide that.
    fn flush(&self) -> io::Result<()>;

    /// Fills all of `bytes` with what the medium itself holds.
    ///
    /// # Errors
    ///
    /// What the device says.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

/// What an image is written to: a whole slot.
pub struct WriteTarget {
    medium: Arc<dyn Medium>,
}

impl WriteTarget {
    /// Takes a block device that was opened for reading and writing with `O_EXCL`, or a regular
    /// file that already has the length of the slot.
    ///
    /// A block device is written with direct I/O, which is switched on if the descriptor lacks it;
    /// a regular file without it is written through the page cache and flushed. `path` is for
    /// messages only.
    ///
    /// # Errors
    ///
    /// [`Error::Target`](crate::Error::Target) for anything else, an empty target, and an alignment
    /// that is not supported. Nothing is written.
    pub fn from_exclusive(fd: OwnedFd, path: PathBuf) -> Result<Self> {
        Ok(Self::from_medium(direct::DirectMedium::new(
            fd, path, true,
        )?))
    }

    /// Takes any medium, such as one that fails on purpose.
    pub fn from_medium(medium: impl Medium + 'static) -> Self {
        Self {
            medium: Arc::new(medium),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.medium.capacity()
    }

    /// Device or file, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.medium.path()
    }

    pub(crate) fn medium(&self) -> &dyn Medium {
        &*self.medium
    }
}

impl fmt::Debug for WriteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteTarget")
            .field("path", &self.path())
            .field("capacity", &self.capacity())
            .field("alignment", &self.medium.alignment())
            .finish()
    }
}

/// A device or file that is only read, past the page cache where it is a device.
pub(crate) fn open_for_reading(fd: OwnedFd, path: PathBuf) -> Result<impl Medium> {
    direct::DirectMedium::new(fd, path, false)
}

impl<M: Medium + ?Sized> Medium for Arc<M> {
    fn path(&self) -> &Path {
        (**self).path()
    }

    fn capacity(&self) -> u64 {
        (**self).capacity()
    }

    fn alignment(&self) -> u64 {
        (**self).alignment()
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        (**self).write_at(bytes, offset)
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        (**self).zero(offset, length)
    }

    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_at(bytes, offset)
    }
}
