//! Finds the environment block that the loader reads.

use std::fs;
use std::path::{Path, PathBuf};

use super::convention::Convention;
use super::file::BlockFile;
use super::place;
use crate::error::{Error, Result};
use crate::system::System;
use crate::table::SlotTable;

/// Directories that GRUB has by custom.
const DIRECTORIES: [&str; 6] = [
    "/boot/grub",
    "/boot/grub2",
    "/efi/grub",
    "/efi/grub2",
    "/boot/efi/grub",
    "/boot/efi/grub2",
];

/// Mount points of an EFI system partition, where each vendor has a directory below `EFI`.
const PARTITIONS: [&str; 3] = ["/efi", "/boot/efi", "/boot"];

const FILE: &str = "grubenv";

/// The block's file: the one that is set, else the only one that is there, or is missing beside a `grub.cfg`, in the usual
/// directories; of several, the one that alone holds variables of the convention. What lies in a slot is the image's, and
/// not looked at, nor is what GRUB cannot write.
pub(crate) fn find(
    system: &System,
    table: &SlotTable,
    setting: Option<&Path>,
    convention: &Convention,
) -> Result<BlockFile> {
    if let Some(path) = setting {
        let file = BlockFile::new(system, path);
        if let Some(fault) = place::fault(system, table, &file.resolved()?)? {
            return Err(Error::NoLoader {
                problem: format!(
                    "{} {fault}; the environment block has to be outside of both slots, on FAT or ext4 directly on a \
                     partition",
                    path.display()
                ),
            });
        }
        return Ok(file);
    }
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    for directory in directories(system) {
        let file = BlockFile::new(system, &directory.join(FILE));
        let link = system.path(file.shown());
        let exists = fs::symlink_metadata(&link).is_ok();
        if !exists && !system.path(directory.join("grub.cfg")).is_file() {
            continue;
        }
        let real = file.resolved()?;
        if let Some(fault) = place::fault(system, table, &real)? {
            seen.push(format!("{} {fault}", file.shown().display()));
            continue;
        }
        if !found.iter().any(|(known, _)| *known == real) {
            found.push((real, file));
        }
    }
    let found = the_one_that_knows_slots(found, convention)?;
    match <[_; 1]>::try_from(found) {
        Ok([(_, file)]) => Ok(file),
        Err(found) if found.is_empty() => {
            seen.push(format!(
                "no {FILE} and no grub.cfg in {}, nor in EFI/* of {}",
                DIRECTORIES.join(", "),
                PARTITIONS.join(", ")
            ));
            Err(Error::NoLoader {
                problem: format!("GRUB's environment block: {}", seen.join("; ")),
            })
        }
        Err(found) => {
            let places: Vec<String> = found
                .iter()
                .map(|(real, _)| real.display().to_string())
                .collect();
            Err(Error::NoLoader {
                problem: format!(
                    "several environment blocks that GRUB may read: {}; set grub.environment to the one that \
                     its script loads",
                    places.join(", ")
                ),
            })
        }
    }
}

/// Of several the one whose variables are a script's that is gone by; where that is none or not one only, all of them. A
/// missing one may be what the loader reads, and one that is there may be of long ago.
fn the_one_that_knows_slots(
    found: Vec<(PathBuf, BlockFile)>,
    convention: &Convention,
) -> Result<Vec<(PathBuf, BlockFile)>> {
    if found.len() < 2 {
        return Ok(found);
    }
    let (mut knowing, mut others) = (Vec::new(), Vec::new());
    for (real, file) in found {
        let knows = match file.read() {
            Ok(content) => convention.is_in(|name| content.environment.get(name)),
            // No environment block.
            Err(Error::Malformed { .. }) => false,
            Err(error) => return Err(error),
        };
        let list = if knows { &mut knowing } else { &mut others };
        list.push((real, file));
    }
    if knowing.len() != 1 {
        knowing.append(&mut others);
    }
    Ok(knowing)
}

fn directories(system: &System) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = DIRECTORIES.iter().map(PathBuf::from).collect();
    for partition in PARTITIONS {
        let vendors = Path::new(partition).join("EFI");
        // An automount shows its file system only once it is used; absence is no error.
        let Ok(entries) = fs::read_dir(system.path(&vendors)) else {
            continue;
        };
        let mut names: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name()))
            .collect();
        names.sort();
        found.extend(names.iter().map(|name| vendors.join(name)));
    }
    found
}

#[cfg(test)]
mod tests;
