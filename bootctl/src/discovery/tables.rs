//! Partition tables of the node's disks, checked against what the kernel shows. Labels and ids come from the table because not
//! every kernel has them in sysfs, and partitions added by hand (`partx`) have none there at all.

use std::fmt;
use std::fs::File;

use crate::block::{BlockDevice, BlockDevices};
use crate::dos::{self, DosTable};
use crate::error::{Error, Result};
use crate::gpt::{self, Gpt};
use crate::slot::DeviceNumber;
use crate::system::System;
use crate::table::Partition;

/// What kind of table a disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableKind {
    Gpt,
    /// The primary GUID table is damaged; the other copy was read.
    GptBackup,
    Dos,
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt => "GPT",
            Self::GptBackup => "GPT, read from its backup",
            Self::Dos => "DOS",
        })
    }
}

/// A disk's table, as far as the kernel shows it too.
#[derive(Debug, Clone)]
pub(crate) struct DiskTable {
    pub(crate) kind: TableKind,
    pub(crate) partitions: Vec<Partition>,
    /// Extended partitions of a DOS table: they hold others and nothing of their own.
    pub(crate) extended: Vec<DeviceNumber>,
}

pub(crate) fn read(system: &System, devices: &BlockDevices, disk: &str) -> Result<DiskTable> {
    let Some(whole) = devices.by_name(disk) else {
        return Err(Error::Slots {
            problem: format!("sysfs has partitions of {disk}, not itself"),
        });
    };
    let node = system.dev(disk);
    let mut file = File::open(&node).map_err(Error::io("open", &node))?;
    let node = system.absolute(&node);
    // As the kernel does it: a DOS table counts unless it protects a GUID table.
    if let Some(table) = dos::read(&mut file, whole.size, whole.logical_block, &node)? {
        return of_dos(system, devices, disk, &table);
    }
    let table = gpt::read(&mut file, whole.size, whole.logical_block, &node)?;
    if table.copy == gpt::Copy::Backup {
        tracing::warn!(
            disk,
            "the primary partition table is damaged, the backup was read"
        );
    }
    of_gpt(system, devices, disk, table)
}

fn of_gpt(system: &System, devices: &BlockDevices, disk: &str, table: Gpt) -> Result<DiskTable> {
    let mut partitions = Vec::new();
    for entry in table.entries {
        // What the kernel does not show cannot be used, and what it shows differently is stale.
        let Some(device) = devices.partition_of(disk, entry.index) else {
            continue;
        };
        same_extent(device, entry.start, entry.size)?;
        partitions.push(Partition {
            label: entry.name,
            uuid: Some(entry.uuid),
            type_uuid: Some(entry.type_uuid),
            ..bare(system, device)
        });
    }
    Ok(DiskTable {
        kind: match table.copy {
            gpt::Copy::Primary => TableKind::Gpt,
            gpt::Copy::Backup => TableKind::GptBackup,
        },
        partitions,
        extended: Vec::new(),
    })
}

fn of_dos(
    system: &System,
    devices: &BlockDevices,
    disk: &str,
    table: &DosTable,
) -> Result<DiskTable> {
    let mut partitions = Vec::new();
    let mut extended = Vec::new();
    for entry in &table.entries {
        let Some(device) = devices.partition_of(disk, entry.index) else {
            continue;
        };
        // Of an extended partition the kernel shows the first two sectors at most, so that nothing is put over the others.
        if entry.extended {
            same_extent(device, entry.start, device.size)?;
            extended.push(device.number);
            continue;
        }
        same_extent(device, entry.start, entry.size)?;
        partitions.push(Partition {
            disk_signature: table.signature,
            ..bare(system, device)
        });
    }
    Ok(DiskTable {
        kind: TableKind::Dos,
        partitions,
        extended,
    })
}

fn same_extent(device: &BlockDevice, start: u64, size: u64) -> Result<()> {
    if (device.start, device.size) == (start, size) {
        return Ok(());
    }
    Err(Error::Slots {
        problem: format!(
            "the kernel has {} at byte {} with {} bytes, the table at byte {start} with {size}",
            device.name, device.start, device.size
        ),
    })
}

/// A device of which no table is known.
pub(super) fn bare(system: &System, device: &BlockDevice) -> Partition {
    Partition {
        kernel_name: device.name.clone(),
        node: system.dev(&device.name),
        number: device.number,
        disk: device.disk.clone(),
        index: device.partition.unwrap_or(0),
        start: device.start,
        size: device.size,
        logical_block: device.logical_block,
        label: String::new(),
        uuid: None,
        disk_signature: None,
        type_uuid: None,
        read_only: device.read_only,
    }
}
