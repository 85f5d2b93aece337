//! Making ext4 images and looking into them, without mounting.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::command::Tool;
use crate::size::Size;

/// Whether the filesystem keeps a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Journal {
    /// For a filesystem that is written to.
    With,
    /// For a slot, which is mounted read-only: a journal would only be noise in the image.
    Without,
}

/// Makes an ext4 filesystem of `size` from the tree at `tree` in the file `output`.
pub(crate) fn make(
    tree: &Path,
    output: &Path,
    size: Size,
    label: &str,
    journal: Journal,
) -> Result<()> {
    let file =
        std::fs::File::create(output).with_context(|| format!("creating {}", output.display()))?;
    file.set_len(size.bytes())
        .with_context(|| format!("setting the size of {}", output.display()))?;
    drop(file);
    let mut tool = Tool::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-m", "0", "-L", label]);
    if journal == Journal::Without {
        tool = tool.args(["-O", "^has_journal"]);
    }
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        tool = tool.env("E2FSPROGS_FAKE_TIME", epoch);
    }
    // A fixed seed and no lazy initialisation: the image depends on the tree alone, and nothing is written after its first mount.
    tool.args([
        "-E",
        "root_owner=0:0,lazy_itable_init=0,hash_seed=6c1d4bd2-5ad1-4c48-a2b7-5b0b8d4b7f10",
    ])
    .arg("-d")
    .arg(tree)
    .arg(output)
    .run()
    .with_context(|| {
        format!(
            "making {} ({size}) from {}",
            output.display(),
            tree.display()
        )
    })
}

/// The bytes of a regular file in an ext4 image. An error if it is not there.
pub(crate) fn read(image: &Path, path: &str) -> Result<Vec<u8>> {
    // debugfs says on stderr what went wrong and exits with 0.
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let copy = folder.path().join("file");
    Tool::new("debugfs")
        .arg("-R")
        .arg(format!("dump {path} {}", copy.display()))
        .arg(image)
        .run()?;
    match std::fs::read(&copy) {
        Ok(bytes) if !bytes.is_empty() => Ok(bytes),
        Ok(_) => bail!("{path} in {} is empty", image.display()),
        Err(error) => Err(error).with_context(|| format!("{path} is not in {}", image.display())),
    }
}

/// Names in a folder of an ext4 image.
pub(crate) fn list(image: &Path, folder: &str) -> Result<Vec<String>> {
    let output = Tool::new("debugfs")
        .arg("-R")
        .arg(format!("ls -p {folder}"))
        .arg(image)
        .output()?;
    Ok(parse_listing(&String::from_utf8_lossy(&output)))
}

/// The names in the output of debugfs's `ls -p`: `/inode/mode/uid/gid/name/size/`.
fn parse_listing(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix('/')?.split('/').nth(4))
        .filter(|name| !name.is_empty() && *name != "." && *name != "..")
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parse_listing;

    #[test]
    fn names_are_read_from_a_listing_of_debugfs() {
        // Output of debugfs 1.47.0.
        let text = "/12/040755/0/0/./0/\n/2/040755/0/0/../0/\n/13/100644/0/0/vmlinuz-6.1.0-57-cloud-amd64/14190528/\n\n";
        assert_eq!(parse_listing(text), ["vmlinuz-6.1.0-57-cloud-amd64"]);
    }
}
