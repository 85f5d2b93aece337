//! A machine whose slots' entries and boot files are on an extended boot loader partition.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Machine, image_tree, open, scratch};
use crate::backend::Backend;
use crate::entry::{EntryName, EntryText};
use crate::fixture::{FixtureNode, gpt_image, usual_partitions};
use crate::gpt::TYPE_XBOOTLDR;
use crate::inspect::SlotView;
use crate::model::{self, ModelEntry, Preferences};
use crate::slot::{SlotName, SlotSettings};
use crate::systemd_boot::SystemdBoot;
use crate::table::SlotTable;

/// systemd-boot on a fixture node with both kinds of boot partition.
pub(crate) struct OnExtended {
    pub(crate) dir: TempDir,
    pub(crate) node: FixtureNode,
    backend: SystemdBoot,
}

/// Gives the data partition of the node's disk another type, in the primary table.
pub(crate) fn retype_data(node: &FixtureNode) {
    let mut partitions = usual_partitions("root-a", "root-b", 0xa000);
    partitions[3].type_uuid = TYPE_XBOOTLDR;
    let table = gpt_image(64 * 1024 * 1024, 512, &partitions);
    let disk = fs::OpenOptions::new()
        .write(true)
        .open(node.system().dev("vda"))
        .unwrap();
    disk.write_all_at(&table[..0x5000], 0).unwrap();
}

/// Mounts it at `/boot` (or another place).
pub(crate) fn mount_extended(node: &FixtureNode, place: &str, kind: &str) {
    let table = node.system().proc("self/mountinfo");
    let mut mounts = fs::read_to_string(&table).unwrap();
    mounts.push_str(&format!("31 22 254:4 / {place} rw - {kind} /dev/vda4 rw\n"));
    fs::write(table, mounts).unwrap();
}

impl OnExtended {
    pub(crate) fn new() -> Self {
        let dir = scratch();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        retype_data(&node);
        let boot = node.system().path("/boot");
        fs::create_dir_all(boot.join("loader")).unwrap();
        for moved in ["loader/entries", "slotd"] {
            fs::rename(node.esp().join(moved), boot.join(moved)).unwrap();
        }
        mount_extended(&node, "/boot", "vfat");
        let backend = open(&node);
        Self { dir, node, backend }
    }

    pub(crate) fn boot(&self) -> PathBuf {
        self.node.system().path("/boot")
    }

    /// Entries of one partition that the loader lists.
    fn listed(root: &Path) -> Vec<(PathBuf, ModelEntry)> {
        let directory = root.join("loader/entries");
        let files = fs::read_dir(&directory).into_iter().flatten();
        let listed = files.filter_map(|file| {
            let path = file.unwrap().path();
            let name = EntryName::parse(path.file_name()?.to_str()?)?;
            let text = EntryText::parse(&fs::read_to_string(&path).unwrap());
            // Relative to the partition of the entry.
            let kernel = root.join(text.kernel?.trim_start_matches('/'));
            let entry = ModelEntry {
                name,
                sort_key: text.sort_key,
                machine_id: text.machine_id,
                version: text.version,
            };
            kernel.is_file().then_some((directory.clone(), entry))
        });
        listed.collect()
    }
}

impl Machine for OnExtended {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn table(&self) -> SlotTable {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None).unwrap()
    }

    /// The loader lists both partitions' entries, and renames the one that it starts on its own partition.
    fn power_cycle(&mut self) -> Option<SlotName> {
        let mut listed = Self::listed(&self.node.esp());
        listed.extend(Self::listed(&self.boot()));
        let entries: Vec<ModelEntry> = listed.iter().map(|(_, entry)| entry.clone()).collect();
        let chosen = model::next(&entries, &Preferences::default())?.clone();
        let (directory, _) = listed.iter().find(|(_, entry)| *entry == chosen).unwrap();
        let (before, after) = (chosen.name.to_string(), chosen.name.started().to_string());
        let counted = (before != after).then(|| format!("\\loader\\entries\\{after}"));
        fs::rename(directory.join(&before), directory.join(&after)).unwrap();
        self.node
            .set_string("LoaderBootCountPath", counted.as_deref())
            .unwrap();
        let slot = chosen.name.slot()?;
        self.node.run_slot(slot, &before).unwrap();
        mount_extended(&self.node, "/boot", "vfat");
        self.backend = open(&self.node);
        Some(slot)
    }

    fn view(&self) -> SlotView {
        image_tree(&self.dir.path().join("image"))
    }
}
