//! A node made of plain files, for tests without privileges: sysfs, proc, device nodes, a partition
//! table, EFI variables and a mounted EFI system partition with systemd-boot.
//!
//! Discovery, proofs, backend and program run on it unchanged through [`System::at`]. The boot loader
//! is the model of [`crate::model`], so that a whole upgrade with its boots can be gone through.

mod devices;
mod disk;

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::entry::EntryName;
use crate::model::{self, ModelEntry, Preferences};
use crate::slot::SlotName;
use crate::system::System;

pub use devices::FixtureTable;
pub use disk::{FixturePartition, dos_image, gpt_image, usual_partitions};

const LOADER_VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

fn slot_device(slot: SlotName) -> &'static str {
    match slot {
        SlotName::A => "vda2",
        SlotName::B => "vda3",
    }
}

/// A node below a directory. By default: disk `vda` with the usual partitions, slot A booted and
/// good, its image recorded, the ESP mounted at `/efi`.
#[derive(Debug)]
pub struct FixtureNode {
    root: PathBuf,
}

impl FixtureNode {
    /// Machine id of the fixture.
    pub const MACHINE_ID: &'static str = "0123456789abcdef0123456789abcdef";

    /// Makes the default node below `root`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn create(root: &Path) -> io::Result<Self> {
        let node = Self {
            root: root.to_owned(),
        };
        for directory in [
            "sys/class/block",
            "sys/firmware/efi/efivars",
            "proc/self",
            "dev",
        ] {
            fs::create_dir_all(root.join(directory))?;
        }
        node.add_disk(
            "vda",
            254,
            0,
            512,
            &usual_partitions("root-a", "root-b", 0xa000),
        )?;
        for directory in ["EFI/systemd", "loader/entries"] {
            fs::create_dir_all(node.esp().join(directory))?;
        }
        fs::write(
            node.esp().join("loader/loader.conf"),
            "timeout 0\neditor no\n",
        )?;
        node.put_image(SlotName::A, "1.0.0")?;
        let entry = format!(
            "title Debian (slot A)\nsort-key slotd\nmachine-id {id}\nversion 1\n\
             linux /slotd/a/linux\noptions root=PARTUUID={uuid} ro systemd.machine_id={id} \
             panic=10 slotd.slot=a slotd.trial_deadline=600\n",
            id = Self::MACHINE_ID,
            uuid = node.slot_uuid(SlotName::A),
        );
        fs::write(node.esp().join("loader/entries/slotd-a.conf"), entry)?;
        node.set_string("LoaderInfo", Some("systemd-boot 252.39-1~deb12u1"))?;
        node.set_variable("LoaderFeatures", Some(&0x3f_u64.to_le_bytes()))?;
        node.set_string(
            "LoaderDevicePartUUID",
            Some(&Uuid::from_u128(0xa001).to_string()),
        )?;
        node.run_slot(SlotName::A, "slotd-a.conf")?;
        Ok(node)
    }

    /// The node's system.
    #[must_use]
    pub fn system(&self) -> System {
        System::at(&self.root)
    }

    /// The directory that stands for the mounted EFI system partition.
    #[must_use]
    pub fn esp(&self) -> PathBuf {
        self.root.join("efi")
    }

    /// PARTUUID of a slot.
    #[must_use]
    pub fn slot_uuid(&self, slot: SlotName) -> Uuid {
        Uuid::from_u128(0xa000 + if slot == SlotName::A { 2 } else { 3 })
    }

    /// Puts a block device in the place of the plain file that a slot is: its node, and its number as `major:minor`. The node
    /// has to run again before what is mounted says so.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn back_slot(&self, slot: SlotName, device: &Path, number: &str) -> io::Result<()> {
        let name = slot_device(slot);
        fs::write(self.slot_number(slot), format!("{number}\n"))?;
        let node = self.root.join("dev").join(name);
        fs::remove_file(&node)?;
        symlink(device, node)
    }

    fn slot_number(&self, slot: SlotName) -> PathBuf {
        let name = slot_device(slot);
        self.root.join("sys/class/block").join(name).join("dev")
    }

    /// Puts boot files and the record of a verified image beside them, as slotd leaves them.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn put_image(&self, slot: SlotName, version: &str) -> io::Result<()> {
        let place = self.esp().join("slotd").join(slot.lower());
        fs::create_dir_all(&place)?;
        fs::write(place.join("linux"), format!("kernel of slot {slot}"))?;
        let marker = format!(
            "{{\"version\": 1, \"min_reader\": 1, \"image\": {{\"expandedSha256\": \"{}\", \
             \"expandedSize\": 4096, \"version\": \"{version}\"}}}}\n",
            slot.lower().repeat(64)
        );
        fs::write(place.join("image.json"), marker)
    }

    /// File names of the boot entries, sorted.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn entries(&self) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = fs::read_dir(self.esp().join("loader/entries"))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// Sets the mount table.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_mounts(&self, mounts: &str) -> io::Result<()> {
        fs::write(self.root.join("proc/self/mountinfo"), mounts)
    }

    /// Sets the kernel's command line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_command_line(&self, line: &str) -> io::Result<()> {
        fs::write(self.root.join("proc/cmdline"), format!("{line}\n"))
    }

    /// Sets or removes a loader variable that holds text.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_string(&self, name: &str, value: Option<&str>) -> io::Result<()> {
        let data: Option<Vec<u8>> = value.map(|text| {
            text.encode_utf16()
                .chain([0])
                .flat_map(u16::to_le_bytes)
                .collect()
        });
        self.set_variable(name, data.as_deref())
    }

    /// Sets or removes a loader variable.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_variable(&self, name: &str, data: Option<&[u8]>) -> io::Result<()> {
        let path = self
            .root
            .join("sys/firmware/efi/efivars")
            .join(format!("{name}-{LOADER_VENDOR}"));
        match data {
            Some(data) => fs::write(path, [&[6, 0, 0, 0], data].concat()),
            None if path.exists() => fs::remove_file(path),
            None => Ok(()),
        }
    }

    /// Makes `slot` the running system, started from the entry with that file name.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn run_slot(&self, slot: SlotName, entry: &str) -> io::Result<()> {
        let number = fs::read_to_string(self.slot_number(slot))?;
        let number = number.trim();
        self.set_mounts(&format!(
            "22 1 {number} / / ro,relatime shared:1 - ext4 /dev/root ro\n\
             30 22 254:1 / /efi rw,relatime shared:2 - vfat /dev/vda1 rw,fmask=0077\n"
        ))?;
        let uuid = self.slot_uuid(slot);
        self.set_command_line(&format!(
            "root=PARTUUID={uuid} ro slotd.slot={}",
            slot.lower()
        ))?;
        self.set_string("LoaderEntrySelected", Some(entry))
    }

    /// Turns the node off and on: the model chooses an entry, counts it, and starts its slot.
    /// `None` where no entry of a slot was started.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn power_cycle(&self) -> io::Result<Option<SlotName>> {
        let directory = self.esp().join("loader/entries");
        let mut entries = Vec::new();
        for file in self.entries()? {
            let Some(name) = EntryName::parse(&file) else {
                continue;
            };
            let text = fs::read_to_string(directory.join(&file))?;
            let text = crate::entry::EntryText::parse(&text);
            let kernel = text.kernel.unwrap_or_default();
            if self.esp().join(kernel.trim_start_matches('/')).is_file() {
                entries.push(ModelEntry {
                    name,
                    sort_key: text.sort_key,
                    machine_id: text.machine_id,
                    version: text.version,
                });
            }
        }
        self.set_string("LoaderBootCountPath", None)?;
        let Some(chosen) = model::next(&entries, &Preferences::default()) else {
            return Ok(None);
        };
        let (before, started) = (chosen.name.to_string(), chosen.name.started().to_string());
        if chosen.name.counter.is_some() {
            fs::rename(directory.join(&before), directory.join(&started))?;
            let path = format!("\\loader\\entries\\{started}");
            self.set_string("LoaderBootCountPath", Some(&path))?;
        }
        let slot = chosen.name.slot();
        if let Some(slot) = slot {
            self.run_slot(slot, &before)?;
        }
        Ok(slot)
    }
}
