//! A machine of the lab: a disk that outlives power cuts, and what one does to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::faults::{DiskFault, Monitor};
use super::qemu::{Hardware, MoreDisk, Qemu};
use super::shell::{End, Output, Shell};
use super::socket;
use super::{Acceleration, Console};
use crate::disk::Disk;
use crate::loader::{Loader, VARIABLE_STORE};

/// How to set a machine up.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The disk that the machine gets a copy of.
    pub disk: PathBuf,
    /// The firmware's variables that it gets a copy of; none at first where this is `None`.
    pub variables: Option<PathBuf>,
    /// Folder for the machine's own files.
    pub folder: PathBuf,
    /// How the guest is executed.
    pub acceleration: Acceleration,
    /// Number of processors.
    pub processors: u32,
    /// Memory in MiB.
    pub memory: u32,
    /// Pairs of a port of this machine's loopback and the guest's port it leads to.
    pub forwards: Vec<(u16, u16)>,
    /// Disks beside the one it boots from; what the guest writes to them is lost with the power.
    pub disks: Vec<MoreDisk>,
    /// The disk's boot loader.
    pub loader: Loader,
    /// Whether everything is recorded that is written to the disk; such a machine is switched on once.
    pub recorded: bool,
    /// Bytes that the disk takes and gives in a second, where it is slower than it could be.
    pub disk_rate: Option<u64>,
}

/// Name of the record of what a machine wrote.
const RECORD: &str = "disk.writes";

/// What a boot says when it reached multi-user.target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// The slot of the kernel's command line, in lower case.
    pub slot: String,
    /// IMAGE_VERSION of the running system.
    pub version: String,
    /// The kernel's id of this boot.
    pub id: String,
    /// Seconds since the kernel started.
    pub up: String,
    /// Time since the machine was switched on or the wait began.
    pub elapsed: Duration,
}

impl Boot {
    /// An error unless this slot was booted, with this version.
    pub fn expect(&self, slot: char, version: &str) -> Result<()> {
        ensure!(
            self.slot == slot.to_ascii_lowercase().to_string() && self.version == version,
            "slot {} with {} was booted, not slot {slot} with {version}",
            self.slot,
            self.version
        );
        Ok(())
    }
}

/// A virtual machine with a disk of its own.
#[derive(Debug)]
pub struct Machine {
    setup: Setup,
    disk: Disk,
    qemu: Option<Qemu>,
    console: Console,
    shell: Option<Shell>,
    began: Instant,
}

impl Machine {
    /// Makes a machine with a copy of the disk; it is off.
    pub fn new(setup: Setup) -> Result<Self> {
        fs::create_dir_all(&setup.folder)
            .with_context(|| format!("creating {}", setup.folder.display()))?;
        let disk = setup.folder.join("disk.img");
        crate::process::run("cp", |command| {
            command
                .args(["--sparse=always", "--reflink=auto"])
                .arg(&setup.disk)
                .arg(&disk)
        })?;
        if let Some(variables) = &setup.variables {
            let copy = setup.folder.join(VARIABLE_STORE);
            fs::copy(variables, &copy)
                .with_context(|| format!("copying {}", variables.display()))?;
        }
        let console = Console::new(&setup.folder.join("console.log"));
        Ok(Self {
            setup,
            disk: Disk::new(disk),
            qemu: None,
            console,
            shell: None,
            began: Instant::now(),
        })
    }

    /// The machine's folder, with its logs.
    pub fn folder(&self) -> &Path {
        &self.setup.folder
    }

    /// The machine's disk, which may be looked into (and, when the machine is off, changed).
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The disk's boot loader.
    pub fn loader(&self) -> Loader {
        self.setup.loader
    }

    /// Process id of the running QEMU.
    pub fn process(&self) -> Option<u32> {
        self.qemu.as_ref().map(Qemu::id)
    }

    /// A deadline stretched to how guests are executed here.
    pub fn patience(&self, seconds: u64) -> Duration {
        self.setup
            .acceleration
            .patience(Duration::from_secs(seconds))
    }

