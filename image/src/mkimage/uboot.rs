//! U-Boot on a disk: the script that it runs, and its environment, which says what each slot is worth. U-Boot itself is the
//! board's.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::architecture::Architecture;
use crate::command::Tool;
use crate::esp::{BootImage, Esp};

/// What slotd ships, in the tree of units: the script that chooses the slot.
const SCRIPT: &str = "usr/lib/slotd/uboot/boot.cmd";
/// Where U-Boot's standard boot looks for a script, on a partition that it takes for bootable.
const SCRIPT_COPY: &str = "/boot.scr";
/// The environment as a file.
const FILE: &str = "/uboot.env";
/// Where the recipe mounts the boot partition.
const MOUNT: &str = "/boot/firmware";
/// Name of the partition of a raw pair.
pub(crate) const PARTITION: &str = "uboot-env";
/// Bytes of an environment, or of each copy of it.
const SIZE: u64 = 0x4000;
/// Where the second copy begins in the partition: what a medium erases or tears at once holds only one of them.
const SECOND: u64 = 0x8_0000;
/// Where the flags byte lies in a copy of a redundant pair: behind the checksum.
const FLAGS: u64 = 4;
const SECTOR: u64 = 512;

/// Where the environment lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Environment {
    /// A file on the boot partition
    File,
    /// Two raw copies in a partition of their own
    Raw,
}

/// A partition: its number, and where it begins, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawPartition {
    pub(crate) number: usize,
    pub(crate) offset: u64,
}

/// What U-Boot is given on a disk.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    /// The boot partition.
    pub(crate) boot: &'a Esp<'a>,
    pub(crate) disk: &'a Path,
    /// Where a raw pair lies; without it the environment is a file.
    pub(crate) raw: Option<RawPartition>,
    pub(crate) architecture: Architecture,
}

impl Target<'_> {
    /// Makes the slots bootable: the script for this disk and the environment. Slots A and B are partitions 2 and 3. Returns
    /// `fw_env.config` for the system.
    pub(crate) fn install(
        &self,
        images: &[BootImage],
        machine_id: &str,
        extra: &str,
        units: &Path,
    ) -> Result<String> {
        let (boot, disk, raw) = (self.boot, self.disk, self.raw);
        let path = units.join(SCRIPT);
        let script =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let script = format!("{}{script}", preamble(raw, extra)?);
        boot.write(SCRIPT_COPY, &wrap(&script, self.architecture)?)?;

        let variables = variables(images, machine_id);
        match raw {
            None => {
                boot.write(FILE, &environment(&variables, false)?)?;
                Ok(format!(
                    "# Device        Offset  Size\n{MOUNT}{FILE} 0x0 {SIZE:#x}\n"
                ))
            }
            Some(partition) => {
                let mut copy = environment(&variables, true)?;
                let flags = usize::try_from(FLAGS).context("an environment's flags")?;
                let file = OpenOptions::new()
                    .write(true)
                    .open(disk)
                    .with_context(|| format!("opening {}", disk.display()))?;
                let mut put = |offset: u64, flag: u8| -> Result<()> {
                    *copy.get_mut(flags).context("an empty environment")? = flag;
                    file.write_all_at(&copy, partition.offset + offset)
                        .with_context(|| format!("writing the environment to {}", disk.display()))
                };
                // The first one counts.
                put(0, 1)?;
                put(SECOND, 0)?;
                let device = format!("/dev/disk/by-partlabel/{PARTITION}");
                Ok(format!(
                    "# Device        Offset  Size\n{device} 0x0 {SIZE:#x}\n{device} {SECOND:#x} {SIZE:#x}\n"
                ))
            }
        }
    }
}

