//! The root filesystem: mmdebstrap, once per recipe.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::Tool;
use crate::recipe::Recipe;

/// Makes the recipe's root filesystem as a tar file and returns its path. Without `output` it lies in the user's cache folder
/// and is made only when it is not there yet.
pub(crate) fn make(
    recipe: &Recipe,
    output: Option<&Path>,
    sources: Option<&Path>,
) -> Result<PathBuf> {
    let path = match output {
        Some(path) => path.to_owned(),
        None => {
            let name = format!("rootfs-{}-{}.tar", recipe.suite, recipe.rootfs_key());
            let cached = slotd_image::build_cache()
                .context("neither XDG_CACHE_HOME nor HOME is set")?
                .join(name);
            if cached.is_file() {
                return Ok(cached);
            }
            cached
        }
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("creating {}", parent.display()))?;
    }
    // Two builds may run at once, and one that is cut short leaves no half tar under the final name.
    let partial = path.with_extension(format!("{}.partial.tar", std::process::id()));
    let sources = match sources {
        Some(path) => path.to_owned(),
        None => machine_sources()?,
    };
    eprintln!("slotd-mkimage: making the root filesystem with mmdebstrap (about a minute)");
    let made = Tool::new("mmdebstrap")
        // To the kernel's package: no initrd, which would be removed, and under an emulator takes longer than all the rest.
        .env("INITRD", "No")
        .args([
            "--quiet",
            "--variant=minbase",
            "--aptopt=Apt::Install-Recommends \"false\"",
        ])
        .arg(format!("--architectures={}", recipe.architecture.name()))
        .arg(format!("--include={}", recipe.packages.join(",")))
        .args(
            recipe
                .path_excludes
                .iter()
                .map(|path| format!("--dpkgopt=path-exclude={path}")),
        )
        .arg(&recipe.suite)
        .arg(&partial)
        .arg(&sources)
        .run();
    if let Err(error) = made {
        // The tar is worthless; that it cannot be removed adds nothing to the reason.
        let _ = std::fs::remove_file(&partial);
        return Err(error);
    }
    std::fs::rename(&partial, &path)
        .with_context(|| format!("renaming {} to {}", partial.display(), path.display()))?;
    Ok(path)
}

/// The machine's own apt sources, where its packages come from.
fn machine_sources() -> Result<PathBuf> {
    let candidates = [
        "/etc/apt/sources.list.d/debian.sources",
        "/etc/apt/sources.list",
    ];
    for candidate in candidates {
        let path = Path::new(candidate);
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0) {
            return Ok(path.to_owned());
        }
    }
    bail!(
        "neither {} nor {} is there: name apt's sources with --apt-sources",
        candidates[0],
        candidates[1]
    );
}
