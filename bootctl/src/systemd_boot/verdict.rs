//! The verdict on a slot: proven, or given up. Pure.

use super::changes::{FileChange, Step};
use super::leftovers::{discard, reworded};
use super::snapshot::{Snapshot, entry_path};
use super::transitions::{Circumstances, LEFT_OVER, after};
use crate::backend::SlotState;
use crate::entry::{Counter, EntryName};
use crate::slot::SlotName;

/// One rename, unless the entry may share its clusters with another file: then a fresh file takes its place.
pub(crate) fn mark_good(
    circumstances: &Circumstances,
    snapshot: &Snapshot,
    slot: SlotName,
) -> Vec<Step> {
    let findings = circumstances.findings(snapshot, slot);
    let Some(entry) = findings.entry else {
        return Vec::new();
    };
    let plain = entry_path(&EntryName {
        counter: None,
        ..entry.name.clone()
    });
    // What stands at the new name goes first, and so does a temporary file that is about to be written.
    let (first, mut last): (Vec<&str>, Vec<&str>) = findings
        .leftovers
        .iter()
        .map(String::as_str)
        .partition(|path| path.eq_ignore_ascii_case(&plain) || path.ends_with(".tmp"));
    let mut steps = Vec::new();
    discard(snapshot, &mut steps, first, LEFT_OVER);
    let counted = entry.name.counter.is_some();
    let why = format!("slot {slot} is proven: no counter, and it sorts first already");
    if snapshot.may_share(&entry.path) {
        // A fresh file, that no check of the file system cuts off for the sake of another one.
        let bytes = reworded(&entry.raw).into_bytes();
        let change = after(snapshot, &steps).rewrite(plain, bytes);
        steps.push(Step::new(change, why));
        if counted {
            last.push(&entry.path);
        }
    } else if counted {
        let (from, to) = (entry.path, plain);
        steps.push(Step::new(FileChange::Rename { from, to }, why));
    }
    discard(snapshot, &mut steps, last, LEFT_OVER);
    steps
}

/// One rename; an entry that the loader passes over anyway is taken away.
pub(crate) fn mark_bad(
    circumstances: &Circumstances,
    snapshot: &Snapshot,
    slot: SlotName,
) -> Vec<Step> {
    let findings = circumstances.findings(snapshot, slot);
    let mut steps = Vec::new();
    let leftovers = findings.leftovers.iter().map(String::as_str);
    discard(snapshot, &mut steps, leftovers, LEFT_OVER);
    let Some(entry) = findings.entry else {
        return steps;
    };
    if !entry.listed {
        discard(snapshot, &mut steps, [entry.path.as_str()], LEFT_OVER);
        return steps;
    }
    let spent = entry.name.counter.is_some_and(|counter| counter.left == 0);
    if spent && findings.state == SlotState::Bad {
        return steps;
    }
    let mut done = entry.name.counter.map_or(0, |counter| counter.done);
    let running = circumstances.variables.boot_count_name();
    let name = loop {
        let counter = Some(Counter { left: 0, done });
        let name = EntryName {
            counter,
            ..entry.name.clone()
        };
        // A running trial may have this very name; as long as it has, it is not told from a bad one.
        if running.is_none_or(|running| !running.eq_ignore_ascii_case(&name.to_string())) {
            break name;
        }
        done = done.saturating_add(1);
    };
    let to = entry_path(&name);
    if to != entry.path {
        let why = format!("slot {slot} is given up: no boots left, sorts last");
        let from = entry.path;
        steps.push(Step::new(FileChange::Rename { from, to }, why));
    }
    steps
}
