//! Loop disks: block devices with real direct I/O, real sector sizes and real errors. They need root.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process;

/// Size of a sector of a loop disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sector {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl Sector {
    /// In bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

/// A loop device over a file. It is attached for as long as somebody has it open, which this has: so it is detached when this
/// goes, and also when this process is killed.
#[derive(Debug)]
pub struct LoopDisk {
    _open: File,
    device: PathBuf,
    file: PathBuf,
    partitions: bool,
}

impl LoopDisk {
    /// Attaches `file`, made with this size if it is not there, with direct I/O to it. That this is so is checked: a loop
    /// device that goes through the page cache proves nothing about direct I/O.
    pub fn attach(file: &Path, size: u64, sector: Sector) -> Result<Self> {
        Self::attach_with(file, size, sector, true)
    }

    /// Attaches a file that takes one request at a time only: QEMU 7.2, which shows it through FUSE, mixes up the bytes of writes
    /// that it gets at once.
    pub(crate) fn attach_one_by_one(file: &Path, size: u64, sector: Sector) -> Result<Self> {
        Self::attach_with(file, size, sector, false)
    }

    fn attach_with(file: &Path, size: u64, sector: Sector, direct: bool) -> Result<Self> {
        if !file.exists() {
            File::create(file)
                .and_then(|file| file.set_len(size))
                .with_context(|| format!("creating {}", file.display()))?;
        }
        let device = process::output("losetup", |command| {
            command
                .args(["--find", "--show"])
                .arg(format!("--direct-io={}", if direct { "on" } else { "off" }))
                .arg("--sector-size")
                .arg(sector.bytes().to_string())
                .arg(file)
        })?;
        let device = PathBuf::from(device.trim());
        let open = File::open(&device).with_context(|| format!("opening {}", device.display()))?;
        // What is open is detached once it is not any more.
        process::run("losetup", |command| command.arg("--detach").arg(&device))?;
        let disk = Self {
            _open: open,
            device,
            file: file.to_owned(),
            partitions: false,
        };
        let found = disk.sysfs("loop/dio")?;
        ensure!(
            found == u8::from(direct).to_string(),
            "{}: direct I/O is {found}",
            disk.device.display()
        );
        let block = disk.sysfs("queue/logical_block_size")?;
        ensure!(
            block == sector.bytes().to_string(),
            "{} has sectors of {block} bytes",
            disk.device.display()
        );
        disk.forget_partitions()?;
        Ok(disk)
    }

    /// Takes partitions away that the device has from before: one that somebody added and a killed run did not delete outlives what
    /// was attached.
    fn forget_partitions(&self) -> Result<()> {
        let name = self.name()?;
        let folder = Path::new("/sys/block").join(name);
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        let stale = entries
            .flatten()
            .any(|entry| entry.path().join("partition").exists());
        if stale {
            process::run("partx", |command| command.arg("--delete").arg(&self.device))?;
        }
        Ok(())
    }

    fn name(&self) -> Result<&std::ffi::OsStr> {
        self.device
            .file_name()
            .context("the loop device has no name")
    }

    /// Writes a partition table in sfdisk's language and tells the kernel of it.
    pub fn partition(&mut self, script: &str) -> Result<()> {
        let script_file = tempfile::NamedTempFile::new().context("making a temporary file")?;
        std::fs::write(script_file.path(), script).context("writing a temporary file")?;
        let input = File::open(script_file.path()).context("opening a temporary file")?;
        let status = std::process::Command::new("sfdisk")
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .args(["--quiet", "--no-reread", "--no-tell-kernel"])
            .arg(&self.device)
            .stdin(input)
            .status()
            .context("starting sfdisk")?;
        ensure!(status.success(), "sfdisk failed ({status}) on\n{script}");
        self.show_partitions()
    }

    /// Tells the kernel of the partitions in the table that is there already.
    pub fn show_partitions(&mut self) -> Result<()> {
        // `losetup --partscan` finds nothing where the kernel has no GPT parser; partx brings its own.
        // Where it fails halfway some are there.
        self.partitions = true;
        process::run("partx", |command| command.arg("--add").arg(&self.device))
    }

    /// The whole device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// The file behind it.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The device of a partition, from 1.
    pub fn partition_device(&self, index: u32) -> PathBuf {
        PathBuf::from(format!("{}p{index}", self.device.display()))
    }

    /// The device's number, `major:minor`.
    pub fn number(&self) -> Result<String> {
        self.sysfs("dev")
    }

    fn sysfs(&self, attribute: &str) -> Result<String> {
        let path = Path::new("/sys/block").join(self.name()?).join(attribute);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        Ok(text.trim().to_owned())
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // Nothing useful can be done about a failure here; a device left behind shows in `losetup --list`.
        if self.partitions {
            let _ = process::run("partx", |command| command.arg("--delete").arg(&self.device));
        }
    }
}

/// Whether this process may attach loop devices, and if not, why.
pub fn unavailable() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        Some("needs root for loop devices")
    } else if !Path::new("/dev/loop-control").exists() {
        Some("this kernel has no loop devices")
    } else {
        None
    }
}
