//! A loop disk with two slots that hold the same root file system, and the slot tool run with one of them as its root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::look::{Found, Look};
use crate::lab::Lab;
use crate::loopdisk::{LoopDisk, Sector};
use crate::process;

/// Bytes of the disk.
pub(in crate::scenarios) const DISK_SIZE: u64 = 512 << 20;
/// All that discovery needs.
pub(in crate::scenarios) const SLOT_TOOL: &[&str] = &["slotd-bootctl"];
const LOADER_VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// The kind of a disk's partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::scenarios) enum Kind {
    /// GUID table, slots 2 and 3, which have a known label pair.
    Gpt,
    /// The same, and two more partitions whose labels differ from those of the slots only in case.
    CaseTwins,
    /// DOS table, slots 2 and 3.
    Dos,
    /// DOS table, slots 5 and 6, which are logical partitions.
    Logical,
}

/// The labels of the slots on a GUID table.
pub(in crate::scenarios) const LABELS: [&str; 2] = ["root-a", "root-b"];

/// The id of the file system in both slots.
pub(in crate::scenarios) const FILE_SYSTEM_UUID: &str = "7c01f2a8-6f0e-4c3f-b0a6-55d7e6d3a111";

/// Its label.
pub(in crate::scenarios) const FILE_SYSTEM_LABEL: &str = "slotd-root";

impl Kind {
    fn script(self) -> &'static str {
        match self {
            Self::Gpt => {
                "label: gpt\nsize=8MiB, name=ESP\nsize=192MiB, name=root-a\nsize=192MiB, name=root-b\n"
            }
            Self::CaseTwins => {
                "label: gpt\nsize=8MiB, name=ESP\nsize=192MiB, name=root-a\nsize=192MiB, name=root-b\n\
                 size=8MiB, name=Root-A\nsize=8MiB, name=Root-B\n"
            }
            Self::Dos => {
                "label: dos\nlabel-id: 0x0badcafe\nsize=8MiB, type=c\nsize=192MiB, type=83\nsize=192MiB, type=83\n"
            }
            Self::Logical => {
                "label: dos\nlabel-id: 0x0badcafe\n1 : size=8MiB, type=c\n2 : size=480MiB, type=f\n\
                 5 : size=192MiB, type=83\n6 : size=192MiB, type=83\n"
            }
        }
    }

    fn slots(self) -> [u32; 2] {
        match self {
            Self::Gpt | Self::CaseTwins | Self::Dos => [2, 3],
            Self::Logical => [5, 6],
        }
    }
}

/// The disk, and the names of its slots by `partx` and sysfs, A first.
pub(in crate::scenarios) struct Rig {
    pub(in crate::scenarios) kind: Kind,
    /// Device nodes.
    pub(in crate::scenarios) device: [String; 2],
    /// Device numbers.
    pub(in crate::scenarios) number: [String; 2],
    /// Ids in the partition table.
    pub(in crate::scenarios) part_uuid: [String; 2],
    folder: PathBuf,
    disk: LoopDisk,
}

impl Rig {
    /// With ext4, in which a smaller image of the same root lies.
    pub(in crate::scenarios) fn with_ext4(lab: &Lab, kind: Kind, sector: Sector) -> Result<Self> {
        let folder = lab.folder().join(format!("{kind:?}-{}", sector.bytes()));
        let tree = tree(lab, &folder, SLOT_TOOL)?;
        let (inner, image) = (folder.join("inner.img"), folder.join("slot.img"));
        ext4(&tree, &inner, "48M")?;
        fs::rename(&inner, tree.join("inner.img")).context("moving the inner image")?;
        ext4(&tree, &image, "192M")?;
        Self::new(folder, kind, sector, &image)
    }

    /// With btrfs.
    pub(in crate::scenarios) fn with_btrfs(lab: &Lab) -> Result<Self> {
        let folder = lab.folder().join("btrfs");
        let tree = tree(lab, &folder, SLOT_TOOL)?;
        let image = folder.join("slot.img");
        fs::File::create(&image)
            .and_then(|file| file.set_len(192 << 20))
            .context("making an image")?;
        process::run("mkfs.btrfs", |command| {
            command.args(["-q", "--rootdir"]).args([&tree, &image])
        })?;
        Self::new(folder, Kind::Gpt, Sector::B512, &image)
    }

    /// With an image in both slots.
    pub(in crate::scenarios) fn new(
        folder: PathBuf,
        kind: Kind,
        sector: Sector,
        image: &Path,
    ) -> Result<Self> {
        let disk = LoopDisk::attach(&folder.join("disk"), DISK_SIZE, sector)?;
        Self::on(disk, folder, kind, image)
    }

