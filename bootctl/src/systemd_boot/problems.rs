//! What an operator should know of the loader's data.

use super::esp::Esp;
use super::find;
use super::snapshot::{SlotEntry, Snapshot, problem};
use super::surroundings::surroundings;
use super::transitions::Circumstances;
use crate::backend::{Counting, NextBoot, Problem, ProblemCode, SlotState};
use crate::block::split_command_line;
use crate::slot::SlotName;
use crate::system::System;

pub(super) fn problems(
    system: &System,
    esp: &Esp,
    circumstances: &Circumstances,
    snapshot: &Snapshot,
    next: &NextBoot,
    counting: Counting,
) -> Vec<Problem> {
    let findings = SlotName::BOTH.map(|slot| circumstances.findings(snapshot, slot));
    let good = findings.iter().any(|slot| slot.state == SlotState::Good);
    let mut problems: Vec<Problem> = Vec::new();
    for (slot, findings) in SlotName::BOTH.into_iter().zip(findings) {
        problems.extend(bound_elsewhere(
            circumstances,
            slot,
            findings.entry.as_ref(),
        ));
        problems.extend(findings.problems);
    }
    if !good {
        problems.push(problem(
            ProblemCode::NoGoodSlot,
            "neither slot is good".to_owned(),
        ));
    }
    if counting == Counting::Inactive {
        problems.push(problem(
            ProblemCode::CountingInactive,
            "the loader does not count boots, so a trial would not end by itself (the boot \
             partition was read-only or full to it, or it cannot count)"
                .to_owned(),
        ));
    }
    if let Some(one_shot) = &circumstances.variables.one_shot {
        problems.push(problem(
            ProblemCode::ForeignDefault,
            format!(
                "EFI variable LoaderEntryOneShot is set to {one_shot:?}, for the next boot alone: the \
                 loader would start {next}"
            ),
        ));
    } else if let NextBoot::Foreign { id } = next {
        problems.push(problem(
            ProblemCode::ForeignDefault,
            format!("the loader would start {id}, which is not slotd's"),
        ));
    }
    if find::mounted_read_only(system, &esp.root) {
        problems.push(problem(
            ProblemCode::NotWritable,
            format!("{} is mounted read-only", esp.root.display()),
        ));
    }
    let around = surroundings(system, esp, circumstances).into_iter();
    problems.extend(around.map(|refusal| problem(ProblemCode::Unreadable, refusal.message)));
    problems
}

/// An entry that would start another root than its slot's.
fn bound_elsewhere(
    circumstances: &Circumstances,
    slot: SlotName,
    entry: Option<&SlotEntry>,
) -> Option<Problem> {
    let entry = entry?;
    let words = split_command_line(&entry.text.options);
    let named = words
        .iter()
        .rev()
        .find_map(|word| word.strip_prefix("root=PARTUUID="))?;
    let own = circumstances.partition(slot)?;
    (named.parse() != Ok(own)).then(|| {
        problem(
            ProblemCode::Unreadable,
            format!(
                "entry {} of slot {slot} starts root {named}, the slot is {own}",
                entry.name
            ),
        )
    })
}
