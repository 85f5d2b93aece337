//! Every reason at once why the environment block would not carry a trial.

use super::convention::{ANNOUNCED, GrubConvention};
use super::place;
use super::store::GrubStore;
use crate::backend::{Refusal, RefusalCode, SlotState};
use crate::error::Error;
use crate::options::SLOT_OPTION;
use crate::record::{Record, RecordStore};
use crate::slot::SlotName;

/// With a real write test, which leaves nothing behind.
pub(super) fn refusals(store: &GrubStore) -> Vec<Refusal> {
    let mut found = layout(store);
    let content = match store.file.read() {
        Ok(content) => content,
        Err(error) => {
            let code = match &error {
                Error::Malformed { .. } => RefusalCode::Unreadable,
                _ => RefusalCode::LoaderDataMissing,
            };
            found.push(Refusal {
                code,
                message: error.chain(),
            });
            return found;
        }
    };
    // With the most variables that there are at once.
    let widest = Record {
        a: SlotState::Good,
        b: SlotState::Trial { left: 1, done: 0 },
        first: SlotName::B,
    };
    let mut widest = store.convention.encode(&widest);
    if store.convention.kind == GrubConvention::Slotd {
        let longest = |length| Some(b"0".repeat(length));
        widest.extend(ANNOUNCED.map(|(name, length)| (name.to_owned(), longest(length))));
    }
    let raw = content
        .raw
        .as_deref()
        .unwrap_or(content.environment.bytes());
    if let Err(error) = store.blocks(&content.environment, raw, &widest) {
        let code = match &error {
            Error::Malformed { .. } => RefusalCode::Unreadable,
            _ => RefusalCode::NoSpace,
        };
        found.push(Refusal {
            code,
            message: error.chain(),
        });
    }
    // What is written again must be what is there, whoever else changes it.
    let written = store.lock().and_then(|_lock| store.file.test_write());
    if let Err(error) = written {
        found.push(match &error {
            Error::Malformed { .. } => Refusal {
                code: RefusalCode::UnsupportedLayout,
                message: error.chain(),
            },
            _ => Refusal::not_writable("GRUB's environment block", &error),
        });
    }
    found.extend(script(store));
    found
}

fn layout(store: &GrubStore) -> Vec<Refusal> {
    let mut found = Vec::new();
    let mut say = |code, message| found.push(Refusal { code, message });
    let shown = store.file.shown().display();
    // Where there is no such place, reading it says so.
    if let Ok(path) = store.file.resolved() {
        match place::not_written(&store.system, &path) {
            Ok(None) => {}
            Ok(Some(fault)) => say(RefusalCode::UnsupportedLayout, format!("{shown} {fault}")),
            Err(error) => say(RefusalCode::Unreadable, error.chain()),
        }
    }
    if store.usr_slots {
        say(
            RefusalCode::UnsupportedLayout,
            "the slots hold /usr; GRUB's script starts a slot as the root".to_owned(),
        );
    }
    found
}

fn script(store: &GrubStore) -> Option<Refusal> {
    if store.convention.kind == GrubConvention::Rauc || store.booted.slot().is_none() {
        return None;
    }
    let announced = store.announced(SLOT_OPTION).unwrap_or(false);
    (!announced).then(|| Refusal {
            code: RefusalCode::LoaderDataMissing,
            message: format!(
                "this system was not started by slotd's script ({SLOT_OPTION} is missing on the command line), which \
                 counts the boots of a trial; source it in grub.cfg and reboot"
            ),
        })
}
