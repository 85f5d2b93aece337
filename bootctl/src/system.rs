//! Where the kernel's own files are: the host's, or a fixture tree's in tests.

use std::fs;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Roots of sysfs, proc, dev and efivars. Everything this crate learns of a node comes through here.
#[derive(Debug, Clone)]
pub struct System {
    root: PathBuf,
    fixture: bool,
}

impl System {
    /// The machine this program runs on.
    #[must_use]
    pub fn host() -> Self {
        Self {
            root: PathBuf::from("/"),
            fixture: false,
        }
    }

    /// A tree that looks like a machine: `sys/`, `proc/`, `dev/` below `root`. In it, device nodes
    /// are regular files, so that discovery, proofs and writers are tested without privileges.
    /// Paths such as `/efi` in its mount table are below `root`, too.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            fixture: true,
        }
    }

    /// Whether this is a fixture tree, where a device node may be a regular file.
    #[must_use]
    pub fn is_fixture(&self) -> bool {
        self.fixture
    }

    /// An absolute path of the node (`/dev/vda3`, `/efi`) as this process reaches it.
    #[must_use]
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root
            .join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// The inverse: a path of this process as the node names it.
    #[must_use]
    pub fn absolute(&self, path: &Path) -> PathBuf {
        Path::new("/").join(path.strip_prefix(&self.root).unwrap_or(path))
    }

    /// A file below sysfs.
    #[must_use]
    pub fn sys(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.path("/sys").join(relative)
    }

    /// A file below proc.
    #[must_use]
    pub fn proc(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.path("/proc").join(relative)
    }

    /// A device node by its kernel name, where `!` stands for `/`.
    #[must_use]
    pub fn dev(&self, kernel_name: &str) -> PathBuf {
        self.path("/dev").join(kernel_name.replace('!', "/"))
    }

    /// The directory of EFI variables.
    #[must_use]
    pub fn efivars(&self) -> PathBuf {
        self.sys("firmware/efi/efivars")
    }
}

/// Reads a small kernel file whole, trailing newline removed.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// The same where absence is an answer.
pub(crate) fn read_text_if_present(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim_end_matches('\n').to_owned())),
        Err(error) if error.kind() == IoKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}
