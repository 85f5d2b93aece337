//! The machine of a stand-in: a folder that looks like one, with loop devices as its slots, and a boot loader that is the model of
//! systemd-boot.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use slotd::agent::RunFiles;
use slotd_bootctl::fixture::FixtureNode;
use slotd_bootctl::{InspectSettings, SlotName, SlotSettings, SlotTable, inspect};

use super::health::{Health, HealthFile};
use super::image::StandInImage;
use crate::loopdisk::{LoopDisk, Sector};

/// Size of a slot, as the partition table of [`FixtureNode`] has it.
const SLOT_SIZE: u64 = 16 << 20;

/// More power cycles in a row than any loader's tries: nothing on this machine comes up.
const PANICS: u32 = 10;

/// A boot of a stand-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// The slot that the loader chose.
    pub slot: SlotName,
    /// The version in that slot, as it was read from its file system.
    pub version: String,
    /// The kernel's boot id.
    pub boot_id: String,
}

/// The files and devices of a stand-in.
#[derive(Debug)]
pub(super) struct Hardware {
    root: PathBuf,
    node: FixtureNode,
    // Detached when the stand-in goes.
    slots: [LoopDisk; 2],
    boots: u32,
    since: Instant,
    uptime: u64,
}

impl Hardware {
    /// Makes a machine, switched off, whose slot A is good and holds this image, in a folder of its own.
    pub(super) fn create(root: &Path, image: &StandInImage) -> Result<Self> {
        fs::create_dir_all(root).with_context(|| format!("creating {}", root.display()))?;
        let node = FixtureNode::create(root)
            .with_context(|| format!("making a machine in {}", root.display()))?;
        let files =
            [SlotName::A, SlotName::B].map(|slot| root.join(format!("slot-{}.img", slot.lower())));
        let [a, b] = &files;
        fs::copy(&image.expanded, a).context("filling slot A")?;
        for file in [a, b] {
            fs::File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(file)
                .and_then(|file| file.set_len(SLOT_SIZE))
                .with_context(|| format!("making {}", file.display()))?;
        }
        let attach = |slot, file: &Path| -> Result<LoopDisk> {
            let disk = LoopDisk::attach(file, SLOT_SIZE, Sector::B512)?;
            node.back_slot(slot, disk.device(), &disk.number()?)
                .context("putting a loop device in the place of a slot")?;
            Ok(disk)
        };
        let slots = [attach(SlotName::A, a)?, attach(SlotName::B, b)?];
        node.put_image(SlotName::A, &image.image.version)
            .context("recording the first image")?;
        let hardware = Self {
            root: root.to_owned(),
            node,
            slots,
            boots: 0,
            since: Instant::now(),
            uptime: 0,
        };
        hardware.write("etc/machine-id", FixtureNode::MACHINE_ID)?;
        Ok(hardware)
    }

    /// Puts a proven image into slot B, as an earlier upgrade leaves it.
    pub(super) fn put_fallback(&self, image: &StandInImage) -> Result<()> {
        let [_, slot] = &self.slots;
        let bytes = fs::read(&image.expanded).context("reading an image")?;
        fs::File::options()
            .write(true)
            .open(slot.device())
            .and_then(|mut device| {
                device.write_all(&bytes)?;
                device.sync_all()
            })
            .with_context(|| format!("writing {}", slot.device().display()))?;
        self.node
            .put_image(SlotName::B, &image.image.version)
            .context("recording an earlier image")?;
        let entries = self.node.esp().join("loader/entries");
        let [a, b] = [SlotName::A, SlotName::B].map(|slot| self.node.slot_uuid(slot).to_string());
        let text = fs::read_to_string(entries.join("slotd-a.conf"))
            .context("reading an entry")?
            .replace("(slot A)", "(slot B)")
            .replace("version 1\n", "version 0\n")
            .replace("/slotd/a/", "/slotd/b/")
            .replace("slotd.slot=a", "slotd.slot=b")
            .replace(&a, &b);
        fs::write(entries.join("slotd-b.conf"), text).context("writing an entry")
    }

