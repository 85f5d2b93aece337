use std::path::PathBuf;

/// The folder `slotd-lab` in the user's cache folder: what is built once for all clones of the repository, such as root
/// filesystems. `None` where neither `XDG_CACHE_HOME` nor `HOME` is set.
#[must_use]
pub fn build_cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))?;
    Some(base.join("slotd-lab"))
}
