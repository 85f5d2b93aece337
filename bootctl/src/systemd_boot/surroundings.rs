//! What stands in the way of a trial however the slots' files look: partitions, firmware and loader.

use super::arming::USR_SLOTS;
use super::esp::Esp;
use super::find;
use super::preflight::refusal;
use super::snapshot::Snapshot;
use super::transitions::Circumstances;
use crate::backend::{PreflightRequest, Refusal, RefusalCode};
use crate::efivar::{LoaderVariables, VariableStore};
use crate::slot::SlotName;
use crate::system::System;

/// First version that sorts entries by `sort-key` (its release notes).
const SORTS: u32 = 250;
/// First version that renames a counted entry on its own partition and not on the loader's
/// (`config_entry_bump_counters` of 251 and 252).
const COUNTS_ELSEWHERE: u32 = 252;

/// What stands in the way however the slots' files look: partitions that firmware or slotd cannot read.
pub(super) fn surroundings(
    system: &System,
    esp: &Esp,
    circumstances: &Circumstances,
) -> Vec<Refusal> {
    let mut found = Vec::new();
    let loader = Some(&esp.loader).filter(|loader| **loader != esp.root);
    for place in [&esp.root].into_iter().chain(loader) {
        found.extend(find::not_fat(system, place).map(|what| {
            let message = format!(
                "the boot partition is not FAT, which is what firmware reads and the loader can rename \
                 a counted entry on: {what}; mount the right partition, or make it a FAT one"
            );
            refusal(RefusalCode::UnsupportedLayout, message)
        }));
    }
    found.extend(esp.unseen.as_ref().map(|name| {
        let message = format!(
            "{name} is an extended boot loader partition, whose entries the loader lists, too, but it is not \
             mounted: mount it at /boot"
        );
        refusal(RefusalCode::LoaderDataMissing, message)
    }));
    let store = circumstances.variables.store;
    if circumstances.booted.slot().is_some() && store == VariableStore::NotMounted {
        let message = "EFI variables are not mounted at /sys/firmware/efi/efivars, so it is not known what the loader \
             counted and what would come before a trial: `mount -t efivarfs efivarfs /sys/firmware/efi/efivars`";
        found.push(refusal(RefusalCode::LoaderDataMissing, message.to_owned()));
    }
    found
}

/// What to do first where a variable has to be changed; slotd itself writes none.
pub(super) fn remount(circumstances: &Circumstances) -> &'static str {
    match circumstances.variables.store {
        VariableStore::Mounted { read_only: true } => {
            " (EFI variables are mounted read-only: `mount -o remount,rw /sys/firmware/efi/efivars` first)"
        }
        _ => "",
    }
}

/// Entries of a slot on both boot partitions.
pub(super) fn twins(snapshot: &Snapshot) -> Vec<Refusal> {
    SlotName::BOTH
        .into_iter()
        .filter_map(|slot| snapshot.entry_elsewhere(slot))
        .map(|message| refusal(RefusalCode::ForeignEntryFirst, message))
        .collect()
}

/// What the loader cannot do, by its own word.
pub(super) fn counting(circumstances: &Circumstances, esp: &Esp) -> Vec<Refusal> {
    let variables = &circumstances.variables;
    let info = variables.info.as_deref().unwrap_or("the boot loader");
    let mut found = Vec::new();
    if variables.counts == Some(false) {
        let message = format!("{info} says in LoaderFeatures that it does not count boots");
        found.push(refusal(RefusalCode::CountingUnsupported, message));
    }
    let older = |than: u32| {
        variables
            .loader_version()
            .is_some_and(|version| version < than)
    };
    if older(SORTS) {
        let message = format!(
            "{info} does not sort by sort-key and version, so a trial would not come first: update it \
             to {SORTS} or newer with `bootctl update`"
        );
        found.push(refusal(RefusalCode::UnsupportedLayout, message));
    }
    if esp.root != esp.loader && older(COUNTS_ELSEWHERE) {
        let message = format!(
            "{info} counts no boots of entries at {}, an extended boot loader partition: update it to \
             {COUNTS_ELSEWHERE} or newer with `bootctl update`",
            esp.root.display()
        );
        found.push(refusal(RefusalCode::CountingUnsupported, message));
    }
    found
}

pub(super) fn layout(circumstances: &Circumstances, request: &PreflightRequest) -> Vec<Refusal> {
    let mut found = Vec::new();
    if circumstances.usr_slots {
        found.push(refusal(
            RefusalCode::UnsupportedLayout,
            USR_SLOTS.to_owned(),
        ));
    }
    if circumstances.partition(request.slot).is_none() {
        found.push(refusal(
            RefusalCode::UnsupportedLayout,
            format!(
                "slot {} has no partition UUID to bind an entry's root to",
                request.slot
            ),
        ));
    }
    if circumstances.booted.slot().is_some() {
        found.extend(not_started_by_it(&circumstances.variables));
    }
    found
}

fn not_started_by_it(variables: &LoaderVariables) -> Option<Refusal> {
    let started = variables.info.as_deref();
    if started.is_some_and(|info| info.starts_with("systemd-boot")) {
        return None;
    }
    // That they are not mounted is refused by itself.
    let message = match (variables.store, started) {
        (VariableStore::NotMounted, _) => return None,
        (VariableStore::NoFirmware, _) => "this system was not started by EFI firmware (there is no \
             /sys/firmware/efi), so not by systemd-boot: set the loader that starts it in the configuration"
            .to_owned(),
        (VariableStore::Mounted { .. }, started) => format!(
            "this system was not started by systemd-boot but by {}: start it by systemd-boot, or set \
             the loader that starts it in the configuration",
            started.unwrap_or("a loader that set no LoaderInfo")
        ),
    };
    Some(refusal(RefusalCode::LoaderDataMissing, message))
}
