//! Finds the slots' partitions: sysfs says which devices exist, the partition table what they are
//! called. Labels and UUIDs come from the table because not every kernel has them in sysfs, and
//! partitions added by hand (`partx`) have none there at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::block::{BlockDevice, BlockDevices};
use crate::error::{Error, Result};
use crate::gpt::{self, GptEntry};
use crate::mounts::{Mount, Mounts};
use crate::slot::{DeviceNumber, SlotLocator, SlotName, SlotSettings};
use crate::system::System;
use crate::table::Partition;

/// Label pairs that are known without a configuration.
const LABEL_PAIRS: [(&str, &str); 5] = [
    ("root-a", "root-b"),
    ("rootfs-a", "rootfs-b"),
    ("ROOT-A", "ROOT-B"),
    ("system_a", "system_b"),
    ("USR-A", "USR-B"),
];

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

/// Both slots, and what was read on the way.
#[derive(Debug)]
pub(crate) struct FoundSlots {
    pub(crate) a: Partition,
    pub(crate) b: Partition,
    pub(crate) root: Root,
    pub(crate) node: Node,
}

/// The node's block devices, mounts and partition tables.
#[derive(Debug)]
pub(crate) struct Node {
    system: System,
    pub(crate) devices: BlockDevices,
    pub(crate) mounts: Mounts,
    /// Partitions by disk; the error as text where a disk has no readable table.
    tables: BTreeMap<String, Result<Vec<Partition>, String>>,
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

/// Finds both slots.
pub(crate) fn find_slots(system: &System, settings: &SlotSettings) -> Result<FoundSlots> {
    let node = Node::read(system)?;
    let mut root = node.root()?;
    if root.disks.is_empty() {
        // Under an overlay whose layers are out of sight the command line still names the disk.
        if let Some(partition) = crate::evidence::root_option(system, &node)?.partition {
            root.disks.insert(partition.disk);
        }
    }
    let (a, b) = match settings {
        SlotSettings::Auto => by_known_labels(&node, &root)?,
        SlotSettings::Explicit { a, b } => {
            // One decision for the pair: where one of the names is found on the running root's disks, a
            // partition elsewhere that carries the other one belongs to a clone or to another machine.
            let here = [a, b].into_iter().any(|locator| {
                node.partitions().any(|partition| {
                    root.disks.contains(&partition.disk) && carries(locator, partition)
                })
            });
            (
                locate(&node, &root, SlotName::A, a, here)?,
                locate(&node, &root, SlotName::B, b, here)?,
            )
        }
    };
    if a.number == b.number {
        return Err(Error::Slots {
            problem: format!(
                "both slots are the same device, {} ({})",
                a.kernel_name, a.number
            ),
        });
    }
    let end = |partition: &Partition| partition.start.saturating_add(partition.size);
    if a.disk == b.disk && a.start < end(&b) && b.start < end(&a) {
        return Err(Error::Slots {
            problem: format!(
                "{} and {} overlap on {}",
                a.kernel_name, b.kernel_name, a.disk
            ),
        });
    }
    Ok(FoundSlots { a, b, root, node })
}

fn by_known_labels(node: &Node, root: &Root) -> Result<(Partition, Partition)> {
    let on_root: Vec<_> = node
        .tables
        .iter()
        .filter(|(disk, _)| root.disks.contains(*disk))
        .collect();
    let pairs = pairs_on(&on_root)?;
    if let [pair] = pairs.as_slice() {
        return Ok(pair.clone());
    }
    if pairs.len() > 1 {
        return Err(ambiguous(
            "the running root's disk has more than one known label pair",
            &pairs,
        ));
    }
    // A rescue system runs from another disk: then the pair has to be the only one.
    let elsewhere: Vec<_> = node.tables.iter().collect();
    let pairs = pairs_on(&elsewhere)?;
    match pairs.as_slice() {
        [pair] => Ok(pair.clone()),
        [] => Err(Error::Slots {
            problem: nothing_found(node, root),
        }),
        _ => Err(ambiguous(
            "the running root's disk has no known label pair, others have",
            &pairs,
        )),
    }
}

type Table<'a> = (&'a String, &'a Result<Vec<Partition>, String>);

fn pairs_on(tables: &[Table<'_>]) -> Result<Vec<(Partition, Partition)>> {
    let mut pairs = Vec::new();
    for (disk, table) in tables {
        let Ok(partitions) = table else { continue };
        for (a, b) in LABEL_PAIRS {
            let (a, b) = (labelled(partitions, a), labelled(partitions, b));
            match (a.as_slice(), b.as_slice()) {
                ([a], [b]) => pairs.push(((*a).clone(), (*b).clone())),
                ([], _) | (_, []) => {}
                _ => {
                    let names: Vec<String> = a.iter().chain(&b).map(|p| described(p)).collect();
                    return Err(Error::Slots {
                        problem: format!("labels occur twice on {disk}: {}", names.join(", ")),
                    });
                }
            }
        }
    }
    Ok(pairs)
}

fn labelled<'a>(partitions: &'a [Partition], label: &str) -> Vec<&'a Partition> {
    partitions
        .iter()
        .filter(|partition| partition.label == label)
        .collect()
}

