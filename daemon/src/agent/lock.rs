//! One lock for whoever changes a slot or the boot loader's data: the agent and `slotd flash`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use thiserror::Error;

/// The lock, for as long as this lives. The kernel gives it back when the process ends, however.
#[derive(Debug)]
pub struct ChangeLock {
    _file: Flock<File>,
}

/// Why the lock was not had.
#[derive(Debug, Error)]
pub enum LockError {
    /// Somebody has it.
    #[error("{} is held: another slotd changes the slots or the boot loader", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
    },
    /// An agent runs already.
    #[error("another agent runs on this node and holds {}", path.display())]
    Running {
        /// The lock file.
        path: PathBuf,
    },
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The lock file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl LockError {
    pub(super) fn open(path: &Path, source: io::Error) -> Self {
        Self::Open {
            path: path.to_owned(),
            source,
        }
    }
}

/// Opens a lock file; makes it and its folder where they are not there.
pub(super) fn open(path: &Path) -> Result<File, LockError> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(|source| LockError::open(path, source))?;
    }
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|source| LockError::open(path, source))
}

impl ChangeLock {
    /// Takes the lock, without waiting.
    ///
    /// # Errors
    /// [`LockError::Held`] while another process (or another holder in this one) has it.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let file = open(path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Self { _file: file }),
            Err((_, Errno::EWOULDBLOCK)) => Err(LockError::Held {
                path: path.to_owned(),
            }),
            Err((_, errno)) => Err(LockError::open(path, errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ChangeLock, LockError};

    #[test]
    fn only_one_holds_the_lock_and_it_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/lock");
        let first = ChangeLock::take(&path).unwrap();
        assert!(matches!(
            ChangeLock::take(&path),
            Err(LockError::Held { .. })
        ));
        drop(first);
        ChangeLock::take(&path).unwrap();
    }
}
