//! What artifacts are kept under: a digest of all that goes into them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::repository;
use crate::cross;

/// Digest of what goes into images: programs, units, recipe, the lab's own files, the root filesystem's name.
pub(super) fn key(binaries: &Path, installed: &Path, rootfs: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    hasher.update(rootfs.as_os_str().as_encoded_bytes());
    for name in cross::PROGRAMS {
        hash_tree(&installed.join(name), &mut hasher)?;
    }
    hash_tree(&binaries.join("slotd-mkimage"), &mut hasher)?;
    for folder in [
        "systemd",
        "image/recipe",
        "tests/guest",
        "tests/guest-arm64",
        "tests/src/images.rs",
        // What the Kubernetes flavour's images hold beside it.
        "tests/src/cluster/node_image.rs",
        "tests/control-plane/go.mod",
        "tests/control-plane/kubelet",
        "tests/control-plane/pause",
    ] {
        hash_tree(&repository().join(folder), &mut hasher)?;
    }
    Ok(hex(&hasher.finalize())[..16].to_owned())
}

fn hash_tree(path: &Path, hasher: &mut Sha256) -> Result<()> {
    let context = || format!("reading {}", path.display());
    hasher.update(path.as_os_str().as_encoded_bytes());
    let metadata = fs::symlink_metadata(path).with_context(context)?;
    if metadata.is_symlink() {
        hasher.update(
            fs::read_link(path)
                .with_context(context)?
                .as_os_str()
                .as_encoded_bytes(),
        );
    } else if metadata.is_dir() {
        let mut entries: Vec<PathBuf> = fs::read_dir(path)
            .with_context(context)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<std::io::Result<_>>()
            .with_context(context)?;
        entries.sort();
        for entry in entries {
            hash_tree(&entry, hasher)?;
        }
    } else {
        hasher.update(fs::read(path).with_context(context)?);
    }
    Ok(())
}

/// Removes what was built for other keys: a gigabyte each. What cannot be removed is left for the next time.
pub(super) fn forget_others(folder: &Path, key: &str) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if is_key(&name) && name != key {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a folder's name is such a digest.
pub(crate) fn is_key(name: &OsStr) -> bool {
    name.len() == 16
        && name
            .to_str()
            .is_some_and(|name| name.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// In hex, as checksums are written.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
