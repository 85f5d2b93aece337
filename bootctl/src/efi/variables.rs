//! EFI variables through efivarfs: a file is four attribute bytes and the data, and one `write()` is one call of the
//! firmware. By the UEFI specification 2.10, section 8.2, a variable is then the old one or the new one, also after a
//! power cut, and stored when the call returns.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;

use crate::error::{Error, Result};
use crate::ioctl;
use crate::mounts::Mounts;
use crate::system::System;

/// Vendor GUID of the variables that the specification defines.
pub(crate) const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// slotd's own, for the write test.
const OWN: &str = "c41ccb52-1a4d-4fca-9f05-5ac1b8d2e3f6";
/// The variables of the write test; removed again at once.
const TESTS: [&str; 2] = ["SlotdWriteTest", "SlotdWriteTest2"];
/// Non-volatile, for boot services, for the running system.
const ATTRIBUTES: [u8; 4] = [7, 0, 0, 0];
/// More than any boot option has, in bytes.
const LIMIT: u64 = 64 * 1024;

/// Where efivarfs is mounted, as the node names it.
const PLACE: &str = "/sys/firmware/efi/efivars";

/// The directory of EFI variables.
#[derive(Debug, Clone)]
pub(crate) struct Variables {
    directory: PathBuf,
    /// Whether it holds plain files, in which a shorter value does not end the longer one before it.
    plain: bool,
}

/// Why there are no variables that could be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// The kernel was not started by EFI firmware.
    NoEfi,
    /// efivarfs is not mounted.
    NotMounted,
    /// It is mounted read-only.
    ReadOnly,
}

impl Unusable {
    /// What it is and what to do.
    pub(crate) fn message(self) -> String {
        match self {
            Self::NoEfi => "this system was not started by EFI firmware (there is no \
                /sys/firmware/efi): start it in EFI mode, or configure another boot loader"
                .to_owned(),
            Self::NotMounted => format!(
                "the EFI variables are not mounted: `mount -t efivarfs efivarfs {PLACE}`; without \
                 that file system the kernel lacks it, or was started with `noefi`"
            ),
            Self::ReadOnly => {
                format!("the EFI variables are mounted read-only: `mount -o remount,rw {PLACE}`")
            }
        }
    }
}

impl Variables {
    pub(crate) fn at(system: &System) -> Self {
        Self {
            directory: system.efivars(),
            plain: system.is_fixture(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Why they cannot be changed, as far as the mount table tells.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub(crate) fn unusable(system: &System) -> Result<Option<Unusable>> {
        if !system.sys("firmware/efi").is_dir() {
            return Ok(Some(Unusable::NoEfi));
        }
        let mounts = Mounts::read(system)?;
        let mount = mounts.at(Path::new(PLACE));
        Ok(match mount.filter(|mount| mount.kind == "efivarfs") {
            None => Some(Unusable::NotMounted),
            Some(mount) if mount.read_only => Some(Unusable::ReadOnly),
            Some(_) => None,
        })
    }

    fn path(&self, name: &str, vendor: &str) -> PathBuf {
        self.directory.join(format!("{name}-{vendor}"))
    }

    /// Names of the variables that the specification defines.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == IoKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("list", &self.directory)(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::io("list", &self.directory))?;
            let Ok(file) = entry.file_name().into_string() else {
                continue;
            };
            let name = file
                .strip_suffix(GLOBAL)
                .and_then(|rest| rest.strip_suffix('-'));
            names.extend(name.map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// A variable's data; `None` where there is no such variable.
    ///
    /// # Errors
    /// When it cannot be read, or is shorter than its attributes.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name, GLOBAL);
        Ok(contents(&path)?.map(|(_, data)| data))
    }

    /// Stores a variable; does nothing where it says so already, since flash wears. Durable when it returns, and read
    /// back. A crash in the middle leaves the old value or the new one, whole.
    ///
    /// # Errors
    /// When the firmware does not take it; full flash is named.
    pub(crate) fn write(&self, name: &str, data: &[u8]) -> Result<()> {
        self.store(&self.path(name, GLOBAL), data)
    }

    /// Removes a variable; nothing to do where there is none. Durable when it returns.
    ///
    /// # Errors
    /// When the firmware does not let it go.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.delete(&self.path(name, GLOBAL))
    }

    /// Whether variables of these sizes in bytes can be stored side by side: makes them under a vendor GUID of slotd's own,
    /// reads them back, and removes them. Leaves nothing behind, or says that it does.
    ///
    /// # Errors
    /// As [`Variables::write`] and [`Variables::remove`].
    pub(crate) fn test_write(&self, sizes: &[usize; 2]) -> Result<()> {
        let paths = TESTS.map(|name| self.path(name, OWN));
        let delete = || {
            let removed = paths.iter().map(|path| self.delete(path));
            // All of them go; the first trouble is told.
            let mut told = Ok(());
            for result in removed {
                told = told.and(result);
            }
            told
        };
        // Left behind by a cut.
        delete()?;
        let store = |(path, size): (&PathBuf, &usize)| self.store(path, &vec![0x5a; *size]);
        let stored = paths.iter().zip(sizes).try_for_each(store);
        match delete() {
            Ok(()) => stored,
            // The first error is the one to report.
            Err(error) => stored.and(Err(error)),
        }
    }

    fn store(&self, path: &Path, data: &[u8]) -> Result<()> {
        let value = [ATTRIBUTES.as_slice(), data].concat();
        let wanted = Some((ATTRIBUTES, data.to_vec()));
        if contents(path)? == wanted {
            return Ok(());
        }
        let unlocked = Unlocked::new(path)?;
        let written = self.write_once(path, &value);
        drop(unlocked);
        written?;
        if contents(path)? == wanted {
            return Ok(());
        }
        Err(Error::ReadBack {
            path: path.to_owned(),
            problem: "the firmware holds another value than the one that was written".to_owned(),
        })
    }

    fn write_once(&self, path: &Path, value: &[u8]) -> Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)
            .map_err(|error| failed("open for writing", path, error))?;
        let written = loop {
            #[cfg(test)]
            if let Err(error) = tests::flash(path, value.len()) {
                break Err(error);
            }
            match file.write(value) {
                // Nothing was handed to the firmware yet.
                Err(error) if error.kind() == IoKind::Interrupted => {}
                other => break other,
            }
        };
        match written {
            Ok(length) if length == value.len() => {}
            Ok(length) => {
                return Err(Error::ReadBack {
                    path: path.to_owned(),
                    problem: format!("{length} of {} bytes were taken", value.len()),
                });
            }
            Err(error) => {
                // A new variable's file stays there empty where the firmware refused it.
                if fs::metadata(path).is_ok_and(|meta| meta.len() == 0) {
                    let _ = fs::remove_file(path);
                }
                return Err(failed("store", path, error));
            }
        }
        if self.plain {
            let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
            file.set_len(length).map_err(Error::io("write", path))?;
        }
        Ok(())
    }

