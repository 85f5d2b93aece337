//! One run of QEMU, from power on to power off.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::Acceleration;
use super::socket;
use crate::loader::{EMPTY_STORE, Firmware, VARIABLE_STORE};

/// Debian's UEFI firmware for virtual machines.
const FIRMWARE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
/// QEMU's ARM64 board, and a processor of those that U-Boot starts.
const BOARD: &str = "virt,gic-version=2";
const PROCESSOR: &str = "cortex-a57";
/// Debian's U-Boot for it.
const UBOOT: &str = "/usr/lib/u-boot/qemu_arm64/u-boot.bin";

/// A running QEMU. Killed when it goes, and by the kernel when the thread that started it dies.
#[derive(Debug)]
pub(crate) struct Qemu {
    child: Child,
}

/// What a disk is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bus {
    /// A virtio block device.
    Virtio,
    /// A SCSI disk.
    Scsi,
}

impl Bus {
    /// QEMU's devices for a drive of that name.
    fn devices(self, drive: &str) -> Vec<String> {
        match self {
            Self::Virtio => vec![format!("virtio-blk-pci,drive={drive}")],
            Self::Scsi => vec![
                format!("virtio-scsi-pci,id=scsi-{drive}"),
                format!("scsi-hd,bus=scsi-{drive}.0,drive={drive}"),
            ],
        }
    }
}

/// A disk beside the one that a machine boots from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoreDisk {
    /// What it is attached to.
    pub bus: Bus,
    /// Its file, which is not changed.
    pub file: PathBuf,
}

/// What a machine is made of.
#[derive(Debug)]
pub(crate) struct Hardware<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) disk: &'a Path,
    pub(crate) acceleration: Acceleration,
    pub(crate) processors: u32,
    pub(crate) memory: u32,
    /// Pairs of a port of this machine's loopback and the guest's port it leads to.
    pub(crate) forwards: &'a [(u16, u16)],
    pub(crate) disks: &'a [MoreDisk],
    pub(crate) firmware: Firmware,
    /// Name of a file in the folder that all writes to the disk are recorded in.
    pub(crate) record: Option<&'static str>,
    /// Bytes that the disk takes and gives in a second, where it is slower than it could be.
    pub(crate) disk_rate: Option<u64>,
}

/// The node of QEMU's block graph that is the machine's disk. What is below it can be put in between while the machine runs.
pub(super) const DISK: &str = "disk";
/// The node that the disk is on where nothing is in between.
pub(super) const BELOW_DISK: &str = "below-disk";

impl Qemu {
    /// Switches a machine on. Its firmware variables are kept in its folder.
    pub(crate) fn start(hardware: &Hardware<'_>) -> Result<Self> {
        let folder = hardware.folder;
        let variables = folder.join(VARIABLE_STORE);
        if hardware.firmware == Firmware::Uefi && !variables.exists() {
            std::fs::copy(EMPTY_STORE, &variables)
                .with_context(|| format!("copying {EMPTY_STORE} to {}", variables.display()))?;
        }
        let errors = File::create(folder.join("qemu.log")).context("creating qemu.log")?;
        let child = Self::command(hardware)?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .context("starting qemu through setpriv")?;
        Ok(Self { child })
    }

