//! What partitions and mounts there are: sysfs says which devices exist, the partition table what they are called. Labels
//! and UUIDs come from the table because not every kernel has them in sysfs, and partitions added by hand (`partx`) have
//! none there at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::block::{BlockDevice, BlockDevices};
use crate::error::{Error, Result};
use crate::gpt::{self, GptEntry};
use crate::mounts::{Mount, Mounts};
use crate::slot::DeviceNumber;
use crate::system::System;
use crate::table::Partition;

/// Overlays on overlays are followed this deep.
const OVERLAY_DEPTH: u32 = 8;

/// What the running root stands on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Root {
    /// Every device under it, through overlayfs, device-mapper and loop devices.
    pub(crate) devices: BTreeSet<DeviceNumber>,
    /// The disks of these devices.
    pub(crate) disks: BTreeSet<String>,
    /// Layers whose device could not be found.
    pub(crate) unresolved: Vec<String>,
    /// What was read, for messages.
    pub(crate) found: String,
}

/// The node's block devices, mounts and partition tables.
#[derive(Debug)]
pub(crate) struct Node {
    system: System,
    pub(crate) devices: BlockDevices,
    pub(crate) mounts: Mounts,
    /// Partitions by disk; the error as text where a disk has no readable table.
    pub(super) tables: BTreeMap<String, Result<Vec<Partition>, String>>,
}

impl Node {
    pub(crate) fn read(system: &System) -> Result<Self> {
        let devices = BlockDevices::read(system)?;
        let mounts = Mounts::read(system)?;
        let mut tables = BTreeMap::new();
        for disk in devices.partitioned_disks() {
            let partitions = read_table(system, &devices, disk).map_err(|error| error.chain());
            tables.insert(disk.to_owned(), partitions);
        }
        Ok(Self {
            system: system.clone(),
            devices,
            mounts,
            tables,
        })
    }

    /// Partitions of every readable table.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = &Partition> {
        self.tables.values().flatten().flatten()
    }

    /// The partition with this device number, or the device itself where it is none.
    pub(crate) fn describe(&self, device: &BlockDevice) -> Partition {
        let known = self
            .partitions()
            .find(|partition| partition.number == device.number);
        known.cloned().unwrap_or_else(|| bare(&self.system, device))
    }

    /// The block device behind a node or a symlink to one.
    pub(crate) fn resolve(&self, node: &Path) -> Result<Option<&BlockDevice>> {
        let path = self.system.path(node);
        let real = match fs::canonicalize(&path) {
            Ok(real) => real,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("resolve", node)(error)),
        };
        let meta = fs::metadata(&real).map_err(Error::io("stat", &real))?;
        if meta.file_type().is_block_device() {
            return Ok(self.devices.by_number(DeviceNumber::from_rdev(meta.rdev())));
        }
        if !self.system.is_fixture() {
            return Ok(None);
        }
        let dev =
            fs::canonicalize(self.system.path("/dev")).map_err(Error::io("resolve", "/dev"))?;
        let name = real.strip_prefix(dev).ok().and_then(Path::to_str);
        Ok(name.and_then(|name| self.devices.by_name(&name.replace('/', "!"))))
    }

    /// What the running root, and `/usr` where it is mounted apart, stand on.
    pub(crate) fn root(&self) -> Result<Root> {
        let mut root = Root::default();
        let mut found = Vec::new();
        for point in ["/", "/usr"] {
            if let Some(mount) = self.mounts.at(Path::new(point)) {
                found.push(format!("{point} is {} on {}", mount.kind, mount.source));
                self.follow(mount, OVERLAY_DEPTH, &mut root)?;
            }
        }
        for number in &root.devices {
            if let Some(device) = self.devices.by_number(*number) {
                found.push(format!("{} is {number}", device.name));
                if device.partition.is_some() || self.tables.contains_key(&device.disk) {
                    root.disks.insert(device.disk.clone());
                }
            }
        }
        root.found = found.join(", ");
        Ok(root)
    }

    fn follow(&self, mount: &Mount, depth: u32, root: &mut Root) -> Result<()> {
        if mount.kind == "overlay" {
            let mut layers: Vec<&str> = Vec::new();
            for key in ["lowerdir", "lowerdir+", "datadir+", "upperdir"] {
                layers.extend(mount.option_values(key).flat_map(|value| value.split(':')));
            }
            for layer in layers.into_iter().filter(|layer| !layer.is_empty()) {
                match self.mounts.of(Path::new(layer)) {
                    Some(below) if below != mount && depth > 0 => {
                        self.follow(below, depth.saturating_sub(1), root)?;
                    }
                    // The layer's own mount was left behind with the initrd.
                    _ => root.unresolved.push(layer.to_owned()),
                }
            }
            return Ok(());
        }
        // btrfs and the like have an anonymous device number, but name their device.
        let device = match self.devices.by_number(mount.device) {
            Some(device) => Some(device),
            None if mount.source.starts_with("/dev/") => self.resolve(Path::new(&mount.source))?,
            None => None,
        };
        match device {
            Some(device) => {
                root.devices
                    .extend(self.devices.foundations(device.number, &self.mounts));
            }
            None if mount.source.starts_with("/dev/") => root.unresolved.push(mount.source.clone()),
            None => {}
        }
        Ok(())
    }
}

fn read_table(system: &System, devices: &BlockDevices, disk: &str) -> Result<Vec<Partition>> {
    let Some(whole) = devices.by_name(disk) else {
        return Err(Error::Slots {
            problem: format!("sysfs has partitions of {disk}, not itself"),
        });
    };
    let node = system.dev(disk);
    let mut file = File::open(&node).map_err(Error::io("open", &node))?;
    let table = gpt::read(&mut file, whole.size, whole.logical_block, &node)?;
    if table.copy == gpt::Copy::Backup {
        tracing::warn!(
            disk,
            "the primary partition table is damaged, the backup was read"
        );
    }
    let mut partitions = Vec::new();
    for entry in table.entries {
        // What the kernel does not show cannot be used, and what it shows differently is stale.
        let Some(device) = devices.partition_of(disk, entry.index) else {
            continue;
        };
        if (device.start, device.size) != (entry.start, entry.size) {
            return Err(Error::Slots {
                problem: format!(
                    "the kernel has {} at byte {} with {} bytes, the table at byte {} with {}",
                    device.name, device.start, device.size, entry.start, entry.size
                ),
            });
        }
        partitions.push(partition(system, device, &entry));
    }
    Ok(partitions)
}

fn partition(system: &System, device: &BlockDevice, entry: &GptEntry) -> Partition {
    Partition {
        label: entry.name.clone(),
        uuid: Some(entry.uuid),
        type_uuid: Some(entry.type_uuid),
        ..bare(system, device)
    }
}

fn bare(system: &System, device: &BlockDevice) -> Partition {
    let node: PathBuf = system.dev(&device.name);
    Partition {
        kernel_name: device.name.clone(),
        node,
        number: device.number,
        disk: device.disk.clone(),
        index: device.partition.unwrap_or(0),
        start: device.start,
        size: device.size,
        logical_block: device.logical_block,
        label: String::new(),
        uuid: None::<Uuid>,
        type_uuid: None,
        read_only: device.read_only,
    }
}
