//! Where the markers of both slots lie, for loaders that have no boot partition of their own layout.

use std::fs;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};

use crate::backend::PlannedChange;
use crate::durable;
use crate::error::{Error, Result};
use crate::marker::Marker;
use crate::slot::SlotName;
use crate::system::System;

/// File of a slot's marker in the slot's folder.
const FILE: &str = "image.json";

/// A folder with one marker for each slot, `a/image.json` and `b/image.json`. It has to outlive a slot and be one for
/// both systems.
#[derive(Debug, Clone)]
pub(crate) struct Markers {
    /// The folder as the node names it.
    folder: PathBuf,
    system: System,
}

impl Markers {
    /// Markers in `folder`, an absolute path of the node. Nothing is made or read.
    pub(crate) fn at(system: &System, folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            system: system.clone(),
        }
    }

    /// The folder, as the node names it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the folder, or the one that it is made in, is there.
    pub(crate) fn is_there(&self) -> bool {
        let parent = self.folder.parent().unwrap_or(&self.folder);
        self.system.path(parent).is_dir()
    }

    /// The node.
    pub(crate) fn system(&self) -> &System {
        &self.system
    }

    fn shown(&self, slot: SlotName) -> PathBuf {
        self.folder.join(slot.lower()).join(FILE)
    }

    fn path(&self, slot: SlotName) -> PathBuf {
        self.system.path(self.shown(slot))
    }

    /// A slot's marker; `None` without one, the problem as text where it cannot be understood.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub(crate) fn read(&self, slot: SlotName) -> Result<Option<Result<Marker, String>>> {
        let path = self.path(slot);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(Marker::parse(&bytes))),
            Err(error) if matches!(error.kind(), IoKind::NotFound | IoKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }

    /// Writes a slot's marker under a temporary name, and renames it. Durable when it returns; a crash in the middle
    /// leaves the old one or none.
    ///
    /// # Errors
    /// When the place cannot be written, or does not read back.
    pub(crate) fn write(&self, slot: SlotName, marker: &Marker) -> Result<()> {
        let path = self.path(slot);
        let folder = path.parent().unwrap_or(&path);
        make_folders(folder)?;
        let temporary = folder.join("image.json.tmp");
        durable::write_bytes(&temporary, &marker.render())?;
        durable::rename(&temporary, &path)?;
        match self.read(slot)? {
            Some(Ok(found)) if found == *marker => Ok(()),
            _ => Err(Error::ReadBack {
                path,
                problem: "its content differs".to_owned(),
            }),
        }
    }

    /// Removes a slot's marker. Durable when it returns.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub(crate) fn remove(&self, slot: SlotName) -> Result<()> {
        durable::remove(&self.path(slot))
    }

    /// What [`Markers::write`] would change.
    pub(crate) fn planned_write(&self, slot: SlotName) -> PlannedChange {
        PlannedChange {
            target: self.shown(slot).display().to_string(),
            change: "write the image's record".to_owned(),
            content: None,
            why: format!("slot {slot} holds this verified image"),
        }
    }

    /// What [`Markers::remove`] would change; `None` where there is nothing to remove.
    ///
    /// # Errors
    /// As [`Markers::read`].
    pub(crate) fn planned_removal(&self, slot: SlotName) -> Result<Option<PlannedChange>> {
        Ok(self.read(slot)?.map(|_| PlannedChange {
            target: self.shown(slot).display().to_string(),
            change: "remove".to_owned(),
            content: None,
            why: format!("slot {slot} no longer holds a verified image"),
        }))
    }

    /// Whether markers can be written: makes, syncs and removes a file. Leaves at most folders behind.
    ///
    /// # Errors
    /// When they cannot.
    pub(crate) fn test_write(&self) -> Result<()> {
        let folder = self.system.path(&self.folder);
        make_folders(&folder)?;
        let file = folder.join(".slotd-write-test.tmp");
        durable::write_bytes(&file, &[])?;
        durable::remove(&file)
    }
}

fn make_folders(folder: &Path) -> Result<()> {
    let mut missing: Vec<&Path> = folder
        .ancestors()
        .take_while(|place| !place.is_dir())
        .collect();
    while let Some(place) = missing.pop() {
        durable::make_directory(place)?;
    }
    Ok(())
}
