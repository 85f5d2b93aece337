//! Finds the slots among the node's partitions: by the configuration, or by a label pair that is known.

mod node;

use crate::error::{Error, Result};
use crate::slot::{SlotLocator, SlotName, SlotSettings};
use crate::system::System;
use crate::table::Partition;

pub(crate) use node::{Node, Root};

/// Label pairs that are known without a configuration.
const LABEL_PAIRS: [(&str, &str); 5] = [
    ("root-a", "root-b"),
    ("rootfs-a", "rootfs-b"),
    ("ROOT-A", "ROOT-B"),
    ("system_a", "system_b"),
    ("USR-A", "USR-B"),
];

/// Both slots, and what was read on the way.
#[derive(Debug)]
pub(crate) struct FoundSlots {
    pub(crate) a: Partition,
    pub(crate) b: Partition,
    pub(crate) root: Root,
    pub(crate) node: Node,
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
