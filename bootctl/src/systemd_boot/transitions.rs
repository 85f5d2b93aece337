//! Every transition as a list of file changes, worked out before the first one is applied. Pure: the
//! same lists are what `plan` prints.

use uuid::Uuid;

use super::arming::arm;
use super::changes::{BootSource, FileChange, Step};
use super::leftovers::discard;
use super::snapshot::{ENTRIES, SlotEntry, SlotFindings, Snapshot, entry_path, slot_path};
use super::verdict::{mark_bad, mark_good};
use crate::backend::{NextBoot, SlotState, StagedImage, Transition};
use crate::efivar::LoaderVariables;
use crate::entry::with_version;
use crate::error::{Error, Result};
use crate::facts::ImageFacts;
use crate::marker::{BootRecord, Marker};
use crate::model;
use crate::rules::Situation;
use crate::slot::SlotName;
use crate::table::Booted;

/// Why a file goes that is neither the slot's entry nor part of its image.
pub(crate) const INTERRUPTED: &str = "left over from an interruption";
pub(crate) const LEFT_OVER: &str =
    "left over: the same entry under another name, or an unfinished file";

/// What a transition is worked out from besides the files.
#[derive(Debug, Clone)]
pub(crate) struct Circumstances {
    pub(crate) booted: Booted,
    /// PARTUUID of each slot.
    pub(crate) partitions: [Option<Uuid>; 2],
    /// Whether the slots hold `/usr` only.
    pub(crate) usr_slots: bool,
    pub(crate) variables: LoaderVariables,
}

impl Circumstances {
    pub(crate) fn partition(&self, slot: SlotName) -> Option<Uuid> {
        match slot {
            SlotName::A => self.partitions[0],
            SlotName::B => self.partitions[1],
        }
    }

    pub(crate) fn findings(&self, snapshot: &Snapshot, slot: SlotName) -> SlotFindings {
        snapshot.findings(slot, self.variables.boot_count_name())
    }

    pub(crate) fn situation(&self, snapshot: &Snapshot) -> Situation {
        let [a, b] = SlotName::BOTH.map(|slot| self.findings(snapshot, slot));
        Situation {
            a: a.state,
            b: b.state,
            image_a: a.marker.map(|marker| marker.image),
            image_b: b.marker.map(|marker| marker.image),
            booted: self.booted,
            restorable: None,
        }
    }

    /// Whether the rules allow a transition. A refusal names the files that are not in order.
    pub(crate) fn allow(&self, snapshot: &Snapshot, transition: &Transition) -> Result<()> {
        self.situation(snapshot)
            .allow(transition)
            .map_err(|error| self.explained(snapshot, error))
    }

    /// A refusal with what is wrong with the slots' files.
    fn explained(&self, snapshot: &Snapshot, error: Error) -> Error {
        let problems: Vec<String> = SlotName::BOTH
            .into_iter()
            .flat_map(|slot| self.findings(snapshot, slot).problems)
            .map(|problem| problem.message)
            .collect();
        if problems.is_empty() {
            return error;
        }
        let explained = |reason: String| format!("{reason} ({})", problems.join("; "));
        match error {
            Error::Refused { reason } => Error::Refused {
                reason: explained(reason),
            },
            Error::Rejected { reason } => Error::Rejected {
                reason: explained(reason),
            },
            other => other,
        }
    }

    /// What the loader would start next.
    pub(crate) fn next(&self, snapshot: &Snapshot) -> NextBoot {
        // Entries that the loader makes itself, such as the firmware's setup, are in no file.
        if let Some(id) = self
            .variables
            .one_shot
            .as_ref()
            .filter(|id| id.starts_with("auto-"))
        {
            return NextBoot::Foreign { id: id.clone() };
        }
        let entries = snapshot.model_entries();
        let Some(entry) = model::next(&entries, &snapshot.preferences(&self.variables)) else {
            return NextBoot::Nothing;
        };
        match entry.name.slot() {
            Some(slot) => {
                let trial = entry.name.counter.is_some_and(|counter| counter.left > 0);
                NextBoot::Slot { slot, trial }
            }
            None => NextBoot::Foreign {
                id: entry.name.id(),
            },
        }
    }
}

