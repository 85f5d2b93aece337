//! The partitions of a disk: where they lie and what names them.

use std::fmt::Write as _;

use uuid::Uuid;

use crate::disk::{Loader, Request};
use crate::size::Size;
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
pub(crate) const BIOS_BOOT: u64 = 34 * SECTOR;

/// One partition: where it lies and what names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Partition {
    pub(crate) label: &'static str,
    kind: &'static str,
    /// PARTUUID.
    pub(crate) id: Uuid,
    /// Where it begins on the disk, in bytes.
    pub(crate) offset: u64,
    pub(crate) size: Size,
}

/// The partitions of the disk, in order, and its size.
#[derive(Debug)]
pub(crate) struct Layout {
    /// ESP, slots A and B, data.
    pub(crate) partitions: [Partition; 4],
    /// Whether a fifth one lies before the others, for a loader on a BIOS.
    bios_boot: bool,
    /// A fifth one behind the others, for the raw environment of U-Boot.
    pub(crate) environment: Option<Partition>,
    /// In bytes.
    pub(crate) size: u64,
}

impl Layout {
    pub(crate) fn new(request: &Request<'_>) -> Self {
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
            Loader::SystemdBoot | Loader::Grub | Loader::GrubBios | Loader::Efi => "ESP",
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
    pub(crate) fn script(&self) -> String {
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