    /// The loop device of a slot.
    pub(super) fn device(&self, slot: SlotName) -> &Path {
        let [a, b] = &self.slots;
        match slot {
            SlotName::A => a.device(),
            SlotName::B => b.device(),
        }
    }

    /// Where everything of this machine is.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// What the agent of this machine keeps in memory.
    pub(super) fn run_files(&self) -> RunFiles {
        run_files(&self.root)
    }

    /// Switches the machine off and on. What was in memory is gone; the loader chooses a slot, counts, and starts it.
    pub(super) fn boot(&mut self) -> Result<Boot> {
        for _ in 0..PANICS {
            let run = self.root.join("run");
            if run.exists() {
                fs::remove_dir_all(&run).context("emptying /run")?;
            }
            let slot = self
                .node
                .power_cycle()
                .context("asking the boot loader")?
                .context("the boot loader finds nothing to start")?;
            self.start_kernel(slot)?;
            let version = self.start_userspace(slot)?;
            if HealthFile::of(&self.root).of_version(&version)? != Health::Panicking {
                return Ok(Boot {
                    slot,
                    version,
                    boot_id: self.boot_id(),
                });
            }
        }
        bail!("nothing on {} comes up", self.root.display())
    }

    /// What the entry says to the kernel, and what a kernel begins with.
    fn start_kernel(&mut self, slot: SlotName) -> Result<()> {
        let prefix = format!("slotd-{}", slot.lower());
        let entries = self.node.entries().context("listing boot entries")?;
        let entry = entries
            .iter()
            .find(|name| name.starts_with(&prefix))
            .with_context(|| format!("no entry of slot {slot} among {entries:?}"))?;
        let path = self.node.esp().join("loader/entries").join(entry);
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let options = text
            .lines()
            .filter_map(|line| line.strip_prefix("options "))
            .collect::<Vec<_>>()
            .join(" ");
        let panic = options
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("panic="))
            .next_back()
            .unwrap_or("0");
        self.node
            .set_command_line(&options)
            .context("setting the command line")?;
        self.write("proc/sys/kernel/panic", &format!("{panic}\n"))?;
        self.boots += 1;
        self.write(
            "proc/sys/kernel/random/boot_id",
            &format!("{}\n", self.boot_id()),
        )?;
        self.since = Instant::now();
        self.write_uptime(0)
    }

    /// The root file system is the slot's: its os-release is read out of what was written there.
    fn start_userspace(&self, slot: SlotName) -> Result<String> {
        let table = SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None)
            .context("finding the slots")?;
        let view = inspect(table.get(slot), &InspectSettings::default())
            .with_context(|| format!("mounting slot {slot}"))?;
        let lines: String = view
            .facts
            .os_release
            .iter()
            .map(|(key, value)| format!("{key}=\"{value}\"\n"))
            .collect();
        self.write("etc/os-release", &lines)?;
        view.facts
            .version
            .clone()
            .with_context(|| format!("slot {slot} holds no version"))
    }

    fn boot_id(&self) -> String {
        format!("00000000-0000-4000-8000-{:012}", self.boots)
    }

    /// Lets the machine's clock go on; to be called now and then.
    pub(super) fn tick(&mut self) -> Result<()> {
        let seconds = self.since.elapsed().as_secs();
        if seconds == self.uptime {
            return Ok(());
        }
        self.write_uptime(seconds)
    }

    fn write_uptime(&mut self, seconds: u64) -> Result<()> {
        self.uptime = seconds;
        self.write("proc/uptime", &format!("{seconds}.00 0.00\n"))
    }

    /// Writes a file so that whoever reads sees it whole.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.root.join(name);
        let parent = path.parent().context("a file without a folder")?;
        let new = path.with_extension("new");
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("writing {}", path.display()))
    }
}

/// Where the machine in this folder has its `/run/slotd`.
pub(super) fn run_files(root: &Path) -> RunFiles {
    RunFiles::at(root.join("run/slotd"))
}
