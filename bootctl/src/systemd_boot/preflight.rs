//! Every reason at once why a trial would not do what it should.

use super::esp::Esp;
use super::precedence::precedence;
use super::snapshot::Snapshot;
use super::surroundings::{counting, layout, remount, surroundings, twins};
use super::transitions::Circumstances;
use crate::backend::{Counting, PreflightRequest, Refusal, RefusalCode};
use crate::error::Result;
use crate::options::reserved;
use crate::slot::SlotName;
use crate::system::System;

/// Room for entry, marker and directories besides the boot files, in bytes.
const SLACK: u64 = 256 * 1024;

pub(crate) fn refusals(
    system: &System,
    esp: &Esp,
    circumstances: &Circumstances,
    request: &PreflightRequest,
) -> Vec<Refusal> {
    let mut found = Vec::new();
    if let Err(error) = esp.test_write() {
        found.push(Refusal::not_writable("the boot partition", &error));
    }
    match esp.read() {
        Ok(snapshot) => {
            found.extend(circumstances.situation(&snapshot).fallback(request.slot));
            found.extend(space(esp, &snapshot, request));
            found.extend(precedence(circumstances, &snapshot, request.slot));
            found.extend(twins(&snapshot));
        }
        Err(error) => found.push(refusal(RefusalCode::Unreadable, error.chain())),
    }
    if let Some(one_shot) = &circumstances.variables.one_shot {
        found.push(refusal(
            RefusalCode::OneShotSet,
            format!(
                "EFI variable LoaderEntryOneShot is set to {one_shot:?}: the next boot would not be \
                 the trial; reboot once, or clear it with `bootctl set-oneshot \"\"`{}",
                remount(circumstances)
            ),
        ));
    }
    found.extend(surroundings(system, esp, circumstances));
    found.extend(counting(circumstances, esp));
    found.extend(layout(circumstances, request));
    found.extend(reserved(&request.extra));
    found
}

pub(super) fn refusal(code: RefusalCode, message: String) -> Refusal {
    Refusal { code, message }
}

fn space(esp: &Esp, snapshot: &Snapshot, request: &PreflightRequest) -> Option<Refusal> {
    match room(esp, snapshot, request) {
        Ok((need, room)) if need <= room => None,
        Ok((need, room)) => Some(refusal(
            RefusalCode::NoSpace,
            format!(
                "{} has room for {} KiB with the old boot files of slot {} removed, kernel and \
                 initrd need {} KiB{}",
                esp.root.display(),
                room / 1024,
                request.slot,
                need / 1024,
                if request.boot_files.is_none() {
                    " (estimated from the other slot's)"
                } else {
                    ""
                },
            ),
        )),
        Err(error) => Some(refusal(RefusalCode::Unreadable, error.chain())),
    }
}

fn room(esp: &Esp, snapshot: &Snapshot, request: &PreflightRequest) -> Result<(u64, u64)> {
    let files = match request.boot_files {
        Some(bytes) => bytes,
        None => esp.boot_bytes(snapshot, !request.slot)?,
    };
    let room = esp
        .free()?
        .saturating_add(snapshot.slot_bytes(request.slot));
    Ok((files.saturating_add(SLACK), room))
}

/// Whether the loader counts boots, by its own word and by what this boot shows.
pub(crate) fn counting_of(circumstances: &Circumstances, snapshot: &Snapshot) -> Counting {
    let variables = &circumstances.variables;
    let counted = |slot: SlotName| {
        let entry = circumstances.findings(snapshot, slot).entry;
        entry.is_some_and(|entry| entry.name.counter.is_some_and(|counter| counter.left > 0))
    };
    let uncounted_trial = circumstances
        .booted
        .slot()
        .is_some_and(|slot| counted(slot) && variables.boot_count_path.is_none());
    match variables.counts {
        Some(false) => Counting::Inactive,
        Some(true) if uncounted_trial => Counting::Inactive,
        Some(true) => Counting::Active,
        None => Counting::Unknown,
    }
}
