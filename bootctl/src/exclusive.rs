//! Opening a device alone, as the kernel has it with `O_EXCL`: refused while it is mounted, or held by anybody else.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc;

use crate::error::{Error, Result};

/// A program that this process starts has copies of all open files until its `exec` closes them: what was closed here a
/// moment ago can still be held.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Opens a device; `options` ask for `O_EXCL`. One that is in use is waited for, for a moment. Nothing is written.
///
/// # Errors
/// [`Error::InUse`] while it is mounted or held, and `action` in whatever else the kernel says.
pub(crate) fn open(options: &OpenOptions, action: &'static str, node: &Path) -> Result<File> {
    patiently(PATIENCE, || options.open(node)).map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => Error::InUse {
            path: node.to_owned(),
        },
        _ => Error::io(action, node)(source),
    })
}

/// Whether a device can be had alone now. Nothing stays open, nothing is written.
///
/// # Errors
/// [`Error::InUse`] while it is mounted or held by others, for longer than a moment; that it cannot be opened at all.
pub fn check_free(node: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_CLOEXEC);
    open(&options, "open", node).map(drop)
}

fn patiently<T>(patience: Duration, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let began = Instant::now();
    loop {
        match open() {
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && began.elapsed() < patience =>
            {
                sleep(PAUSE);
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use nix::libc;

    use super::{PATIENCE, patiently};

    fn answers(codes: &[i32]) -> impl FnMut() -> io::Result<()> + '_ {
        let mut codes = codes.iter().copied();
        move || match codes.next() {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Ok(()),
        }
    }

    #[test]
    fn what_is_held_for_a_moment_is_waited_for_and_nothing_else_is() {
        patiently(PATIENCE, answers(&[libc::EBUSY; 3])).unwrap();
        let other = patiently(PATIENCE, answers(&[libc::EBUSY, libc::EACCES])).unwrap_err();
        assert_eq!(other.raw_os_error(), Some(libc::EACCES));
        let held = patiently(Duration::from_millis(50), || -> io::Result<()> {
            Err(io::Error::from_raw_os_error(libc::EBUSY))
        });
        assert_eq!(held.unwrap_err().raw_os_error(), Some(libc::EBUSY));
    }
}