    fn delete(&self, path: &Path) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        let unlocked = Unlocked::new(path)?;
        let removed = fs::remove_file(path);
        drop(unlocked);
        match removed {
            Ok(()) => {}
            Err(error) if error.kind() == IoKind::NotFound => {}
            Err(error) => return Err(failed("remove", path, error)),
        }
        if path.exists() {
            return Err(Error::ReadBack {
                path: path.to_owned(),
                problem: "the firmware still holds it".to_owned(),
            });
        }
        Ok(())
    }
}

/// Attributes and data of a variable's file.
fn contents(path: &Path) -> Result<Option<([u8; 4], Vec<u8>)>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == IoKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LIMIT {
        return Err(Error::malformed(path, format!("longer than {LIMIT} bytes")));
    }
    match (bytes.first_chunk(), bytes.get(4..)) {
        (Some(attributes), Some(data)) => Ok(Some((*attributes, data.to_vec()))),
        // The kernel shows one so that was made and never stored.
        _ if bytes.is_empty() => Ok(None),
        _ => Err(Error::malformed(
            path,
            "shorter than its four attribute bytes",
        )),
    }
}

fn failed(action: &'static str, path: &Path, error: std::io::Error) -> Error {
    let action = match (error.kind(), action) {
        (IoKind::StorageFull | IoKind::QuotaExceeded, _) => {
            "store, for which the firmware's flash is full or waits for a reboot to collect its \
             garbage (remove variables that nobody needs, or reboot once),"
        }
        (IoKind::PermissionDenied, "store") => {
            "store, which the firmware or the kernel's lockdown does not allow,"
        }
        _ => action,
    };
    Error::io(action, path)(error)
}

/// A file that may be changed for as long as this lives: most of efivarfs is immutable, against `rm -r`.
struct Unlocked(Option<(File, PathBuf)>);

impl Unlocked {
    fn new(path: &Path) -> Result<Self> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == IoKind::NotFound => return Ok(Self(None)),
            Err(error) => return Err(Error::io("open", path)(error)),
        };
        match ioctl::immutable(&file) {
            Ok(true) => {}
            Ok(false) | Err(Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => {
                return Ok(Self(None));
            }
            Err(errno) => return Err(Error::sys("read the flags of", path)(errno)),
        }
        ioctl::set_immutable(&file, false)
            .map_err(Error::sys("take the immutable flag off", path))?;
        Ok(Self(Some((file, path.to_owned()))))
    }
}

impl Drop for Unlocked {
    fn drop(&mut self) {
        // Of one that is gone the flag is of no matter, and a failure leaves a variable that works.
        if let Some((file, path)) = &self.0
            && path.exists()
            && let Err(errno) = ioctl::set_immutable(file, true)
        {
            tracing::warn!(file = %path.display(), %errno, "stays without its immutable flag");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
