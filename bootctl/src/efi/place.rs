//! The EFI system partition that slotd's boot options name.

use std::fs;
use std::path::PathBuf;

use uuid::Uuid;

use super::load_option::HardDrive;
use crate::discovery::Node;
use crate::error::{Error, Result};
use crate::gpt::TYPE_ESP;
use crate::system::System;
use crate::systemd_boot::EspSetting;
use crate::table::{Partition, SlotTable};

/// Where an EFI system partition is mounted by custom.
const PLACES: [&str; 3] = ["/efi", "/boot/efi", "/boot"];

/// The mounted partition.
#[derive(Debug, Clone)]
pub(crate) struct Esp {
    /// Where this process reaches it.
    pub(crate) root: PathBuf,
    /// Where the node has it mounted.
    pub(crate) shown: PathBuf,
    /// What an option names it by.
    pub(crate) drive: HardDrive,
    /// Its file system.
    pub(crate) kind: String,
    /// Whether the mount table has it read-only.
    pub(crate) read_only: bool,
}

/// `running` is the partition that this boot's option names, which is preferred.
///
/// # Errors
/// [`Error::NoLoader`] where none is mounted, or several could be meant.
pub(crate) fn find(
    system: &System,
    table: &SlotTable,
    setting: &EspSetting,
    running: Option<Uuid>,
) -> Result<Esp> {
    let places: Vec<PathBuf> = match setting {
        EspSetting::Auto => PLACES.iter().map(PathBuf::from).collect(),
        EspSetting::Path(path) => vec![system.absolute(path)],
    };
    for place in &places {
        // An automount shows its file system only once it is used; absence is no error.
        let _ = fs::read_dir(system.path(place));
    }
    let node = Node::read(system)?;
    // A rescue system's option is not the slots'.
    let running = running.filter(|_| table.booted.slot().is_some());
    let mut seen = Vec::new();
    let mut candidates = Vec::new();
    for place in &places {
        let shown = place.display();
        let Some(mount) = node.mounts.at(place) else {
            seen.push(format!("{shown} is not a mount point"));
            continue;
        };
        let Some(device) = node.devices.by_number(mount.device) else {
            seen.push(format!("{shown} is {} without a device", mount.kind));
            continue;
        };
        let partition = node.describe(device);
        let near = [&table.a, &table.b].map(|slot| slot.disk == partition.disk);
        let runs = running.is_some() && partition.uuid == running;
        let fits = partition.type_uuid == Some(TYPE_ESP) && near.contains(&true);
        if !(runs || fits || matches!(setting, EspSetting::Path(_))) {
            seen.push(format!(
                "{shown} is {}, not an EFI system partition on {}",
                partition.kernel_name, table.a.disk
            ));
            continue;
        }
        match drive(&partition) {
            Some(drive) => candidates.push(Candidate {
                esp: Esp {
                    root: system.path(place),
                    shown: place.clone(),
                    drive,
                    kind: mount.kind.clone(),
                    read_only: mount.read_only,
                },
                partition,
                runs,
                near: near.contains(&true),
            }),
            None => seen.push(format!(
                "{shown} is {}, which no boot option can name: it is no partition of a GPT",
                partition.kernel_name
            )),
        }
    }
    if candidates.iter().any(|candidate| candidate.runs) {
        candidates.retain(|candidate| candidate.runs);
    }
    // A clone of the disk has a partition of the same UUID, which says nothing then.
    let same = node.partitions().filter(|found| found.uuid == running);
    if let (Some(uuid), EspSetting::Auto, true) = (running, setting, same.count() > 1) {
        seen.push(format!(
            "this boot's option names partition {uuid}, which is there more than once"
        ));
        candidates.retain(|candidate| candidate.near);
    }
    let mut candidates = candidates.into_iter();
    let Some(first) = candidates.next() else {
        return Err(Error::NoLoader {
            problem: format!(
                "the EFI system partition is not mounted: {}",
                seen.join(", ")
            ),
        });
    };
    // The same one may be mounted at two places.
    let others: Vec<String> = candidates
        .filter(|other| other.partition.number != first.partition.number)
        .map(|other| other.shown())
        .collect();
    if others.is_empty() {
        return Ok(first.esp);
    }
    Err(Error::NoLoader {
        problem: format!(
            "more than one EFI system partition could be meant, and this boot's option does not say \
             which: {}, {}; set the boot partition in the configuration",
            first.shown(),
            others.join(", ")
        ),
    })
}

/// A partition that may be the one.
struct Candidate {
    esp: Esp,
    partition: Partition,
    /// Whether this boot's option names it.
    runs: bool,
    /// Whether it is on a disk of the slots.
    near: bool,
}

impl Candidate {
    fn shown(&self) -> String {
        format!(
            "{} ({})",
            self.esp.shown.display(),
            self.partition.kernel_name
        )
    }
}

/// How a boot option names a partition: in its disk's logical blocks.
fn drive(partition: &Partition) -> Option<HardDrive> {
    let block = u64::from(partition.logical_block);
    Some(HardDrive {
        number: Some(partition.index).filter(|index| *index > 0)?,
        start: partition.start.checked_div(block)?,
        size: partition.size.checked_div(block)?,
        signature: partition.uuid?,
    })
}

impl Esp {
    /// Whether the firmware can read it.
    pub(crate) fn is_fat(&self) -> bool {
        matches!(self.kind.as_str(), "vfat" | "msdos")
    }
}
