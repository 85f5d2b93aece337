//! Finds the slots among the node's partitions: by the configuration, or by a label pair that is known.

mod locate;
mod node;
mod root;
mod survey;
mod tables;

use crate::error::{Error, Result};
use crate::slot::{SlotName, SlotSettings};
use crate::system::System;
use crate::table::Partition;
use tables::DiskTable;

pub(crate) use locate::{carries, searched};
pub(crate) use node::Node;
pub(crate) use root::Root;
pub use survey::{Candidate, Survey, SurveyedDisk, SurveyedMount};

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
    /// How they were found, in words.
    pub(crate) by: String,
    pub(crate) root: Root,
    pub(crate) node: Node,
}

/// Finds both slots.
pub(crate) fn find_slots(system: &System, settings: &SlotSettings) -> Result<FoundSlots> {
    let (node, root) = look(system)?;
    let (a, b, by) = match settings {
        SlotSettings::Auto => {
            let (pair, note) = by_known_labels(&node, &root)?;
            let by = format!(
                "labels {:?} and {:?} on {} ({}), {note}",
                pair.0.label,
                pair.1.label,
                pair.0.disk,
                kind_of(&node, &pair.0.disk)
            );
            (pair.0, pair.1, by)
        }
        SlotSettings::Explicit { a, b } => {
            let (found_a, found_b) = locate::pair(&node, &root, a, b)?;
            (found_a, found_b, format!("{a} and {b}, as configured"))
        }
    };
    check_pair(&node, &root, &a, &b)?;
    Ok(FoundSlots {
        a,
        b,
        by,
        root,
        node,
    })
}

/// The node, and what its running root stands on.
fn look(system: &System) -> Result<(Node, Root)> {
    let node = Node::read(system)?;
    let mut root = node.root()?;
    if root.disks.is_empty() {
        // Under an overlay whose layers are out of sight the command line still names the disk.
        root.disks = crate::evidence::named_disks(system, &node)?;
    }
    Ok((node, root))
}

/// That two partitions are fit to be the two slots: neither is the other one, overlaps it, stands on it, or has the running
/// root's own device below it.
fn check_pair(node: &Node, root: &Root, a: &Partition, b: &Partition) -> Result<()> {
    let refuse = |problem: String| Err(Error::Slots { problem });
    if a.number == b.number {
        return refuse(format!(
            "both slots are the same device, {} ({})",
            a.kernel_name, a.number
        ));
    }
    for (name, slot) in [(SlotName::A, a), (SlotName::B, b)] {
        if node.is_extended(slot.number) {
            return refuse(format!(
                "slot {name} is {}, an extended partition, which only holds others",
                slot.kernel_name
            ));
        }
    }
    let end = |partition: &Partition| partition.start.saturating_add(partition.size);
    if a.disk == b.disk && a.start < end(b) && b.start < end(a) {
        return refuse(format!(
            "{} and {} overlap on {}",
            a.kernel_name, b.kernel_name, a.disk
        ));
    }
    for (name, slot, other) in [(SlotName::A, a, b), (SlotName::B, b, a)] {
        let below = node.made_of(slot.number)?;
        if below.contains(&other.number) {
            return refuse(format!(
                "slot {name}, {}, stands on the other slot, {}",
                slot.kernel_name, other.kernel_name
            ));
        }
        let mounted = below
            .iter()
            .find(|number| **number != slot.number && root.mounted.contains(number));
        if let Some(number) = mounted {
            return Err(Error::Refused {
                reason: format!(
                    "slot {name}, {}, stands on {}, which the running root is mounted from",
                    slot.kernel_name,
                    node.name(*number)
                ),
            });
        }
    }
    Ok(())
}

/// The pair, and why this one.
fn by_known_labels(node: &Node, root: &Root) -> Result<((Partition, Partition), &'static str)> {
    let on_root: Vec<_> = node
        .tables
        .iter()
        .filter(|(disk, _)| root.disks.contains(*disk))
        .collect();
    let pairs = pairs_on(&on_root)?;
    if let [pair] = pairs.as_slice() {
        return Ok((pair.clone(), "the running root's disk"));
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
    if let Some(problem) = locate::unread(node, Some(root)).filter(|_| !pairs.is_empty()) {
        return Err(ambiguous(
            &format!("the running root's disk cannot be searched ({problem}), others have a pair"),
            &pairs,
        ));
    }
    match pairs.as_slice() {
        [pair] => Ok((
            pair.clone(),
            "the only known pair, which is not on a disk of the running root",
        )),
        [] => Err(Error::Slots {
            problem: nothing_found(node, root),
        }),
        _ => Err(ambiguous(
            "the running root's disk has no known label pair, others have",
            &pairs,
        )),
    }
}

type Table<'a> = (&'a String, &'a Result<DiskTable, String>);

fn pairs_on(tables: &[Table<'_>]) -> Result<Vec<(Partition, Partition)>> {
    let mut pairs = Vec::new();
    for (disk, table) in tables {
        let Ok(table) = table else { continue };
        for (a, b) in LABEL_PAIRS {
            let (a, b) = (labelled(table, a), labelled(table, b));
            match (a.as_slice(), b.as_slice()) {
                ([a], [b]) => pairs.push(((*a).clone(), (*b).clone())),
                ([], _) | (_, []) => {}
                _ => {
                    return Err(Error::Slots {
                        problem: format!(
                            "labels occur twice on {disk}: {}",
                            list(a.into_iter().chain(b))
                        ),
                    });
                }
            }
        }
    }
    Ok(pairs)
}

fn labelled<'a>(table: &'a DiskTable, label: &str) -> Vec<&'a Partition> {
    table
        .partitions
        .iter()
        .filter(|partition| partition.label == label)
        .collect()
}

fn described(partition: &Partition) -> String {
    match partition.part_uuid() {
        Some(id) if partition.label.is_empty() => {
            format!("{} (PARTUUID {id})", partition.kernel_name)
        }
        _ => format!("{} ({:?})", partition.kernel_name, partition.label),
    }
}

fn list<'a>(partitions: impl IntoIterator<Item = &'a Partition>) -> String {
    let names: Vec<String> = partitions.into_iter().map(described).collect();
    names.join(", ")
}

fn kind_of(node: &Node, disk: &str) -> String {
    match node.tables.get(disk) {
        Some(Ok(table)) => table.kind.to_string(),
        _ => "no table".to_owned(),
    }
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
            Ok(table) => {
                let labels = match table.kind {
                    tables::TableKind::Dos => ", a DOS table, which has no labels",
                    _ => "",
                };
                format!("{disk} has {}{labels}", list(&table.partitions))
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
