//! Changes of single files. A transition is a list of them, made before the first one is applied.

use super::snapshot::{FileContent, Snapshot};
use crate::backend::PlannedChange;
use crate::marker::{FileRecord, Marker};

/// A boot file that is copied from the written slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BootSource {
    Kernel,
    Initrd,
}

/// One change of one file, durable before the next one begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileChange {
    /// Make a directory if it is missing.
    MakeDirectory { path: String },
    /// Write under a temporary name, sync, rename over `path`, sync the directory.
    Write { path: String, bytes: Vec<u8> },
    /// Write under a temporary name, sync, exchange it with `path`, and keep the old file as `aside`: for one
    /// whose clusters must not be freed.
    Exchange {
        path: String,
        bytes: Vec<u8>,
        aside: String,
    },
    /// As `Write`, with the content of a boot file.
    Copy {
        path: String,
        source: BootSource,
        size: Option<u64>,
    },
    /// As `Write`, with the marker, completed by what the copies before it turned out to be.
    WriteMarker { path: String, marker: Box<Marker> },
    /// Rename within a directory.
    Rename { from: String, to: String },
    /// Remove.
    Remove { path: String },
}

/// A change and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) change: FileChange,
    pub(crate) why: String,
}

impl Step {
    pub(crate) fn new(change: FileChange, why: impl Into<String>) -> Self {
        Self {
            change,
            why: why.into(),
        }
    }

    pub(crate) fn remove(path: &str, why: impl Into<String>) -> Self {
        Self::new(
            FileChange::Remove {
                path: path.to_owned(),
            },
            why,
        )
    }

    /// For people, with the mount point before the path.
    pub(crate) fn planned(&self, root: &str) -> PlannedChange {
        let at = |path: &str| format!("{root}/{path}");
        let (target, change) = match &self.change {
            FileChange::MakeDirectory { path } => (at(path), "make directory".to_owned()),
            FileChange::Write { path, bytes } => (at(path), format!("write {} bytes", bytes.len())),
            FileChange::Exchange { path, bytes, aside } => {
                let name = aside.rsplit('/').next().unwrap_or(aside);
                let change = format!("write {} bytes; the old file stays as {name}", bytes.len());
                (at(path), change)
            }
            FileChange::Copy { path, source, size } => {
                let what = match source {
                    BootSource::Kernel => "kernel",
                    BootSource::Initrd => "initrd",
                };
                let size = size.map_or("size not known yet".to_owned(), |n| format!("{n} bytes"));
                (at(path), format!("copy the image's {what} ({size})"))
            }
            FileChange::WriteMarker { path, .. } => {
                (at(path), "write the image's record".to_owned())
            }
            FileChange::Rename { from, to } => {
                let name = to.rsplit('/').next().unwrap_or(to);
                (at(from), format!("rename to {name}"))
            }
            FileChange::Remove { path } => (at(path), "remove".to_owned()),
        };
        let content = match &self.change {
            FileChange::Write { bytes, .. } | FileChange::Exchange { bytes, .. } => {
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
            _ => None,
        };
        PlannedChange {
            target,
            change,
            content,
            why: self.why.clone(),
        }
    }
}

impl Snapshot {
    /// What the snapshot is after a change.
    pub(crate) fn apply(&mut self, change: &FileChange) {
        match change {
            FileChange::MakeDirectory { path } => {
                self.directories.insert(path.clone());
            }
            FileChange::Write { path, bytes } => {
                self.files
                    .insert(path.clone(), FileContent::of_bytes(bytes.clone()));
            }
            FileChange::Exchange { path, bytes, aside } => {
                let fresh = FileContent::of_bytes(bytes.clone());
                if let Some(old) = self.files.insert(path.clone(), fresh) {
                    self.files.insert(aside.clone(), old);
                }
            }
            FileChange::Copy { path, size, .. } => {
                // A boot file is never empty; where its size is not known any other will do.
                let content = FileContent {
                    size: size.unwrap_or(1),
                    bytes: None,
                };
                self.files.insert(path.clone(), content);
            }
            FileChange::WriteMarker { path, marker } => {
                self.files
                    .insert(path.clone(), FileContent::of_bytes(marker.render()));
            }
            FileChange::Rename { from, to } => {
                if let Some(content) = self.files.remove(from) {
                    self.files.insert(to.clone(), content);
                }
            }
            FileChange::Remove { path } => {
                self.files.remove(path);
            }
        }
    }

    /// Completes a marker with the files that were copied.
    pub(crate) fn complete_marker(marker: &Marker, copied: &[(BootSource, FileRecord)]) -> Marker {
        let record = |wanted: BootSource| {
            copied
                .iter()
                .find(|(source, _)| *source == wanted)
                .map(|(_, record)| *record)
        };
        let mut marker = marker.clone();
        if let Some(boot) = &mut marker.boot {
            boot.kernel = record(BootSource::Kernel).unwrap_or_default();
            boot.initrd = record(BootSource::Initrd);
        }
        marker
    }
}
