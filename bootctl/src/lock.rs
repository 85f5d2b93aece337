//! One program at a time changes a boot loader's data.

use std::fs::{File, TryLockError};
use std::io::ErrorKind as IoKind;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How long another program's change is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// An exclusive `flock`, held while a transition reads, plans and changes. Ends with the process, too.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held for its lock only")] File);

impl Lock {
    /// Takes the lock of a file, directory or device, which is only opened for reading.
    ///
    /// # Errors
    /// When it cannot be opened, or another program holds the lock for longer than ten seconds.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        Self::of_file(File::open(path).map_err(Error::io("open", path))?, path)
    }

    /// The same for a file that is open already.
    ///
    /// # Errors
    /// As [`Lock::of`].
    pub(crate) fn of_file(file: File, path: &Path) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(50));
                }
                Err(TryLockError::WouldBlock) => {
                    let busy = std::io::Error::from(IoKind::ResourceBusy);
                    return Err(Error::io("lock, another program changes", path)(busy));
                }
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", path)(error)),
            }
        }
    }
}
