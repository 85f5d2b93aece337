//! Boot entries in the order of systemd-boot, by the UAPI Group's Boot Loader Specification and Automatic Boot Assessment.

use std::cmp::{Ordering, Reverse};

use anyhow::{Context, Result, ensure};

use crate::cuts::fat::{Bytes, Fat};

/// An entry that is started before any that is spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    name: String,
    /// Path of the kernel.
    pub(super) linux: String,
    /// `root=PARTUUID=`, in lower case.
    pub(super) root: Option<String>,
    /// Boots left, where they are counted.
    pub(super) tries: Option<u32>,
    sort_key: String,
    machine_id: String,
    version: u64,
}

/// Entries that can be started, the one that is first.
///
/// # Errors
/// When one cannot be read, or the order of two is by something that the judge does not know.
pub(super) fn sorted<B: Bytes>(fat: &Fat<'_, B>) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for name in fat.list("/loader/entries")? {
        let Some(stem) = name.name.strip_suffix(".conf").filter(|_| !name.folder) else {
            continue;
        };
        let tries = tries_left(stem);
        // Spent: after all others, and both-bad is no state of these scenarios.
        if tries == Some(0) {
            continue;
        }
        let bytes = fat.read(&name)?;
        let text = String::from_utf8_lossy(&bytes);
        let entry = read(&name.name, &text, tries)
            .with_context(|| format!("{} can be started: {text:?}", name.name))?;
        entries.push(entry);
    }
    for pair in entries.windows(2) {
        ensure!(
            pair[0].sort_key == pair[1].sort_key && pair[0].machine_id == pair[1].machine_id,
            "{pair:?} are not sorted by their versions"
        );
    }
    entries.sort_by(before);
    Ok(entries)
}

/// Newer versions first, then names in reverse.
fn before(one: &Entry, other: &Entry) -> Ordering {
    let key = |entry: &Entry| (Reverse(entry.version), Reverse(entry.name.clone()));
    key(one).cmp(&key(other))
}

/// `+LEFT` or `+LEFT-DONE` at the end of a name.
fn tries_left(stem: &str) -> Option<u32> {
    let (_, counters) = stem.rsplit_once('+')?;
    let left = counters.split_once('-').map_or(counters, |(left, _)| left);
    left.parse().ok()
}

fn read(name: &str, text: &str, tries: Option<u32>) -> Result<Entry> {
    let value = |key: &str| {
        text.lines().find_map(|line| {
            let (found, value) = line.split_once([' ', '\t'])?;
            (found == key).then(|| value.trim())
        })
    };
    let version = value("version").unwrap_or_default();
    let options = value("options").unwrap_or_default();
    let root = options
        .split_ascii_whitespace()
        .find_map(|option| option.strip_prefix("root=PARTUUID="));
    Ok(Entry {
        name: name.to_owned(),
        linux: value("linux").context("it names no kernel")?.to_owned(),
        root: root.map(str::to_ascii_lowercase),
        tries,
        sort_key: value("sort-key").unwrap_or_default().to_owned(),
        machine_id: value("machine-id").unwrap_or_default().to_owned(),
        version: version
            .parse()
            .with_context(|| format!("version {version:?}"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::{before, read, tries_left};

    #[test]
    fn the_newest_version_is_first_and_counters_are_read_from_the_name() {
        let entry = |name: &str, version: &str| {
            let text = format!(
                "title x\nversion {version}\nsort-key slotd\nlinux /slotd/a/linux\noptions root=PARTUUID=AB-1 ro\n"
            );
            read(name, &text, None).unwrap()
        };
        let (old, new) = (entry("slotd-b.conf", "9"), entry("slotd-a.conf", "10"));
        assert_eq!(new.root.as_deref(), Some("ab-1"));
        assert!(before(&new, &old).is_lt());
        for (stem, left) in [
            ("slotd-b+3", Some(3)),
            ("slotd-b+2-1", Some(2)),
            ("slotd-b+0-3", Some(0)),
            ("slotd-b", None),
            ("slotd-b+x", None),
        ] {
            assert_eq!(tries_left(stem), left, "{stem}");
        }
    }
}
