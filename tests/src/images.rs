//! The images that scenarios install: one root filesystem, each with a few files of its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};

use crate::process;

/// A file, or a link where it begins with `->`, of a variant's overlay, or its unified kernel image ([`UNIFIED`]).
type Entry = (&'static str, &'static str);

/// What an image is beside slotd's own part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flavour {
    /// The reference system alone.
    Plain,
    /// A node of a Kubernetes cluster: with containerd, and a kubelet that has the image's version.
    Kubernetes,
}

impl Flavour {
    /// Its name among the recipe's flavours, where it is one of them.
    pub const fn recipe(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Kubernetes => Some("kubernetes"),
        }
    }

    /// Size of a slot, as slotd-mkimage reads it.
    pub const fn slot_size(self) -> &'static str {
        match self {
            Self::Plain => "512MiB",
            Self::Kubernetes => "768MiB",
        }
    }

    /// How many processors a machine needs that runs it, where it matters.
    pub const fn processors(self) -> Option<u32> {
        match self {
            Self::Plain => None,
            // Of two nodes one works while the other waits.
            Self::Kubernetes => Some(2),
        }
    }

    /// Memory of a machine that runs it, in MiB.
    pub const fn memory(self) -> u32 {
        match self {
            Self::Plain => 512,
            Self::Kubernetes => 896,
        }
    }
}

/// A kind of image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    name: &'static str,
    version: &'static str,
    flavour: Flavour,
    files: &'static [Entry],
}

/// What the reference disk runs at first.
pub const V1: Variant = Variant {
    name: "v1",
    version: "v1.0.0",
    flavour: Flavour::Plain,
    files: &[],
};

/// A good image, though a check that is only wanted fails in it.
pub const V2: Variant = Variant {
    name: "v2",
    version: "v2.0.0",
    flavour: Flavour::Plain,
    files: &[
        (
            "usr/lib/slotd/health/required.d/10-app",
            "#!/bin/sh\nexec systemctl is-active --quiet basic.target\n",
        ),
        (
            "usr/lib/slotd/health/wanted.d/10-cache",
            "#!/bin/sh\necho 'cache is cold'\nexit 1\n",
        ),
    ],
};

/// In the place of a file's text: kernel, systemd's stub and os-release in one EFI program, without a command line of its own.
const UNIFIED: &str = "=unified kernel image";

/// A good image whose kernel is in a unified kernel image.
pub const WITH_UNIFIED_KERNEL: Variant = Variant {
    name: "unified",
    version: "v2.1.0",
    flavour: Flavour::Plain,
    files: &[("boot/EFI/Linux/reference.efi", UNIFIED)],
};

/// Another good image.
pub const V3: Variant = Variant {
    name: "v3",
    version: "v3.0.0",
    flavour: Flavour::Plain,
    files: &[],
};

/// Its own health check says no.
pub const UNHEALTHY: Variant = Variant {
    name: "unhealthy",
    version: "v3.0.0-unhealthy",
    flavour: Flavour::Plain,
    files: &[(
        "usr/lib/slotd/health/required.d/50-app",
        "#!/bin/sh\necho 'app does not answer on port 8080'\nexit 1\n",
    )],
};

/// While it is tried the other slot is lost, and then its own health check says no.
pub const ALONE: Variant = Variant {
    name: "alone",
    version: "v3.0.0-alone",
    flavour: Flavour::Plain,
    files: &[(
        "usr/lib/slotd/health/required.d/50-app",
        "#!/bin/sh\ncd /efi/loader/entries && mv slotd-a.conf slotd-a+0-3.conf && sync\necho 'app does not answer'\nexit 1\n",
    )],
};

/// The first program of its userspace ends, at which the kernel panics.
pub const PANICS: Variant = Variant {
    name: "panics",
    version: "v3.0.0-panics",
    flavour: Flavour::Plain,
    files: &[("usr/sbin/init", "#!/bin/sh\necho '@@INIT leaves'\nexit 1\n")],
};

/// Its slotd does not start.
pub const NO_AGENT: Variant = Variant {
    name: "no-agent",
    version: "v3.0.0-no-agent",
    flavour: Flavour::Plain,
    files: &[(
        "usr/bin/slotd",
        "#!/bin/sh\necho 'slotd: broken in this image' >&2\nexit 1\n",
    )],
};

/// A unit before sysinit.target never finishes starting.
pub const STUCK: Variant = Variant {
    name: "stuck",
    version: "v3.0.0-stuck",
    flavour: Flavour::Plain,
    files: &[
        (
            "etc/systemd/system/stuck.service",
            "[Unit]\nDescription=Never finishes starting\nDefaultDependencies=no\nBefore=sysinit.target\n\
             \n[Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=/bin/sh -c 'echo @@STUCK >/dev/ttyS0; exec sleep infinity'\n",
        ),
        (
            "etc/systemd/system/sysinit.target.requires/stuck.service",
            "->../stuck.service",
        ),
    ],
};

/// What nodes of a cluster run at first.
pub const NODE_OLD: Variant = Variant {
    name: "node-old",
    version: "v1.35.1",
    flavour: Flavour::Kubernetes,
    files: &[],
};

/// What they are moved to.
pub const NODE_NEW: Variant = Variant {
    name: "node-new",
    version: "v1.35.3",
    flavour: Flavour::Kubernetes,
    files: &[],
};

/// Its kubelet does not start.
pub const NODE_WITHOUT_KUBELET: Variant = Variant {
    name: "node-without-kubelet",
    version: "v1.35.4",
    flavour: Flavour::Kubernetes,
    files: &[(
        "usr/bin/kubelet",
        "#!/bin/sh\necho 'kubelet: broken in this image' >&2\nexit 1\n",
    )],
};

impl Variant {
    /// A name for files.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// IMAGE_VERSION.
    pub const fn version(&self) -> &'static str {
        self.version
    }

    /// What it is beside slotd's own part.
    pub const fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Writes the variant's own files to a folder; the kernel of a unified image comes from the root file system in `tree`.
    pub fn write_overlay(&self, folder: &Path, tree: Option<&Path>) -> Result<()> {
        for (path, text) in self.files {
            let target = folder.join(path);
            let context = || format!("writing {}", target.display());
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent).with_context(context)?;
            }
            if let Some(link) = text.strip_prefix("->") {
                symlink(link, &target).with_context(context)?;
                continue;
            }
            if *text == UNIFIED {
                unified_kernel(tree.context("a folder with the root file system")?, &target)?;
                continue;
            }
            fs::write(&target, text).with_context(context)?;
            let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
            fs::set_permissions(&target, fs::Permissions::from_mode(mode)).with_context(context)?;
        }
        Ok(())
    }
}

/// Makes a unified kernel image as systemd-stub(7) of systemd 252 describes it, with objcopy.
fn unified_kernel(tree: &Path, target: &Path) -> Result<()> {
    const STUB: &str = "usr/lib/systemd/boot/efi/linuxx64.efi.stub";
    let boot = tree.join("boot");
    let kernel = fs::read_dir(&boot)
        .with_context(|| format!("listing {}", boot.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        })
        .with_context(|| format!("{} holds no kernel", boot.display()))?;
    let sections = [
        (".osrel", tree.join("usr/lib/os-release"), "0x20000"),
        (".linux", kernel, "0x2000000"),
    ];
    process::run("objcopy", |command| {
        for (name, file, address) in &sections {
            command
                .arg("--add-section")
                .arg(format!("{name}={}", file.display()))
                .arg("--change-section-vma")
                .arg(format!("{name}={address}"));
        }
        command.arg(tree.join(STUB)).arg(target)
    })
}
