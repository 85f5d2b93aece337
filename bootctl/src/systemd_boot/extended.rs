//! The extended boot loader partition (XBOOTLDR): the loader lists its entries besides those of the EFI system partition.
//!
//! Boot files lie on the partition of their entry, for an entry's paths are relative to it. slotd's are all on one: the
//! EFI system partition where it has entries of a slot, else the extended one, which is what the Boot Loader
//! Specification calls `$BOOT`.

use std::path::{Path, PathBuf};

use super::esp::{self, read_text, size_below};
use super::find::PLACES;
use super::snapshot::ENTRIES;
use crate::discovery::Node;
use crate::entry::{EntryName, EntryText};
use crate::error::Result;
use crate::gpt::TYPE_XBOOTLDR;
use crate::model::ModelEntry;
use crate::system::System;
use crate::table::Partition;

/// What there is beside an EFI system partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Extended {
    /// No such partition on its disk, or none is known.
    None,
    /// One that is mounted nowhere: its kernel name.
    NotMounted(String),
    /// Where it is mounted.
    Mounted(PathBuf),
}

/// Looks for it as the loader does (`xbootldr_open`): the first one in the table of the EFI system partition's disk.
pub(crate) fn find(system: &System, node: &Node, esp: Option<&Partition>) -> Extended {
    let Some(esp) = esp else {
        return Extended::None;
    };
    let on_disk = node
        .partitions()
        .filter(|found| found.disk == esp.disk && found.type_uuid == Some(TYPE_XBOOTLDR));
    let Some(partition) = on_disk.min_by_key(|found| found.index) else {
        return Extended::None;
    };
    let by_custom = PLACES.into_iter().map(Path::new).find(|place| {
        let mount = node.mounts.at(place);
        mount.is_some_and(|mount| mount.device == partition.number)
    });
    match by_custom.or_else(|| node.mounts.point_of(partition.number)) {
        Some(place) => Extended::Mounted(system.path(place)),
        None => Extended::NotMounted(partition.kernel_name.clone()),
    }
}

/// Whether a partition has an entry of a slot.
pub(crate) fn has_slots(root: &Path) -> Result<bool> {
    let files = esp::list(&root.join(ENTRIES))?.unwrap_or_default();
    Ok(files
        .iter()
        .any(|(file, _)| EntryName::parse(file).is_some_and(|name| name.slot().is_some())))
}

/// Entries of another partition that the loader lists besides.
pub(crate) fn entries(root: &Path) -> Result<Vec<ModelEntry>> {
    let directory = root.join(ENTRIES);
    let mut entries = Vec::new();
    for (file, _) in esp::list(&directory)?.unwrap_or_default() {
        let ignored = file.starts_with('.') || file.starts_with("auto-");
        let Some(name) = EntryName::parse(&file)
            .filter(|name| !ignored && name.suffix.eq_ignore_ascii_case(".conf"))
        else {
            continue;
        };
        let bytes = read_text(&directory.join(&file))?;
        let text = EntryText::parse(&String::from_utf8_lossy(&bytes));
        let Some(kernel) = text.kernel else { continue };
        if size_below(root, &kernel)?.is_some() {
            entries.push(ModelEntry {
                name,
                sort_key: text.sort_key,
                machine_id: text.machine_id,
                version: text.version,
            });
        }
    }
    Ok(entries)
}