/// The file changes of a transition, after the rules have allowed it.
pub(crate) fn steps(
    circumstances: &Circumstances,
    snapshot: &Snapshot,
    transition: &Transition,
) -> Result<Vec<Step>> {
    circumstances.allow(snapshot, transition)?;
    match transition {
        Transition::Invalidate { slot } => Ok(invalidate(snapshot, *slot)),
        Transition::InstallBootFiles {
            slot,
            image,
            kernel,
            initrd,
        } => {
            let marker = Marker {
                image: image.clone(),
                boot: None,
            };
            Ok(install(snapshot, *slot, marker, *kernel, Some(*initrd)))
        }
        Transition::Arm { slot, options } => {
            let steps = arm(circumstances, snapshot, *slot, options)?;
            require_next(circumstances, snapshot, &steps, *slot)?;
            Ok(steps)
        }
        Transition::TrialBoot { slot } => Ok(trial_boot(circumstances, snapshot, *slot)),
        Transition::Disarm { slot } => Ok(disarm(circumstances, snapshot, *slot)),
        Transition::MarkGood { slot } => Ok(mark_good(circumstances, snapshot, *slot)),
        Transition::MarkBad { slot } => Ok(mark_bad(circumstances, snapshot, *slot)),
        Transition::Select { slot } => select(circumstances, snapshot, *slot),
    }
}

/// The loader's data first: once no entry is left, a half removed image harms nobody.
fn invalidate(snapshot: &Snapshot, slot: SlotName) -> Vec<Step> {
    let mut steps = Vec::new();
    let entries = snapshot.slot_entries(slot);
    let why = format!("the loader must not start slot {slot}");
    discard(snapshot, &mut steps, paths(&entries), &why);
    let marker = slot_path(slot, "image.json");
    if snapshot.files.contains_key(&marker) {
        let why = format!("slot {slot} no longer holds a verified image");
        steps.push(Step::remove(&marker, why));
    }
    let directory = format!("slotd/{}", slot.lower());
    for (name, _) in snapshot.names_in(&directory) {
        let path = format!("{directory}/{name}");
        if path != marker {
            steps.push(Step::remove(&path, "make room for the new boot files"));
        }
    }
    let unfinished = snapshot.unfinished(slot);
    let in_entries = unfinished.iter().map(String::as_str);
    let in_entries = in_entries.filter(|path| path.starts_with(ENTRIES));
    discard(snapshot, &mut steps, in_entries, INTERRUPTED);
    steps
}

/// Marker and boot files of a looked-at image.
pub(crate) fn install_from(
    snapshot: &Snapshot,
    slot: SlotName,
    facts: &ImageFacts,
    image: &StagedImage,
) -> Vec<Step> {
    let boot = BootRecord {
        title: facts.pretty_name().map(str::to_owned),
        cmdline: facts.cmdline.clone(),
        unified: facts.starts_unified(),
        ..BootRecord::default()
    };
    let marker = Marker {
        image: image.clone(),
        boot: Some(boot),
    };
    let size = |file: &Option<crate::facts::BootFile>| file.as_ref().map(|file| file.size);
    if facts.starts_unified() {
        return install(snapshot, slot, marker, size(&facts.unified), None);
    }
    let initrd = size(&facts.initrd).map(Some);
    install(snapshot, slot, marker, size(&facts.kernel), initrd)
}

/// `initrd`: `None` without one, `Some(None)` where its size is not known.
fn install(
    snapshot: &Snapshot,
    slot: SlotName,
    marker: Marker,
    kernel: Option<u64>,
    initrd: Option<Option<u64>>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for path in ["slotd".to_owned(), format!("slotd/{}", slot.lower())] {
        if !snapshot.directories.contains(&path) {
            steps.push(Step::new(
                FileChange::MakeDirectory { path },
                "place of the boot files",
            ));
        }
    }
    let marker_path = slot_path(slot, "image.json");
    if snapshot.files.contains_key(&marker_path) {
        let why = "the record must not speak of files that are being replaced";
        steps.push(Step::remove(&marker_path, why));
    }
    let why = format!("the kernel that belongs to the image in slot {slot}");
    let path = slot_path(slot, "linux");
    steps.push(Step::new(
        FileChange::Copy {
            path,
            source: BootSource::Kernel,
            size: kernel,
        },
        why,
    ));
    let path = slot_path(slot, "initrd");
    match initrd {
        Some(size) => {
            let unknown = if size.is_none() {
                ", if it has one"
            } else {
                ""
            };
            let why = format!("the initrd that belongs to the image in slot {slot}{unknown}");
            let change = FileChange::Copy {
                path,
                source: BootSource::Initrd,
                size,
            };
            steps.push(Step::new(change, why));
        }
        None if snapshot.files.contains_key(&path) => {
            steps.push(Step::remove(&path, "the image has no initrd of its own"));
        }
        None => {}
    }
    steps.push(Step::new(
        FileChange::WriteMarker {
            path: marker_path,
            marker: Box::new(marker),
        },
        format!(
            "slot {slot} holds this verified image; last, so that it speaks of whole files only"
        ),
    ));
    steps
}

