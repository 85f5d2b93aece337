//! The firmware's own boot manager, without a loader: `BootNext` for a trial, `BootOrder` for what is proven.
//!
//! Before it starts the option that `BootNext` names, the firmware removes that variable (UEFI specification 2.10,
//! section 3.3): a trial has one boot. Whatever ends it, the next one is the first option of `BootOrder`, the good slot.

mod boot_manager;
mod changes;
mod files;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod load_option;
mod options;
mod place;
mod planning;
mod preflight;
mod problems;
mod program;
mod restore;
mod store;
mod variables;

use self::boot_manager::{option_name, slot_of};
use self::files::BootFiles;
use self::load_option::LoadOption;
pub(crate) use self::store::EfiStore;
use self::variables::{Unusable, Variables};
use crate::error::{Error, Result};
use crate::record::RecordBackend;
use crate::system::System;
use crate::systemd_boot::EspSetting;
use crate::table::{Booted, SlotTable, Witness};

/// Opens the firmware's boot manager as a backend. Nothing is written.
///
/// # Errors
/// [`Error::NoLoader`] where this system was not started by EFI firmware, its variables are not mounted, or no EFI system
/// partition is.
pub(crate) fn open(
    system: &System,
    table: &SlotTable,
    setting: &EspSetting,
) -> Result<RecordBackend<EfiStore>> {
    let store = open_store(system, table, setting)?;
    let markers = store.markers();
    Ok(RecordBackend::new(store, markers, table.booted))
}

fn open_store(system: &System, table: &SlotTable, setting: &EspSetting) -> Result<EfiStore> {
    let variables = Variables::at(system);
    if let Some(Unusable::NoEfi) = Variables::unusable(system)? {
        return Err(Error::NoLoader {
            problem: Unusable::NoEfi.message(),
        });
    }
    let running = running(&variables)
        .and_then(|(_, option)| option.hard_drive())
        .map(|drive| drive.signature);
    let esp = place::find(system, table, setting, running)?;
    Ok(EfiStore {
        system: system.clone(),
        files: BootFiles::at(&esp.root, &esp.shown),
        variables,
        esp,
        partitions: [table.a.uuid, table.b.uuid],
        booted: table.booted,
        usr_slots: table.hold_usr(),
    })
}

/// The option that this boot was started by. What cannot be read says nothing: another loader may be the one that counts.
fn running(variables: &Variables) -> Option<(u16, LoadOption)> {
    let current = variables.read("BootCurrent").ok()??;
    let number = u16::from_le_bytes(*current.first_chunk()?);
    let data = variables.read(&option_name(number)).ok()??;
    Some((number, LoadOption::parse(&data).ok()?))
}

/// What `BootCurrent` says of the slot that is booted; `None` where this boot's option is not slotd's.
pub(crate) fn witness(system: &System) -> Option<Witness> {
    let (number, option) = running(&Variables::at(system))?;
    let (slot, _) = slot_of(&option)?;
    Some(Witness {
        source: "EFI variable BootCurrent".to_owned(),
        found: format!("{} ({})", option_name(number), option.description()),
        says: Some(Booted::Slot(slot)),
    })
}

#[cfg(test)]
pub(crate) mod firmware;
#[cfg(test)]
mod tests;
