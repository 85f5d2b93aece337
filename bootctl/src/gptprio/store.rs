//! The record of both slots in their partitions' attributes.

use uuid::Uuid;

use super::attributes::Boot;
use super::disk::{Disk, DiskNode};
use super::states::{Bits, bits};
use super::table::Entry;
use super::tables::{Other, Tables};
use crate::block::BlockDevices;
use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::record::Record;
use crate::slot::SlotName;
use crate::system::System;
use crate::table::{Booted, Partition, SlotTable};

/// Why slots that hold `/usr` are not driven: CoreOS's and Flatcar's loader takes `vmlinuz-a` or `vmlinuz-b` of the EFI system
/// partition for them.
pub(super) const USR_SLOTS: &str = "the slots hold /usr, and loaders that go by partition attributes take the kernel for \
                                    those from the EFI system partition, where nothing is copied to";

/// The attributes of two partitions of one disk. Holds no state of its own: every call reads the table anew.
#[derive(Debug)]
pub(crate) struct Gptprio {
    pub(super) node: DiskNode,
    /// The disk as the node names it.
    pub(super) shown: String,
    slots: [SlotEntry; 2],
    /// Whether they hold `/usr`, whose loaders take the kernel from elsewhere.
    pub(super) usr_slots: bool,
}

/// A slot's entry, by what it has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotEntry {
    pub(super) number: u32,
    /// First byte on the disk.
    pub(super) start: u64,
    /// Size in bytes.
    pub(super) size: u64,
    pub(super) uuid: Option<Uuid>,
}

impl From<&Partition> for SlotEntry {
    fn from(partition: &Partition) -> Self {
        Self {
            number: partition.index,
            start: partition.start,
            size: partition.size,
            uuid: partition.uuid,
        }
    }
}

/// A table with both slots found in it.
pub(super) struct Found {
    pub(super) tables: Tables,
    pub(super) bits: Bits,
}

/// Whether any of the slots' partitions carries a priority or is marked successful: whether a loader that goes by
/// attributes may be in use here.
///
/// # Errors
/// [`Error::NoLoader`] where the slots are not partitions of one disk; when it cannot be read, or its table is damaged in
/// both copies.
pub(crate) fn carries_attributes(system: &System, table: &SlotTable) -> Result<bool> {
    let store = Gptprio::open(system, table)?;
    if store.usr_slots {
        return Err(Error::NoLoader {
            problem: USR_SLOTS.to_owned(),
        });
    }
    Ok(store.find(&store.node.open()?)?.bits.speaks())
}

impl Gptprio {
    /// Finds the disk of both slots. Nothing is written.
    ///
    /// # Errors
    /// [`Error::NoLoader`] where the slots are not partitions of one disk.
    pub(crate) fn open(system: &System, table: &SlotTable) -> Result<Self> {
        let (a, b) = (&table.a, &table.b);
        let unfit = |problem: String| Error::NoLoader {
            problem: format!("gptprio needs both slots in one GUID partition table: {problem}"),
        };
        if a.disk != b.disk {
            return Err(unfit(format!(
                "slot A is on {}, slot B on {}",
                a.disk, b.disk
            )));
        }
        if let Some(slot) = [a, b].into_iter().find(|slot| slot.index == 0) {
            return Err(unfit(format!("{} is no partition", slot.kernel_name)));
        }
        let devices = BlockDevices::read(system)?;
        let disk = devices
            .by_name(&a.disk)
            .ok_or_else(|| unfit(format!("there is no disk {}", a.disk)))?;
        let path = system.dev(&disk.name);
        Ok(Self {
            shown: system.absolute(&path).display().to_string(),
            node: DiskNode {
                path,
                sector: disk.logical_block,
                size: disk.size,
                fixture: system.is_fixture(),
            },
            slots: [a.into(), b.into()],
            usr_slots: table.hold_usr(),
        })
    }

    #[cfg(test)]
    pub(super) fn at(node: DiskNode, slots: [SlotEntry; 2]) -> Self {
        Self {
            shown: node.path.display().to_string(),
            node,
            slots,
            usr_slots: false,
        }
    }

    /// The same slots on another disk.
    #[cfg(test)]
    pub(super) fn moved_to(&self, node: DiskNode) -> Self {
        Self::at(node, self.slots.clone())
    }

    pub(super) fn numbers(&self) -> [u32; 2] {
        let [a, b] = &self.slots;
        [a.number, b.number]
    }

