//! slotd's programs for this machine, built by cargo.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::artifacts::repository;
use crate::process;

/// The packages whose programs a node or its image's maker runs.
const PACKAGES: [&str; 3] = ["slotd", "slotd-bootctl", "slotd-image"];

/// How programs are built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Profile {
    /// As they are released.
    #[default]
    Release,
    /// Quickly, with checks for overflow, out of what the workspace's tests are built of anyway.
    Debug,
}

impl Profile {
    /// Cargo's name of the folder of results.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Debug => "debug",
        }
    }

    /// What cargo is told.
    pub(crate) fn flag(self) -> Option<&'static str> {
        match self {
            Self::Release => Some("--release"),
            Self::Debug => None,
        }
    }
}

/// Builds slotd's programs; the folder that they lie in. All of them at once: alone, with fewer features of what they share,
/// each would be built a second time.
pub(crate) fn programs(profile: Profile) -> Result<PathBuf> {
    let began = Instant::now();
    eprintln!("lab: building slotd ({})", profile.folder());
    let packages = PACKAGES.map(|name| format!("--package={name}"));
    let built = cargo_build(profile, &packages)?;
    let folder = match profile {
        Profile::Release => built,
        Profile::Debug => {
            let folder = target_folder()?.join("lab/programs");
            let names = ["slotd", "slotd-bootctl", "slotd-mkimage"];
            without_debug_information("strip", &built, &folder, &names)?;
            folder
        }
    };
    eprintln!("lab: built in {:.0} s", began.elapsed().as_secs_f64());
    Ok(folder)
}

/// Builds a program of the lab's own, optimised as slotd's are.
pub(crate) fn own(name: &str) -> Result<PathBuf> {
    eprintln!("lab: building {name} (release)");
    let what = ["--package=slotd-tests".to_owned(), format!("--bin={name}")];
    Ok(cargo_build(Profile::Release, &what)?.join(name))
}

fn cargo_build(profile: Profile, what: &[String]) -> Result<PathBuf> {
    let target = target_folder()?;
    process::inherit(&cargo(), |command| {
        command
            .current_dir(repository())
            .args(["build", "--quiet", "--locked"])
            .args(profile.flag())
            .args(what)
            .arg("--target-dir")
            .arg(&target)
    })?;
    Ok(target.join(profile.folder()))
}

/// Copies programs without what makes them half as large again: an image takes longer to be written with it. This
/// architecture's `strip` is a program of that name.
pub(crate) fn without_debug_information(
    strip: &str,
    from: &Path,
    to: &Path,
    names: &[&str],
) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
    for name in names {
        let partial = to.join(format!("{name}.partial"));
        process::run(strip, |command| {
            command.arg("-o").arg(&partial).arg(from.join(name))
        })?;
        fs::rename(&partial, to.join(name))
            .with_context(|| format!("renaming {}", partial.display()))?;
    }
    Ok(())
}

/// Cargo, the one that runs us where it does.
pub(crate) fn cargo() -> PathBuf {
    std::env::var_os("CARGO")
        .unwrap_or_else(|| "cargo".into())
        .into()
}

/// The target folder that this program lies in.
pub fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    let folder = program
        .ancestors()
        .nth(2)
        .context("this program lies in no target folder")?;
    Ok(folder.to_owned())
}
