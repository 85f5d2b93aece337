//! The firmware's boot variables in a machine's variable store, read and changed by the usual tools on a copy: `virt-fw-vars` for
//! the store, `efibootmgr` for what the variables say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Held;
use crate::artifacts::{hex, repository};
use crate::loopdisk::{LoopDisk, Sector};
use crate::{process, wheels};

/// Debian's empty variable store.
pub(crate) const EMPTY_STORE: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
/// The wheels of `virt-fw-vars`.
const REQUIREMENTS: &str = "tests/firmware-variables.txt";

/// The document that `virt-fw-vars` writes and reads.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    version: u32,
    variables: Vec<Variable>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Variable {
    name: String,
    guid: String,
    attr: u32,
    /// In hex.
    data: String,
}

/// The variables of a store as files, as Linux shows them in efivarfs: attributes, then the data.
#[derive(Debug)]
pub(super) struct Variables {
    folder: tempfile::TempDir,
}

impl Variables {
    /// Those of a machine's store.
    pub(super) fn of(store: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("making a temporary folder")?;
        let variables = Self { folder };
        fs::create_dir(variables.files()).context("making a temporary folder")?;
        let listing = variables.document();
        virt_fw_vars(|command| {
            command
                .arg("--input")
                .arg(store)
                .arg("--output-json")
                .arg(&listing)
        })?;
        let text = fs::read_to_string(&listing).context("reading the variables")?;
        let document: Document = serde_json::from_str(&text).context("reading the variables")?;
        for variable in document.variables {
            let path = variables
                .files()
                .join(format!("{}-{}", variable.name, variable.guid));
            let bytes = [&variable.attr.to_le_bytes()[..], &unhex(&variable.data)?].concat();
            fs::write(path, bytes).context("writing a temporary file")?;
        }
        Ok(variables)
    }

    /// The folder of files.
    fn files(&self) -> PathBuf {
        self.folder.path().join("efivars")
    }

    fn document(&self) -> PathBuf {
        self.folder.path().join("variables.json")
    }

    /// Makes a command work on these variables.
    fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("LIBEFIVAR_OPS", "efivarfs")
            // The library joins names to it without a separator.
            .env("EFIVARFS_PATH", format!("{}/", self.files().display()))
    }

    /// What they hold of the slots, by `efibootmgr`.
    pub(super) fn held(&self) -> Result<Held> {
        let listing = process::output("efibootmgr", |command| self.environment(command))?;
        Ok(held(&listing))
    }

    /// Runs commands of a shell in which `efibootmgr` works on them; `$DISK` is this disk, as the block device that it wants.
    pub(super) fn change(&self, disk: &Path, commands: &str) -> Result<()> {
        let size = fs::metadata(disk)
            .with_context(|| format!("looking at {}", disk.display()))?
            .len();
        let device = LoopDisk::attach(disk, size, Sector::B512)?;
        process::run("sh", |command| {
            self.environment(command)
                .env("DISK", device.device())
                .args(["-e", "-c", commands])
        })
    }

    /// Makes a store of them: that of a machine that is off, or a new one.
    pub(super) fn store(&self, store: &Path) -> Result<()> {
        let mut variables = Vec::new();
        for entry in fs::read_dir(self.files()).context("listing the variables")? {
            let entry = entry.context("listing the variables")?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let bytes = fs::read(entry.path()).context("reading a variable")?;
            let (attributes, data) = bytes
                .split_first_chunk()
                .with_context(|| format!("{name} has no attributes"))?;
            // A GUID has 36 characters.
            let at = name.len().checked_sub(37).context("a name without GUID")?;
            variables.push(Variable {
                name: name[..at].to_owned(),
                guid: name[at + 1..].to_owned(),
                attr: u32::from_le_bytes(*attributes),
                data: hex(data),
            });
        }
        variables.sort_by(|a, b| a.name.cmp(&b.name));
        let document = Document {
            version: 2,
            variables,
        };
        let text = serde_json::to_string(&document).context("writing the variables")?;
        fs::write(self.document(), text).context("writing the variables")?;
        virt_fw_vars(|command| {
            command
                .args(["--input", EMPTY_STORE, "--set-json"])
                .arg(self.document())
                .arg("--output")
                .arg(store)
        })
    }
}

/// Makes the variable store of a machine that was told of a disk by these commands, which have the disk in `$DISK`.
pub(super) fn tell_firmware(disk: &Path, commands: &str, store: &Path) -> Result<()> {
    let variables = Variables::of(Path::new(EMPTY_STORE))?;
    variables.change(disk, commands)?;
    let partial = store.with_extension("partial");
    variables.store(&partial)?;
    fs::rename(&partial, store).with_context(|| format!("creating {}", store.display()))
}