    /// Switches the machine on.
    pub fn power_on(&mut self) -> Result<()> {
        ensure!(self.qemu.is_none(), "the machine is on already");
        // Left behind by a QEMU that was killed.
        for name in [socket::SHELL, socket::MONITOR] {
            let socket = self.setup.folder.join(name);
            if socket.exists() {
                fs::remove_file(&socket)
                    .with_context(|| format!("removing {}", socket.display()))?;
            }
        }
        if self.setup.recorded {
            // Another run would write over it.
            fs::File::create_new(self.record())
                .with_context(|| format!("creating {}", self.record().display()))?;
        }
        self.console.new_lines()?;
        self.began = Instant::now();
        let mut qemu = Qemu::start(&self.hardware())?;
        match Shell::connect(&self.setup.folder, Duration::from_secs(10)) {
            Ok(shell) => self.shell = Some(shell),
            Err(error) => {
                qemu.alive(&self.setup.folder)?;
                return Err(error);
            }
        }
        self.qemu = Some(qemu);
        Ok(())
    }

    fn hardware(&self) -> Hardware<'_> {
        Hardware {
            folder: &self.setup.folder,
            disk: self.disk.path(),
            acceleration: self.setup.acceleration,
            processors: self.setup.processors,
            memory: self.setup.memory,
            forwards: &self.setup.forwards,
            disks: &self.setup.disks,
            firmware: self.setup.loader.firmware(),
            record: self.setup.recorded.then_some(RECORD),
            disk_rate: self.setup.disk_rate,
        }
    }

    /// The record of what was written to the disk, where that is recorded.
    pub fn record(&self) -> PathBuf {
        self.setup.folder.join(RECORD)
    }

    /// A file with the device tree that an ARM64 machine's board has.
    pub fn device_tree(&self) -> Result<PathBuf> {
        let file = self.setup.folder.join("device-tree.dtb");
        Qemu::device_tree(&self.hardware(), &file)?;
        Ok(file)
    }

    /// Lets requests to the disk fail from now on, until it is mended or the machine is switched off.
    pub fn fail_disk(&mut self, fault: &DiskFault) -> Result<()> {
        self.monitor()?.fail(fault)
    }

    /// Lets no request fail any more.
    pub fn mend_disk(&mut self) -> Result<()> {
        self.monitor()?.mend()
    }

    fn monitor(&self) -> Result<Monitor> {
        ensure!(self.qemu.is_some(), "the machine is off");
        Monitor::connect(&self.setup.folder)
    }

    /// Pulls the plug.
    pub fn power_cut(&mut self) {
        self.shell = None;
        self.qemu = None;
    }

    /// Waits until a boot reaches multi-user.target and the shell answers in it.
    pub fn wait_for_boot(&mut self) -> Result<Boot> {
        self.wait_for_boot_within(self.patience(60))
    }

    /// The same, for boots that take longer (after a rollback by deadline or panics).
    pub fn wait_for_boot_within(&mut self, patience: Duration) -> Result<Boot> {
        self.wait_for_boot_telling(patience, |_| {})
    }

    /// The same, telling what the console shows on the way: each start of the firmware, each panic.
    pub fn wait_for_boot_telling(
        &mut self,
        patience: Duration,
        mut tell: impl FnMut(&str),
    ) -> Result<Boot> {
        let started = self.began;
        let deadline = Instant::now() + patience;
        let mut boot = self.wait_for_console("multi-user.target", patience, |line| {
            if starts_over(line) {
                tell("the firmware starts the boot loader");
            } else if line.contains("Kernel panic") {
                tell("the kernel panics");
            }
            parse_boot(line)
        })?;
        boot.elapsed = started.elapsed();
        let shell = self.shell.as_mut().context("the machine is off")?;
        // Of all boots since the last call: the shell of exactly this one.
        loop {
            let id = shell
                .wait_for_start(deadline.max(Instant::now() + Duration::from_secs(10)))
                .context("waiting for the guest's shell")?;
            if id == boot.id {
                return Ok(boot);
            }
        }
    }

    /// Waits for a line of the console.
    pub fn wait_for_console<T>(
        &mut self,
        what: &str,
        patience: Duration,
        wanted: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        let folder = self.setup.folder.clone();
        let qemu = self.qemu.as_mut().context("the machine is off")?;
        self.console
            .wait_for(what, patience, || qemu.alive(&folder), wanted)
    }

    /// Whether a boot has begun since the last one that was waited for; for when the guest's shell no longer answers.
    pub fn is_rebooting(&mut self) -> Result<bool> {
        let folder = self.setup.folder.clone();
        self.qemu
            .as_mut()
            .context("the machine is off")?
            .alive(&folder)?;
        self.console.peek(starts_over)
    }

    /// Runs a command in the guest; whatever its exit code, this succeeds.
    pub fn try_run(&mut self, command: &str) -> Result<Output> {
        let patience = self.patience(60);
        self.try_run_within(command, patience)
    }

    /// The same with a deadline of its own.
    pub fn try_run_within(&mut self, command: &str, patience: Duration) -> Result<Output> {
        self.shell
            .as_mut()
            .context("the machine is off")?
            .run(command, patience)
    }

    /// Runs a command in the guest and returns its standard output; an exit code other than 0 is an error.
    pub fn run(&mut self, command: &str) -> Result<String> {
        let output = self.try_run(command)?;
        if output.code != 0 {
            bail!(
                "{command:?} ended with {} in the guest\n{}{}",
                output.code,
                output.stdout,
                output.stderr
            );
        }
        Ok(output.stdout)
    }

    /// Runs a command in the guest and reads its standard output as JSON.
    pub fn json(&mut self, command: &str) -> Result<serde_json::Value> {
        let text = self.run(command)?;
        serde_json::from_str(&text)
            .with_context(|| format!("the output of {command:?} is no JSON:\n{text}"))
    }

    /// Runs a command with its output going to a terminal, handed on piece by piece.
    pub fn stream(
        &mut self,
        command: &str,
        patience: Duration,
        each: impl FnMut(&[u8]),
    ) -> Result<u32> {
        self.shell
            .as_mut()
            .context("the machine is off")?
            .stream(command, patience, each)
    }

    /// Runs a command that may end in a reboot, with its output going to a terminal.
    pub fn stream_until_reboot(
        &mut self,
        command: &str,
        patience: Duration,
        each: impl FnMut(&[u8]),
    ) -> Result<End> {
        self.began = Instant::now();
        let shell = self.shell.as_mut().context("the machine is off")?;
        shell.stream_until_reboot(command, patience, each)
    }

    /// Starts a command in the guest and does not wait for it.
    pub fn start(&mut self, command: &str) -> Result<()> {
        self.began = Instant::now();
        self.shell
            .as_mut()
            .context("the machine is off")?
            .start(command)
    }

    /// Reboots in an orderly way and waits for the next boot.
    pub fn reboot(&mut self) -> Result<Boot> {
        self.start("systemctl reboot")?;
        self.wait_for_boot()
    }

    /// Lets people log in through the console, in this boot and in those after it.
    pub fn open_console(&mut self) -> Result<()> {
        self.run("touch /data/lab-login && systemctl start lab-login.service")
            .map(drop)
    }

    /// Cuts the power, switches on again and waits for the boot.
    pub fn power_cycle(&mut self) -> Result<Boot> {
        self.power_cut();
        self.power_on()?;
        self.wait_for_boot()
    }

    /// The same, not waiting further than until userspace begins: the slot that it is of.
    pub fn power_cycle_into_userspace(&mut self) -> Result<String> {
        self.power_cut();
        self.power_on()?;
        let patience = self.patience(60);
        self.wait_for_console("userspace", patience, |line| {
            value_after(line, "@@USERSPACE ", "slot")
        })
    }
}

