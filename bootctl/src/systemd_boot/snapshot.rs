//! What lies on the EFI system partition, read once, and what it means. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::backend::{Problem, ProblemCode, SlotState};
use crate::entry::{Counter, EntryName, EntryText, key_values};
use crate::marker::Marker;
use crate::model::{ModelEntry, Preferences};
use crate::slot::SlotName;

/// Directory of entries, relative to the partition's root.
pub(crate) const ENTRIES: &str = "loader/entries";
/// Configuration of the loader.
pub(crate) const LOADER_CONF: &str = "loader/loader.conf";

/// Path of a slot's boot file.
pub(crate) fn slot_path(slot: SlotName, file: &str) -> String {
    format!("slotd/{}/{file}", slot.lower())
}

/// Path of an entry.
pub(crate) fn entry_path(name: &EntryName) -> String {
    format!("{ENTRIES}/{name}")
}

/// A file: its size, and its content where that matters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FileContent {
    pub(crate) size: u64,
    pub(crate) bytes: Option<Vec<u8>>,
}

impl FileContent {
    pub(crate) fn of_bytes(bytes: Vec<u8>) -> Self {
        Self {
            size: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            bytes: Some(bytes),
        }
    }

    fn text(&self) -> String {
        self.bytes
            .as_deref()
            .map(String::from_utf8_lossy)
            .unwrap_or_default()
            .into_owned()
    }
}

/// The files that matter, by path relative to the partition's root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Snapshot {
    pub(crate) files: BTreeMap<String, FileContent>,
    pub(crate) directories: BTreeSet<String>,
    /// Files elsewhere that entries name, in lower case, with their size.
    pub(crate) referenced: BTreeMap<String, u64>,
    /// What the loader lists besides: unified kernel images, entries of an extended boot partition.
    pub(crate) others: Vec<ModelEntry>,
    /// The other boot partition.
    pub(crate) elsewhere: Option<PathBuf>,
    /// Whether two names may lead to one file's clusters.
    pub(crate) fat: bool,
}

/// One of our entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotEntry {
    pub(crate) path: String,
    pub(crate) name: EntryName,
    pub(crate) text: EntryText,
    pub(crate) raw: String,
    /// Whether its kernel is there: otherwise the loader passes over the entry.
    pub(crate) listed: bool,
    /// Whether everything that it names is there, and it goes as far as the options, its last line.
    pub(crate) complete: bool,
}

impl SlotEntry {
    /// Which of a slot's entries stands for it: one that starts it before one that cannot, then the
    /// blessed one, then that which was counted further.
    fn rank(&self) -> (bool, bool, Option<u32>) {
        (
            !self.complete,
            !self.listed,
            self.name.counter.map(|counter| counter.left),
        )
    }
}

/// What the snapshot says of a slot.
#[derive(Debug, Clone)]
pub(crate) struct SlotFindings {
    pub(crate) state: SlotState,
    /// The entry that stands for the slot.
    pub(crate) entry: Option<SlotEntry>,
    /// Other entries of the same id, and unfinished files.
    pub(crate) leftovers: Vec<String>,
    pub(crate) marker: Option<Marker>,
    pub(crate) problems: Vec<Problem>,
}

/// A path as an entry writes it, as a key: no leading slash, lower case.
pub(crate) fn normalized(path: &str) -> String {
    path.replace('\\', "/")
        .trim_start_matches('/')
        .to_lowercase()
}