/// The rename that the loader itself does when it starts a trial.
fn trial_boot(circumstances: &Circumstances, snapshot: &Snapshot, slot: SlotName) -> Vec<Step> {
    let entry = circumstances.findings(snapshot, slot).entry;
    let renamed = entry
        .filter(|entry| entry.name.counter.is_some())
        .map(|entry| {
            let to = entry_path(&entry.name.started());
            let why = format!("done by the loader: it starts slot {slot} and takes a try");
            Step::new(
                FileChange::Rename {
                    from: entry.path,
                    to,
                },
                why,
            )
        });
    renamed.into_iter().collect()
}

fn disarm(circumstances: &Circumstances, snapshot: &Snapshot, slot: SlotName) -> Vec<Step> {
    let mut steps = Vec::new();
    let entries = snapshot.slot_entries(slot);
    let why = format!("take the trial of slot {slot} back");
    discard(snapshot, &mut steps, paths(&entries), &why);
    let leftovers = circumstances.findings(snapshot, slot).leftovers;
    let files = leftovers
        .iter()
        .map(String::as_str)
        .filter(|path| paths(&entries).all(|entry| entry != *path));
    discard(snapshot, &mut steps, files, INTERRUPTED);
    steps
}

fn paths(entries: &[SlotEntry]) -> impl Iterator<Item = &str> {
    entries.iter().map(|entry| entry.path.as_str())
}

fn select(circumstances: &Circumstances, snapshot: &Snapshot, slot: SlotName) -> Result<Vec<Step>> {
    let findings = circumstances.findings(snapshot, slot);
    let mut steps = Vec::new();
    let leftovers = findings.leftovers.iter().map(String::as_str);
    discard(snapshot, &mut steps, leftovers, LEFT_OVER);
    let other = circumstances.findings(snapshot, !slot);
    if matches!(other.state, SlotState::Trial { .. }) {
        steps.extend(disarm(circumstances, snapshot, !slot));
    }
    let selected = |steps: &[Step]| {
        let next = circumstances.next(&after(snapshot, steps));
        next == NextBoot::Slot { slot, trial: false }
    };
    if let Some(entry) = findings.entry.filter(|_| !selected(&steps)) {
        let sequence = snapshot.highest_sequence().saturating_add(1);
        let bytes = with_version(&entry.raw, sequence).into_bytes();
        // Only reached while the other slot's good entry sorts before this one: it covers the
        // instant of the rename.
        let why = format!("slot {slot} gets the highest sequence and sorts first");
        let change = after(snapshot, &steps).rewrite(entry.path, bytes);
        steps.push(Step::new(change, why));
    }
    require_next(circumstances, snapshot, &steps, slot)?;
    Ok(steps)
}

/// The snapshot after a list of steps.
pub(crate) fn after(snapshot: &Snapshot, steps: &[Step]) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for step in steps {
        snapshot.apply(&step.change);
    }
    snapshot
}

fn require_next(
    circumstances: &Circumstances,
    snapshot: &Snapshot,
    steps: &[Step],
    slot: SlotName,
) -> Result<()> {
    match circumstances.next(&after(snapshot, steps)) {
        NextBoot::Slot { slot: next, .. } if next == slot => Ok(()),
        next => Err(Error::Refused {
            reason: format!("the loader would start {next} all the same, not slot {slot}"),
        }),
    }
}