fn described(partition: &Partition) -> String {
    format!("{} ({:?})", partition.kernel_name, partition.label)
}

fn ambiguous(problem: &str, pairs: &[(Partition, Partition)]) -> Error {
    let candidates: Vec<String> = pairs
        .iter()
        .map(|(a, b)| format!("{} and {}", described(a), described(b)))
        .collect();
    Error::Slots {
        problem: format!(
            "{problem}: {}; set slots in the configuration",
            candidates.join("; ")
        ),
    }
}

fn nothing_found(node: &Node, root: &Root) -> String {
    let known: Vec<String> = LABEL_PAIRS
        .iter()
        .map(|(a, b)| format!("{a}/{b}"))
        .collect();
    let mut seen = Vec::new();
    for (disk, table) in &node.tables {
        seen.push(match table {
            Ok(partitions) => {
                let names: Vec<String> = partitions.iter().map(described).collect();
                format!("{disk} has {}", names.join(", "))
            }
            Err(error) => format!("{disk}: {error}"),
        });
    }
    if seen.is_empty() {
        seen.push("no disk has partitions".to_owned());
    }
    let root = if root.found.is_empty() {
        "unknown"
    } else {
        &root.found
    };
    format!(
        "no known label pair ({}); {}; running root: {root}",
        known.join(", "),
        seen.join("; ")
    )
}

/// Whether a partition has the name that the table is searched for; devices are not searched for.
fn carries(locator: &SlotLocator, partition: &Partition) -> bool {
    match locator {
        SlotLocator::PartLabel(label) => partition.label == *label,
        SlotLocator::PartUuid(uuid) => partition.uuid == Some(*uuid),
        SlotLocator::Device(_) => false,
    }
}

/// The one partition that a setting means; with `here` only the running root's disks are searched.
fn locate(
    node: &Node,
    root: &Root,
    slot: SlotName,
    locator: &SlotLocator,
    here: bool,
) -> Result<Partition> {
    let fail = |problem: String| Error::SlotSetting {
        slot,
        locator: locator.to_string(),
        problem,
    };
    if let SlotLocator::Device(path) = locator {
        return match node.resolve(path)? {
            Some(device) => Ok(node.describe(device)),
            None => Err(fail("no block device is there".to_owned())),
        };
    }
    let (near, far): (Vec<&Partition>, Vec<&Partition>) = node
        .partitions()
        .filter(|partition| carries(locator, partition))
        .partition(|partition| root.disks.contains(&partition.disk));
    if here && near.is_empty() && !far.is_empty() {
        let names: Vec<String> = far.iter().map(|partition| described(partition)).collect();
        return Err(fail(format!(
            "no such partition on the running root's disk, which has the other slot; {} is not taken for it \
             (name the device to use a second disk)",
            names.join(", ")
        )));
    }
    let candidates = if near.is_empty() { far } else { near };
    match candidates.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let unread: Vec<String> = node
                .tables
                .iter()
                .filter_map(|(disk, table)| table.as_ref().err().map(|e| format!("{disk}: {e}")))
                .collect();
            let note = if unread.is_empty() {
                String::new()
            } else {
                format!(" (not readable: {})", unread.join("; "))
            };
            Err(fail(format!("no such partition{note}")))
        }
        several => {
            let names: Vec<String> = several
                .iter()
                .map(|partition| described(partition))
                .collect();
            Err(fail(format!(
                "several partitions match: {}",
                names.join(", ")
            )))
        }
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
