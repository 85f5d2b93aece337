//! A whole A/B disk: partition table, ESP, two slots, data partition.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use uuid::Uuid;

use crate::architecture::Architecture;
use crate::catalog;
use crate::command::Tool;
use crate::esp::{BootImage, Esp};
use crate::ext4::{self, Journal};
use crate::grub::{self, Firmware};
use crate::recipe::Recipe;
use crate::size::Size;
use crate::sparse;
use crate::tree::Tree;
use crate::uboot::{self, Environment};

const SECTOR: u64 = 512;
const MIB: u64 = 1 << 20;

/// Type of an EFI system partition (UEFI specification).
const TYPE_ESP: &str = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";
/// Type of a Linux filesystem without a particular use.
const TYPE_DATA: &str = "0FC63DAF-8483-4772-8E79-3D69D8477DE4";

/// Type of the partition of GRUB's second stage on a BIOS.
const TYPE_BIOS_BOOT: &str = "21686148-6449-6E6F-744E-656564454649";
/// Where it begins: behind the partition table, whose 128 entries end before sector 34.
const BIOS_BOOT: u64 = 34 * SECTOR;

/// Where U-Boot's environment lies, on the data partition: `/etc/fw_env.config` of the ARM64 recipe leads there.
const UBOOT_CONFIG: &str = "/etc-slotd/fw_env.config";

/// Where slotd keeps the markers of U-Boot's slots, on the data partition.
const MARKERS: &str = "/var-lib-slotd/slots";

/// Where packages put systemd-boot.
const SYSTEMD_BOOT: &str = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi";

/// The boot loader of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Loader {
    /// systemd-boot, on UEFI
    SystemdBoot,
    /// GRUB, on UEFI
    Grub,
    /// GRUB, on a BIOS
    GrubBios,
    /// U-Boot, which the board has
    Uboot,
}

/// `A=IMAGE` on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotContent {
    slot: char,
    image: PathBuf,
}

impl FromStr for SlotContent {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (slot, image) = text.split_once('=').context("it is written SLOT=IMAGE")?;
        let slot = match slot {
            "A" | "a" => 'a',
            "B" | "b" => 'b',
            other => bail!("{other:?} is no slot: A and B are"),
        };
        if image.is_empty() {
            bail!("the image is missing");
        }
        Ok(Self {
            slot,
            image: image.into(),
        })
    }
}

/// What to make a disk of.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) slots: &'a [SlotContent],
    pub(crate) machine_id: Option<&'a str>,
    pub(crate) data_overlays: &'a [PathBuf],
    pub(crate) options: &'a str,
    pub(crate) esp_size: Size,
    pub(crate) slot_size: Size,
    pub(crate) data_size: Size,
    pub(crate) loader: Loader,
    pub(crate) uboot_environment: Environment,
    pub(crate) units: &'a Path,
    pub(crate) systemd_boot: Option<&'a Path>,
    pub(crate) output: &'a Path,
}

/// One partition: where it lies and what names it.
#[derive(Debug, Clone, Copy)]
struct Partition {
    label: &'static str,
    kind: &'static str,
    id: Uuid,
    offset: u64,
    size: Size,
}

/// The partitions of the disk, in order, and its size.
#[derive(Debug)]
struct Layout {
    partitions: [Partition; 4],
    /// Whether a fifth one lies before the others, for a loader on a BIOS.
    bios_boot: bool,
    /// A fifth one behind the others, for the raw environment of U-Boot.
    environment: Option<Partition>,
    size: u64,
}

impl Layout {
    fn new(request: &Request<'_>) -> Self {
        // The first MiB holds the table, as every partitioner leaves it; the last one the backup table.
        let mut offset = MIB;
        let mut place = |label, kind, size: Size| {
            let partition = Partition {
                label,
                kind,
                id: Uuid::new_v4(),
                offset,
                size,
            };
            offset += size.bytes();
            partition
        };
        let boot = match request.loader {
            Loader::SystemdBoot | Loader::Grub | Loader::GrubBios => "ESP",
            Loader::Uboot => "boot",
        };
        let root = request.recipe.architecture.root_partition();
        let partitions = [
            // U-Boot takes a partition of this type for bootable, too.
            place(boot, TYPE_ESP, request.esp_size),
            place("root-a", root, request.slot_size),
            place("root-b", root, request.slot_size),
            place("data", TYPE_DATA, request.data_size),
        ];
        let raw = request.loader == Loader::Uboot && request.uboot_environment == Environment::Raw;
        let environment = raw.then(|| place(uboot::PARTITION, TYPE_DATA, Size::mebibytes(1)));
        Self {
            partitions,
            environment,
            bios_boot: request.loader == Loader::GrubBios,
            size: offset + MIB,
        }
    }

