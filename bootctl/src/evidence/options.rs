//! What the kernel's command line names as the running system's partition.

use std::collections::BTreeSet;
use std::path::Path;

use crate::block::{BlockDevice, command_line};
use crate::discovery::{FoundSlots, Node, carries, searched};
use crate::error::Result;
use crate::slot::{DeviceNumber, SlotLocator, SlotName, names_file_system};
use crate::system::System;
use crate::table::{Booted, Partition, Witness};

/// Options that name it, and whether one that names neither slot says that neither is booted. `root=` does where `/usr` is no
/// mount of its own; the others only add to it.
const OPTIONS: [(&str, bool); 5] = [
    ("root=", true),
    ("mount.usr=", false),
    ("verity.usr=", false),
    ("systemd.verity_root_data=", false),
    ("systemd.verity_usr_data=", false),
];
/// Major number of RAM disks. `root=/dev/ram0` is what some loaders set for any initrd.
const RAM_DISK: u32 = 1;

/// One witness for each option that is there.
pub(super) fn witnesses(system: &System, found: &FoundSlots) -> Result<Vec<Witness>> {
    let mut witnesses = Vec::new();
    for (key, whole) in OPTIONS {
        let Some(option) = Named::read(system, &found.node, key)? else {
            continue;
        };
        let says = match (option.is(&found.a), option.is(&found.b)) {
            (true, false) => Some(Booted::Slot(SlotName::A)),
            (false, true) => Some(Booted::Slot(SlotName::B)),
            (true, true) => None,
            (false, false) => {
                (whole && option.known && !found.root.usr_apart).then_some(Booted::Neither)
            }
        };
        witnesses.push(Witness {
            source: format!("command line {key}"),
            found: option.value,
            says,
        });
    }
    Ok(witnesses)
}

/// Disks of what the command line names.
pub(crate) fn named_disks(system: &System, node: &Node) -> Result<BTreeSet<String>> {
    let mut disks = BTreeSet::new();
    for (key, _) in OPTIONS {
        let Some(option) = Named::read(system, node, key)? else {
            continue;
        };
        let of_option = node
            .partitions()
            .filter(|partition| option.devices.contains(&partition.number))
            .map(|partition| partition.disk.clone());
        disks.extend(of_option);
    }
    Ok(disks)
}

/// What an option names.
#[derive(Debug, Default)]
struct Named {
    /// The value as it stands there.
    value: String,
    /// The name that the tables are searched for.
    name: Option<SlotLocator>,
    /// The device and all that it stands on, where there is exactly one such.
    devices: BTreeSet<DeviceNumber>,
    /// Whether these are all.
    known: bool,
}

impl Named {
    /// File-system labels and UUIDs name no partition: both slots may carry the same.
    fn read(system: &System, node: &Node, key: &str) -> Result<Option<Self>> {
        let words = command_line(system)?;
        // The kernel takes the last one.
        let Some(value) = words.iter().rev().find_map(|word| word.strip_prefix(key)) else {
            return Ok(None);
        };
        let mut named = Self {
            value: value.to_owned(),
            ..Self::default()
        };
        let device = if let Ok(number) = value.parse::<DeviceNumber>() {
            node.devices.by_number(number)
        } else if let Some((locator, offset)) = locator(value) {
            let name = searched(node, &locator)?;
            match &name {
                SlotLocator::Device(path) => node.resolve(path)?,
                name => {
                    if offset == 0 {
                        named.name = Some(name.clone());
                    }
                    only(node, name).and_then(|partition| neighbour(node, partition, offset))
                }
            }
        } else {
            None
        };
        if let Some(device) = device.filter(|device| device.number.major != RAM_DISK) {
            let below = node.stands_on(device.number)?;
            named.known = below.unresolved.is_empty();
            named.devices = below.devices;
        }
        Ok(Some(named))
    }

    fn is(&self, slot: &Partition) -> bool {
        self.devices.contains(&slot.number)
            || self.name.as_ref().is_some_and(|name| carries(name, slot))
    }
}

/// The value as a locator, and how many partitions behind it are meant (`PARTUUID=…/PARTNROFF=1`).
fn locator(value: &str) -> Option<(SlotLocator, i64)> {
    // The kernel's own name of a root that it mounted itself.
    if value == "/dev/root" || names_file_system(Path::new(value)) {
        return None;
    }
    let (name, offset) = match value.split_once("/PARTNROFF=") {
        Some((name, offset)) => (name, offset.parse().ok()?),
        None => (value, 0),
    };
    Some((name.parse().ok()?, offset))
}

fn only<'a>(node: &'a Node, name: &SlotLocator) -> Option<&'a Partition> {
    let mut matching = node
        .partitions()
        .filter(|partition| carries(name, partition));
    match (matching.next(), matching.next()) {
        (Some(one), None) => Some(one),
        _ => None,
    }
}

fn neighbour<'a>(node: &'a Node, partition: &Partition, offset: i64) -> Option<&'a BlockDevice> {
    let index = u32::try_from(i64::from(partition.index).checked_add(offset)?).ok()?;
    node.devices.partition_of(&partition.disk, index)
}
