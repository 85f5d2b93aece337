//! The reference disk of a machine, seen from outside the guest.

use std::ffi::OsString;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::artifacts::hex;
use crate::{esp, process};

/// A disk of the layout of `image/recipe/`. While its machine runs, this shows what reached the disk.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// The disk in this file.
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// SHA-256 of the bytes of a slot (`a` or `b`), in hex.
    pub fn slot_digest(&self, slot: char) -> Result<String> {
        let mut hasher = Sha256::new();
        self.read_slot(slot, |piece| hasher.update(piece))?;
        Ok(hex(&hasher.finalize()))
    }

    /// How many bytes of a slot are not zero, in steps of 64 KiB.
    pub fn slot_bytes_used(&self, slot: char) -> Result<u64> {
        let mut used = 0;
        self.read_slot(slot, |piece| {
            if piece.iter().any(|byte| *byte != 0) {
                used += piece.len() as u64;
            }
        })?;
        Ok(used)
    }

    /// Names of the loader's entries, sorted. Other files beside them, such as temporary ones that a power cut left, are nothing
    /// to the loader.
    pub fn loader_entries(&self) -> Result<Vec<String>> {
        let mut names = esp::list(&self.path, "/loader/entries")?;
        names.retain(|name| name.ends_with(".conf"));
        Ok(names)
    }

    /// Puts files into the data partition of a machine that is off, root's alone each: path there, without a leading slash and in
    /// folders that may be missing, and text.
    pub fn add_to_data(&self, files: &[(&str, &str)]) -> Result<()> {
        let folder = tempfile::tempdir().context("making a temporary folder")?;
        let mut commands = String::new();
        for (index, (path, text)) in files.iter().enumerate() {
            let source = folder.path().join(index.to_string());
            std::fs::write(&source, text).context("writing a temporary file")?;
            for (end, _) in path.match_indices('/') {
                // One that is there already is refused, and stays as it is.
                commands += &format!("mkdir /{}\n", &path[..end]);
            }
            commands += &format!("rm /{path}\nwrite {} /{path}\n", source.display());
            commands +=
                &format!("sif /{path} mode 0100600\nsif /{path} uid 0\nsif /{path} gid 0\n");
        }
        let script = folder.path().join("commands");
        std::fs::write(&script, commands).context("writing a temporary file")?;
        let device = self.filesystem(4).context("the data partition")?;
        process::run("debugfs", |command| {
            command.arg("-w").arg("-f").arg(&script).arg(&device)
        })?;
        // It says nothing of a command that failed: what is there now counts.
        for (path, text) in files {
            let there = process::output("debugfs", |command| {
                command.arg("-R").arg(format!("cat /{path}")).arg(&device)
            })?;
            ensure!(there == *text, "{path} was not written");
        }
        Ok(())
    }

    /// Puts a file into a slot (`a` or `b`) of a machine that is off, into a folder that is there.
    pub fn add_to_slot(&self, slot: char, from: &Path, path: &str) -> Result<()> {
        let device = self.filesystem(slot_partition(slot)).context("the slot")?;
        process::run("debugfs", |command| {
            command
                .arg("-w")
                .arg("-R")
                .arg(format!("write {} {path}", from.display()))
                .arg(&device)
        })
    }

    /// A partition's file system, in debugfs's words.
    fn filesystem(&self, index: usize) -> Result<OsString> {
        let disk = File::open(&self.path).context("opening a disk")?;
        let (start, _) = partition_range(&disk, index)?;
        let mut device = self.path.as_os_str().to_owned();
        device.push(format!("?offset={start}"));
        Ok(device)
    }

    /// Hands on a slot's bytes in pieces of 64 KiB.
    fn read_slot(&self, slot: char, mut each: impl FnMut(&[u8])) -> Result<()> {
        let index = slot_partition(slot);
        let disk =
            File::open(&self.path).with_context(|| format!("opening {}", self.path.display()))?;
        let (start, size) = partition_range(&disk, index)
            .with_context(|| format!("partition {index} of {}", self.path.display()))?;
        let mut buffer = vec![0; 64 << 10];
        let mut position = start;
        while position < start + size {
            let left = usize::try_from(start + size - position).unwrap_or(usize::MAX);
            let piece_length = left.min(buffer.len());
            let piece = &mut buffer[..piece_length];
            disk.read_exact_at(piece, position)
                .with_context(|| format!("reading {} at {position}", self.path.display()))?;
            each(piece);
            position += piece.len() as u64;
        }
        Ok(())
    }
}

/// Number of a slot's partition.
fn slot_partition(slot: char) -> usize {
    match slot.to_ascii_lowercase() {
        'a' => 2,
        _ => 3,
    }
}

/// Start and size in bytes of a partition, from the primary GPT of a disk with 512-byte sectors.
pub(crate) fn partition_range(disk: &File, index: usize) -> Result<(u64, u64)> {
    let entry = partition_entry(disk, index)?;
    let number = |at: usize| -> u64 {
        entry[at..at + 8]
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    };
    let (first, last) = (number(32), number(40));
    ensure!(first > 0 && last >= first, "the entry is empty");
    Ok((first * 512, (last - first + 1) * 512))
}

/// A partition's own id as `PARTUUID=` has it, in lower case, from the primary GPT of a disk with 512-byte sectors.
pub(crate) fn partition_id(disk: &File, index: usize) -> Result<String> {
    let entry = partition_entry(disk, index)?;
    let id = &entry[16..32];
    // The first three fields are little-endian (UEFI specification, appendix A).
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let digits = hex(&order.map(|at| id[at]));
    let fields = [0..8, 8..12, 12..16, 16..20, 20..32].map(|field| &digits[field]);
    Ok(fields.join("-"))
}

/// Where the first so many partitions lie, in bytes.
pub(crate) fn partition_ranges(disk: &File, count: usize) -> Result<Vec<Range<u64>>> {
    (1..=count)
        .map(|index| {
            let (start, size) =
                partition_range(disk, index).with_context(|| format!("partition {index}"))?;
            Ok(start..start + size)
        })
        .collect()
}

/// A partition's entry in the primary GPT of a disk with 512-byte sectors.
fn partition_entry(disk: &File, index: usize) -> Result<[u8; 128]> {
    let mut entry = [0; 128];
    let offset = 2 * 512 + 128 * (index.checked_sub(1).context("partitions count from 1")? as u64);
    disk.read_exact_at(&mut entry, offset)
        .context("reading the partition table")?;
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::{partition_id, partition_range};

    #[test]
    fn a_partition_is_found_in_a_table_that_sfdisk_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(8 << 20)
            .unwrap();
        let mut child = std::process::Command::new("sfdisk")
            .args(["-q", "--no-reread"])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let script = b"label: gpt\nstart=2048, size=2048\nstart=4096, size=4096, uuid=6E1AE7A7-D275-49AC-9243-D8359C48F0B3\n";
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), script).unwrap();
        assert!(child.wait().unwrap().success());
        let disk = std::fs::File::open(&path).unwrap();
        assert_eq!(partition_range(&disk, 2).unwrap(), (2 << 20, 2 << 20));
        assert!(partition_range(&disk, 3).is_err());
        assert_eq!(
            partition_id(&disk, 2).unwrap(),
            "6e1ae7a7-d275-49ac-9243-d8359c48f0b3"
        );
    }
}