    /// The table in sfdisk's language.
    fn script(&self) -> String {
        let mut script = String::from("label: gpt\n");
        if self.bios_boot {
            let _ = writeln!(script, "first-lba: {}", BIOS_BOOT / SECTOR);
        }
        for partition in self.partitions.iter().chain(&self.environment) {
            let _ = writeln!(
                script,
                "start={}, size={}, type={}, name={}, uuid={}",
                partition.offset / SECTOR,
                partition.size.bytes() / SECTOR,
                partition.kind,
                partition.label,
                partition.id,
            );
        }
        if self.bios_boot {
            let size = (MIB - BIOS_BOOT) / SECTOR;
            let start = BIOS_BOOT / SECTOR;
            let _ = writeln!(
                script,
                "start={start}, size={size}, type={TYPE_BIOS_BOOT}, name=bios"
            );
        }
        script
    }
}

/// Makes the disk. It appears under its name when it is complete.
pub(crate) fn make(request: &Request<'_>) -> Result<()> {
    if request.recipe.architecture != Architecture::Amd64 && request.loader != Loader::Uboot {
        bail!(
            "a disk for {} has no other loader than uboot here",
            request.recipe.architecture.name()
        );
    }
    let machine_id = match request.machine_id {
        Some(id) if id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            id.to_ascii_lowercase()
        }
        Some(id) => bail!("{id:?} is no machine id: 32 hex digits are"),
        None => Uuid::new_v4().simple().to_string(),
    };
    let folder = match request.output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let workplace = tempfile::Builder::new()
        .prefix(".slotd-disk-")
        .tempdir_in(folder)
        .with_context(|| format!("making a folder in {}", folder.display()))?;
    let disk = workplace.path().join("disk");
    let layout = Layout::new(request);
    let [esp_place, a, b, data] = layout.partitions;

    File::create(&disk)
        .and_then(|file| file.set_len(layout.size))
        .with_context(|| format!("creating {}", disk.display()))?;
    Tool::new("sfdisk")
        .args(["--quiet", "--no-reread"])
        .arg(&disk)
        .input(layout.script())
        .run()?;

    let esp = Esp::format(&disk, esp_place.offset, esp_place.size, workplace.path())?;
    let mut installed_loader = None;
    let mut boot_images = Vec::new();
    for (index, content) in request.slots.iter().enumerate() {
        let place = if content.slot == 'a' { a } else { b };
        if boot_images
            .iter()
            .any(|image: &BootImage| image.slot == content.slot)
        {
            bail!("slot {} is named twice", content.slot.to_ascii_uppercase());
        }
        // The slot that is named first has the highest sequence and boots.
        let sequence = u32::try_from(request.slots.len() - index).context("too many slots")?;
        let image = install_image(content, place, sequence, &disk, workplace.path())?;
        if installed_loader.is_none() {
            installed_loader = ext4::read(&image.raw, SYSTEMD_BOOT).ok();
        }
        boot_images.push(image.boot);
    }
    let mut data_files: Vec<(String, String)> = Vec::new();
    let firmware = match request.loader {
        Loader::SystemdBoot => {
            esp.install_loader(&systemd_boot(request.systemd_boot, installed_loader)?)?;
            for image in &boot_images {
                esp.install_slot(image, &machine_id, request.options)?;
            }
            None
        }
        Loader::Grub => Some(Firmware::Uefi),
        Loader::GrubBios => Some(Firmware::Bios),
        Loader::Uboot => {
            let target = uboot::Target {
                boot: &esp,
                disk: &disk,
                raw: layout.environment.map(|place| place.offset),
                environment: request.uboot_environment,
                architecture: request.recipe.architecture,
            };
            for image in &boot_images {
                let path = format!("{MARKERS}/{}/image.json", image.slot);
                data_files.push((path, image.marker.clone()));
            }
            let config =
                target.install(&boot_images, &machine_id, request.options, request.units)?;
            data_files.push((UBOOT_CONFIG.to_owned(), config));
            None
        }
    };
    if let Some(firmware) = firmware {
        grub::install(&esp, &disk, firmware, BIOS_BOOT, request.units)?;
        let partuuids = [a.id.to_string(), b.id.to_string()];
        grub::install_slots(
            &esp,
            &boot_images,
            partuuids,
            &machine_id,
            request.options,
            firmware,
        )?;
    }

    let tree = Tree::empty(workplace.path())?;
    for folder in &request.recipe.data_folders {
        tree.folder(folder)?;
    }
    for (path, text) in &data_files {
        tree.write(path, text.as_bytes())?;
    }
    for overlay in request.data_overlays {
        tree.lay_over(overlay)?;
    }
    let filesystem = workplace.path().join("data");
    ext4::make(tree.root(), &filesystem, data.size, "data", Journal::With)?;
    copy_file(&filesystem, &disk, data)?;

    fs::rename(&disk, request.output).with_context(|| {
        format!(
            "renaming {} to {}",
            disk.display(),
            request.output.display()
        )
    })
}

