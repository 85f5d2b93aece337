//! Files, block devices, pipes and sockets of this machine.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::Published;
use crate::cancel::Cancel;
use crate::error::{Error, Result};

/// Large enough to cost few system calls, small enough that several in flight do not matter.
const CHUNK: usize = 256 << 10;

/// How long a silent pipe is waited for before the cancel flag is looked at again.
const GLANCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// An open descriptor that is read to its end.
pub(super) struct Descriptor {
    file: File,
    location: String,
    total: Option<u64>,
    offset: u64,
}

impl Descriptor {
    /// Opens a path for reading. A FIFO is opened without waiting for its writer, so that a stop
    /// can be asked for meanwhile.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::Read {
            location: path.display().to_string(),
            action: "opened",
            offset: 0,
            source,
        };
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = File::options()
            .read(true)
            .custom_flags(nonblocking)
            .open(path)
            .map_err(failed)?;
        if file.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        Self::new(file, path.display().to_string())
    }

    /// Reads a descriptor that is open already, from where it stands.
    pub(super) fn shared(label: &str, fd: BorrowedFd<'_>) -> Result<Self> {
        let fd = fd.try_clone_to_owned().map_err(|source| Error::Read {
            location: label.to_owned(),
            action: "opened",
            offset: 0,
            source,
        })?;
        Self::new(File::from(fd), label.to_owned())
    }

    fn new(file: File, location: String) -> Result<Self> {
        let total = remaining(&file).map_err(|source| Error::Read {
            location: location.clone(),
            action: "opened",
            offset: 0,
            source,
        })?;
        Ok(Self {
            file,
            location,
            total,
            offset: 0,
        })
    }

    fn read_failed(&self, source: io::Error) -> Error {
        Error::Read {
            location: self.location.clone(),
            action: "read",
            offset: self.offset,
            source,
        }
    }

    /// Waits until there is something to read, or the other end is gone.
    fn wait(&self, cancel: &Cancel) -> Result<()> {
        loop {
            cancel.check()?;
            let mut watched = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut watched, Some(&GLANCE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(self.read_failed(error.into())),
            }
        }
    }
}

impl Published for Descriptor {
    fn next(&mut self, cancel: &Cancel) -> Result<Option<Bytes>> {
        let mut chunk = vec![0u8; CHUNK];
        let mut filled = 0;
        // A pipe delivers small pieces: they are put together, for fewer messages between threads.
        while filled < CHUNK {
            self.wait(cancel)?;
            let Some(rest) = chunk.get_mut(filled..) else {
                break;
            };
            match self.file.read(rest) {
                Ok(0) => break,
                Ok(count) => {
                    filled = filled.saturating_add(count);
                    self.offset = self.offset.saturating_add(count as u64);
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                    ) => {}
                Err(error) => return Err(self.read_failed(error)),
            }
        }
        chunk.truncate(filled);
        Ok((filled > 0).then(|| Bytes::from(chunk)))
    }

    fn total(&self) -> Option<u64> {
        self.total
    }
}

/// Bytes between the position and the end; `None` for what has no end of its own.
fn remaining(file: &File) -> io::Result<Option<u64>> {
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Ok(None);
    }
    let mut file = file;
    let position = file.stream_position()?;
    let end = file.seek(io::SeekFrom::End(0))?;
    file.seek(io::SeekFrom::Start(position))?;
    Ok(Some(end.saturating_sub(position)))
}
