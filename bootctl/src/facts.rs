//! What a written image is: facts gathered from its directory tree, without running anything of it.
//!
//! Every path is resolved by the kernel with the tree as its root (`RESOLVE_IN_ROOT`), so that no
//! symlink of a foreign image leads out of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::version_compare;

/// Longest text file that is read from an image, in bytes.
const TEXT_LIMIT: u64 = 64 * 1024;

/// The machine that an image's programs run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Architecture {
    /// x86-64.
    X86_64,
    /// ARM64.
    Aarch64,
    /// Another one, by its ELF machine number.
    Other(u16),
    /// The image has no init program that says so.
    Unknown,
}

impl Architecture {
    /// Of the running program.
    #[must_use]
    pub fn running() -> Self {
        match std::env::consts::ARCH {
            "x86_64" => Self::X86_64,
            "aarch64" => Self::Aarch64,
            _ => Self::Unknown,
        }
    }
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::X86_64 => f.write_str("x86-64"),
            Self::Aarch64 => f.write_str("arm64"),
            Self::Other(machine) => write!(f, "ELF machine {machine}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// A kernel or initrd inside an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootFile {
    /// Its path in the image.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
}

/// What of slotd an image has, and whether it would confirm a trial boot by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentPresence {
    /// The program `slotd`.
    pub binary: bool,
    /// `slotd.service` is there, wanted by a target, and not masked.
    pub service: bool,
    /// `slotd-health.service` gates `boot-complete.target`.
    pub health_gate: bool,
    /// `slotd-confirm.service` is wanted by a target.
    pub confirm: bool,
    /// The generator that bounds a trial boot without a working slotd.
    pub generator: bool,
}

impl AgentPresence {
    /// Whether nothing is missing.
    #[must_use]
    pub fn can_confirm(self) -> bool {
        self.missing().is_empty()
    }

    /// What is missing, in words for a message.
    #[must_use]
    pub fn missing(self) -> Vec<&'static str> {
        [
            (self.binary, "the program slotd"),
            (self.service, "an enabled slotd.service"),
            (
                self.health_gate,
                "slotd-health.service required by boot-complete.target",
            ),
            (self.confirm, "an enabled slotd-confirm.service"),
            (self.generator, "slotd-boot-generator"),
        ]
        .into_iter()
        .filter_map(|(present, what)| (!present).then_some(what))
        .collect()
    }
}

/// Facts about an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageFacts {
    /// All of its os-release.
    pub os_release: BTreeMap<String, String>,
    /// The value of the version key in it; see [`ImageFacts::version_id`] for the last resort.
    pub version: Option<String>,
    /// What its programs run on.
    pub architecture: Architecture,
    /// The kernel that would be started.
    pub kernel: Option<BootFile>,
    /// The initrd that belongs to the kernel.
    pub initrd: Option<BootFile>,
    /// `/usr/lib/kernel/cmdline` (or `/etc/kernel/cmdline`), in one line.
    pub cmdline: Option<String>,
    /// What of slotd it has.
    pub agent: AgentPresence,
}

impl ImageFacts {
    /// `VERSION_ID`, for where neither the version key nor a record says more.
    #[must_use]
    pub fn version_id(&self) -> Option<&str> {
        self.os_release.get("VERSION_ID").map(String::as_str)
    }

    /// The name for people, for the boot menu.
    #[must_use]
    pub fn pretty_name(&self) -> Option<&str> {
        self.os_release
            .get("PRETTY_NAME")
            .or_else(|| self.os_release.get("NAME"))
            .map(String::as_str)
    }
}

/// How to look into an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectSettings {
    /// The os-release key that holds the version.
    pub version_key: String,
}

impl Default for InspectSettings {
    fn default() -> Self {
        Self {
            version_key: "IMAGE_VERSION".to_owned(),
        }
    }
}

/// Facts, and the boot files opened for reading.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) facts: ImageFacts,
    pub(crate) kernel: Option<File>,
    pub(crate) initrd: Option<File>,
}

/// Gathers the facts of the image whose root directory is `root`.
pub(crate) fn collect(root: &Path, settings: &InspectSettings) -> Result<Collected> {
    let tree = Tree::open(root)?;
    let os_release = tree.os_release()?;
    let version = os_release
        .get(&settings.version_key)
        .filter(|text| !text.is_empty())
        .cloned();
    let (kernel, initrd) = tree.boot_files()?;
    let (kernel, kernel_file) = kernel.unzip();
    let (initrd, initrd_file) = initrd.unzip();
    let facts = ImageFacts {
        version,
        architecture: tree.architecture()?,
        kernel,
        initrd,
        cmdline: tree.cmdline()?,
        agent: tree.agent()?,
        os_release,
    };
    Ok(Collected {
        facts,
        kernel: kernel_file,
        initrd: initrd_file,
    })
}

/// Parses os-release: shell assignments with optional quotes.
#[must_use]
pub fn parse_os_release(text: &str) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('#') {
            continue;
        }
        if let Some((key, value)) = line.split_once('=') {
            values.insert(key.trim().to_owned(), unquote(value.trim()));
        }
    }
    values
}

fn unquote(value: &str) -> String {
    let inner = ['"', '\''].into_iter().find_map(|quote| {
        value
            .strip_prefix(quote)?
            .strip_suffix(quote)
            .map(|v| (quote, v))
    });
    match inner {
        Some(('\'', text)) => text.to_owned(),
        Some((_, text)) => unescape(text),
        None => unescape(value),
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\\' {
            out.extend(chars.next());
        } else {
            out.push(c);
        }
    }
    out
}

/// The open root directory of an image.
struct Tree {
    root: OwnedFd,
    path: PathBuf,
}

type Opened = (BootFile, File);

impl Tree {
    fn open(path: &Path) -> Result<Self> {
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
        match openat2(self.root.as_fd(), relative, how) {
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

    fn boot_file(&self, inside: String) -> Result<Option<Opened>> {
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
    fn names(&self, inside: &str) -> Result<Vec<OsString>> {
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

    fn os_release(&self) -> Result<BTreeMap<String, String>> {
        for place in ["etc/os-release", "usr/lib/os-release"] {
            if let Some(text) = self.text(place)? {
                return Ok(parse_os_release(&text));
            }
        }
        Ok(BTreeMap::new())
    }

    fn architecture(&self) -> Result<Architecture> {
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
    fn boot_files(&self) -> Result<(Option<Opened>, Option<Opened>)> {
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

    fn cmdline(&self) -> Result<Option<String>> {
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

    fn agent(&self) -> Result<AgentPresence> {
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