    /// The same on an empty disk.
    pub(in crate::scenarios) fn on(
        mut disk: LoopDisk,
        folder: PathBuf,
        kind: Kind,
        image: &Path,
    ) -> Result<Self> {
        disk.partition(kind.script())?;
        for index in kind.slots() {
            process::run("dd", |command| {
                let to = disk.partition_device(index);
                command
                    .arg(format!("if={}", image.display()))
                    .arg(format!("of={}", to.display()))
                    .args(["bs=1M", "conv=fsync,sparse", "status=none"])
            })?;
        }
        Self::of(folder, kind, disk)
    }

    fn of(folder: PathBuf, kind: Kind, disk: LoopDisk) -> Result<Self> {
        let mut devices = Vec::new();
        for index in kind.slots() {
            let device = disk.partition_device(index);
            let name = device.file_name().context("a name")?;
            let number = Path::new("/sys/class/block").join(name).join("dev");
            let number = fs::read_to_string(&number)
                .with_context(|| format!("reading {}", number.display()))?;
            let id = process::output("partx", |command| {
                command
                    .args(["--raw", "--noheadings", "--output", "UUID", "--nr"])
                    .arg(index.to_string())
                    .arg(disk.device())
            })?;
            devices.push((
                device.display().to_string(),
                number.trim().to_owned(),
                id.trim().to_owned(),
            ));
        }
        let [a, b] = <[_; 2]>::try_from(devices).ok().context("two slots")?;
        Ok(Self {
            kind,
            device: [a.0, b.0],
            number: [a.1, b.1],
            part_uuid: [a.2, b.2],
            folder,
            disk,
        })
    }

    /// Another disk with the same bytes.
    pub(in crate::scenarios) fn twin(&self) -> Result<Self> {
        let file = self.folder.join("twin");
        process::run("cp", |command| {
            command
                .arg("--sparse=always")
                .arg(self.disk.file())
                .arg(&file)
        })?;
        let sector = match self.sector()?.as_str() {
            "512" => Sector::B512,
            _ => Sector::B4096,
        };
        let mut disk = LoopDisk::attach(&file, DISK_SIZE, sector)?;
        disk.show_partitions()?;
        Self::of(self.folder.clone(), self.kind, disk)
    }

    /// The whole disk.
    pub(in crate::scenarios) fn disk(&self) -> &Path {
        self.disk.device()
    }

    /// The file behind it.
    pub(in crate::scenarios) fn disk_file(&self) -> &Path {
        self.disk.file()
    }

    /// The small partition before the slots.
    pub(in crate::scenarios) fn boot_partition(&self) -> PathBuf {
        self.disk.partition_device(1)
    }

    fn sector(&self) -> Result<String> {
        let size = process::output("blockdev", |command| {
            command.arg("--getss").arg(self.disk.device())
        })?;
        Ok(size.trim().to_owned())
    }

    /// Kernel names of the slots.
    pub(in crate::scenarios) fn names(&self) -> [String; 2] {
        self.device
            .clone()
            .map(|device| device.replace("/dev/", ""))
    }

    /// The ways to name the slots that this disk allows; `None` stands for the known labels.
    pub(in crate::scenarios) fn settings(&self) -> Vec<Option<[String; 2]>> {
        let mut settings = self.settings_by_name();
        settings.push(Some(self.device.clone()));
        settings
    }

    /// Those that do not name a device.
    pub(in crate::scenarios) fn settings_by_name(&self) -> Vec<Option<[String; 2]>> {
        let ids = self.part_uuid.clone().map(|id| format!("PARTUUID={id}"));
        match self.kind {
            Kind::Gpt | Kind::CaseTwins => {
                let labels = LABELS.map(|label| format!("PARTLABEL={label}"));
                vec![None, Some(labels), Some(ids)]
            }
            Kind::Dos | Kind::Logical => vec![Some(ids)],
        }
    }

    /// That the tool finds this disk's slots, and the one that runs.
    pub(in crate::scenarios) fn finds(&self, look: &Look, booted: &str) -> Result<Found> {
        let found = self.look(look)?;
        ensure!(
            found.booted.as_deref() == Some(booted) && found.slots == self.names(),
            "{look:?} shows {found:?} instead of {:?}, {booted} booted",
            self.names()
        );
        Ok(found)
    }

