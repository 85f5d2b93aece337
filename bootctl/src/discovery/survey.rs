//! What discovery had to choose from, and why each candidate was taken or not: for people who ask why.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::locate::{carries, searched};
use super::node::Node;
use super::root::Root;
use super::{LABEL_PAIRS, look};
use crate::error::Result;
use crate::part_uuid::PartUuid;
use crate::slot::{SlotLocator, SlotName, SlotSettings};
use crate::system::System;
use crate::table::Partition;

/// All disks with partitions, and the mounts that count.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// Disks with partitions, by name.
    pub disks: Vec<SurveyedDisk>,
    /// Mounts of `/`, `/usr`, and of the disks' partitions, oldest first.
    pub mounts: Vec<SurveyedMount>,
    /// Overlay layers and loop files under the running root whose device is out of sight.
    pub unresolved: Vec<String>,
}

/// A disk with partitions.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SurveyedDisk {
    /// The kernel's name.
    pub name: String,
    /// Kind of its partition table, in words; `None` where it cannot be read.
    pub table: Option<String>,
    /// Why the table cannot be read.
    pub error: Option<String>,
    /// Logical block size in bytes.
    pub logical_block: u32,
    /// Whether the running root stands on it.
    pub running_root: bool,
    /// Its partitions, by number.
    pub candidates: Vec<Candidate>,
}

/// A partition that was looked at.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// The kernel's name.
    pub name: String,
    /// Name in the partition table.
    pub label: String,
    /// Its id in the partition table.
    pub part_uuid: Option<PartUuid>,
    /// Size in bytes.
    pub size: u64,
    /// Which slot it was taken for.
    pub slot: Option<SlotName>,
    /// Why it was taken or not, in words.
    pub reason: String,
}

/// A mount that counts.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SurveyedMount {
    /// Where.
    pub point: PathBuf,
    /// File system.
    pub kind: String,
    /// What the mount table has as its source.
    pub source: String,
    /// The kernel's name of its device, where it has one.
    pub device: Option<String>,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

impl Survey {
    /// What there is on a node, also where the slots cannot be told.
    ///
    /// # Errors
    /// When sysfs or the mount table cannot be read.
    pub fn read(system: &System, settings: &SlotSettings) -> Result<Self> {
        let (node, root) = look(system)?;
        Ok(Self::new(&node, &root, settings, None))
    }

    pub(crate) fn new(
        node: &Node,
        root: &Root,
        settings: &SlotSettings,
        slots: Option<[&Partition; 2]>,
    ) -> Self {
        let judge = Judge::new(node, root, settings, slots);
        let disks = node
            .tables
            .iter()
            .map(|(name, table)| SurveyedDisk {
                name: name.clone(),
                table: table.as_ref().ok().map(|table| table.kind.to_string()),
                error: table.as_ref().err().cloned(),
                logical_block: node
                    .devices
                    .by_name(name)
                    .map_or(0, |disk| disk.logical_block),
                running_root: root.disks.contains(name),
                candidates: table
                    .iter()
                    .flat_map(|table| &table.partitions)
                    .map(|partition| judge.candidate(partition))
                    .collect(),
            })
            .collect();
        Self {
            disks,
            mounts: mounts(node),
            unresolved: root.unresolved.clone(),
        }
    }
}

fn mounts(node: &Node) -> Vec<SurveyedMount> {
    let counts = |point: &Path| point == Path::new("/") || point == Path::new("/usr");
    node.mounts
        .all()
        .iter()
        .filter_map(|mount| {
            let device = node.devices.by_number(mount.device);
            let of_disk = device.is_some_and(|device| node.tables.contains_key(&device.disk));
            (of_disk || counts(&mount.point)).then(|| SurveyedMount {
                point: mount.point.clone(),
                kind: mount.kind.clone(),
                source: mount.source.clone(),
                device: device.map(|device| device.name.clone()),
                read_only: mount.read_only,
            })
        })
        .collect()
}

/// Says why a partition was taken or not.
struct Judge<'a> {
    node: &'a Node,
    root: &'a Root,
    slots: Option<[&'a Partition; 2]>,
    /// What was looked for, where the configuration names the slots.
    wanted: Option<[(SlotLocator, SlotLocator); 2]>,
}

impl<'a> Judge<'a> {
    fn new(
        node: &'a Node,
        root: &'a Root,
        settings: &SlotSettings,
        slots: Option<[&'a Partition; 2]>,
    ) -> Self {
        let name = |locator: &SlotLocator| {
            let name = searched(node, locator).unwrap_or_else(|_| locator.clone());
            (locator.clone(), name)
        };
        let wanted = match settings {
            SlotSettings::Auto => None,
            SlotSettings::Explicit { a, b } => Some([name(a), name(b)]),
        };
        Self {
            node,
            root,
            slots,
            wanted,
        }
    }

    fn candidate(&self, partition: &Partition) -> Candidate {
        let slot = self.slots.and_then(|[a, b]| {
            [(SlotName::A, a), (SlotName::B, b)]
                .into_iter()
                .find_map(|(name, slot)| (slot.number == partition.number).then_some(name))
        });
        let reason = match &self.wanted {
            Some(wanted) => self.by_setting(wanted, partition, slot),
            None => self.by_label(partition, slot),
        };
        Candidate {
            name: partition.kernel_name.clone(),
            label: partition.label.clone(),
            part_uuid: partition.part_uuid(),
            size: partition.size,
            slot,
            reason,
        }
    }

    fn by_setting(
        &self,
        wanted: &[(SlotLocator, SlotLocator); 2],
        partition: &Partition,
        slot: Option<SlotName>,
    ) -> String {
        if let Some(slot) = slot {
            let [a, b] = wanted;
            let (setting, _) = if slot == SlotName::A { a } else { b };
            return format!("taken: it is {setting}");
        }
        match wanted.iter().find(|(_, name)| carries(name, partition)) {
            Some((setting, _)) if !self.root.disks.contains(&partition.disk) => {
                format!("not taken: matches {setting}, but is not on a disk of the running root")
            }
            Some((setting, _)) => format!("not taken: matches {setting}, but not alone"),
            None => "not taken: the configuration does not name it".to_owned(),
        }
    }

    fn by_label(&self, partition: &Partition, slot: Option<SlotName>) -> String {
        if slot.is_some() {
            return "taken: a label of a known pair".to_owned();
        }
        let label = &partition.label;
        if label.is_empty() {
            return "not taken: no label".to_owned();
        }
        let known = LABEL_PAIRS.iter().find_map(|(a, b)| match label.as_str() {
            it if it == *a => Some(*b),
            it if it == *b => Some(*a),
            _ => None,
        });
        let Some(partner) = known else {
            let close = LABEL_PAIRS
                .iter()
                .flat_map(|(a, b)| [a, b])
                .find(|known| known.eq_ignore_ascii_case(label));
            return match close {
                Some(known) => format!("not taken: differs in case from the known label {known:?}"),
                None => "not taken: not a known label".to_owned(),
            };
        };
        let has_partner = self
            .node
            .partitions()
            .any(|other| other.disk == partition.disk && other.label == partner);
        if !has_partner {
            return format!("not taken: {partner:?} is not on this disk");
        }
        if self.slots.is_some() {
            return "not taken: a known pair, but not on a disk of the running root".to_owned();
        }
        "not taken: a known pair, but not the only one that could be meant".to_owned()
    }
}
