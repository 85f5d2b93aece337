//! Finds the EFI system partition that the loader was started from, and the extended one beside it.

use std::fs;
use std::path::{Path, PathBuf};

use super::esp::Esp;
use super::extended::{self, Extended};
use crate::discovery::Node;
use crate::efivar::LoaderVariables;
use crate::error::{Error, Result};
use crate::gpt::{TYPE_ESP, TYPE_XBOOTLDR};
use crate::mounts::{Mount, Mounts};
use crate::system::System;
use crate::table::{Partition, SlotTable};

/// Where an EFI system partition is mounted by custom.
pub(crate) const PLACES: [&str; 3] = ["/efi", "/boot/efi", "/boot"];

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
    for place in PLACES {
        // An automount shows its file system only once it is used; absence is no error.
        let _ = fs::read_dir(system.path(place));
    }
    let node = Node::read(system)?;
    let (loader, partition) = match setting {
        EspSetting::Path(path) => (path.clone(), named(system, &node, path)?),
        EspSetting::Auto => {
            let (path, partition) = mounted(system, &node, table)?;
            (path, Some(partition))
        }
    };
    // A partition of the right type without the loader's folder belongs to another loader.
    if !loader.join("loader").is_dir() {
        return Err(Error::NoLoader {
            problem: format!(
                "{} has no folder `loader` of systemd-boot",
                loader.display()
            ),
        });
    }
    let (root, other, unseen) = match extended::find(system, &node, partition.as_ref()) {
        Extended::None => (loader.clone(), None, None),
        Extended::NotMounted(name) => (loader.clone(), None, Some(name)),
        Extended::Mounted(place) => match extended::has_slots(&loader)? {
            true => (loader.clone(), Some(place), None),
            false => (place, Some(loader.clone()), None),
        },
    };
    let fat = mount_of(system, &root).is_none_or(|mount| is_fat(&mount));
    Ok(Esp {
        root,
        loader,
        other,
        unseen,
        fat,
    })
}

/// The partition at a place that the configuration names, where that can be told.
fn named(system: &System, node: &Node, path: &Path) -> Result<Option<Partition>> {
    let mount = node.mounts.at(&system.absolute(path));
    let device = mount.and_then(|mount| node.devices.by_number(mount.device));
    let partition = device.map(|device| node.describe(device));
    match partition {
        Some(partition) if partition.type_uuid == Some(TYPE_XBOOTLDR) => Err(Error::NoLoader {
            problem: format!(
                "{} is {}, an extended boot loader partition: name the EFI system partition, the \
                 extended one is found beside it",
                path.display(),
                partition.kernel_name
            ),
        }),
        partition => Ok(partition.filter(|found| found.type_uuid == Some(TYPE_ESP))),
    }
}

/// The partition and its mount point.
fn mounted(system: &System, node: &Node, table: &SlotTable) -> Result<(PathBuf, Partition)> {
    let loader = LoaderVariables::read(system)?.device;
    let mut seen = Vec::new();
    let mut candidates = Vec::new();
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
        let of_loader = loader.is_some() && partition.uuid == loader;
        if of_loader || (partition.type_uuid == Some(TYPE_ESP) && near) {
            candidates.push((system.path(place), partition, of_loader, near));
        } else {
            seen.push(format!(
                "{place} is {}, not an EFI system partition on {}",
                partition.kernel_name, table.a.disk
            ));
        }
    }
    match loader.filter(|_| table.booted.slot().is_some()) {
        // The running system's loader says which partition it was started from: another one of the same type would be
        // changed to no effect. A clone of the disk has a partition of the same id.
        Some(uuid) => {
            seen.push(format!("the loader was started from partition {uuid}"));
            candidates.retain(|(_, _, of_loader, _)| *of_loader);
            let twice = node
                .partitions()
                .filter(|found| found.uuid == loader)
                .count()
                > 1;
            if twice {
                seen.push("which is there more than once".to_owned());
                candidates.retain(|(_, _, _, near)| *near);
            }
        }
        // A rescue system was started by a loader of its own, which may lie anywhere.
        None => candidates.retain(|(_, _, _, near)| *near),
    }
    let mut candidates = candidates.into_iter();
    let Some((root, partition, ..)) = candidates.next() else {
        return Err(Error::NoLoader {
            problem: format!(
                "its EFI system partition is not mounted: {}",
                seen.join(", ")
            ),
        });
    };
    // The same one may be mounted at two places.
    let others: Vec<String> = candidates
        .filter(|(_, other, ..)| other.number != partition.number)
        .map(|(place, other, ..)| format!("{} ({})", place.display(), other.kernel_name))
        .collect();
    if others.is_empty() {
        return Ok((root, partition));
    }
    Err(Error::NoLoader {
        problem: format!(
            "more than one EFI system partition could be meant, and the loader does not say which: {} ({}), {}; set \
             the boot partition in the configuration",
            root.display(),
            partition.kernel_name,
            others.join(", ")
        ),
    })
}

fn is_near(partition: &Partition, table: &SlotTable) -> bool {
    partition.disk == table.a.disk || partition.disk == table.b.disk
}

/// Whether the mount table has the partition read-only.
pub(crate) fn mounted_read_only(system: &System, root: &Path) -> bool {
    mount_of(system, root).is_some_and(|mount| mount.read_only)
}

/// What a directory lies on, if that is known not to be FAT, which is all that firmware can read.
pub(crate) fn not_fat(system: &System, root: &Path) -> Option<String> {
    let mount = mount_of(system, root).filter(|mount| !is_fat(mount))?;
    let place = system.absolute(root);
    Some(if mount.point == place {
        format!("{} is {}", place.display(), mount.kind)
    } else {
        format!(
            "nothing is mounted at {}, it is a directory of {} ({})",
            place.display(),
            mount.point.display(),
            mount.kind
        )
    })
}

fn is_fat(mount: &Mount) -> bool {
    matches!(&*mount.kind, "vfat" | "msdos")
}

/// The mount that a directory lies on; `None` where that cannot be told.
fn mount_of(system: &System, root: &Path) -> Option<Mount> {
    let relative = root.strip_prefix(system.path("/")).ok()?;
    let mounts = Mounts::read(system).ok()?;
    mounts.of(&Path::new("/").join(relative)).cloned()
}
