//! Whether an agent lives, told without a bus: a lock that it holds for as long as its process is there.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::lock::{LockError, open};

/// The mark of a living agent. The kernel takes it away when the process ends, however.
#[derive(Debug)]
pub struct AgentLife {
    _file: File,
}

impl AgentLife {
    /// Says that an agent lives here.
    ///
    /// # Errors
    /// [`LockError::Held`] while another agent does.
    pub fn claim(path: &Path) -> Result<Self, LockError> {
        let file = open(path)?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&exclusive())) {
            Ok(_) => Ok(Self { _file: file }),
            Err(Errno::EAGAIN | Errno::EACCES) => Err(LockError::Running {
                path: path.to_owned(),
            }),
            Err(errno) => Err(LockError::open(path, errno.into())),
        }
    }

    /// Whether an agent lives. Takes no lock itself, so that it is never in the way of one that starts.
    ///
    /// # Errors
    /// When it cannot be found out.
    pub fn is_there(path: &Path) -> io::Result<bool> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut lock = exclusive();
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }
}

/// The whole file, for one alone.
fn exclusive() -> libc::flock {
    libc::flock {
        l_type: F_WRLCK,
        l_whence: F_START,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "small constants, and a short in the structure"
)]
const F_WRLCK: libc::c_short = libc::F_WRLCK as libc::c_short;
#[expect(
    clippy::cast_possible_truncation,
    reason = "small constants, and a short in the structure"
)]
const F_START: libc::c_short = libc::SEEK_SET as libc::c_short;

#[cfg(test)]
mod tests {
    use super::AgentLife;
    use crate::agent::LockError;

    #[test]
    fn an_agent_is_there_for_as_long_as_it_holds_its_mark_and_there_is_one_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/agent");
        assert!(!AgentLife::is_there(&path).unwrap());
        let life = AgentLife::claim(&path).unwrap();
        assert!(AgentLife::is_there(&path).unwrap());
        assert!(matches!(
            AgentLife::claim(&path),
            Err(LockError::Running { .. })
        ));
        drop(life);
        assert!(!AgentLife::is_there(&path).unwrap());
        AgentLife::claim(&path).unwrap();
    }
}
