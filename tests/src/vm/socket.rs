//! The sockets in a machine's folder, wherever that folder is.
//!
//! The address of a Unix socket holds 107 bytes of path (`unix(7)`), fewer than the folder of a checkout may have. So QEMU makes
//! them by their name in its working directory, and we reach them through a descriptor of that folder.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result};

/// The guest's shell that commands go through.
pub(crate) const SHELL: &str = "shell.socket";
/// QEMU's monitor.
pub(crate) const MONITOR: &str = "monitor.socket";
/// The console that a person logs in to.
pub const LOGIN: &str = "login.socket";

/// Connects to a socket of the machine in `folder`.
pub fn connect(folder: &Path, name: &str) -> Result<UnixStream> {
    let directory = File::open(folder).with_context(|| format!("opening {}", folder.display()))?;
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
        .with_context(|| format!("connecting to {name} in {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use super::{SHELL, connect};

    #[test]
    fn the_folder_of_a_machine_may_have_any_length() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a".repeat(120)).join("b".repeat(120));
        std::fs::create_dir_all(&folder).unwrap();
        let directory = File::open(&folder).unwrap();
        let _listener =
            UnixListener::bind(format!("/proc/self/fd/{}/{SHELL}", directory.as_raw_fd())).unwrap();
        connect(&folder, SHELL).unwrap();
    }
}
