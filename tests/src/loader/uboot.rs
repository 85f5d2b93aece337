//! U-Boot's environment on a machine's disk, read and changed by the usual tools of Linux, on a copy.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Held;
use crate::disk::partition_range;
use crate::{esp, process};

/// The two copies as files on the boot partition.
const FILES: [&str; 2] = ["uboot.env", "uboot-redund.env"];
/// The partition of two raw copies, one behind the other.
const PARTITION: usize = 5;
/// Bytes of a copy on the lab's disks.
pub(crate) const SIZE: u64 = 0x4000;

/// Both copies of a disk's environment, copied.
#[derive(Debug)]
pub(super) struct Environment<'a> {
    disk: &'a Path,
    /// Names of the copies.
    names: &'static [&'static str],
    /// Where the raw copies lie on the disk, in bytes.
    raw: Option<u64>,
    folder: tempfile::TempDir,
}

impl<'a> Environment<'a> {
    /// The environment that is two files.
    pub(super) fn of_files(disk: &'a Path) -> Result<Self> {
        Self::on_boot_partition(disk, &FILES)
    }

    /// The environment that is one file.
    pub(super) fn of_file(disk: &'a Path) -> Result<Self> {
        Self::on_boot_partition(disk, &FILES[..1])
    }

    fn on_boot_partition(disk: &'a Path, names: &'static [&'static str]) -> Result<Self> {
        let environment = Self::new(disk, names, None)?;
        for name in names {
            esp::copy_out(disk, &format!("/{name}"), &environment.copy(name))?;
        }
        Ok(environment)
    }

    /// The environment that is a partition.
    pub(super) fn of_partition(disk: &'a Path) -> Result<Self> {
        let file = File::open(disk).with_context(|| format!("opening {}", disk.display()))?;
        let (start, _) =
            partition_range(&file, PARTITION).context("the partition of U-Boot's environment")?;
        let environment = Self::new(disk, &FILES, Some(start))?;
        for (name, offset) in FILES.iter().zip([0, SIZE]) {
            let mut bytes = vec![0; usize::try_from(SIZE)?];
            file.read_exact_at(&mut bytes, start + offset)
                .with_context(|| format!("reading {}", disk.display()))?;
            fs::write(environment.copy(name), bytes).context("writing a temporary file")?;
        }
        Ok(environment)
    }

    fn new(disk: &'a Path, names: &'static [&'static str], raw: Option<u64>) -> Result<Self> {
        let folder = tempfile::tempdir().context("making a temporary folder")?;
        let environment = Self {
            disk,
            names,
            raw,
            folder,
        };
        let lines: Vec<String> = names
            .iter()
            .map(|name| format!("{} 0x0 {SIZE:#x}\n", environment.copy(name).display()))
            .collect();
        fs::write(environment.config(), lines.concat()).context("writing a temporary file")?;
        Ok(environment)
    }

    fn copy(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn config(&self) -> PathBuf {
        self.copy("fw_env.config")
    }

    /// What it holds of the slots, by `fw_printenv`.
    pub(super) fn held(&self) -> Result<Held> {
        held(&self.listing()?)
    }

    /// A variable, by `fw_printenv`.
    pub(super) fn variable(&self, name: &str) -> Result<Option<String>> {
        let listing = self.listing()?;
        Ok(value(&listing, name).map(str::to_owned))
    }

    fn listing(&self) -> Result<String> {
        process::output("fw_printenv", |command| {
            command.arg("--config").arg(self.config())
        })
    }

    /// Sets variables with `fw_setenv`, and writes the copies back.
    pub(super) fn set(&self, variables: &[(&str, &str)]) -> Result<()> {
        let script = self.copy("script");
        let lines: Vec<String> = variables
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        fs::write(&script, lines.concat()).context("writing a temporary file")?;
        process::run("fw_setenv", |command| {
            command
                .arg("--config")
                .arg(self.config())
                .arg("--script")
                .arg(&script)
        })?;
        for (name, offset) in self.names.iter().zip([0, SIZE]) {
            let Some(start) = self.raw else {
                esp::copy_in(self.disk, &self.copy(name), &format!("/{name}"))?;
                continue;
            };
            let bytes = fs::read(self.copy(name)).context("reading a temporary file")?;
            OpenOptions::new()
                .write(true)
                .open(self.disk)
                .and_then(|disk| disk.write_all_at(&bytes, start + offset))
                .with_context(|| format!("writing to {}", self.disk.display()))?;
        }
        Ok(())
    }
}

fn value<'a>(listing: &'a str, name: &str) -> Option<&'a str> {
    listing
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

/// Reads the listing of `fw_printenv` by the rules of slotd's boot script.
pub(crate) fn held(listing: &str) -> Result<Held> {
    let value = |name: &str| value(listing, name);
    let order = value("slotd_order").context("no slotd_order in the environment")?;
    let first = match order.chars().next() {
        Some(first @ ('A' | 'B')) => first,
        _ => bail!("slotd_order is {order:?}"),
    };
    let tries = |slot: &str| -> Option<u32> {
        u32::from_str_radix(value(&format!("slotd_{slot}_tries"))?, 16).ok()
    };
    let state = |slot: &str| match (value(&format!("slotd_{slot}_ok")), tries(slot)) {
        (Some("1"), _) => Ok("good"),
        (Some("0"), None | Some(0)) => Ok("bad"),
        (Some("0"), Some(_)) => Ok("trial"),
        (None, _) => Ok("empty"),
        (Some(other), _) => bail!("slotd_{slot}_ok is {other:?}"),
    };
    Ok(Held {
        states: [state("a")?, state("b")?],
        first,
        tries_left: ["a", "b"].map(tries),
    })
}

#[cfg(test)]
mod tests {
    use super::{Held, held};

    #[test]
    fn a_listing_of_fw_printenv_says_what_each_slot_is_worth() {
        let text = "slotd_a_ok=1\nslotd_b_ok=0\nslotd_b_tries=2\nslotd_order=B A\nslotd_tries=3\n";
        assert_eq!(
            held(text).unwrap(),
            Held {
                states: ["good", "trial"],
                first: 'B',
                tries_left: [None, Some(2)],
            }
        );
        let text = "slotd_a_ok=0\nslotd_b_ok=0\nslotd_b_tries=0\nslotd_order=A B\n";
        assert_eq!(held(text).unwrap().states, ["bad", "bad"]);
        let text = "slotd_order=A B\nslotd_a_ok=1\n";
        assert_eq!(held(text).unwrap().states, ["good", "empty"]);
        assert!(held("slotd_a_ok=1\n").is_err());
        assert!(held("slotd_order=A B\nslotd_a_ok=yes\n").is_err());
    }
}