    /// That the tool refuses with an exit code and words.
    pub(in crate::scenarios) fn refuses(
        &self,
        look: &Look,
        code: i32,
        words: &[&str],
    ) -> Result<()> {
        let output = self.run(look)?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(code) && words.iter().all(|word| text.contains(word)),
            "{look:?} is not refused with {words:?}: {output:?}"
        );
        Ok(())
    }

    /// What the tool finds.
    pub(in crate::scenarios) fn look(&self, look: &Look) -> Result<Found> {
        let output = self.run(look)?;
        // Without a boot loader the slots are shown all the same.
        let Ok(document) = serde_json::from_slice::<Value>(&output.stdout) else {
            bail!("{look:?} shows no document: {output:?}");
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let device = |at: usize| {
            let device = text(&document["slots"][at]["device"]).unwrap_or_default();
            device.replace("/dev/", "")
        };
        Ok(Found {
            slots: [device(0), device(1)],
            booted: text(&document["booted"]),
            evidence: document["evidence"].clone(),
        })
    }

    fn run(&self, look: &Look) -> Result<Output> {
        self.call(
            look,
            "/slotd-bootctl status --output json \"$@\"",
            Stdio::null(),
        )
    }

    /// Runs a command, which is given the slots as they are configured as its arguments, with the root as the machine's.
    pub(in crate::scenarios) fn call(
        &self,
        look: &Look,
        program: &str,
        input: Stdio,
    ) -> Result<Output> {
        let work = tempfile::tempdir_in(&self.folder).context("making a folder")?;
        let root = work.path().join("root");
        fs::create_dir(&root).context("making a folder")?;
        let write = |name: &str, bytes: &[u8]| {
            let path = work.path().join(name);
            fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))
        };
        write("cmdline", look.options.as_bytes())?;
        let mut script = format!(
            "{}\nmount --rbind /sys $ROOT/sys\nmount --rbind /dev $ROOT/dev\nmount -t proc proc $ROOT/proc\n\
             mount --bind $WORK/cmdline $ROOT/proc/cmdline\nmount -t tmpfs tmpfs $ROOT/sys/firmware\n\
             mkdir -p $ROOT/sys/firmware/efi/efivars\n",
            look.mount
        );
        if let Some(entry) = &look.selected {
            let mut variable = vec![6, 0, 0, 0];
            variable.extend(entry.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
            let name = format!("LoaderEntrySelected-{LOADER_VENDOR}");
            write(&name, &variable)?;
            script.push_str(&format!("cp $WORK/{name} $ROOT/sys/firmware/efi/efivars\n"));
        }
        script.push_str(&format!("chroot $ROOT {program}\n"));
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-ec",
                &script,
                "sh",
            ])
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .env("ROOT", &root)
            .env("WORK", work.path())
            .env("TREE", self.folder.join("tree"));
        if let Some([a, b]) = &look.slots {
            command.args(["--slot-a", a, "--slot-b", b]);
        }
        command.stdin(input).output().context("starting unshare")
    }
}

/// Makes an image of a tree, of this size in mke2fs's words.
pub(in crate::scenarios) fn ext4(tree: &Path, image: &Path, size: &str) -> Result<()> {
    process::run("mke2fs", |command| {
        command
            .args(["-q", "-t", "ext4", "-b", "4096"])
            .args(["-U", FILE_SYSTEM_UUID])
            .args(["-L", FILE_SYSTEM_LABEL, "-d"])
            .args([tree, image])
            .arg(size)
    })
}

/// Writes a file of a root, with the folders that it lies in.
pub(in crate::scenarios) fn write(tree: &Path, path: &str, text: &str) -> Result<()> {
    let path = tree.join(path);
    let parent = path.parent().context("a file without a folder")?;
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(&path, text))
        .with_context(|| format!("writing {}", path.display()))
}

/// The files of a root that has nothing but these programs of slotd's.
pub(in crate::scenarios) fn tree(lab: &Lab, folder: &Path, names: &[&str]) -> Result<PathBuf> {
    let tree = folder.join("tree");
    for name in ["proc", "sys", "dev", "run"] {
        fs::create_dir_all(tree.join(name)).context("making a folder")?;
    }
    let built = lab.programs()?;
    let programs: Vec<_> = names
        .iter()
        .map(|name| (built.join(name), tree.join(name)))
        .collect();
    let libraries = process::output("ldd", |command| {
        command.args(programs.iter().map(|(program, _)| program))
    })?;
    let libraries = libraries
        .split_whitespace()
        // Of several programs each one's list has its path and a colon for a heading.
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(|path| (PathBuf::from(path), tree.join(path.trim_start_matches('/'))));
    for (from, to) in libraries.chain(programs) {
        let parent = to.parent().context("a folder")?;
        fs::create_dir_all(parent)
            .and_then(|()| fs::copy(&from, &to))
            .with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(tree)
}
