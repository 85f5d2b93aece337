//! A node made of plain files, for tests without privileges: sysfs, proc, device nodes, a partition
//! table, EFI variables and a mounted EFI system partition with systemd-boot.
//!
//! Discovery, proofs, backend and program run on it unchanged through [`System::at`]. The boot loader
//! is the model of [`crate::model`], so that a whole upgrade with its boots can be gone through.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::entry::EntryName;
use crate::model::{self, ModelEntry, Preferences};
use crate::slot::SlotName;
use crate::system::System;

/// Bytes of the fixture's disk.
const DISK_SIZE: u64 = 64 * 1024 * 1024;
/// More than a table takes up with sectors of 4096 bytes.
const TABLE_SIZE: usize = 64 * 1024;
const LOADER_VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
const TYPE_ROOT: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";

/// A partition of a fixture disk.
#[derive(Debug, Clone)]
pub struct FixturePartition {
    /// Number in the table, from 1.
    pub index: u32,
    /// Name in the table.
    pub label: String,
    /// Partition type.
    pub type_uuid: Uuid,
    /// Unique id.
    pub uuid: Uuid,
    /// First byte.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
}

/// A disk image with a GUID partition table, primary and backup, as it would be on the medium.
#[must_use]
pub fn gpt_image(size: u64, sector: u32, partitions: &[FixturePartition]) -> Vec<u8> {
    let sector = u64::from(sector);
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let mut image = vec![0_u8; at(size)];
    let mut array = vec![0_u8; 128 * 128];
    for partition in partitions {
        let entry = &mut array[at(u64::from(partition.index - 1) * 128)..][..128];
        entry[..16].copy_from_slice(&partition.type_uuid.to_bytes_le());
        entry[16..32].copy_from_slice(&partition.uuid.to_bytes_le());
        let last = (partition.start + partition.size) / sector - 1;
        entry[32..40].copy_from_slice(&(partition.start / sector).to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        for (unit, place) in partition
            .label
            .encode_utf16()
            .zip(entry[56..].chunks_exact_mut(2))
        {
            place.copy_from_slice(&unit.to_le_bytes());
        }
    }
    // The protective record without which other tools see no GUID table.
    image[446 + 4] = 0xee;
    image[446 + 8] = 1;
    image[446 + 12..446 + 16].fill(0xff);
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    let array_sectors = (128 * 128_u64).div_ceil(sector);
    let last = size / sector - 1;
    for (own, other, entries) in [(1, last, 2), (last, 1, last - array_sectors)] {
        let mut header = [0_u8; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x0001_0000_u32.to_le_bytes());
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[24..32].copy_from_slice(&own.to_le_bytes());
        header[32..40].copy_from_slice(&other.to_le_bytes());
        header[40..48].copy_from_slice(&(2 + array_sectors).to_le_bytes());
        header[48..56].copy_from_slice(&(last - array_sectors - 1).to_le_bytes());
        header[72..80].copy_from_slice(&entries.to_le_bytes());
        header[80..84].copy_from_slice(&128_u32.to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        header[88..92].copy_from_slice(&crc32fast::hash(&array).to_le_bytes());
        let crc = crc32fast::hash(&header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        image[at(own * sector)..][..92].copy_from_slice(&header);
        image[at(entries * sector)..][..array.len()].copy_from_slice(&array);
    }
    image
}

/// The usual partitions: ESP, two slots of 16 MiB, data.
#[must_use]
pub fn usual_partitions(label_a: &str, label_b: &str, seed: u128) -> Vec<FixturePartition> {
    let mib = |n: u64| n * 1024 * 1024;
    let root = TYPE_ROOT.parse().unwrap_or_default();
    let esp = Uuid::from_u128(0xc12a7328_f81f_11d2_ba4b_00a0c93ec93b);
    let data = Uuid::from_u128(0x0fc63daf_8483_4772_8e79_3d69d8477de4);
    [
        ("ESP", esp, 1, 8),
        (label_a, root, 9, 16),
        (label_b, root, 25, 16),
        ("data", data, 41, 8),
    ]
    .into_iter()
    .zip(1..)
    .map(
        |((label, type_uuid, start, size), index)| FixturePartition {
            index,
            label: label.to_owned(),
            type_uuid,
            uuid: Uuid::from_u128(seed + u128::from(index)),
            start: mib(start),
            size: mib(size),
        },
    )
    .collect()
}

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

    /// Adds a disk with a partition table; device numbers count up from `minor`, the disk's.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn add_disk(
        &self,
        disk: &str,
        major: u32,
        minor: u32,
        sector: u32,
        partitions: &[FixturePartition],
    ) -> io::Result<()> {
        // Sparse: only where the tables are is anything written.
        let image = gpt_image(DISK_SIZE, sector, partitions);
        let file = fs::File::create(self.root.join("dev").join(disk))?;
        file.set_len(DISK_SIZE)?;
        let tail = image.len().saturating_sub(TABLE_SIZE);
        let tail_at = u64::try_from(tail).unwrap_or(u64::MAX);
        file.write_all_at(&image[..TABLE_SIZE], 0)?;
        file.write_all_at(&image[tail..], tail_at)?;
        let home = format!("sys/devices/pci0/block/{disk}");
        self.device(&home, disk, (major, minor), DISK_SIZE, &[])?;
        fs::create_dir_all(self.root.join(&home).join("queue"))?;
        fs::write(
            self.root.join(&home).join("queue/logical_block_size"),
            format!("{sector}\n"),
        )?;
        let glue = if disk.ends_with(|c: char| c.is_ascii_digit()) {
            "p"
        } else {
            ""
        };
        for partition in partitions {
            let name = format!("{disk}{glue}{}", partition.index);
            let extra = [
                ("partition", partition.index.to_string()),
                ("start", (partition.start / 512).to_string()),
            ];
            let number = (major, minor + partition.index);
            self.device(
                &format!("{home}/{name}"),
                &name,
                number,
                partition.size,
                &extra,
            )?;
            let node = fs::File::create(self.root.join("dev").join(&name))?;
            node.set_len(partition.size)?;
        }
        Ok(())
    }

    /// Sets the attributes of entries in both tables of a disk that [`FixtureNode::add_disk`] made, by their numbers.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn set_attributes(
        &self,
        disk: &str,
        sector: u32,
        attributes: &[(u32, u64)],
    ) -> io::Result<()> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.root.join("dev").join(disk))?;
        let sector = u64::from(sector);
        let array_length = 128 * 128;
        let last = DISK_SIZE / sector - 1;
        for (header_at, array_at) in [
            (sector, 2 * sector),
            (last * sector, last * sector - array_length),
        ] {
            let mut header = [0; 92];
            let mut array = vec![0; 128 * 128];
            file.read_exact_at(&mut header, header_at)?;
            file.read_exact_at(&mut array, array_at)?;
            for (number, value) in attributes {
                let at = usize::try_from(number - 1).unwrap_or(usize::MAX) * 128 + 48;
                array[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            header[88..92].copy_from_slice(&crc32fast::hash(&array).to_le_bytes());
            header[16..20].fill(0);
            let crc = crc32fast::hash(&header);
            header[16..20].copy_from_slice(&crc.to_le_bytes());
            file.write_all_at(&header, header_at)?;
            file.write_all_at(&array, array_at)?;
        }
        Ok(())
    }

    /// Adds a device-mapper device that stands on others.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn add_mapped(&self, name: &str, minor: u32, below: &[&str]) -> io::Result<()> {
        let home = format!("sys/devices/virtual/block/{name}");
        self.device(&home, name, (253, minor), DISK_SIZE, &[])?;
        let slaves = self.root.join(&home).join("slaves");
        fs::create_dir_all(&slaves)?;
        for device in below {
            symlink(format!("../../{device}"), slaves.join(device))?;
        }
        fs::write(self.root.join("dev").join(name), b"")
    }

    fn device(
        &self,
        home: &str,
        name: &str,
        number: (u32, u32),
        size: u64,
        extra: &[(&str, String)],
    ) -> io::Result<()> {
        let directory = self.root.join(home);
        fs::create_dir_all(&directory)?;
        fs::write(
            directory.join("dev"),
            format!("{}:{}\n", number.0, number.1),
        )?;
        fs::write(directory.join("size"), format!("{}\n", size / 512))?;
        fs::write(directory.join("ro"), "0\n")?;
        for (file, value) in extra {
            fs::write(directory.join(file), format!("{value}\n"))?;
        }
        let link = self.root.join("sys/class/block").join(name);
        symlink(
            format!("../../{}", home.strip_prefix("sys/").unwrap_or(home)),
            link,
        )
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
