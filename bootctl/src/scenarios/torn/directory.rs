//! Directories of entries as an interrupted rename can leave them.

use std::fs;
use std::path::PathBuf;

use self::Leads::{Absent, Nowhere, Whole};
use super::super::{A, B, OnDisk, boots, open, trial};
use crate::backend::{NextBoot, SlotState};
use crate::fixture::FixtureNode;
use crate::slot::SlotName;
use crate::systemd_boot::SystemdBoot;

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leads {
    /// The name is not there.
    Absent,
    /// It has neither size nor clusters (yet).
    Nowhere,
    Whole,
}

const EACH: [Leads; 3] = [Absent, Nowhere, Whole];

/// The plain and the counted name of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) plain: Leads,
    pub(super) counted: Leads,
}

impl Names {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let of = |plain| EACH.map(|counted| Self { plain, counted });
        EACH.into_iter().flat_map(of)
    }

    /// By the Boot Loader Specification: a name without a counter is good, and what is not whole is no entry.
    pub(super) fn state(self) -> SlotState {
        match (self.plain, self.counted) {
            (Whole, _) => SlotState::Good,
            (_, Whole) => trial(2, 1),
            _ => SlotState::Empty,
        }
    }

    /// Of two names of one slot systemd-boot lists the counted one first: its id sorts as the newer one.
    pub(super) fn boots(self, slot: SlotName) -> Option<NextBoot> {
        match (self.plain, self.counted) {
            (_, Whole) => Some(boots(slot, true)),
            (Whole, _) => Some(boots(slot, false)),
            _ => None,
        }
    }
}

pub(super) fn file(slot: SlotName, counter: &str) -> String {
    format!("slotd-{}{counter}.conf", slot.lower())
}

/// One directory of entries, on a node that runs `booted`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Directory {
    pub(super) a: Names,
    pub(super) b: Names,
    /// Whether two whole names of a slot lead to the same clusters.
    pub(super) shared: bool,
}

impl Directory {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let with_b = |a| Names::all().map(move |b| (a, b));
        let both = Names::all().flat_map(with_b);
        both.flat_map(|(a, b)| [false, true].map(|shared| Self { a, b, shared }))
            .filter(|dir| !dir.shared || [dir.a, dir.b].iter().any(|names| is_double(*names)))
    }

    pub(super) fn names(self, slot: SlotName) -> Names {
        if slot == A { self.a } else { self.b }
    }

    fn make(self, node: &FixtureNode, text: &str) {
        let entries = entries(node);
        fs::remove_dir_all(&entries).unwrap();
        fs::create_dir(&entries).unwrap();
        for slot in SlotName::BOTH {
            let names = self.names(slot);
            // B was installed later.
            let text = if slot == B {
                text.replace("/a/", "/b/")
                    .replace("version 1", "version 2")
                    .replace("a002 ro", "a003 ro")
            } else {
                text.to_owned()
            };
            let plain = entries.join(file(slot, ""));
            let counted = entries.join(file(slot, "+2-1"));
            for (path, leads) in [(&plain, names.plain), (&counted, names.counted)] {
                match leads {
                    Absent => {}
                    Nowhere => fs::write(path, "").unwrap(),
                    Whole => fs::write(path, &text).unwrap(),
                }
            }
            if is_double(names) && self.shared {
                // The closest to one chain of clusters: the count of links tells when one is let go.
                fs::remove_file(&counted).unwrap();
                fs::hard_link(&plain, &counted).unwrap();
            } else if is_double(names) {
                fs::write(&counted, format!("# another file\n{text}")).unwrap();
            }
        }
    }

    pub(super) fn has_good(self) -> bool {
        [self.a, self.b].iter().any(|names| names.plain == Whole)
    }
}

pub(super) fn is_double(names: Names) -> bool {
    names.plain == Whole && names.counted == Whole
}

pub(super) fn entries(node: &FixtureNode) -> PathBuf {
    node.esp().join("loader/entries")
}

/// Names of a slot's entries with their sizes, whoever wrote them.
pub(super) fn listed(node: &FixtureNode, slot: SlotName) -> Vec<(String, u64)> {
    let names = node.entries().unwrap().into_iter();
    let of_slot = |name: &String| name.starts_with(&file(slot, "")[..7]) && name.ends_with(".conf");
    names
        .filter(of_slot)
        .map(|name| {
            let size = fs::metadata(entries(node).join(&name)).unwrap().len();
            (name, size)
        })
        .collect()
}

/// A node that runs one of two slots, both with a verified image.
pub(super) struct Running {
    pub(super) machine: OnDisk,
    pub(super) backend: SystemdBoot,
    pub(super) booted: SlotName,
    text: String,
}

impl Running {
    pub(super) fn new(booted: SlotName) -> Self {
        let machine = OnDisk::new();
        let node = &machine.node;
        let text = fs::read_to_string(entries(node).join("slotd-a.conf")).unwrap();
        node.run_slot(booted, &file(booted, "")).unwrap();
        let path = format!("\\loader\\entries\\{}", file(booted, "+2-1"));
        node.set_string("LoaderBootCountPath", Some(&path)).unwrap();
        let backend = open(node);
        Self {
            machine,
            backend,
            booted,
            text,
        }
    }

    pub(super) fn make(&self, directory: Directory) {
        let node = &self.machine.node;
        directory.make(node, &self.text);
        // What a transition before this one took away.
        for slot in SlotName::BOTH {
            node.put_image(slot, "1.0.0").unwrap();
        }
    }
}
