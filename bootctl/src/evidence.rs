//! Which slot is booted.

use crate::discovery::FoundSlots;
use crate::error::Result;
use crate::system::System;
use crate::table::{Booted, Evidence, Witness};

pub(crate) fn weigh(
    _system: &System,
    found: &FoundSlots,
    loader: Option<Witness>,
) -> Result<(Booted, Evidence)> {
    let slot = |number| found.root.devices.contains(&number);
    let booted = if slot(found.a.number) {
        Booted::Slot(crate::slot::SlotName::A)
    } else if slot(found.b.number) {
        Booted::Slot(crate::slot::SlotName::B)
    } else {
        Booted::Neither
    };
    Ok((booted, Evidence(loader.into_iter().collect())))
}
