//! GRUB on a disk: for UEFI as the removable-media default, for a BIOS in the master boot record and a partition of its
//! own; its configuration, and its environment block, which says what each slot is worth.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::command::Tool;
use crate::esp::{BootImage, Esp};

/// Where the package `grub-efi-amd64-bin` and `grub-pc-bin` have their modules.
const MODULES: &str = "/usr/lib/grub";
/// What slotd ships, in the tree of units: the script that chooses the slot.
const SCRIPT: &str = "usr/lib/slotd/grub/slotd.cfg";
/// The script's name beside grub.cfg.
const SCRIPT_COPY: &str = "/grub/slotd.cfg";
/// Size of the environment block that `grub-editenv create` makes, in bytes.
const ENVIRONMENT: usize = 1024;
/// Its first line (`grub/lib/envblk.h`).
const SIGNATURE: &str = "# GRUB Environment Block\n";
const SECTOR: u64 = 512;

/// Modules that the script and reading the slots need, on both firmwares. All are linked in: none is looked for.
const NEEDED: [&str; 16] = [
    "part_gpt",
    "fat",
    "ext2",
    "normal",
    "configfile",
    "linux",
    "loadenv",
    "test",
    "regexp",
    "echo",
    "sleep",
    "reboot",
    "halt",
    "ls",
    "serial",
    "terminal",
];

/// Which firmware starts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Firmware {
    Uefi,
    Bios,
}

/// Installs GRUB. `bios` is the offset in bytes of the partition for a BIOS's second stage.
pub(crate) fn install(
    esp: &Esp<'_>,
    disk: &Path,
    firmware: Firmware,
    bios: u64,
    units: &Path,
) -> Result<()> {
    match firmware {
        Firmware::Uefi => {
            for folder in ["/EFI", "/EFI/BOOT", "/grub"] {
                esp.folder(folder)?;
            }
            let core = core("x86_64-efi", &["efi_gop"])?;
            esp.write("/EFI/BOOT/BOOTX64.EFI", &core)?;
        }
        Firmware::Bios => {
            esp.folder("/grub")?;
            embed(disk, bios, core("i386-pc", &["biosdisk"])?)?;
        }
    }
    let script = units.join(SCRIPT);
    let text = fs::read(&script).with_context(|| format!("reading {}", script.display()))?;
    esp.write(SCRIPT_COPY, &text)
}

/// GRUB with all that it needs, which looks for its configuration on the first partition of the disk it came from.
fn core(platform: &str, firmware_modules: &[&str]) -> Result<Vec<u8>> {
    let modules = Path::new(MODULES).join(platform);
    if !modules.is_dir() {
        bail!(
            "GRUB's modules are not at {}: install grub-efi-amd64-bin or grub-pc-bin",
            modules.display()
        );
    }
    let output = tempfile::NamedTempFile::new().context("making a temporary file")?;
    Tool::new("grub-mkimage")
        .args([
            "--format",
            platform,
            "--prefix",
            "(,gpt1)/grub",
            "--directory",
        ])
        .arg(&modules)
        .arg("--output")
        .arg(output.path())
        .args(NEEDED.iter().chain(firmware_modules).copied())
        .run()?;
    fs::read(output.path()).context("reading GRUB's image")
}

/// Writes the first stage into the master boot record and the second one to its partition, as grub-bios-setup does.
///
/// The first stage holds the sector of the second one at 0x5c and, at 0x66, a check of the drive for floppies that is
/// switched off (`grub/i386/pc/boot.h`). The second stage's first sector ends in the place of the rest: sector, count and
/// segment; only the sector depends on the disk.
fn embed(disk: &Path, partition: u64, mut core: Vec<u8>) -> Result<()> {
    let path = Path::new(MODULES).join("i386-pc/boot.img");
    let mut boot = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    ensure!(boot.len() == 512, "{} is not one sector", path.display());
    let sector = partition / SECTOR;
    let put = |bytes: &mut [u8], at: usize, value: &[u8]| -> Result<()> {
        bytes
            .get_mut(at..at + value.len())
            .context("GRUB's stage is too short")?
            .copy_from_slice(value);
        Ok(())
    };
    put(&mut boot, 0x5c, &sector.to_le_bytes())?;
    put(&mut boot, 0x66, &[0x90, 0x90])?;
    put(&mut core, 500, &(sector + 1).to_le_bytes())?;
    let file = OpenOptions::new()
        .write(true)
        .open(disk)
        .with_context(|| format!("opening {}", disk.display()))?;
    // The partition table begins at 440, with the disk's signature.
    file.write_all_at(boot.get(..440).context("GRUB's stage is too short")?, 0)
        .and_then(|()| file.write_all_at(&core, partition))
        .with_context(|| format!("writing GRUB to {}", disk.display()))
}

/// Makes the slots bootable: the configuration for this disk, the environment block, and the slots' markers.
pub(crate) fn install_slots(
    esp: &Esp<'_>,
    images: &[BootImage],
    partuuids: [String; 2],
    machine_id: &str,
    extra: &str,
    firmware: Firmware,
) -> Result<()> {
    for folder in ["/grub/slotd", "/grub/slotd/a", "/grub/slotd/b"] {
        esp.folder(folder)?;
    }
    for image in images {
        let path = format!("/grub/slotd/{}/image.json", image.slot);
        esp.write(&path, image.marker.as_bytes())?;
    }
    // UEFI's console is the serial port as well; on a BIOS GRUB has to be told.
    let serial = firmware == Firmware::Bios
        && images
            .iter()
            .any(|image| image.options.contains("console=ttyS0"));
    esp.write(
        "/grub/grub.cfg",
        configuration(partuuids, extra, serial)?.as_bytes(),
    )?;
    esp.write("/grub/grubenv", &environment(images, machine_id)?)
}

/// The part of the configuration that is this disk's. The slots are partitions 2 and 3 of the disk that GRUB came from.
fn configuration([a, b]: [String; 2], extra: &str, serial: bool) -> Result<String> {
    if extra.contains(['\n', '\r', '\'']) {
        bail!("options of several lines or with a quote cannot stand in grub.cfg: {extra:?}");
    }
    let terminal = if serial {
        "serial --unit=0 --speed=115200\nterminal_output console serial\n"
    } else {
        ""
    };
    Ok(format!(
        "# Written by slotd-mkimage for this disk.\n\
         {terminal}\
         set timeout=0\n\
         regexp --set=1:slotd_disk '^([^,]*)' \"$root\"\n\
         set slotd_a_device=\"$slotd_disk,gpt2\"\n\
         set slotd_b_device=\"$slotd_disk,gpt3\"\n\
         set slotd_a_partuuid={a}\n\
         set slotd_b_partuuid={b}\n\
         set slotd_extra='{extra}'\n\
         set slotd_env=\"$prefix/grubenv\"\n\
         source \"$prefix/slotd.cfg\"\n"
    ))
}

/// The environment block: both slots in order, those with an image proven.
fn environment(images: &[BootImage], machine_id: &str) -> Result<Vec<u8>> {
    let order = match images.first().map(|image| image.slot) {
        Some('b') => "b a",
        _ => "a b",
    };
    let mut text = format!("{SIGNATURE}slotd_order={order}\n");
    for image in images {
        text.push_str(&format!("slotd_{}_ok=1\n", image.slot));
    }
    text.push_str(&format!("slotd_machine_id={machine_id}\n"));
    ensure!(
        text.len() <= ENVIRONMENT,
        "the environment block is too small"
    );
    let mut block = text.into_bytes();
    block.resize(ENVIRONMENT, b'#');
    Ok(block)
}