/// Runs `virt-fw-vars`, which is got with pip when it is first needed.
fn virt_fw_vars(build: impl FnOnce(&mut Command) -> &mut Command) -> Result<()> {
    let requirements = repository().join(REQUIREMENTS);
    let text = fs::read_to_string(&requirements)
        .with_context(|| format!("reading {}", requirements.display()))?;
    let folder = slotd_image::build_cache()
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join(wheels::name(&text).context("a wheel without a version")?);
    if !folder.is_dir() {
        eprintln!("lab: getting virt-fw-vars into {}", folder.display());
        wheels::install(&requirements, &folder)?;
    }
    process::run("python3", |command| {
        build(command.env("PYTHONPATH", &folder).args([
            "-m",
            "virt.firmware.vars",
            "--loglevel",
            "ERROR",
        ]))
    })
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    ensure!(text.len().is_multiple_of(2), "{text:?} is no hex");
    let digits = |at: usize| text.get(at..at + 2).context("no hex digits");
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(digits(at)?, 16).with_context(|| format!("{text:?}")))
        .collect()
}

/// Reads the listing of `efibootmgr` by the rules of the backend's page.
fn held(listing: &str) -> Held {
    let value = |name: &str| {
        listing
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    let order: Vec<&str> = value("BootOrder")
        .unwrap_or_default()
        .split(',')
        .filter(|number| !number.is_empty())
        .collect();
    let next = value("BootNext");
    // `Boot0004* slotd B`; a tab and the device path may follow.
    let option = |label: &str| -> Option<(&str, bool)> {
        listing.lines().find_map(|line| {
            let rest = line.strip_prefix("Boot")?;
            let (number, rest) = rest.split_at_checked(4)?;
            let (mark, name) = rest.split_at_checked(2)?;
            (name.split('\t').next() == Some(label)).then_some((number, mark == "* "))
        })
    };
    let state = |slot: &str| {
        let good = option(&format!("slotd {slot}"));
        let trial = option(&format!("slotd {slot} trial"));
        match (good, trial) {
            (_, Some((number, _))) if next == Some(number) => "trial",
            (_, Some(_)) => "bad",
            (Some((number, true)), None) if order.contains(&number) => "good",
            (Some(_), None) => "bad",
            (None, None) => "empty",
        }
    };
    let states = ["A", "B"].map(state);
    let place = |slot: &str| {
        let (number, _) = option(&format!("slotd {slot}"))?;
        order.iter().position(|other| *other == number)
    };
    let tries_left = states.map(|state| (state == "trial").then_some(1));
    let first = match (states, place("A"), place("B")) {
        (["trial", _], ..) => 'A',
        ([_, "trial"], ..) => 'B',
        (_, None, Some(_)) => 'B',
        (_, Some(a), Some(b)) if b < a => 'B',
        _ => 'A',
    };
    Held {
        states,
        first,
        tries_left,
    }
}

#[cfg(test)]
mod tests {
    use super::{Held, held, unhex};

    #[test]
    fn a_listing_of_efibootmgr_says_what_each_slot_is_worth() {
        let told = held(
            "BootNext: 0003\nBootOrder: 0001,0002\nBoot0001* slotd A\nBoot0002* UEFI Shell\nBoot0003* slotd B trial\n",
        );
        assert_eq!(
            told,
            Held {
                states: ["good", "trial"],
                first: 'B',
                tries_left: [None, Some(1)],
            }
        );
        let told = held("BootOrder: 0004,0001\nBoot0001* slotd A\nBoot0004* slotd B\n");
        assert_eq!((told.states, told.next()), (["good", "good"], Some('B')));
        let told = held("BootOrder: 0001\nBoot0001* slotd A\tHD(1,GPT)\nBoot0003* slotd B trial\n");
        assert_eq!((told.states, told.next()), (["good", "bad"], Some('A')));
        let told = held("BootOrder: 0002\nBoot0001* slotd A\nBoot0002  slotd B\n");
        assert_eq!((told.states, told.next()), (["bad", "bad"], None));
        let told = held("No BootOrder is set; firmware will attempt recovery\n");
        assert_eq!(told.states, ["empty", "empty"]);
    }

    #[test]
    fn hex_is_read_whole_or_refused() {
        assert_eq!(unhex("00ff7F").unwrap(), [0, 255, 127]);
        for text in ["0", "0g", "é"] {
            assert!(unhex(text).is_err(), "{text}");
        }
    }
}
