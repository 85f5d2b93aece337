//! What the files of a stand-in say, read without anything of slotd's: which slot would be started, and what it holds.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::artifacts::hex;
use crate::standin::StandInImage;

/// A boot entry of a slot, as systemd-boot reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) slot: char,
    /// Boots that are left to it; none where it is not counted.
    pub(super) left: Option<u32>,
    version: u64,
    kernel: PathBuf,
}

/// An image, and the kernel that belongs to it.
#[derive(Debug)]
struct Known {
    digest: String,
    version: String,
    kernel: String,
}

/// Who knows the images, and what slot A held at first.
#[derive(Debug)]
pub(super) struct Judge {
    root: PathBuf,
    /// Bytes of an image; all have as many.
    size: usize,
    images: Vec<Known>,
    slot_a: String,
}

impl Judge {
    /// Of the stand-in in this folder, with the images that its slots may hold and the text of each one's kernel.
    pub(super) fn new(root: &Path, images: &[(&StandInImage, &str)]) -> Result<Self> {
        let mut size = 0;
        let mut known = Vec::new();
        for (image, kernel) in images {
            let bytes = fs::read(&image.expanded).context("reading an image")?;
            size = bytes.len();
            known.push(Known {
                digest: digest(&bytes),
                version: image.image.version.clone(),
                kernel: (*kernel).to_owned(),
            });
        }
        let mut judge = Self {
            root: root.to_owned(),
            size,
            images: known,
            slot_a: String::new(),
        };
        judge.slot_a = digest(&judge.slot('a')?);
        Ok(judge)
    }

    fn slot(&self, slot: char) -> Result<Vec<u8>> {
        let path = self.root.join(format!("slot-{slot}.img"));
        fs::read(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// The version whose image a slot holds, byte for byte.
    pub(super) fn holds(&self, slot: char) -> Result<Option<&str>> {
        Ok(self.image(slot)?.map(|image| image.version.as_str()))
    }

    fn image(&self, slot: char) -> Result<Option<&Known>> {
        let bytes = self.slot(slot)?;
        let found = digest(bytes.get(..self.size).context("a slot is too small")?);
        Ok(self.images.iter().find(|image| image.digest == found))
    }

    /// What tells both slots and all of the loader's files from others.
    pub(super) fn fingerprint(&self) -> Result<String> {
        let mut all = format!("{} {}", digest(&self.slot('a')?), digest(&self.slot('b')?));
        let mut folders = vec![self.root.join("efi")];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for file in fs::read_dir(&folder).context("listing the loader's files")? {
                let path = file.context("listing the loader's files")?.path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push(path);
                }
            }
        }
        files.sort();
        for path in files {
            let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            all.push_str(&format!("\n{} {}", path.display(), digest(&bytes)));
        }
        Ok(all)
    }

    /// Looks at what a kill or a power cut left at any time: slot A is as it was, something can be started, whatever can be
    /// started is whole, and no success is kept before the loader's data say so. Returns what would be started.
    pub(super) fn sound(&self) -> Result<Entry> {
        ensure!(
            digest(&self.slot('a')?) == self.slot_a,
            "slot A was written to"
        );
        let entries = self.entries()?;
        for entry in entries.iter().filter(|entry| entry.left != Some(0)) {
            let image = self
                .image(entry.slot)?
                .with_context(|| format!("{entry:?} leads to a slot that holds no whole image"))?;
            let kernel = fs::read_to_string(self.root.join("efi").join(&entry.kernel))
                .with_context(|| format!("reading the kernel of {entry:?}"))?;
            ensure!(
                kernel == image.kernel,
                "{entry:?} starts {} with {kernel:?}",
                image.version
            );
        }
        ensure!(
            entries.iter().any(|entry| entry.left.is_none()),
            "no proven slot can be started: {entries:?}"
        );
        self.reports_no_early_success(&entries)?;
        entries.into_iter().next().context("nothing can be started")
    }

    fn reports_no_early_success(&self, entries: &[Entry]) -> Result<()> {
        let path = self.root.join("data/slotd/history.jsonl");
        let history = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).context("reading the history"),
        };
        let proven = entries
            .iter()
            .any(|entry| entry.slot == 'b' && entry.left.is_none());
        ensure!(
            proven || !history.contains("\"Completed\""),
            "{history} with {entries:?}"
        );
        Ok(())
    }

    /// Boot entries whose kernel is there, the one that is started first (UAPI.1, "Sorting": what has no tries left comes last, of
    /// one sort-key and machine the newer version first).
    fn entries(&self) -> Result<Vec<Entry>> {
        let folder = self.root.join("efi/loader/entries");
        let mut entries = Vec::new();
        for file in fs::read_dir(&folder).context("listing entries")? {
            let file = file.context("listing entries")?;
            let name = file.file_name().to_string_lossy().into_owned();
            let Some(id) = name.strip_suffix(".conf") else {
                continue;
            };
            let text =
                fs::read_to_string(file.path()).with_context(|| format!("reading {name}"))?;
            let entry = read(id, &text).with_context(|| format!("{name} says {text:?}"))?;
            if self.root.join("efi").join(&entry.kernel).is_file() {
                entries.push(entry);
            }
        }
        entries.sort_by_key(|entry| (entry.left == Some(0), std::cmp::Reverse(entry.version)));
        Ok(entries)
    }
}

/// An entry by its file name, without `.conf`, and its text.
fn read(id: &str, text: &str) -> Result<Entry> {
    let value = |key: &str| {
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .find_map(|(found, value)| (found == key).then(|| value.trim()))
            .with_context(|| format!("no {key}"))
    };
    ensure!(value("sort-key")? == "slotd", "another sort-key");
    let left = match id.split_once('+') {
        None => None,
        Some((_, counter)) => {
            let left = counter.split('-').next().unwrap_or_default();
            Some(left.parse().context("a counter")?)
        }
    };
    let options = value("options")?;
    let root = options
        .split_whitespace()
        .find_map(|option| option.strip_prefix("root=PARTUUID="));
    // As the fixture's partition table has them.
    let slot = match root {
        Some("00000000-0000-0000-0000-00000000a002") => 'a',
        Some("00000000-0000-0000-0000-00000000a003") => 'b',
        other => bail!("root {other:?}"),
    };
    Ok(Entry {
        slot,
        left,
        version: value("version")?.parse().context("a version")?,
        kernel: PathBuf::from(value("linux")?.trim_start_matches('/')),
    })
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}