    /// Reads the table and both slots in it.
    pub(super) fn find(&self, disk: &impl Disk) -> Result<Found> {
        let tables = Tables::read(disk, &self.numbers())?;
        let entries = tables.entries();
        let [a, b] = &self.slots;
        let boot = |slot: SlotName, entry: &SlotEntry| {
            let found = entries.iter().find(|found| found.number == entry.number);
            match found {
                Some(found) if is_entry_of(found, entry, disk.sector()) => Ok(found.boot),
                _ => Err(Error::Refused {
                    reason: format!(
                        "partition {} in the table of {} is not slot {slot}; was the table changed since the machine was \
                         started?",
                        entry.number, self.shown
                    ),
                }),
            }
        };
        let bits = Bits {
            a: boot(SlotName::A, a)?,
            b: boot(SlotName::B, b)?,
            lower: if a.number <= b.number {
                SlotName::A
            } else {
                SlotName::B
            },
        };
        Ok(Found { tables, bits })
    }

    /// Brings the table from what it says to `wanted`: what to write, and which entries change.
    pub(super) fn steps(
        &self,
        found: &Found,
        booted: Booted,
        wanted: &Record,
    ) -> [(SlotName, Boot, Boot); 2] {
        let now = found.bits;
        // Attributes that others wrote may mean the same in other numbers.
        let new = if now.record(booted).agrees_with(wanted) {
            now
        } else {
            bits(wanted, now.lower)
        };
        SlotName::BOTH.map(|slot| (slot, now.of(slot), new.of(slot)))
    }

    /// Writes both copies, in stages that are each durable before the next one.
    ///
    /// Durable and read back when it returns. A crash in the middle leaves one copy whole that every loader goes by, with
    /// the old attributes or the new ones; the next call finishes it.
    pub(super) fn write(&self, disk: &impl Disk, booted: Booted, wanted: &Record) -> Result<()> {
        let found = self.find(disk)?;
        let steps = self.steps(&found, booted, wanted);
        let behind = matches!(found.tables.other, Other::Behind(_));
        if !behind && steps.iter().all(|(_, old, new)| old == new) {
            return Ok(());
        }
        let boots = steps.map(|(slot, _, new)| (self.number(slot), new));
        let stages = found.tables.change(&boots)?;
        for stage in &stages {
            for (lba, bytes) in &stage.0 {
                tracing::debug!(disk = %self.shown, lba, "partition table");
                disk.write(*lba, bytes)?;
            }
            disk.flush()?;
        }
        // The last write of a sector counts.
        let mut last = std::collections::BTreeMap::new();
        for (lba, bytes) in stages.iter().flat_map(|stage| &stage.0) {
            last.insert(*lba, bytes);
        }
        for (lba, bytes) in last {
            if disk.read(lba, 1)? != *bytes {
                return Err(Error::ReadBack {
                    path: disk.path().to_owned(),
                    problem: format!("sector {lba} of the partition table differs"),
                });
            }
        }
        let after = Tables::read(disk, &self.numbers())?;
        match after.other {
            Other::Same(_) => Ok(()),
            _ => Err(Error::ReadBack {
                path: disk.path().to_owned(),
                problem: "the copies of the partition table differ".to_owned(),
            }),
        }
    }

    pub(super) fn number(&self, slot: SlotName) -> u32 {
        let [a, b] = self.numbers();
        match slot {
            SlotName::A => a,
            SlotName::B => b,
        }
    }

    /// Writes the backup header's sector as it is, and flushes.
    pub(super) fn test_write(&self) -> Result<()> {
        let _lock = Lock::of(&self.node.path)?;
        let disk = self.node.open_for_writing()?;
        let found = self.find(&disk)?;
        let (Other::Same(other) | Other::Behind(other)) = &found.tables.other else {
            return Ok(());
        };
        disk.write(other.lba, &other.header)?;
        disk.flush()
    }
}

fn is_entry_of(found: &Entry, slot: &SlotEntry, sector: u64) -> bool {
    let sectors = found
        .last
        .checked_sub(found.first)
        .map(|n| n.saturating_add(1));
    found.first.checked_mul(sector) == Some(slot.start)
        && sectors.and_then(|n| n.checked_mul(sector)) == Some(slot.size)
        && slot.uuid.is_none_or(|uuid| uuid == found.uuid)
}
