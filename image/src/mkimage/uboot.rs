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
/// The environment as a file, and its second copy.
const FILES: [&str; 2] = ["uboot.env", "uboot-redund.env"];
/// Where the recipe mounts the boot partition.
const MOUNT: &str = "/boot/firmware";
/// Name of the partition of a raw pair.
pub(crate) const PARTITION: &str = "ubootenv";
/// Bytes of an environment, or of each copy of it.
const SIZE: u64 = 0x4000;
/// Where the flags byte lies in a copy of a redundant pair: behind the checksum.
const FLAGS: usize = 4;
const SECTOR: u64 = 512;
/// Between these lines of the script stand its settings.
const SETTINGS: &str = "# ---- Settings";
const MEMORY: &str = "# ---- Memory";

/// Where the environment lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Environment {
    /// A file on the boot partition, of which a power cut may leave half
    File,
    /// Two files on the boot partition, written in turn
    Files,
    /// Two raw copies in a partition of their own, written in turn
    Raw,
}

/// What U-Boot is given on a disk.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    /// The boot partition.
    pub(crate) boot: &'a Esp<'a>,
    pub(crate) disk: &'a Path,
    /// Where the partition for a raw environment begins, in bytes.
    pub(crate) raw: Option<u64>,
    pub(crate) environment: Environment,
    pub(crate) architecture: Architecture,
}

impl Target<'_> {
    /// Makes the slots bootable: the script for this disk and the environment. The slots' partitions are labelled `root-a` and
    /// `root-b`. Returns `fw_env.config` for the system.
    pub(crate) fn install(
        &self,
        images: &[BootImage],
        machine_id: &str,
        extra: &str,
        units: &Path,
    ) -> Result<String> {
        let path = units.join(SCRIPT);
        let shipped =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let script = script(&shipped, self.environment, extra)
            .with_context(|| format!("using {}", path.display()))?;
        self.boot
            .write(SCRIPT_COPY, &wrap(&script, self.architecture)?)?;

        let variables = variables(images, machine_id);
        let mut config = String::from("# Device  Offset  Size\n");
        match (self.environment, self.raw) {
            (Environment::File, _) => {
                let [name, _] = FILES;
                self.boot.write(&format!("/{name}"), &single(&variables)?)?;
                let _ = writeln!(config, "{MOUNT}/{name} 0x0 {SIZE:#x}");
            }
            (Environment::Files, _) => {
                for (name, copy) in FILES.iter().zip(pair(&variables)?) {
                    self.boot.write(&format!("/{name}"), &copy)?;
                    let _ = writeln!(config, "{MOUNT}/{name} 0x0 {SIZE:#x}");
                }
            }
            (Environment::Raw, Some(start)) => {
                let file = OpenOptions::new()
                    .write(true)
                    .open(self.disk)
                    .with_context(|| format!("opening {}", self.disk.display()))?;
                for (offset, copy) in [0, SIZE].into_iter().zip(pair(&variables)?) {
                    file.write_all_at(&copy, start + offset).with_context(|| {
                        format!("writing the environment to {}", self.disk.display())
                    })?;
                    let _ = writeln!(
                        config,
                        "/dev/disk/by-partlabel/{PARTITION} {offset:#x} {SIZE:#x}"
                    );
                }
            }
            (Environment::Raw, None) => bail!("there is no partition for the environment"),
        }
        Ok(config)
    }
}

/// The script with this disk's settings in the place of its own.
fn script(text: &str, place: Environment, extra: &str) -> Result<String> {
    let (head, rest) = text
        .split_once(SETTINGS)
        .context("the boot script has no settings")?;
    let (_, tail) = rest
        .split_once(MEMORY)
        .context("the boot script's settings do not end")?;
    Ok(format!("{head}{}\n{MEMORY}{tail}", settings(place, extra)?))
}

/// What the script has to know of this disk.
fn settings(place: Environment, extra: &str) -> Result<String> {
    if extra.contains(['\n', '\r', '\'', '"', '$', ';', '\\']) {
        bail!(
            "options of several lines or with '\"$;\\ cannot stand in U-Boot's script: {extra:?}"
        );
    }
    let store = match place {
        Environment::File => "file",
        Environment::Files => "files",
        Environment::Raw => "raw",
    };
    let mut text = format!(
        "# ---- Settings of this disk, by slotd-mkimage\n\nsetenv slotd_store {store}\nsetenv slotd_size {SIZE:#x}\n"
    );
    let _ = writeln!(text, "setenv slotd_sectors {:#x}", SIZE / SECTOR);
    let _ = writeln!(text, "setenv slotd_file {}", FILES[0]);
    let _ = writeln!(text, "setenv slotd_second {}", FILES[1]);
    let _ = writeln!(text, "setenv slotd_partition {PARTITION}");
    text.push_str("setenv slotd_a_label root-a\nsetenv slotd_b_label root-b\n");
    // Without a value this removes what there was.
    let _ = writeln!(text, "setenv slotd_extra {}", extra.trim());
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

/// A redundant pair of these variables, of which the first copy counts.
fn pair(variables: &str) -> Result<[Vec<u8>; 2]> {
    let first = environment(variables, &["-r"])?;
    let mut second = first.clone();
    *second.get_mut(FLAGS).context("an empty environment")? = 0;
    Ok([first, second])
}

/// These variables as an environment that has no second copy.
fn single(variables: &str) -> Result<Vec<u8>> {
    environment(variables, &[])
}

/// An environment of these variables, made by U-Boot's own tool.
fn environment(variables: &str, options: &[&str]) -> Result<Vec<u8>> {
    let output = tempfile::NamedTempFile::new().context("making a temporary file")?;
    Tool::new("mkenvimage")
        .args(options)
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
    use super::{Environment, script, settings};

    const SHIPPED: &str = include_str!("../../../systemd/usr/lib/slotd/uboot/boot.cmd");

    #[test]
    fn a_disk_says_where_its_environment_lies() {
        // 16 KiB are 32 sectors of 512 bytes.
        assert_eq!(
            settings(Environment::Raw, " quiet ").unwrap(),
            "# ---- Settings of this disk, by slotd-mkimage\n\n\
             setenv slotd_store raw\nsetenv slotd_size 0x4000\nsetenv slotd_sectors 0x20\n\
             setenv slotd_file uboot.env\nsetenv slotd_second uboot-redund.env\n\
             setenv slotd_partition ubootenv\nsetenv slotd_a_label root-a\nsetenv slotd_b_label root-b\n\
             setenv slotd_extra quiet\n"
        );
        for extra in ["a\nb", "a'b", "$x", "a;reset"] {
            assert!(settings(Environment::File, extra).is_err(), "{extra}");
        }
    }

    #[test]
    fn the_settings_of_the_script_that_is_shipped_are_replaced_and_nothing_else() {
        let text = script(SHIPPED, Environment::Raw, "").unwrap();
        assert!(text.contains("\nsetenv slotd_store raw\n"));
        assert!(!text.contains("\nsetenv slotd_store files\n"));
        let named = |text: &str| -> Vec<String> {
            text.lines()
                .filter_map(|line| line.strip_prefix("setenv "))
                .filter_map(|rest| rest.split(' ').next().map(str::to_owned))
                .collect()
        };
        assert_eq!(named(&text), named(SHIPPED));
        assert!(script("no settings", Environment::Raw, "").is_err());
    }

    #[test]
    fn texts_that_the_script_prints_have_no_apostrophe() {
        for line in SHIPPED
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'))
        {
            assert!(!line.contains('\''), "{line}");
        }
    }
}
