//! A whole A/B disk: partition table, ESP, two slots, data partition.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use uuid::Uuid;

use crate::architecture::Architecture;
use crate::catalog;
use crate::command::Tool;
use crate::efi::{self, BootOption};
use crate::esp::{BootImage, Esp};
use crate::ext4::{self, Journal};
use crate::grub::{self, Firmware};
use crate::layout::{BIOS_BOOT, Layout, Partition};
use crate::recipe::Recipe;
use crate::size::Size;
use crate::sparse;
use crate::tree::Tree;
use crate::uboot::{self, Environment};

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
    /// None: the firmware starts the kernels itself
    Efi,
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

/// Makes the disk. It appears under its name when it is complete. Returns what the firmware has to be told of it: nothing where
/// the disk has a loader.
pub(crate) fn make(request: &Request<'_>) -> Result<Vec<BootOption>> {
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
    let mut boot_options = Vec::new();
    let firmware = match request.loader {
        Loader::SystemdBoot => {
            esp.install_loader(&systemd_boot(request.systemd_boot, installed_loader)?)?;
            for image in &boot_images {
                esp.install_slot(image, &machine_id, request.options)?;
            }
            None
        }
        Loader::Efi => {
            boot_options = efi::install(&esp, &boot_images, &machine_id, request.options)?;
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
    })?;
    Ok(boot_options)
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
