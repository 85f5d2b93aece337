//! Every reason at once why a trial would not do what it should.

use super::boot_manager::{
    BootVariables, Role, description, foreign_first, program, slot_of, state,
};
use super::load_option::LoadOption;
use super::options;
use super::store::{EfiStore, USR_SLOTS};
use super::variables::{Unusable, Variables};
use crate::backend::{PreflightRequest, Refusal, RefusalCode, SlotState};
use crate::error::{Error, Result};
use crate::slot::SlotName;

/// Room for the marker and directories besides the boot files, in bytes.
const SLACK: u64 = 256 * 1024;

pub(crate) fn refusals(store: &EfiStore, request: &PreflightRequest) -> Vec<Refusal> {
    let mut found = variable_store(store);
    match store.read() {
        Ok(variables) => {
            found.extend(precedence(store, &variables, request.slot));
            found.extend(fallback_files(store, &variables, !request.slot));
        }
        // Said already.
        Err(_) if !found.is_empty() => {}
        Err(error) => found.push(refusal(RefusalCode::Unreadable, error.chain())),
    }
    found.extend(partition(store, request));
    if store.usr_slots {
        found.push(refusal(
            RefusalCode::UnsupportedLayout,
            USR_SLOTS.to_owned(),
        ));
    }
    let [a, b] = store.partitions;
    let own = match request.slot {
        SlotName::A => a,
        SlotName::B => b,
    };
    if own.is_none() {
        let message = format!(
            "slot {} has no partition UUID that a boot option could name as root",
            request.slot
        );
        found.push(refusal(RefusalCode::UnsupportedLayout, message));
    }
    found
}

fn refusal(code: RefusalCode, message: String) -> Refusal {
    Refusal { code, message }
}

/// Whether a variable can be stored. A real one is, and removed again.
fn variable_store(store: &EfiStore) -> Vec<Refusal> {
    let unusable = match Variables::unusable(&store.system) {
        Ok(unusable) => unusable,
        Err(error) => return vec![refusal(RefusalCode::Unreadable, error.chain())],
    };
    match unusable {
        Some(Unusable::ReadOnly) => {
            vec![refusal(RefusalCode::ReadOnly, Unusable::ReadOnly.message())]
        }
        Some(unusable) => {
            // As reading the record says it, so that it is said once.
            let problem = unusable.message();
            let message = Error::NoLoader { problem }.chain();
            vec![refusal(RefusalCode::LoaderDataMissing, message)]
        }
        None => match store.variables.test_write(&[largest_option(store); 2]) {
            Ok(()) => Vec::new(),
            Err(error) => vec![Refusal::not_writable("the variable store", &error)],
        },
    }
}

/// Bytes of an option with the longest command line that a slot may have. The image's part of it is not known yet, and
/// the trial's option is still there when the good one is written.
fn largest_option(store: &EfiStore) -> usize {
    let options = SlotName::BOTH.map(|slot| {
        let line = "x".repeat(options::LONGEST);
        let name = description(slot, Role::Trial);
        LoadOption::new(&name, &store.esp.drive, &program(slot), &line)
    });
    let sizes = options.iter().map(|option| option.render().len());
    sizes.max().unwrap_or_default()
}

/// What the firmware would start besides what it should.
fn precedence(store: &EfiStore, variables: &BootVariables, slot: SlotName) -> Vec<Refusal> {
    let mut found = Vec::new();
    let esp = store.esp_uuid();
    let own = variables.own(esp);
    if let Some((number, name)) = foreign_first(variables, esp) {
        found.push(refusal(
            RefusalCode::ForeignEntryFirst,
            format!(
                "BootOrder starts with {name}, which is not slotd's: a failed trial would not fall \
                 back to slot {}; put it behind with `efibootmgr -o`, or remove it with \
                 `efibootmgr -b {number:04X} -B`",
                !slot
            ),
        ));
    }
    for slot in SlotName::BOTH {
        for trial in own.numbers(slot, Role::Trial) {
            if variables.order.contains(&trial) {
                found.push(refusal(
                    RefusalCode::ForeignEntryFirst,
                    format!(
                        "{} stands in BootOrder, where slotd never puts it: that trial could be \
                         started without end; remove it with `efibootmgr -b {trial:04X} -B`",
                        variables.name_of(trial)
                    ),
                ));
            }
        }
    }
    if let Some(next) = variables.leads_to().filter(|next| own.is(*next).is_none()) {
        found.push(refusal(
            RefusalCode::OneShotSet,
            format!(
                "BootNext is {}: the next boot would not be the trial; reboot once, or clear it \
                 with `efibootmgr -N`",
                variables.name_of(next)
            ),
        ));
    }
    let Some(current) = variables.current else {
        found.push(refusal(
            RefusalCode::CountingUnsupported,
            "the firmware does not say by which option it started this system (there is no \
             BootCurrent), so it is not known that it keeps to BootNext; start it from the \
             firmware's boot manager"
                .to_owned(),
        ));
        return found;
    };
    if variables.next == Some(current) && own.is(current).is_some_and(|(_, r)| r == Role::Trial) {
        found.push(refusal(
            RefusalCode::CountingUnsupported,
            "the firmware did not remove BootNext when it started this system: a trial would not \
             end by itself"
                .to_owned(),
        ));
    }
    found.extend(not_started_by_it(store, variables, current));
    found
}

