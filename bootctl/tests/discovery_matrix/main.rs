//! The discovery matrix: each kind of disk, table, root, name of a slot and piece of evidence, and what is made of it.
//!
//! On trees that look like machines, since no one machine has all of these. What a kernel without modules has is tried on real
//! loop disks by the lab (`loop/discovery-*`).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail where it stands"
)]

#[path = "../common/mod.rs"]
mod common;
mod disagreement;
mod disks;
mod doubles;
mod names;
mod options;
mod out_of_sight;
mod roots;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use slotd_bootctl::{
    Booted, Error, ErrorKind, SlotLocator, SlotName, SlotSettings, SlotTable, Witness,
};

use self::common::Machine;

impl Machine {
    /// Without the usual disk, and with nothing that speaks of a slot.
    fn bare() -> Self {
        let machine = Self::new();
        machine.unplug();
        machine.silence();
        machine
    }

    /// Takes the usual disk away.
    fn unplug(&self) {
        for name in ["vda", "vda1", "vda2", "vda3", "vda4"] {
            fs::remove_file(self.dir.path().join("sys/class/block").join(name)).unwrap();
        }
    }

    /// Takes everything away that speaks of a slot besides the root's device.
    fn silence(&self) {
        self.node.set_string("LoaderEntrySelected", None).unwrap();
        self.options("quiet");
    }

    fn options(&self, line: &str) {
        self.node.set_command_line(line).unwrap();
    }

    /// The mount table; layers of overlays in `/run` are there, with a file in them.
    fn mounts(&self, table: &str) {
        self.node.set_mounts(table).unwrap();
        let layers = table
            .split([',', ' ', '\n'])
            .filter_map(|option| option.split_once('='))
            .flat_map(|(_, layers)| layers.split(':'))
            .filter(|layer| layer.starts_with("/run/"));
        for layer in layers {
            self.file(&format!("{layer}/file"));
        }
    }

    /// A file of the running system.
    fn file(&self, path: &str) {
        let path = self.dir.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    /// A loop device and its file.
    fn add_loop(&self, file: &str) {
        self.node.add_loop(0, file).unwrap();
        self.file(file);
    }

    /// A link as udev makes it below `/dev/disk`.
    fn link(&self, link: &str, device: &str) {
        let path = self.dir.path().join("dev/disk").join(link);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(Path::new("../..").join(device), path).unwrap();
    }

    /// The link to a device-mapper device by its own name.
    fn map(&self, name: &str, device: &str) {
        let folder = self.dir.path().join("dev/mapper");
        fs::create_dir_all(&folder).unwrap();
        symlink(Path::new("..").join(device), folder.join(name)).unwrap();
    }

    fn auto(&self) -> Result<SlotTable, Error> {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None)
    }

    fn explicit(&self, a: &str, b: &str) -> Result<SlotTable, Error> {
        SlotTable::discover(&self.node.system(), &settings(a, b), None)
    }

    /// Every file with its sum, and every link with where it leads.
    fn bytes(&self) -> Vec<(PathBuf, u32)> {
        let mut files = Vec::new();
        let mut pending = vec![self.dir.path().to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let kind = fs::symlink_metadata(&path).unwrap().file_type();
                if kind.is_dir() {
                    pending.push(path);
                } else if kind.is_symlink() {
                    let target = fs::read_link(&path).unwrap();
                    files.push((path.join(target), 0));
                } else {
                    let sum = crc32fast::hash(&fs::read(&path).unwrap());
                    files.push((path, sum));
                }
            }
        }
        files.sort();
        files
    }

    fn with_loader(&self, says: SlotName) -> Result<SlotTable, Error> {
        let witness = Witness {
            source: "a loader's record".to_owned(),
            found: format!("ORDER={says}"),
            says: Some(Booted::Slot(says)),
        };
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, Some(witness))
    }
}

fn settings(a: &str, b: &str) -> SlotSettings {
    let parse = |text: &str| text.parse::<SlotLocator>().unwrap();
    SlotSettings::Explicit {
        a: parse(a),
        b: parse(b),
    }
}

fn names(table: &SlotTable) -> (&str, &str) {
    (&table.a.kernel_name, &table.b.kernel_name)
}

/// That a slot is booted, and that only the other one can be written.
fn assert_booted(case: &str, table: Result<SlotTable, Error>, slot: SlotName) {
    let table = table.unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(table.booted, Booted::Slot(slot), "{case}");
    let kind = table.inactive(slot).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::Unsafe, "{case}");
    assert_eq!(table.inactive(!slot).unwrap().name(), !slot, "{case}");
}

fn assert_refused(case: &str, table: Result<SlotTable, Error>, kind: ErrorKind, words: &[&str]) {
    let error = match table {
        Ok(table) => panic!("{case}: taken, {:?}", names(&table)),
        Err(error) => error,
    };
    assert_eq!(error.kind(), kind, "{case}: {error}");
    for word in words {
        let text = error.chain();
        assert!(text.contains(word), "{case}: {word:?} is not in {text}");
    }
}
