//! Block devices: which one a node is, how large, and the protection of eMMC boot partitions.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::block::{BlockDevice, BlockDevices};
use crate::error::{Error, Result};
use crate::slot::DeviceNumber;
use crate::system::System;

/// Clears `force_ro` of an eMMC boot partition while `change` runs, and puts back what was there. A crash in the
/// middle leaves it writable until the next boot.
pub(super) fn with_writing_allowed(
    force_ro: Option<&Path>,
    change: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Some(file) = force_ro else {
        return change();
    };
    let before = fs::read_to_string(file).map_err(Error::io("read", file))?;
    if before.trim() == "0" {
        return change();
    }
    fs::write(file, "0").map_err(Error::io("allow writing in", file))?;
    let changed = change();
    let restored = fs::write(file, before.trim()).map_err(Error::io("protect again in", file));
    changed.and(restored)
}

/// The device behind a node, as sysfs shows it.
pub(super) fn device_of(
    system: &System,
    node: &Path,
    metadata: &fs::Metadata,
) -> Result<BlockDevice> {
    let devices = BlockDevices::read(system)?;
    let found = if metadata.file_type().is_block_device() {
        devices.by_number(DeviceNumber::from_rdev(metadata.rdev()))
    } else {
        let real = fs::canonicalize(node).map_err(Error::io("resolve", node))?;
        let name = real.file_name().and_then(|name| name.to_str());
        name.and_then(|name| devices.by_name(name))
    };
    found
        .cloned()
        .ok_or_else(|| Error::malformed(&system.absolute(node), "sysfs knows no such block device"))
}

/// Bytes of a block device or a file that stands for one.
pub(super) fn size_of(node: &Path, shown: &Path) -> Result<u64> {
    let mut device = File::open(node).map_err(Error::io("open", shown))?;
    device
        .seek(SeekFrom::End(0))
        .map_err(Error::io("measure", shown))
}
