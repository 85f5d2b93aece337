//! Images of this machine's own files, for benchmarks.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::process;

/// Where real files are taken from, in this order.
const SOURCES: [&str; 4] = ["/usr/bin", "/usr/lib", "/usr/share", "/usr/include"];

/// An ext4 image of real files, published as zstd.
#[derive(Debug)]
pub(super) struct BenchImage {
    /// The published file.
    pub(super) path: PathBuf,
    /// Its `sha256:…`.
    pub(super) checksum: String,
    /// Its size.
    pub(super) published: u64,
    /// Expanded size.
    pub(super) size: u64,
    /// Window of its frame.
    pub(super) window: u64,
    raw_digest: String,
}

impl BenchImage {
    /// Makes, or finds again, an image of `size` bytes with about `content` bytes of files.
    pub(super) fn make(folder: &Path, size: u64, content: u64) -> Result<Self> {
        let raw = folder.join(format!("{}.ext4", size >> 20));
        let path = folder.join(format!("{}.ext4.zst", size >> 20));
        if !path.exists() {
            let tree = tempfile::tempdir_in(folder).context("making a folder")?;
            let collected = collect(tree.path(), content)?;
            ensure!(
                collected >= content / 10 * 9,
                "this machine has only {} MiB of files",
                collected >> 20
            );
            File::create(&raw)
                .and_then(|file| file.set_len(size))
                .with_context(|| format!("creating {}", raw.display()))?;
            process::run("mke2fs", |command| {
                command
                    .args([
                        "-q",
                        "-F",
                        "-t",
                        "ext4",
                        "-m",
                        "0",
                        "-O",
                        "^has_journal",
                        "-d",
                    ])
                    .arg(tree.path())
                    .arg(&raw)
            })?;
            process::run("zstd", |command| {
                command.args(["-q", "-3", "-f", "-o"]).arg(&path).arg(&raw)
            })?;
        }
        let published = fs::metadata(&path)
            .with_context(|| format!("looking at {}", path.display()))?
            .len();
        Ok(Self {
            checksum: format!("sha256:{}", digest(&mut File::open(&path)?, u64::MAX)?),
            raw_digest: digest(&mut File::open(&raw)?, u64::MAX)?,
            window: window(&path)?,
            path,
            published,
            size,
        })
    }

    /// Checks that a device holds the image.
    pub(super) fn compare(&self, device: &Path) -> Result<()> {
        // Past the page cache: what is on the medium, and nothing is cached for the next contender.
        let mut file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(device)
            .with_context(|| format!("opening {}", device.display()))?;
        let found = digest(&mut file, self.size)?;
        ensure!(
            found == self.raw_digest,
            "{} does not hold the image",
            device.display()
        );
        Ok(())
    }
}

/// Digest of at most `length` bytes. Reads into a page-aligned part of its buffer, as O_DIRECT asks.
fn digest(source: &mut File, length: u64) -> Result<String> {
    const CHUNK: usize = 1 << 20;
    let mut buffer = vec![0; CHUNK + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let mut hasher = Sha256::new();
    let mut left = length;
    while left > 0 {
        let count = source
            .read(&mut buffer[start..start + CHUNK])
            .context("reading an image")?;
        if count == 0 {
            break;
        }
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(count);
        hasher.update(&buffer[start..start + take]);
        left -= take as u64;
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Copies real files into `tree` until there are so many bytes.
fn collect(tree: &Path, content: u64) -> Result<u64> {
    let mut collected = 0;
    let mut folders: Vec<PathBuf> = SOURCES.iter().rev().map(PathBuf::from).collect();
    let mut number = 0u64;
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let metadata = fs::symlink_metadata(&path)
                .with_context(|| format!("looking at {}", path.display()))?;
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() && metadata.len() < content / 4 {
                number += 1;
                let place = tree.join(format!("{:03}", number / 1000));
                fs::create_dir_all(&place).context("making a folder")?;
                fs::copy(&path, place.join(number.to_string()))
                    .with_context(|| format!("copying {}", path.display()))?;
                collected += metadata.len();
                if collected >= content {
                    return Ok(collected);
                }
            }
        }
    }
    Ok(collected)
}

/// The window that zstd declares for the frame.
fn window(path: &Path) -> Result<u64> {
    let listing = process::output("zstd", |command| command.args(["--list", "-v"]).arg(path))?;
    parse_window(&listing).with_context(|| format!("no window in\n{listing}"))
}

/// `Window Size: 2.00 MiB (2097152 B)` in the output of `zstd -lv`.
fn parse_window(listing: &str) -> Option<u64> {
    let line = listing
        .lines()
        .find_map(|line| line.trim().strip_prefix("Window Size:"))?;
    line.rsplit_once('(')?
        .1
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::parse_window;

    #[test]
    fn the_window_is_read_as_zstd_prints_it() {
        // zstd 1.5.4.
        let listing = "x.zst \n# Zstandard Frames: 1\nWindow Size: 2.00 MiB (2097152 B)\n";
        assert_eq!(parse_window(listing), Some(2 << 20));
    }
}
