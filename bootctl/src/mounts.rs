//! Parses the kernel's mount table, `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::slot::DeviceNumber;
use crate::system::System;

/// One mount, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) device: DeviceNumber,
    pub(crate) point: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: String,
    pub(crate) read_only: bool,
    /// The file system's own options, unescaped.
    pub(crate) options: Vec<String>,
}

impl Mount {
    /// Values of an option that may occur several times, such as `lowerdir+`.
    pub(crate) fn option_values(&self, key: &str) -> impl Iterator<Item = &str> {
        self.options
            .iter()
            .filter_map(move |option| option.strip_prefix(key)?.strip_prefix('='))
    }
}

/// All mounts, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Mounts(Vec<Mount>);

impl Mounts {
    pub(crate) fn read(system: &System) -> Result<Self> {
        let path = system.proc("self/mountinfo");
        let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
        Self::parse(&String::from_utf8_lossy(&bytes))
            .map_err(|problem| Error::malformed(&path, problem))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut mounts = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let mount = parse_line(line).ok_or_else(|| format!("line {number}: {line:?}"))?;
            mounts.push(mount);
        }
        Ok(Self(mounts))
    }

    /// All of them, oldest first.
    pub(crate) fn all(&self) -> &[Mount] {
        &self.0
    }

    /// What is mounted exactly there; of mounts on top of each other, the topmost.
    pub(crate) fn at(&self, point: &Path) -> Option<&Mount> {
        self.0
            .iter()
            .rev()
            .find(|mount| mount.point == point && mount.kind != "autofs")
    }

    /// Where a device was mounted last.
    pub(crate) fn point_of(&self, device: DeviceNumber) -> Option<&Path> {
        let mut newest_first = self.0.iter().rev();
        let mount = newest_first.find(|mount| mount.device == device && mount.kind != "autofs")?;
        Some(&mount.point)
    }

    /// The mount that a path lies on.
    pub(crate) fn of(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|ancestor| self.at(ancestor))
    }
}

fn parse_line(line: &str) -> Option<Mount> {
    // "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let device = left.next()?.parse().ok()?;
    let point = left.nth(1)?;
    let flags = left.next()?;
    let mut right = right.split(' ');
    let kind = right.next()?;
    let source = right.next()?;
    let options = right.next().unwrap_or_default();
    let read_only = |options: &str| options.split(',').any(|option| option == "ro");
    Some(Mount {
        device,
        point: PathBuf::from(OsString::from_vec(unescape(point))),
        kind: kind.to_owned(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        read_only: read_only(flags) || read_only(options),
        options: options
            .split(',')
            .map(|option| String::from_utf8_lossy(&unescape(option)).into_owned())
            .collect(),
    })
}

/// The kernel writes blanks, backslashes and the like as `\040`.
fn unescape(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let octal = bytes
            .get(at + 1..at + 4)
            .filter(|_| byte == b'\\')
            .and_then(|digits| {
                let digits = std::str::from_utf8(digits).ok()?;
                u8::from_str_radix(digits, 8).ok()
            });
        match octal {
            Some(value) => {
                out.push(value);
                at += 4;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Mounts;

    #[test]
    fn the_topmost_mount_counts_and_blanks_are_unescaped() {
        let mounts = Mounts::parse(
            "1 1 0:2 / / rw - rootfs rootfs rw\n\
             27 1 259:3 / / ro,relatime shared:1 - ext4 /dev/root ro\n\
             30 27 259:1 / /mnt/with\\040blank rw - vfat /dev/vda1 rw,lowerdir=/a:/b\n\
             31 27 0:30 / /efi rw - autofs systemd-1 rw\n",
        )
        .unwrap();
        let root = mounts.at(Path::new("/")).unwrap();
        assert_eq!(root.device.to_string(), "259:3");
        assert!(root.read_only);
        let inner = mounts.of(Path::new("/mnt/with blank/x/y")).unwrap();
        assert_eq!(inner.device.to_string(), "259:1");
        assert_eq!(
            inner.option_values("lowerdir").collect::<Vec<_>>(),
            ["/a:/b"]
        );
        assert_eq!(mounts.at(Path::new("/efi")), None);
        assert_eq!(
            mounts.of(Path::new("/efi")).unwrap().device.to_string(),
            "259:3"
        );
    }

    #[test]
    fn a_line_that_is_no_mount_is_an_error_with_its_number() {
        let text = "27 1 259:3 / / ro - ext4 /dev/root ro\nnonsense\n";
        assert!(Mounts::parse(text).unwrap_err().contains("line 2"));
    }
}