impl Snapshot {
    /// Names in a directory.
    pub(crate) fn names_in<'a>(
        &'a self,
        directory: &str,
    ) -> impl Iterator<Item = (&'a str, &'a FileContent)> {
        let prefix = format!("{directory}/");
        self.files.iter().filter_map(move |(path, content)| {
            let name = path.strip_prefix(&prefix)?;
            (!name.contains('/')).then_some((name, content))
        })
    }

    fn size_of(&self, path: &str) -> Option<u64> {
        let key = normalized(path);
        self.files
            .iter()
            .find(|(path, _)| path.to_lowercase() == key)
            .map(|(_, content)| content.size)
            .or_else(|| self.referenced.get(&key).copied())
    }

    /// Every entry that the loader would read in `loader/entries`.
    fn entries(&self) -> impl Iterator<Item = (EntryName, &str, &FileContent)> {
        self.names_in(ENTRIES).filter_map(|(name, content)| {
            let ignored = name.starts_with('.') || name.starts_with("auto-");
            let parsed = EntryName::parse(name).filter(|_| !ignored)?;
            parsed
                .suffix
                .eq_ignore_ascii_case(".conf")
                .then_some((parsed, name, content))
        })
    }

    /// All entries of a slot, whatever state they are in.
    pub(crate) fn slot_entries(&self, slot: SlotName) -> Vec<SlotEntry> {
        self.entries()
            .filter(|(name, _, _)| name.slot() == Some(slot))
            .map(|(name, file, content)| {
                let raw = content.text();
                let text = EntryText::parse(&raw);
                let there = |path: &String| self.size_of(path).is_some_and(|size| size > 0);
                let listed = text.kernel.as_ref().is_some_and(there);
                let complete = listed && text.initrds.iter().all(there) && !text.options.is_empty();
                SlotEntry {
                    path: format!("{ENTRIES}/{file}"),
                    name,
                    text,
                    raw,
                    listed,
                    complete,
                }
            })
            .collect()
    }

    /// What the loader chooses from.
    pub(crate) fn model_entries(&self) -> Vec<ModelEntry> {
        let own = self.entries().filter_map(|(name, _, content)| {
            let text = EntryText::parse(&content.text());
            self.size_of(text.kernel.as_deref()?)?;
            Some(ModelEntry {
                name,
                sort_key: text.sort_key,
                machine_id: text.machine_id,
                version: text.version,
            })
        });
        own.chain(self.others.iter().cloned()).collect()
    }

    /// `default` and `preferred` of `loader.conf`, with the key.
    pub(crate) fn configured_default(&self) -> Option<(String, String)> {
        let text = self.files.get(LOADER_CONF)?.text();
        let pairs = key_values(&text).filter(|(key, _)| matches!(*key, "default" | "preferred"));
        pairs
            .last()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
    }

    /// What outranks the order of entries.
    pub(crate) fn preferences(&self, variables: &crate::efivar::LoaderVariables) -> Preferences {
        Preferences {
            one_shot: variables.one_shot.clone(),
            default_variable: variables
                .default
                .clone()
                .or_else(|| variables.preferred.clone()),
            default_config: self.configured_default().map(|(_, value)| value),
            saved: variables.last_booted.clone(),
        }
    }

    /// What a slot is, by its entries and its marker. `running` is the file name of the entry that
    /// this boot took a try from.
    pub(crate) fn findings(&self, slot: SlotName, running: Option<&str>) -> SlotFindings {
        let mut problems = Vec::new();
        let mut entries = self.slot_entries(slot);
        entries.sort_by_key(SlotEntry::rank);
        let mut leftovers: Vec<String> = entries
            .iter()
            .skip(1)
            .map(|entry| entry.path.clone())
            .collect();
        if !leftovers.is_empty() {
            problems.push(problem(
                ProblemCode::Leftovers,
                format!(
                    "slot {slot} has more than one entry, {} counts",
                    names(&entries)
                ),
            ));
        }
        problems.extend(self.shared_problem(slot));
        problems.extend(
            self.entry_elsewhere(slot)
                .map(|message| problem(ProblemCode::Leftovers, message)),
        );
        leftovers.extend(self.unfinished(slot));
        let entry = entries.into_iter().next();
        let state = match &entry {
            None => SlotState::Empty,
            Some(entry) => state_of(entry, running, slot, &mut problems),
        };
        let marker = self.marker(slot).and_then(|parsed| {
            parsed
                .map_err(|error| {
                    let path = slot_path(slot, "image.json");
                    problems.push(problem(ProblemCode::Unreadable, format!("{path}: {error}")));
                })
                .ok()
        });
        SlotFindings {
            state,
            entry,
            leftovers,
            marker,
            problems,
        }
    }

    /// An entry of the slot on the other boot partition, which the loader lists besides.
    pub(crate) fn entry_elsewhere(&self, slot: SlotName) -> Option<String> {
        let mut others = self.others.iter();
        let twin = others.find(|entry| entry.name.slot() == Some(slot))?;
        let place = self.elsewhere.clone().unwrap_or_default();
        Some(format!(
            "slot {slot} has an entry {} at {}, too, which slotd does not manage: remove it",
            twin.name,
            place.display()
        ))
    }

    /// A slot's marker, if there is one.
    pub(crate) fn marker(&self, slot: SlotName) -> Option<Result<Marker, String>> {
        let content = self.files.get(&slot_path(slot, "image.json"))?;
        Some(Marker::parse(content.bytes.as_deref().unwrap_or_default()))
    }

    /// Bytes that a slot's own boot files take up.
    pub(crate) fn slot_bytes(&self, slot: SlotName) -> u64 {
        let directory = format!("slotd/{}", slot.lower());
        self.names_in(&directory)
            .map(|(_, content)| content.size)
            .sum()
    }

    /// The highest install sequence of both slots.
    pub(crate) fn highest_sequence(&self) -> u64 {
        SlotName::BOTH
            .into_iter()
            .flat_map(|slot| self.slot_entries(slot))
            .filter_map(|entry| entry.text.version?.parse().ok())
            .max()
            .unwrap_or(0)
    }
}

fn state_of(
    entry: &SlotEntry,
    running: Option<&str>,
    slot: SlotName,
    problems: &mut Vec<Problem>,
) -> SlotState {
    if !entry.listed {
        let lacks = match &entry.text.kernel {
            Some(kernel) => format!("names {kernel}, which is not there"),
            None => "names no kernel, as if it were empty or cut off".to_owned(),
        };
        problems.push(problem(
            ProblemCode::Unreadable,
            format!("entry {} of slot {slot} {lacks}", entry.name),
        ));
        return SlotState::Empty;
    }
    if !entry.complete {
        let lacks = if entry.text.options.is_empty() {
            "has no options, as if it were cut off".to_owned()
        } else {
            let initrds = entry.text.initrds.join(", ");
            format!("names an initrd that is not there ({initrds})")
        };
        problems.push(problem(
            ProblemCode::Unreadable,
            format!("entry {} of slot {slot} {lacks}", entry.name),
        ));
        return SlotState::Bad;
    }
    match entry.name.counter {
        None => SlotState::Good,
        Some(Counter { left: 0, done }) => {
            // The last boot of a trial has nothing left, too; the loader's variable tells it from
            // one that is spent.
            let file = entry.name.to_string();
            let is_running = running.is_some_and(|name| name.eq_ignore_ascii_case(&file));
            if is_running {
                SlotState::Trial { left: 0, done }
            } else {
                SlotState::Bad
            }
        }
        Some(Counter { left, done }) => SlotState::Trial { left, done },
    }
}

fn names(entries: &[SlotEntry]) -> String {
    let names: Vec<String> = entries.iter().map(|entry| entry.name.to_string()).collect();
    match names.split_first() {
        Some((first, rest)) => format!("{first} (besides {})", rest.join(", ")),
        None => String::new(),
    }
}

pub(crate) fn problem(code: ProblemCode, message: String) -> Problem {
    Problem { code, message }
}
