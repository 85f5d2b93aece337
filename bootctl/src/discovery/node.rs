//! What partitions and mounts there are: sysfs says which devices exist, the partition tables what they are called.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::root::{Root, Walk};
use super::tables::{self, DiskTable};
use crate::block::{BlockDevice, BlockDevices};
use crate::error::{Error, Result};
use crate::mounts::Mounts;
use crate::slot::DeviceNumber;
use crate::system::System;
use crate::table::Partition;

/// The node's block devices, mounts and partition tables.
#[derive(Debug)]
pub(crate) struct Node {
    system: System,
    pub(crate) devices: BlockDevices,
    pub(crate) mounts: Mounts,
    /// Tables by disk; the error as text where a disk has no readable table.
    pub(super) tables: BTreeMap<String, Result<DiskTable, String>>,
}

impl Node {
    pub(crate) fn read(system: &System) -> Result<Self> {
        let devices = BlockDevices::read(system)?;
        let mounts = Mounts::read(system)?;
        let mut tables = BTreeMap::new();
        for disk in devices.partitioned_disks() {
            let table = tables::read(system, &devices, disk).map_err(|error| error.chain());
            tables.insert(disk.to_owned(), table);
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
        self.tables
            .values()
            .flatten()
            .flat_map(|table| &table.partitions)
    }

    /// Whether this is a partition that only holds others.
    pub(super) fn is_extended(&self, number: DeviceNumber) -> bool {
        self.tables
            .values()
            .flatten()
            .any(|table| table.extended.contains(&number))
    }

    /// The partition with this device number, or the device itself where it is none.
    pub(crate) fn describe(&self, device: &BlockDevice) -> Partition {
        let known = self
            .partitions()
            .find(|partition| partition.number == device.number);
        known
            .cloned()
            .unwrap_or_else(|| tables::bare(&self.system, device))
    }

    /// A device's kernel name, or its number where there is no such device.
    pub(crate) fn name(&self, number: DeviceNumber) -> String {
        self.devices
            .by_number(number)
            .map_or_else(|| number.to_string(), |device| device.name.clone())
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

    /// Whether a path is there.
    pub(super) fn shows(&self, path: &Path) -> bool {
        self.system.path(path).exists()
    }

    /// Whether a path is a directory that is not empty.
    pub(super) fn holds_files(&self, path: &Path) -> bool {
        fs::read_dir(self.system.path(path)).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// The block devices that a device is made of: a partition's disk, what device-mapper and MD stand on, the device behind a
    /// loop device. Not the disk that holds a loop device's file: that is not overwritten through it.
    pub(super) fn below(&self, device: &BlockDevice) -> Result<BTreeSet<DeviceNumber>> {
        let mut below: BTreeSet<DeviceNumber> = device
            .slaves
            .iter()
            .filter_map(|name| self.devices.by_name(name))
            .map(|slave| slave.number)
            .collect();
        if device.partition.is_some() {
            below.extend(self.devices.by_name(&device.disk).map(|disk| disk.number));
        }
        if let Some(file) = &device.backing_file {
            below.extend(self.resolve(file)?.map(|device| device.number));
        }
        Ok(below)
    }

    /// A device, and every block device that it is made of.
    pub(super) fn made_of(&self, top: DeviceNumber) -> Result<BTreeSet<DeviceNumber>> {
        let mut found = BTreeSet::new();
        let mut pending = vec![top];
        while let Some(number) = pending.pop() {
            if !found.insert(number) {
                continue;
            }
            if let Some(device) = self.devices.by_number(number) {
                pending.extend(self.below(device)?);
            }
        }
        Ok(found)
    }

    /// What a device stands on, through file systems too.
    pub(crate) fn stands_on(&self, number: DeviceNumber) -> Result<Root> {
        let mut walk = Walk::new(self);
        walk.device(number)?;
        Ok(walk.done())
    }

    /// What the running root, and `/usr` where it is mounted apart, stand on.
    pub(crate) fn root(&self) -> Result<Root> {
        let mut walk = Walk::new(self);
        for point in ["/", "/usr"] {
            if let Some(mount) = self.mounts.at(Path::new(point)) {
                walk.point(point, mount)?;
            }
        }
        Ok(walk.done())
    }
}