/// Whether a line is one of the first after a reset: the UEFI firmware's, or GRUB's on a BIOS, which says nothing itself.
fn starts_over(line: &str) -> bool {
    line.contains("BdsDxe: starting") || line.contains("slotd: starting slot")
}

/// The value of a `key=value` behind a mark of the lab's.
fn value_after(line: &str, mark: &str, key: &str) -> Option<String> {
    line[line.find(mark)?..]
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        .map(str::to_owned)
}

/// Reads `@@MULTI-USER slot=a version=v1 boot=… up=7.02`.
fn parse_boot(line: &str) -> Option<Boot> {
    let value = |key| value_after(line, "@@MULTI-USER ", key);
    Some(Boot {
        slot: value("slot")?,
        version: value("version")?,
        id: value("boot")?,
        up: value("up")?,
        elapsed: Duration::ZERO,
    })
}

#[cfg(test)]
mod tests {
    use super::parse_boot;

    #[test]
    fn a_boot_is_read_from_its_line() {
        let boot =
            parse_boot("\u{1b}[0m@@MULTI-USER slot=b version=v2 boot=abc-1 up=7.02").unwrap();
        assert_eq!(
            (boot.slot.as_str(), boot.version.as_str(), boot.id.as_str()),
            ("b", "v2", "abc-1")
        );
        assert_eq!(parse_boot("Reached target multi-user.target"), None);
    }
}
