//! The slot table: which partitions the slots are, and which one runs.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::discovery::Survey;
use crate::error::{Error, Result};
use crate::part_uuid::PartUuid;
use crate::proof::InactiveSlot;
use crate::slot::{DeviceNumber, SlotName, SlotSettings};
use crate::system::System;

/// A partition, as sysfs and the partition table describe it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Partition {
    /// The kernel's name, such as `nvme0n1p3`.
    pub kernel_name: String,
    /// The device node, such as `/dev/nvme0n1p3`.
    pub node: PathBuf,
    /// The device number, its identity.
    pub number: DeviceNumber,
    /// The kernel's name of the whole disk, such as `nvme0n1`.
    pub disk: String,
    /// The partition's number in the table, from 1.
    pub index: u32,
    /// First byte on the disk.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Logical block size of the disk in bytes.
    pub logical_block: u32,
    /// The name in the partition table; empty where it has none.
    pub label: String,
    /// The partition's UUID, in a GUID partition table.
    pub uuid: Option<Uuid>,
    /// The disk's signature, where it has a DOS partition table with one.
    pub disk_signature: Option<u32>,
    /// The partition type's UUID.
    pub type_uuid: Option<Uuid>,
    /// Whether the kernel has it set read-only.
    pub read_only: bool,
}

impl Partition {
    /// What `PARTUUID=` calls it; `None` where its table has no such id.
    #[must_use]
    pub fn part_uuid(&self) -> Option<PartUuid> {
        let of_dos = || {
            Some(PartUuid::Dos {
                signature: self.disk_signature?,
                index: self.index,
            })
        };
        self.uuid.map(PartUuid::Gpt).or_else(of_dos)
    }
}

/// Which slot this boot runs from; `"A"`, `"B"` or `"neither"` in documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Booted {
    /// This one.
    Slot(SlotName),
    /// Neither: a rescue system, a live medium.
    Neither,
}

impl Booted {
    /// The slot, if one is booted.
    #[must_use]
    pub fn slot(self) -> Option<SlotName> {
        match self {
            Self::Slot(slot) => Some(slot),
            Self::Neither => None,
        }
    }
}

impl fmt::Display for Booted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "{slot}"),
            Self::Neither => f.write_str("neither"),
        }
    }
}

impl Serialize for Booted {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Booted {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "neither" {
            return Ok(Self::Neither);
        }
        text.parse()
            .map(Self::Slot)
            .map_err(serde::de::Error::custom)
    }
}

/// One witness of which slot is booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Witness {
    /// Where this was read: `/proc/self/mountinfo`, an EFI variable, the command line.
    pub source: String,
    /// What stood there.
    pub found: String,
    /// What it says; `None` where it speaks of no slot.
    pub says: Option<Booted>,
}

/// All that was asked which slot is booted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Evidence(pub Vec<Witness>);

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for witness in &self.0 {
            let says = match witness.says {
                Some(Booted::Slot(slot)) => format!("slot {slot}"),
                Some(Booted::Neither) => "neither slot".to_owned(),
                None => "nothing".to_owned(),
            };
            write!(
                f,
                "{separator}{} says {says} ({})",
                witness.source, witness.found
            )?;
            separator = "; ";
        }
        Ok(())
    }
}

/// Both slots, and which one is booted.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SlotTable {
    /// Slot A.
    pub a: Partition,
    /// Slot B.
    pub b: Partition,
    /// The slot that this boot runs from.
    pub booted: Booted,
    /// How that is known.
    pub evidence: Evidence,
    /// How the slots were found, in words.
    pub found_by: String,
    /// What there was to choose from.
    #[serde(skip)]
    pub survey: Survey,
    /// Every device that the running root stands on.
    #[serde(skip)]
    root_devices: BTreeSet<DeviceNumber>,
    /// The slot that all witnesses named, out of reach of whoever holds the table.
    #[serde(skip)]
    proven_booted: Booted,
    /// Whether device nodes may be regular files (a fixture tree).
    #[serde(skip)]
    fixture: bool,
}

impl SlotTable {
    /// Whether the slots hold `/usr` and not a root, by the names that they have then.
    #[must_use]
    pub fn hold_usr(&self) -> bool {
        [&self.a, &self.b]
            .iter()
            .any(|slot| slot.label.starts_with("USR-"))
    }

    /// Finds both slots and the booted one.
    ///
    /// `loader_evidence` is the word of a boot loader backend that knows more than the EFI
    /// variables of systemd-boot, which are always asked.
    ///
    /// # Errors
    /// When the slots cannot be told without doubt, are one device, or witnesses disagree.
    pub fn discover(
        system: &System,
        settings: &SlotSettings,
        loader_evidence: Option<Witness>,
    ) -> Result<Self> {
        let found = crate::discovery::find_slots(system, settings)?;
        let (booted, evidence) = crate::evidence::weigh(system, &found, loader_evidence)?;
        Ok(Self {
            survey: Survey::new(
                &found.node,
                &found.root,
                settings,
                Some([&found.a, &found.b]),
            ),
            a: found.a,
            b: found.b,
            booted,
            evidence,
            found_by: found.by,
            root_devices: found.root.devices,
            proven_booted: booted,
            fixture: system.is_fixture(),
        })
    }

    /// One slot's partition.
    #[must_use]
    pub fn get(&self, slot: SlotName) -> &Partition {
        match slot {
            SlotName::A => &self.a,
            SlotName::B => &self.b,
        }
    }

    /// The proof that a slot is not the running one, by device number and by every witness. The
    /// only way to a writer.
    ///
    /// # Errors
    /// [`Error::Refused`] for the booted slot, for a device that the running root stands on, and
    /// where both slots are one device.
    pub fn inactive(&self, slot: SlotName) -> Result<InactiveSlot> {
        let partition = self.get(slot);
        if self.proven_booted == Booted::Slot(slot) || self.booted == Booted::Slot(slot) {
            return Err(Error::Refused {
                reason: format!("slot {slot} is booted"),
            });
        }
        if self.root_devices.contains(&partition.number) {
            return Err(Error::Refused {
                reason: format!(
                    "the running root stands on {} ({}), which is slot {slot}",
                    partition.kernel_name, partition.number
                ),
            });
        }
        if self.a.number == self.b.number {
            return Err(Error::Refused {
                reason: format!("both slots are the same device, {}", self.a.number),
            });
        }
        Ok(InactiveSlot::new(slot, partition.clone(), self.fixture))
    }
}
