//! What a written image is: facts gathered from its directory tree, without running anything of it.
//!
//! Every path is resolved by the kernel with the tree as its root (`RESOLVE_IN_ROOT`), so that no
//! symlink of a foreign image leads out of it.

mod tree;
mod unified;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use self::tree::Tree;
pub(crate) use self::unified::Unified;
use crate::error::Result;

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

/// Where slotd's script for U-Boot looks for a slot's kernel, in this order.
pub(crate) const FIXED_KERNELS: [&str; 2] = ["/boot/Image", "/boot/vmlinuz"];

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
    /// The first of [`FIXED_KERNELS`] that is a file with something in it: what a loader's script finds that knows no versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_kernel: Option<PathBuf>,
    /// The initrd that belongs to the kernel.
    pub initrd: Option<BootFile>,
    /// Its unified kernel image: kernel and initrd in one EFI program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unified: Option<BootFile>,
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

    /// Whether an EFI loader starts the unified image: kernel and initrd go before it where the image has both, but not a
    /// kernel alone, which is what the builder of a unified image leaves beside it.
    #[must_use]
    pub fn starts_unified(&self) -> bool {
        let Some(unified) = &self.unified else {
            return false;
        };
        match (&self.kernel, &self.initrd) {
            (Some(kernel), Some(_)) => kernel.path == unified.path,
            _ => true,
        }
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
    pub(crate) unified: Option<Unified>,
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
    let architecture = tree.architecture()?;
    let unified = tree.unified(architecture)?;
    let facts = ImageFacts {
        version,
        architecture,
        kernel,
        fixed_kernel: tree.fixed_kernel()?,
        initrd,
        unified: unified.as_ref().map(|unified| unified.found.clone()),
        cmdline: tree.cmdline()?,
        agent: tree.agent()?,
        os_release,
    };
    Ok(Collected {
        facts,
        kernel: kernel_file,
        initrd: initrd_file,
        unified,
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
