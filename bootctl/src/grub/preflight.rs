//! Every reason at once why the environment block would not carry a trial.

use super::convention::{ANNOUNCED, GrubConvention};
use super::find::mount_of;
use super::store::GrubStore;
use crate::backend::{Refusal, RefusalCode, SlotState};
use crate::block::BlockDevices;
use crate::error::Error;
use crate::options::SLOT_OPTION;
use crate::record::{Record, RecordStore};
use crate::slot::SlotName;

/// File systems that GRUB reads and cannot write, or that do not hold a file in blocks of their own.
const NOT_WRITTEN: [&str; 13] = [
    "btrfs", "bcachefs", "zfs", "overlay", "squashfs", "erofs", "iso9660", "udf", "tmpfs", "ramfs",
    "nfs", "nfs4", "9p",
];

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
    let place = store.file.shown().display();
    let mount = store
        .file
        .resolved()
        .ok()
        .and_then(|path| mount_of(&store.system, &path));
    if let Some(mount) = mount {
        if NOT_WRITTEN.contains(&&*mount.kind) {
            say(
                RefusalCode::UnsupportedLayout,
                format!("{place} lies on {}, which GRUB cannot write to", mount.kind),
            );
        }
        let stands = BlockDevices::read(&store.system)
            .ok()
            .and_then(|devices| devices.by_number(mount.device).cloned());
        if let Some(device) = stands.filter(|device| {
            ["dm-", "md", "bcache"]
                .iter()
                .any(|kind| device.name.starts_with(kind))
        }) {
            say(
                RefusalCode::UnsupportedLayout,
                format!(
                    "{place} lies on {} (LVM, encryption or RAID), which GRUB cannot write to",
                    device.name
                ),
            );
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
