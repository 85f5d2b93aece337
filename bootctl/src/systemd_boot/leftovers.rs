//! What interruptions leave beside a slot's entry, and how it is got rid of. Pure.
//!
//! On FAT a rename that was cut off can leave both names on one chain of clusters. Removing, replacing or
//! truncating one of them frees the clusters that the other still leads to: they are given to the next file, and
//! freeing them once more makes the kernel set the file system read-only. Only a rename leaves them alone. Which
//! names share is not to be seen without the right to raw I/O, but those that do hold the same bytes. So a
//! file whose bytes another one has, too, is set aside: renamed to a name that the loader passes over, where it
//! stays until a check of the file system separates the two; a fresh file takes the entry's place. An entry that is whole
//! stands for its slot before one that is empty or cut off; the blessed one counts among whole ones.

use super::changes::{FileChange, Step};
use super::snapshot::{ENTRIES, Snapshot, problem};
use super::transitions::after;
use crate::backend::{Problem, ProblemCode};
use crate::entry::EntryName;
use crate::slot::SlotName;

/// End of the name of a file that was set aside.
const SET_ASIDE: &str = ".shared";
/// End of the name of a file that is being written.
const TEMPORARY: &str = ".tmp";

impl Snapshot {
    /// Whether another file beside the entries may lead to the same clusters.
    pub(crate) fn may_share(&self, path: &str) -> bool {
        let Some(content) = self.files.get(path).filter(|content| content.size > 0) else {
            return false;
        };
        self.fat
            && self.names_in(ENTRIES).any(|(name, other)| {
                format!("{ENTRIES}/{name}") != path && other.bytes.is_some() && other == content
            })
    }

    /// Temporary files of a slot, and those set aside that share nothing any more.
    pub(crate) fn unfinished(&self, slot: SlotName) -> Vec<String> {
        let directory = format!("slotd/{}", slot.lower());
        let of_entries = self
            .beside_entries(slot)
            .filter(|path| {
                path.ends_with(TEMPORARY) || (path.ends_with(SET_ASIDE) && !self.may_share(path))
            })
            .collect::<Vec<_>>();
        let of_files = self
            .names_in(&directory)
            .filter(|(name, _)| name.ends_with(TEMPORARY))
            .map(|(name, _)| format!("{directory}/{name}"));
        of_entries.into_iter().chain(of_files).collect()
    }

    /// Names the files of a slot that may share their clusters.
    pub(crate) fn shared_problem(&self, slot: SlotName) -> Option<Problem> {
        let shared: Vec<String> = self
            .beside_entries(slot)
            .filter(|path| self.may_share(path))
            .collect();
        (!shared.is_empty()).then(|| {
            problem(
                ProblemCode::Leftovers,
                format!(
                    "{} hold what another file holds, too: after an interrupted rename two names can \
                     lead to the same clusters, so they are renamed rather than removed; a check of \
                     the unmounted file system (fsck.vfat) separates them",
                    shared.join(", ")
                ),
            )
        })
    }

    /// Paths beside the entries that begin like a slot's entry.
    fn beside_entries(&self, slot: SlotName) -> impl Iterator<Item = String> {
        let stem = EntryName::of_slot(slot, None).stem;
        self.names_in(ENTRIES)
            .filter(move |(name, _)| name.to_ascii_lowercase().starts_with(&stem))
            .map(|(name, _)| format!("{ENTRIES}/{name}"))
    }

    /// Takes a file out of the loader's sight without a harm to another one.
    fn discard(&self, path: &str, why: &str) -> Step {
        if !self.may_share(path) {
            return Step::remove(path, why);
        }
        Step::new(
            FileChange::Rename {
                from: path.to_owned(),
                to: self.aside(path),
            },
            "may share its clusters with another file after an interrupted rename: not removed",
        )
    }

    /// Puts other content in the place of a file.
    pub(crate) fn rewrite(&self, path: String, bytes: Vec<u8>) -> FileChange {
        if !self.may_share(&path) {
            return FileChange::Write { path, bytes };
        }
        let aside = self.aside(&path);
        FileChange::Exchange { path, bytes, aside }
    }

    /// A free name that the loader passes over.
    fn aside(&self, path: &str) -> String {
        (1_u32..)
            .map(|number| format!("{path}.{number}{SET_ASIDE}"))
            .find(|name| !self.files.contains_key(name))
            .unwrap_or_else(|| format!("{path}{SET_ASIDE}"))
    }
}

/// Adds steps that take files out of the loader's sight, as things are after the steps so far.
pub(crate) fn discard<'a>(
    snapshot: &Snapshot,
    steps: &mut Vec<Step>,
    paths: impl IntoIterator<Item = &'a str>,
    why: &str,
) {
    let mut now = after(snapshot, steps);
    for path in paths {
        let step = now.discard(path, why);
        now.apply(&step.change);
        steps.push(step);
    }
}

/// The same entry in other words, so that its file is told from those that may share its clusters.
pub(crate) fn reworded(text: &str) -> String {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}# written anew after an interrupted rename\n")
}
