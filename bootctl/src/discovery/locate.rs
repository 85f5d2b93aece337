//! Slots that the configuration names.

use std::path::Path;

use super::node::Node;
use super::root::Root;
use super::{described, list};
use crate::error::{Error, Result};
use crate::slot::{SlotLocator, SlotName};
use crate::table::Partition;

/// The partitions that two settings mean.
pub(super) fn pair(
    node: &Node,
    root: &Root,
    a: &SlotLocator,
    b: &SlotLocator,
) -> Result<(Partition, Partition)> {
    let names = [searched(node, a)?, searched(node, b)?];
    // One decision for the pair: where one of the names is found on the running root's disks, a partition elsewhere that
    // carries the other one belongs to a clone or to another machine.
    let here = names.iter().any(|name| {
        node.partitions()
            .any(|partition| root.disks.contains(&partition.disk) && carries(name, partition))
    });
    let locate = |slot, locator: &SlotLocator, name: &SlotLocator| {
        let fail = |problem: String| Error::SlotSetting {
            slot,
            locator: locator.to_string(),
            problem,
        };
        match name {
            SlotLocator::Device(path) => match node.resolve(path)? {
                Some(device) => Ok(node.describe(device)),
                None => Err(fail("no block device is there".to_owned())),
            },
            name => by_name(node, root, name, here).map_err(fail),
        }
    };
    let [name_a, name_b] = &names;
    Ok((
        locate(SlotName::A, a, name_a)?,
        locate(SlotName::B, b, name_b)?,
    ))
}

/// What is looked for in the tables. Of partitions with the same label or id udev's links lead to whichever was seen last, so
/// such a link stands for the name in it.
pub(crate) fn searched(node: &Node, locator: &SlotLocator) -> Result<SlotLocator> {
    let SlotLocator::Device(path) = locator else {
        return Ok(locator.clone());
    };
    let named = |directory: &str| path.starts_with(Path::new("/dev/disk").join(directory));
    let (by_label, by_id) = (named("by-partlabel"), named("by-partuuid"));
    if !by_label && !by_id {
        return Ok(locator.clone());
    }
    let Some(device) = node.resolve(path)? else {
        return Ok(locator.clone());
    };
    let partition = node.describe(device);
    let name = match partition.part_uuid() {
        Some(id) if by_id => Some(SlotLocator::PartUuid(id)),
        _ if by_label && !partition.label.is_empty() => {
            Some(SlotLocator::PartLabel(partition.label))
        }
        _ => None,
    };
    Ok(name.unwrap_or_else(|| locator.clone()))
}

/// Whether a partition has the name that the tables are searched for; devices are not searched for.
pub(crate) fn carries(locator: &SlotLocator, partition: &Partition) -> bool {
    match locator {
        SlotLocator::PartLabel(label) => partition.label == *label,
        SlotLocator::PartUuid(id) => partition.part_uuid() == Some(*id),
        SlotLocator::Device(_) => false,
    }
}

/// The one partition with a name; with `here` only the running root's disks are searched.
fn by_name(node: &Node, root: &Root, name: &SlotLocator, here: bool) -> Result<Partition, String> {
    let (near, far): (Vec<&Partition>, Vec<&Partition>) = node
        .partitions()
        .filter(|partition| carries(name, partition))
        .partition(|partition| root.disks.contains(&partition.disk));
    if near.is_empty() && !far.is_empty() {
        if here {
            return Err(format!(
                "no such partition on the running root's disk, which has the other slot; {} is not taken for it \
                 (name the device to use a second disk)",
                list(far)
            ));
        }
        if let Some(problem) = unread(node, Some(root)) {
            return Err(format!(
                "the running root's disk cannot be searched, and {} on another one is not taken for it \
                 (name the device to use it): {problem}",
                list(far)
            ));
        }
    }
    let candidates = if near.is_empty() { far } else { near };
    match candidates.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let note = unread(node, None)
                .map(|problem| format!(" (not readable: {problem})"))
                .unwrap_or_default();
            let case = in_another_case(node, name)
                .map(|partition| format!("; {} differs in case", described(partition)))
                .unwrap_or_default();
            Err(format!("no such partition{case}{note}"))
        }
        several => Err(format!(
            "several partitions match: {}",
            list(several.iter().copied())
        )),
    }
}

fn in_another_case<'a>(node: &'a Node, name: &SlotLocator) -> Option<&'a Partition> {
    let SlotLocator::PartLabel(label) = name else {
        return None;
    };
    node.partitions()
        .find(|partition| partition.label.eq_ignore_ascii_case(label))
}

/// Tables that could not be read, of all disks or of the running root's.
pub(super) fn unread(node: &Node, root: Option<&Root>) -> Option<String> {
    let problems: Vec<String> = node
        .tables
        .iter()
        .filter(|(disk, _)| root.is_none_or(|root| root.disks.contains(*disk)))
        .filter_map(|(disk, table)| table.as_ref().err().map(|error| format!("{disk}: {error}")))
        .collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}
