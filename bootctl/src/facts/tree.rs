//! The directory tree of an image, read with the tree as the root of every path.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use super::{AgentPresence, Architecture, BootFile, FIXED_KERNELS, parse_os_release};
use crate::error::{Error, Result};
use crate::model::version_compare;

/// Longest text file that is read from an image, in bytes.
const TEXT_LIMIT: u64 = 64 * 1024;

/// How often a path is followed anew when the machine changed under it. Each time takes microseconds.
const AGAIN: u32 = 10_000;

/// The open root directory of an image.
pub(super) struct Tree {
    root: OwnedFd,
    path: PathBuf,
}

pub(super) type Opened = (BootFile, File);

impl Tree {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let root = File::open(path).map_err(Error::io("open", path))?.into();
        Ok(Self {
            root,
            path: path.to_owned(),
        })
    }

    /// Opens a path inside the tree; `None` where it is not there or leads nowhere.
    fn open_at(&self, inside: &str, flags: OFlag) -> Result<Option<File>> {
        let relative = inside.trim_start_matches('/');
        let relative = if relative.is_empty() { "." } else { relative };
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .mode(Mode::empty())
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        // "Again" where something anywhere on the machine was renamed or mounted while `..` of a symlink was followed: the
        // kernel cannot tell then that the path stayed inside (openat2(2)).
        let mut opened = openat2(self.root.as_fd(), relative, how);
        for _ in 0..AGAIN {
            if opened.as_ref().err() != Some(&Errno::EAGAIN) {
                break;
            }
            thread::yield_now();
            opened = openat2(self.root.as_fd(), relative, how);
        }
        match opened {
            Ok(fd) => Ok(Some(fd.into())),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENXIO) => Ok(None),
            Err(errno) => Err(Error::sys("open", self.path.join(relative))(errno)),
        }
    }

    /// Opens a regular file inside the tree.
    fn file(&self, inside: &str) -> Result<Option<File>> {
        let Some(probe) = self.open_at(inside, OFlag::O_PATH)? else {
            return Ok(None);
        };
        let meta = probe
            .metadata()
            .map_err(Error::io("stat", self.path.join(inside)))?;
        // Devices and pipes of a foreign image are only recognised, never opened.
        if !meta.is_file() {
            return Ok(None);
        }
        self.open_at(inside, OFlag::O_RDONLY)
    }

    pub(super) fn boot_file(&self, inside: String) -> Result<Option<Opened>> {
        let Some(file) = self.file(&inside)? else {
            return Ok(None);
        };
        let size = file
            .metadata()
            .map_err(Error::io("stat", self.path.join(&inside)))?
            .len();
        Ok((size > 0).then(|| {
            (
                BootFile {
                    path: PathBuf::from(inside),
                    size,
                },
                file,
            )
        }))
    }

    fn text(&self, inside: &str) -> Result<Option<String>> {
        let Some(file) = self.file(inside)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.take(TEXT_LIMIT)
            .read_to_end(&mut bytes)
            .map_err(Error::io("read", self.path.join(inside)))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Names in a directory of the tree, sorted; empty where there is none.
    pub(super) fn names(&self, inside: &str) -> Result<Vec<OsString>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let Some(file) = self.open_at(inside, flags)? else {
            return Ok(Vec::new());
        };
        let place = self.path.join(inside);
        let mut dir = Dir::from_fd(file.into()).map_err(Error::sys("list", &place))?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(Error::sys("list", &place))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        names.sort();
        Ok(names)
    }

    pub(super) fn os_release(&self) -> Result<BTreeMap<String, String>> {
        for place in ["etc/os-release", "usr/lib/os-release"] {
            if let Some(text) = self.text(place)? {
                return Ok(parse_os_release(&text));
            }
        }
        Ok(BTreeMap::new())
    }

    pub(super) fn architecture(&self) -> Result<Architecture> {
        for place in ["sbin/init", "usr/sbin/init", "usr/lib/systemd/systemd"] {
            let Some(mut file) = self.file(place)? else {
                continue;
            };
            let mut header = [0_u8; 20];
            if file.read_exact(&mut header).is_ok() && header.starts_with(b"\x7fELF") {
                // e_machine is at 18; EI_DATA at 5 says 2 for big-endian.
                let bytes = [header[18], header[19]];
                let machine = if header[5] == 2 {
                    u16::from_be_bytes(bytes)
                } else {
                    u16::from_le_bytes(bytes)
                };
                return Ok(match machine {
                    62 => Architecture::X86_64,
                    183 => Architecture::Aarch64,
                    other => Architecture::Other(other),
                });
            }
        }
        Ok(Architecture::Unknown)
    }

    /// The newest kernel and the initrd of its version.
    pub(super) fn boot_files(&self) -> Result<(Option<Opened>, Option<Opened>)> {
        let mut found: Option<(String, Opened)> = None;
        let mut offer = |version: String, opened: Option<Opened>| {
            let Some(opened) = opened else { return };
            let newer = found
                .as_ref()
                .is_none_or(|(best, _)| version_compare(&version, best).is_gt());
            if newer {
                found = Some((version, opened));
            }
        };
        for version in self.names("usr/lib/modules")? {
            let Ok(version) = version.into_string() else {
                continue;
            };
            let opened = self.boot_file(format!("/usr/lib/modules/{version}/vmlinuz"))?;
            offer(version, opened);
        }
        for name in self.names("boot")? {
            let Ok(name) = name.into_string() else {
                continue;
            };
            if let Some(version) = name.strip_prefix("vmlinuz-") {
                let opened = self.boot_file(format!("/boot/{name}"))?;
                offer(version.to_owned(), opened);
            }
        }
        let Some((version, kernel)) = found else {
            return Ok((None, None));
        };
        for place in [
            format!("/usr/lib/modules/{version}/initrd"),
            format!("/usr/lib/modules/{version}/initrd.img"),
            format!("/usr/lib/modules/{version}/initramfs.img"),
            format!("/boot/initrd.img-{version}"),
            format!("/boot/initramfs-{version}.img"),
            format!("/boot/initrd-{version}"),
        ] {
            if let Some(initrd) = self.boot_file(place)? {
                return Ok((Some(kernel), Some(initrd)));
            }
        }
        Ok((Some(kernel), None))
    }

    /// The first kernel that has a fixed name. Symlinks are followed, as U-Boot does, and none leads out.
    pub(super) fn fixed_kernel(&self) -> Result<Option<PathBuf>> {
        for place in FIXED_KERNELS {
            if self.boot_file(place.to_owned())?.is_some() {
                return Ok(Some(PathBuf::from(place)));
            }
        }
        Ok(None)
    }

    pub(super) fn cmdline(&self) -> Result<Option<String>> {
        // As kernel-install: the machine's own in /etc wins, but here /etc is the image's too.
        for place in ["etc/kernel/cmdline", "usr/lib/kernel/cmdline"] {
            if let Some(text) = self.text(place)? {
                let words: Vec<&str> = text
                    .lines()
                    .filter(|line| !line.trim_start().starts_with('#'))
                    .flat_map(str::split_whitespace)
                    .collect();
                return Ok(Some(words.join(" ")));
            }
        }
        Ok(None)
    }

    pub(super) fn agent(&self) -> Result<AgentPresence> {
        let mut binary = false;
        for place in [
            "usr/bin/slotd",
            "usr/sbin/slotd",
            "usr/local/bin/slotd",
            "usr/lib/slotd/slotd",
        ] {
            binary |= self.executable(place)?;
        }
        let mut generator = false;
        for place in [
            "usr/lib/systemd/system-generators",
            "etc/systemd/system-generators",
        ] {
            generator |= self.executable(&format!("{place}/slotd-boot-generator"))?;
        }
        Ok(AgentPresence {
            binary,
            service: self.enabled("slotd.service", |_| true)?,
            health_gate: self.enabled("slotd-health.service", |target| {
                target == "boot-complete.target.requires"
            })?,
            confirm: self.enabled("slotd-confirm.service", |_| true)?,
            generator,
        })
    }

    fn executable(&self, inside: &str) -> Result<bool> {
        let Some(file) = self.file(inside)? else {
            return Ok(false);
        };
        let meta = file
            .metadata()
            .map_err(Error::io("stat", self.path.join(inside)))?;
        Ok(meta.permissions().mode() & 0o111 != 0)
    }

    /// Whether a unit is pulled in by a target that `by` accepts, and not masked.
    fn enabled(&self, unit: &str, by: impl Fn(&str) -> bool) -> Result<bool> {
        const PLACES: [&str; 2] = ["etc/systemd/system", "usr/lib/systemd/system"];
        // The first place that has the unit decides: a link to /dev/null there masks it.
        let mut present = false;
        for place in PLACES {
            let path = format!("{place}/{unit}");
            if self.file(&path)?.is_some() {
                present = true;
                break;
            }
            let how = OFlag::O_PATH | OFlag::O_NOFOLLOW;
            if self.open_at(&path, how)?.is_some() {
                return Ok(false);
            }
        }
        if !present {
            return Ok(false);
        }
        for place in PLACES {
            for name in self.names(place)? {
                let Some(name) = name.to_str() else { continue };
                let pulls = name.ends_with(".wants") || name.ends_with(".requires");
                if pulls && by(name) && self.file(&format!("{place}/{name}/{unit}"))?.is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use nix::fcntl::OFlag;

    use super::Tree;

    #[test]
    fn a_kernel_with_a_fixed_name_is_a_file_of_the_image() {
        let image = tempfile::tempdir().unwrap();
        let boot = image.path().join("boot");
        fs::create_dir(&boot).unwrap();
        let found = || {
            let found = Tree::open(image.path()).unwrap().fixed_kernel().unwrap();
            found.map(|path| path.to_str().unwrap().to_owned())
        };
        fs::write(boot.join("vmlinuz-6.1"), "kernel").unwrap();
        assert_eq!(found(), None);
        // A link of the machine's, an empty file and a directory are none; a link of the image's is one.
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::write(outside.path(), "kernel").unwrap();
        symlink(outside.path(), boot.join("vmlinuz")).unwrap();
        fs::write(boot.join("Image"), "").unwrap();
        assert_eq!(found(), None);
        fs::remove_file(boot.join("Image")).unwrap();
        fs::create_dir(boot.join("Image")).unwrap();
        fs::remove_file(boot.join("vmlinuz")).unwrap();
        symlink("/boot/vmlinuz-6.1", boot.join("vmlinuz")).unwrap();
        assert_eq!(found().as_deref(), Some("/boot/vmlinuz"));
        fs::remove_dir(boot.join("Image")).unwrap();
        fs::write(boot.join("Image"), "kernel").unwrap();
        assert_eq!(found().as_deref(), Some("/boot/Image"));
    }

    #[test]
    fn a_symlink_is_followed_while_others_rename_their_files() {
        let image = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::create_dir_all(image.path().join("usr/lib")).unwrap();
        fs::create_dir(image.path().join("etc")).unwrap();
        fs::write(image.path().join("usr/lib/os-release"), "ID=x\n").unwrap();
        symlink("../usr/lib/os-release", image.path().join("etc/os-release")).unwrap();
        let [one, other] = ["one", "other"].map(|name| elsewhere.path().join(name));
        fs::write(&one, "").unwrap();
        let tree = Tree::open(image.path()).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    fs::rename(&one, &other).unwrap();
                    fs::rename(&other, &one).unwrap();
                }
            });
            let failed =
                (0..50_000).find_map(|_| tree.open_at("etc/os-release", OFlag::O_PATH).err());
            done.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }
}