/// The part of the script that is this disk's.
fn preamble(raw: Option<RawPartition>, extra: &str) -> Result<String> {
    if extra.contains(['\n', '\r', '\'', '"', '$', ';', '\\']) {
        bail!(
            "options of several lines or with '\"$;\\ cannot stand in U-Boot's script: {extra:?}"
        );
    }
    let mut text =
        String::from("# Written by slotd-mkimage for this disk.\nl_part_a=2\nl_part_b=3\n");
    let extra = extra.trim();
    if !extra.is_empty() {
        let _ = writeln!(text, "l_extra='{extra}'");
    }
    match raw {
        None => {
            let _ = writeln!(text, "l_place=file\nl_file={FILE}");
        }
        Some(partition) => {
            // Partitions are numbered in hexadecimal, as all numbers of U-Boot's commands.
            let _ = writeln!(
                text,
                "l_place=pair\nl_part={:x}\nl_blocks={:#x}\nl_second={:#x}\nl_size={:#x}",
                partition.number,
                SIZE / SECTOR,
                SECOND / SECTOR,
                SIZE - 1,
            );
        }
    }
    Ok(text)
}

/// The variables: the slots in order, all of them proven.
fn variables(images: &[BootImage], machine_id: &str) -> String {
    let mut order: Vec<char> = images.iter().map(|image| image.slot).collect();
    for slot in ['a', 'b'] {
        if !order.contains(&slot) {
            order.push(slot);
        }
    }
    let order: Vec<String> = order
        .iter()
        .map(|slot| slot.to_ascii_uppercase().to_string())
        .collect();
    let mut text = format!("slotd_order={}\n", order.join(" "));
    for image in images {
        let _ = writeln!(text, "slotd_{}_ok=1", image.slot);
    }
    let _ = writeln!(text, "slotd_machine_id={machine_id}");
    text
}

/// An environment of these variables, made by U-Boot's own tool.
fn environment(variables: &str, redundant: bool) -> Result<Vec<u8>> {
    let output = tempfile::NamedTempFile::new().context("making a temporary file")?;
    Tool::new("mkenvimage")
        .args(redundant.then_some("-r"))
        .args(["-p", "0x0", "-s", &format!("{SIZE:#x}"), "-o"])
        .arg(output.path())
        .arg("-")
        .input(variables)
        .run()?;
    fs::read(output.path()).context("reading an environment")
}

/// A script in the form that U-Boot's `source` takes, made by U-Boot's own tool.
fn wrap(script: &str, architecture: Architecture) -> Result<Vec<u8>> {
    let source = tempfile::NamedTempFile::new().context("making a temporary file")?;
    fs::write(source.path(), script).context("writing a temporary file")?;
    let output = tempfile::NamedTempFile::new().context("making a temporary file")?;
    let name = match architecture {
        Architecture::Amd64 => "x86",
        Architecture::Arm64 => "arm64",
    };
    Tool::new("mkimage")
        .args([
            "-A", name, "-T", "script", "-C", "none", "-n", "slotd", "-d",
        ])
        .arg(source.path())
        .arg(output.path())
        .run()?;
    fs::read(output.path()).context("reading U-Boot's script")
}

#[cfg(test)]
mod tests {
    use super::{RawPartition, preamble};

    #[test]
    fn a_disk_says_where_its_environment_lies() {
        assert_eq!(
            preamble(None, " quiet ").unwrap(),
            "# Written by slotd-mkimage for this disk.\nl_part_a=2\nl_part_b=3\nl_extra='quiet'\n\
             l_place=file\nl_file=/uboot.env\n"
        );
        let raw = RawPartition {
            number: 5,
            offset: 0,
        };
        // 16 KiB are 32 sectors, 512 KiB 1024.
        assert_eq!(
            preamble(Some(raw), "").unwrap(),
            "# Written by slotd-mkimage for this disk.\nl_part_a=2\nl_part_b=3\n\
             l_place=pair\nl_part=5\nl_blocks=0x20\nl_second=0x400\nl_size=0x3fff\n"
        );
        for extra in ["a\nb", "a'b", "$x", "a;reset"] {
            assert!(preamble(None, extra).is_err(), "{extra}");
        }
    }
}