    /// What is run. It has the machine's folder as its working directory and names what lies there by its name alone:
    /// a socket's path must be short.
    fn command(hardware: &Hardware<'_>) -> Result<Command> {
        let disk = std::path::absolute(hardware.disk)
            .with_context(|| format!("finding {}", hardware.disk.display()))?;
        let mut network = OsString::from("user,id=network");
        for (host, guest) in hardware.forwards {
            network.push(format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}"));
        }
        // setpriv: a lab that dies takes its machines along.
        let mut command = Command::new("setpriv");
        command
            .current_dir(hardware.folder)
            .args(["--pdeathsig", "KILL"]);
        match hardware.firmware {
            Firmware::Uefi | Firmware::Bios => command
                .args(["qemu-system-x86_64", "-M", "q35"])
                .args(hardware.acceleration.arguments()),
            // A processor of those boards, always translated.
            Firmware::Uboot => command.args(["qemu-system-aarch64", "-M", BOARD]).args([
                "-accel",
                "tcg,thread=multi,tb-size=256",
                "-cpu",
                PROCESSOR,
            ]),
        };
        command
            .args(["-display", "none"])
            .args([
                "-smp",
                &hardware.processors.to_string(),
                "-m",
                &hardware.memory.to_string(),
            ])
            .args(["-monitor", "none", "-device", "virtio-rng-pci"])
            .arg("-netdev")
            .arg(network)
            // Without its ROM the firmware does not look for something to boot there.
            .args(["-device", "virtio-net-pci,netdev=network,romfile="])
            .args(["-chardev", "file,id=console,append=on,path=console.log"])
            .args(["-serial", "chardev:console"])
            .arg("-chardev")
            .arg(format!(
                "socket,id=shell,server=on,wait=off,path={},logappend=on,logfile=shell.log",
                socket::SHELL
            ))
            .args([
                "-device",
                "virtio-serial-pci",
                "-device",
                "virtconsole,chardev=shell",
            ])
            .arg("-chardev")
            .arg(format!(
                "socket,id=login,server=on,wait=off,path={}",
                socket::LOGIN
            ));
        match hardware.firmware {
            Firmware::Uefi | Firmware::Bios => command.args(["-serial", "chardev:login"]),
            // That board has one serial port.
            Firmware::Uboot => command.args(["-device", "virtconsole,chardev=login"]),
        };
        match hardware.firmware {
            Firmware::Bios => {}
            Firmware::Uboot => {
                command.args(["-bios", UBOOT]);
            }
            Firmware::Uefi => {
                command
                    .args([
                        "-drive",
                        &format!("if=pflash,format=raw,readonly=on,file={FIRMWARE}"),
                        "-drive",
                    ])
                    .arg(format!("if=pflash,format=raw,file={VARIABLE_STORE}"));
            }
        }
        // From the file up, the last one is the disk.
        let recorded = hardware.record.is_some();
        let [file, slow] = match (hardware.disk_rate, recorded) {
            (None, false) => [BELOW_DISK, ""],
            (None, true) => ["file", ""],
            (Some(_), false) => ["file", BELOW_DISK],
            (Some(_), true) => ["file", "slow"],
        };
        command.arg("-blockdev").arg(option(
            &format!("driver=file,node-name={file},discard=unmap,filename="),
            &disk,
        ));
        if let Some(rate) = hardware.disk_rate {
            command
                .arg("-object")
                .arg(format!("throttle-group,id=rate,x-bps-total={rate}"))
                .arg("-blockdev")
                .arg(format!(
                    "driver=throttle,node-name={slow},throttle-group=rate,file={file},discard=unmap"
                ));
        }
        if let Some(record) = hardware.record {
            let below = if slow.is_empty() { file } else { slow };
            command
                .arg("-blockdev")
                .arg(format!("driver=file,node-name=record,filename={record}"))
                .arg("-blockdev")
                .arg(format!(
                    "driver=blklogwrites,node-name={BELOW_DISK},file={below},log=record,log-sector-size=512,discard=unmap"
                ));
        }
        command
            .arg("-blockdev")
            .arg(format!(
                "driver=raw,node-name={DISK},file={BELOW_DISK},discard=unmap"
            ))
            .args(["-chardev"])
            .arg(format!(
                "socket,id=monitor,server=on,wait=off,path={}",
                socket::MONITOR
            ))
            .args(["-mon", "chardev=monitor,mode=control"]);
        command.args(["-device", "nvme,drive=disk,serial=slotd,bootindex=1"]);
        for (index, more) in hardware.disks.iter().enumerate() {
            let file = std::path::absolute(&more.file)
                .with_context(|| format!("finding {}", more.file.display()))?;
            let drive = format!("more{index}");
            command.arg("-drive").arg(option(
                &format!("format=raw,if=none,snapshot=on,id={drive},file="),
                &file,
            ));
            for device in more.bus.devices(&drive) {
                command.arg("-device").arg(device);
            }
        }
        Ok(command)
    }

    /// Writes the device tree of an ARM64 machine that is off to a file. It is asked of the whole machine: with a
    /// firmware QEMU's board has other devices than without one, and a kernel dies of a device that is not there.
    pub(crate) fn device_tree(hardware: &Hardware<'_>, file: &Path) -> Result<()> {
        let mut machine = OsString::from("dumpdtb=");
        machine.push(std::path::absolute(file).context("finding the device tree's file")?);
        let output = Self::command(hardware)?
            .arg("-machine")
            .arg(machine)
            .stdin(Stdio::null())
            .output()
            .context("starting qemu through setpriv")?;
        ensure!(
            output.status.success() && file.exists(),
            "qemu wrote no device tree ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// An error when QEMU has ended.
    pub(crate) fn alive(&mut self, folder: &Path) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("waiting for qemu")? {
            let errors = std::fs::read_to_string(folder.join("qemu.log")).unwrap_or_default();
            bail!("qemu ended ({status}): {}", errors.trim());
        }
        Ok(())
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Qemu {
    /// What pulling the plug does, except that what the guest wrote stays in this machine's page cache.
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing else to do about it here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn option(start: &str, path: &Path) -> OsString {
    let mut text = OsString::from(start);
    text.push(path);
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Hardware, Qemu};
    use crate::loader::Firmware;
    use crate::vm::Acceleration;

    #[test]
    fn the_length_of_a_folder_is_in_no_argument_but_the_disk() {
        let folder = format!("/{}", "a".repeat(200));
        let command = Qemu::command(&Hardware {
            folder: Path::new(&folder),
            disk: &Path::new(&folder).join("disk.img"),
            acceleration: Acceleration::Tcg,
            processors: 1,
            memory: 512,
            forwards: &[],
            disks: &[],
            firmware: Firmware::Uefi,
            record: None,
            disk_rate: None,
        })
        .unwrap();
        assert_eq!(command.get_current_dir(), Some(Path::new(&folder)));
        let long: Vec<_> = command
            .get_args()
            .filter(|argument| argument.to_string_lossy().contains(&folder))
            .collect();
        assert_eq!(
            long,
            [
                format!(
                    "driver=file,node-name=below-disk,discard=unmap,filename={folder}/disk.img"
                )
                .as_str()
            ]
        );
    }
}
