//! Block devices as sysfs shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::slot::DeviceNumber;
use crate::system::{System, read_text, read_text_if_present};

/// sysfs counts `start` and `size` in units of 512 bytes, whatever the disk's sectors are.
const SYSFS_UNIT: u64 = 512;

/// A block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockDevice {
    pub(crate) name: String,
    pub(crate) number: DeviceNumber,
    /// Kernel name of the whole disk; its own for a disk.
    pub(crate) disk: String,
    /// Number in the partition table; `None` for a whole disk.
    pub(crate) partition: Option<u32>,
    /// First byte on the disk.
    pub(crate) start: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    /// Logical block size in bytes.
    pub(crate) logical_block: u32,
    /// Devices that a device-mapper or MD device stands on.
    pub(crate) slaves: Vec<String>,
    /// File behind a loop device, as its maker named it.
    pub(crate) backing_file: Option<PathBuf>,
}

/// All block devices of the machine, by kernel name.
#[derive(Debug, Clone)]
pub(crate) struct BlockDevices(BTreeMap<String, BlockDevice>);

impl BlockDevices {
    pub(crate) fn read(system: &System) -> Result<Self> {
        let class = system.sys("class/block");
        let mut devices = BTreeMap::new();
        for entry in fs::read_dir(&class).map_err(Error::io("list", &class))? {
            let entry = entry.map_err(Error::io("list", &class))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if let Some(device) = read_device(&entry.path(), &name)? {
                devices.insert(name, device);
            }
        }
        Ok(Self(devices))
    }

    pub(crate) fn by_number(&self, number: DeviceNumber) -> Option<&BlockDevice> {
        self.0.values().find(|device| device.number == number)
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&BlockDevice> {
        self.0.get(name)
    }

    /// Whole disks that have partitions, sorted by name.
    pub(crate) fn partitioned_disks(&self) -> BTreeSet<&str> {
        self.0
            .values()
            .filter(|device| device.partition.is_some())
            .map(|device| device.disk.as_str())
            .collect()
    }

    pub(crate) fn partition_of(&self, disk: &str, index: u32) -> Option<&BlockDevice> {
        self.0
            .values()
            .find(|device| device.disk == disk && device.partition == Some(index))
    }
}

fn read_device(dir: &Path, name: &str) -> Result<Option<BlockDevice>> {
    // A device can vanish between listing and reading.
    let Some(number) = read_text_if_present(&dir.join("dev"))? else {
        return Ok(None);
    };
    let number = number.parse().map_err(|_| {
        Error::malformed(&dir.join("dev"), format!("{number:?} is no device number"))
    })?;
    let real = fs::canonicalize(dir).map_err(Error::io("resolve", dir))?;
    let partition = optional_number(&dir.join("partition"))?;
    let disk_dir = match (partition, real.parent()) {
        (Some(_), Some(parent)) => parent,
        _ => real.as_path(),
    };
    let disk = disk_dir
        .file_name()
        .and_then(|part| part.to_str())
        .unwrap_or(name)
        .to_owned();
    let units = |file: &str| -> Result<u64> {
        Ok(optional_number::<u64>(&dir.join(file))?
            .unwrap_or(0)
            .saturating_mul(SYSFS_UNIT))
    };
    let logical = optional_number(&disk_dir.join("queue/logical_block_size"))?;
    Ok(Some(BlockDevice {
        name: name.to_owned(),
        number,
        disk,
        partition: partition.filter(|index| *index != 0),
        start: units("start")?,
        size: units("size")?,
        read_only: read_text_if_present(&dir.join("ro"))?.is_some_and(|text| text != "0"),
        logical_block: logical.unwrap_or(512),
        slaves: slave_names(&dir.join("slaves"))?,
        backing_file: read_text_if_present(&dir.join("loop/backing_file"))?.map(PathBuf::from),
    }))
}

fn optional_number<T: std::str::FromStr>(path: &Path) -> Result<Option<T>> {
    let Some(text) = read_text_if_present(path)? else {
        return Ok(None);
    };
    match text.trim().parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(Error::malformed(path, format!("{text:?} is no number"))),
    }
}

fn slave_names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", dir)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("list", dir))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// The kernel command line, split at blanks outside double quotes.
pub(crate) fn command_line(system: &System) -> Result<Vec<String>> {
    Ok(split_command_line(&read_text(&system.proc("cmdline"))?))
}

/// Splits kernel options as the kernel does: blanks separate, double quotes group and vanish.
pub(crate) fn split_command_line(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_ascii_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}