/// systemd-boot: the one that is named, else an image's, else this machine's.
fn systemd_boot(named: Option<&Path>, installed: Option<Vec<u8>>) -> Result<Vec<u8>> {
    match (named, installed) {
        (Some(path), _) => fs::read(path).with_context(|| format!("reading {}", path.display())),
        (None, Some(loader)) => Ok(loader),
        (None, None) => fs::read(SYSTEMD_BOOT).with_context(|| {
            format!("systemd-boot is neither in an image nor on this machine: {SYSTEMD_BOOT}")
        }),
    }
}

/// A slot's image after it was written to the disk.
struct Installed {
    boot: BootImage,
    raw: PathBuf,
}

/// Expands an image, writes it to its slot and reads from it what boots it.
fn install_image(
    content: &SlotContent,
    place: Partition,
    sequence: u32,
    disk: &Path,
    workplace: &Path,
) -> Result<Installed> {
    let raw = workplace.join(format!("slot-{}", content.slot));
    let entry = catalog::describe(&content.image)?;
    File::create(&raw)
        .and_then(|file| file.set_len(entry.size))
        .with_context(|| format!("creating {}", raw.display()))?;
    sparse::copy_into(&raw, 0, sparse::open_image(&content.image)?, entry.size)?;
    copy_file(&raw, disk, place)
        .with_context(|| format!("writing {} to its slot", content.image.display()))?;

    let kernel = kernel(&raw)
        .with_context(|| format!("looking for a kernel in {}", content.image.display()))?;
    let options = ext4::read(&raw, "/usr/lib/kernel/cmdline").unwrap_or_default();
    let os_release = ext4::read(&raw, "/usr/lib/os-release")?;
    let pretty_name =
        catalog::os_release_value(&String::from_utf8_lossy(&os_release), "PRETTY_NAME");
    let boot = BootImage {
        slot: content.slot,
        partition: place.id,
        sequence,
        pretty_name: pretty_name.unwrap_or_else(|| "Linux".to_owned()),
        kernel,
        options: String::from_utf8(options)
            .context("/usr/lib/kernel/cmdline is not UTF-8")?
            .trim()
            .to_owned(),
        marker: marker(&entry),
    };
    Ok(Installed { boot, raw })
}

/// The only kernel of an image.
fn kernel(image: &Path) -> Result<Vec<u8>> {
    let mut names = ext4::list(image, "/boot")?;
    names.retain(|name| name.starts_with("vmlinuz-"));
    match names.as_slice() {
        [name] => ext4::read(image, &format!("/boot/{name}")),
        [] => bail!("/boot holds no vmlinuz-*"),
        several => bail!("/boot holds several kernels: {}", several.join(", ")),
    }
}

/// The marker that slotd keeps beside a slot's boot files: which image the slot holds.
fn marker(entry: &catalog::Entry) -> String {
    let mut image = serde_json::json!({
        "expandedSha256": entry.expanded_checksum,
        "expandedSize": entry.size,
        "checksum": format!("sha256:{}", entry.checksum),
    });
    if let Some(version) = &entry.version {
        image["version"] = version.as_str().into();
    }
    let document = serde_json::json!({"version": 1, "min_reader": 1, "image": image});
    format!("{document:#}\n")
}

fn copy_file(from: &Path, disk: &Path, place: Partition) -> Result<()> {
    let source = File::open(from).with_context(|| format!("opening {}", from.display()))?;
    sparse::copy_into(disk, place.offset, source, place.size.bytes())
        .with_context(|| format!("filling {} ({})", place.label, place.size))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::SlotContent;

    #[test]
    fn a_slot_and_its_image_are_named_together() {
        let content: SlotContent = "a=x.ext4".parse().unwrap();
        assert_eq!(
            content,
            SlotContent {
                slot: 'a',
                image: PathBuf::from("x.ext4")
            }
        );
        for text in ["C=x", "A", "A=", "=x"] {
            assert!(text.parse::<SlotContent>().is_err(), "{text}");
        }
    }
}