/// Files of a slot that is good by the variables alone.
fn fallback_files(store: &EfiStore, variables: &BootVariables, slot: SlotName) -> Option<Refusal> {
    let esp = store.esp_uuid();
    if state(variables, esp, slot, store.booted) != SlotState::Good {
        return None;
    }
    let good = variables.own(esp).good(variables, slot)?;
    let missing = store.files.missing(slot, variables.options.get(&good)?);
    if missing.is_empty() {
        return None;
    }
    Some(refusal(
        RefusalCode::NoFallback,
        format!(
            "{} starts slot {slot}, but {} is not on {}: a failed trial would not fall back to that \
             slot; copy the slot's kernel and initrd there",
            variables.name_of(good),
            missing.join(" and "),
            store.esp.shown.display()
        ),
    ))
}

/// Whether another option than the booted slot's started this system: then slotd's own may never have been started, and
/// is no proven fallback. An option that is gone says nothing: a confirmation removes the trial's.
fn not_started_by_it(store: &EfiStore, variables: &BootVariables, current: u16) -> Option<Refusal> {
    let booted = store.booted.slot()?;
    let option = variables.options.get(&current);
    if option.is_none() && !variables.unreadable.contains_key(&current) {
        return None;
    }
    let own = variables.own(store.esp_uuid()).is(current);
    if own.is_some_and(|(slot, _)| slot == booted) {
        return None;
    }
    let name = variables.name_of(current);
    if let Some((says, _)) = option.and_then(slot_of).filter(|(says, _)| *says != booted) {
        return Some(refusal(
            RefusalCode::Unreadable,
            format!(
                "BootCurrent is {name}, the option of slot {says}, but slot {booted} is booted"
            ),
        ));
    }
    let good = variables.own(store.esp_uuid()).good(variables, booted);
    let what = match good {
        Some(good) => format!(
            "reboot through {} first (`efibootmgr -n {good:04X}`)",
            variables.name_of(good)
        ),
        None => format!("make an option of slot {booted} and reboot through it first"),
    };
    Some(refusal(
        RefusalCode::LoaderDataMissing,
        format!(
            "this system was not started by slotd's option of slot {booted} but by {name}, so it is \
             not known that the firmware could fall back to slotd's: {what}"
        ),
    ))
}

/// Whether the boot files can be where the firmware reads them.
fn partition(store: &EfiStore, request: &PreflightRequest) -> Vec<Refusal> {
    let esp = &store.esp;
    let shown = esp.shown.display();
    let mut found = Vec::new();
    if !esp.is_fat() {
        found.push(refusal(
            RefusalCode::UnsupportedLayout,
            format!(
                "{shown} is {}, the firmware reads its programs from FAT only",
                esp.kind
            ),
        ));
    }
    match room(store, request) {
        Ok((need, room)) if need <= room => {}
        Ok((need, room)) => found.push(refusal(
            RefusalCode::NoSpace,
            format!(
                "{shown} has room for {} KiB with the old boot files of slot {} removed, kernel and \
                 initrd need {} KiB{}",
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
        Err(error) => found.push(refusal(RefusalCode::Unreadable, error.chain())),
    }
    found
}

fn room(store: &EfiStore, request: &PreflightRequest) -> Result<(u64, u64)> {
    let other = || store.files.bytes(!request.slot);
    let need = request.boot_files.unwrap_or_else(other);
    let room = store.files.free()?;
    let room = room.saturating_add(store.files.bytes(request.slot));
    Ok((need.saturating_add(SLACK), room))
}
