//! Where an environment block cannot lie: in a slot, or where GRUB cannot write.

use std::path::Path;

use crate::block::BlockDevices;
use crate::error::{Error, Result};
use crate::mounts::{Mount, Mounts};
use crate::slot::SlotName;
use crate::system::System;
use crate::table::SlotTable;

/// File systems that GRUB reads and cannot write, or that do not hold a file in blocks of their own.
const NOT_WRITTEN: [&str; 13] = [
    "btrfs", "bcachefs", "zfs", "overlay", "squashfs", "erofs", "iso9660", "udf", "tmpfs", "ramfs",
    "nfs", "nfs4", "9p",
];

/// Devices made of others, by how their names begin.
const MADE_OF_OTHERS: [&str; 3] = ["dm-", "md", "bcache"];

/// Why the block cannot be the file at a resolved path of the node, in words that follow its name. What cannot be told is
/// an error: a block inside of a slot would be written with nobody reading it.
pub(super) fn fault(system: &System, table: &SlotTable, path: &Path) -> Result<Option<String>> {
    let mounts = Mounts::read(system)?;
    let mount = mount_of(system, &mounts, path)?;
    if let Some(slot) = SlotName::BOTH
        .into_iter()
        .find(|slot| table.get(*slot).number == mount.device)
    {
        return Ok(Some(format!("lies in slot {slot}")));
    }
    // Whatever the running root is stacked of, it is the slot's.
    if let Some(slot) = table.booted.slot()
        && mounts
            .at(Path::new("/"))
            .is_some_and(|root| root.device == mount.device)
    {
        return Ok(Some(format!(
            "lies in the running root ({}), which is slot {slot}'s",
            mount.kind
        )));
    }
    written(system, mount)
}

/// Why GRUB cannot write to what the path lies on.
pub(super) fn not_written(system: &System, path: &Path) -> Result<Option<String>> {
    let mounts = Mounts::read(system)?;
    written(system, mount_of(system, &mounts, path)?)
}

fn mount_of<'a>(system: &System, mounts: &'a Mounts, path: &Path) -> Result<&'a Mount> {
    mounts.of(path).ok_or_else(|| {
        let problem = format!("no mount that {} lies on", path.display());
        Error::malformed(&system.proc("self/mountinfo"), problem)
    })
}

fn written(system: &System, mount: &Mount) -> Result<Option<String>> {
    if NOT_WRITTEN.contains(&&*mount.kind) {
        return Ok(Some(format!(
            "lies on {}, which GRUB cannot write to",
            mount.kind
        )));
    }
    // With `data=journal` even a file that is written in place goes to a journal first, which GRUB does not read.
    if mount.option_values("data").any(|mode| mode == "journal") {
        return Ok(Some(format!(
            "lies on {} mounted with data=journal, where GRUB does not see what was written last",
            mount.kind
        )));
    }
    // The kernel's number for a file system that is not directly on one device.
    if mount.device.major == 0 {
        return Ok(Some(format!(
            "lies on {}, which is on no partition of its own and GRUB cannot write to",
            mount.kind
        )));
    }
    let devices = BlockDevices::read(system)?;
    let made = devices.by_number(mount.device).filter(|device| {
        MADE_OF_OTHERS
            .iter()
            .any(|kind| device.name.starts_with(kind))
    });
    Ok(made.map(|device| {
        format!(
            "lies on {} (LVM, encryption or RAID), which GRUB cannot write to",
            device.name
        )
    }))
}
