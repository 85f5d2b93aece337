//! Finds the EFI system partition that the loader was started from.

use std::fs;
use std::path::{Path, PathBuf};

use super::esp::Esp;
use crate::discovery::Node;
use crate::efivar::LoaderVariables;
use crate::error::{Error, Result};
use crate::gpt::{TYPE_ESP, TYPE_XBOOTLDR};
use crate::mounts::{Mount, Mounts};
use crate::system::System;
use crate::table::{Partition, SlotTable};

/// Where an EFI system partition is mounted by custom.
const PLACES: [&str; 3] = ["/efi", "/boot/efi", "/boot"];

/// Where the EFI system partition is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EspSetting {
    /// `/efi`, `/boot/efi` or `/boot`, whichever is mounted from the partition that the loader was
    /// started from, or from the slots' disk.
    #[default]
    Auto,
    /// This directory.
    Path(PathBuf),
}

pub(crate) fn find(system: &System, table: &SlotTable, setting: &EspSetting) -> Result<Esp> {
    let (root, extended) = match setting {
        EspSetting::Path(path) => (path.clone(), None),
        EspSetting::Auto => mounted(system, table)?,
    };
    // A partition of the right type without the loader's folder belongs to another loader.
    if !root.join("loader").is_dir() {
        return Err(Error::NoLoader {
            problem: format!("{} has no folder `loader` of systemd-boot", root.display()),
        });
    }
    let fat = mount_of(system, &root).is_none_or(|mount| matches!(&*mount.kind, "vfat" | "msdos"));
    Ok(Esp {
        root,
        extended,
        fat,
    })
}

/// The partition's mount point, and that of an extended one.
fn mounted(system: &System, table: &SlotTable) -> Result<(PathBuf, Option<PathBuf>)> {
    for place in PLACES {
        // An automount shows its file system only once it is used; absence is no error.
        let _ = fs::read_dir(system.path(place));
    }
    let node = Node::read(system)?;
    let loader = LoaderVariables::read(system)?.device;
    let mut seen = Vec::new();
    let mut candidates = Vec::new();
    let mut extended = None;
    for place in PLACES {
        let Some(mount) = node.mounts.at(Path::new(place)) else {
            seen.push(format!("{place} is not a mount point"));
            continue;
        };
        let Some(device) = node.devices.by_number(mount.device) else {
            seen.push(format!("{place} is {} without a device", mount.kind));
            continue;
        };
        let partition = node.describe(device);
        let near = is_near(&partition, table);
        if partition.type_uuid == Some(TYPE_XBOOTLDR) && near {
            extended = Some(system.path(place));
        }
        let of_loader = loader.is_some() && partition.uuid == loader;
        if of_loader || (partition.type_uuid == Some(TYPE_ESP) && near) {
            candidates.push((!of_loader, system.path(place)));
        } else {
            seen.push(format!(
                "{place} is {}, not an EFI system partition on {}",
                partition.kernel_name, table.a.disk
            ));
        }
    }
    // The running system's loader says which partition it was started from: another one of the same
    // type would be changed to no effect. A rescue system has a loader of its own.
    if let Some(uuid) = loader.filter(|_| table.booted.slot().is_some()) {
        candidates.retain(|(foreign, _)| !foreign);
        seen.push(format!("the loader was started from partition {uuid}"));
    }
    // Stable: the loader's own partition first, else the order of the places.
    candidates.sort_by_key(|(foreign, _)| *foreign);
    match candidates.into_iter().next() {
        Some((_, root)) => Ok((root, extended)),
        None => Err(Error::NoLoader {
            problem: format!(
                "its EFI system partition is not mounted: {}",
                seen.join(", ")
            ),
        }),
    }
}

fn is_near(partition: &Partition, table: &SlotTable) -> bool {
    partition.disk == table.a.disk || partition.disk == table.b.disk
}

/// Whether the mount table has the partition read-only.
pub(crate) fn mounted_read_only(system: &System, root: &Path) -> bool {
    mount_of(system, root).is_some_and(|mount| mount.read_only)
}

/// The mount that a directory lies on; `None` where that cannot be told.
fn mount_of(system: &System, root: &Path) -> Option<Mount> {
    let relative = root.strip_prefix(system.path("/")).ok()?;
    let mounts = Mounts::read(system).ok()?;
    mounts.of(&Path::new("/").join(relative)).cloned()
}
