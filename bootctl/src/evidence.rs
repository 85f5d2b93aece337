//! Which slot is booted: what the root's device, the boot loader and the command line say. All that
//! speak must agree.

mod options;

use crate::block::command_line;
use crate::discovery::FoundSlots;
use crate::efivar::LoaderVariables;
use crate::entry::EntryName;
use crate::error::{Error, Result};
use crate::slot::SlotName;
use crate::system::System;
use crate::table::{Booted, Evidence, Partition, Witness};

pub(crate) use options::named_disks;

/// Hears every witness, and the one of a loader backend if there is any.
pub(crate) fn weigh(
    system: &System,
    found: &FoundSlots,
    loader: Option<Witness>,
) -> Result<(Booted, Evidence)> {
    let mut witnesses = vec![root_device(found)?];
    witnesses.extend(loader_variables(system)?);
    witnesses.extend(crate::efi::witness(system));
    witnesses.extend(loader);
    witnesses.extend(slot_option(system)?);
    witnesses.extend(options::witnesses(system, found)?);
    let evidence = Evidence(witnesses);

    let mut said = evidence.0.iter().filter_map(|witness| witness.says);
    let booted = match said.next() {
        Some(first) if said.all(|other| other == first) => first,
        Some(_) => {
            return Err(Error::EvidenceDisagrees {
                evidence: evidence.to_string(),
            });
        }
        // Root is a RAM disk and nobody names a slot: a rescue system.
        None if found.root.unresolved.is_empty() => Booted::Neither,
        None => {
            return Err(Error::EvidenceDisagrees {
                evidence: evidence.to_string(),
            });
        }
    };
    Ok((booted, evidence))
}

fn root_device(found: &FoundSlots) -> Result<Witness> {
    let root = &found.root;
    let stands_on = |partition: &Partition| root.devices.contains(&partition.number);
    let says = match (stands_on(&found.a), stands_on(&found.b)) {
        (true, true) => {
            return Err(Error::EvidenceDisagrees {
                evidence: format!("the running root stands on both slots ({})", root.found),
            });
        }
        (true, false) => Some(Booted::Slot(SlotName::A)),
        (false, true) => Some(Booted::Slot(SlotName::B)),
        (false, false) if root.unresolved.is_empty() && !root.devices.is_empty() => {
            Some(Booted::Neither)
        }
        (false, false) => None,
    };
    let mut text = if root.found.is_empty() {
        "no device".to_owned()
    } else {
        root.found.clone()
    };
    if !root.unresolved.is_empty() {
        text.push_str(&format!(", not found: {}", root.unresolved.join(", ")));
    }
    Ok(Witness {
        source: "root device (/proc/self/mountinfo)".to_owned(),
        found: text,
        says,
    })
}

fn loader_variables(system: &System) -> Result<Vec<Witness>> {
    let variables = LoaderVariables::read(system)?;
    let count_name = variables.boot_count_name().map(str::to_owned);
    let named = [
        ("EFI variable LoaderEntrySelected", variables.selected),
        ("EFI variable LoaderBootCountPath", count_name),
    ];
    Ok(named
        .into_iter()
        .filter_map(|(source, name)| name.map(|name| (source, name)))
        .map(|(source, found)| {
            let slot = EntryName::parse(&found).and_then(|name| name.slot());
            Witness {
                source: source.to_owned(),
                found,
                says: slot.map(Booted::Slot),
            }
        })
        .collect())
}

/// `slotd.slot=` as our boot entries set it.
fn slot_option(system: &System) -> Result<Option<Witness>> {
    let words = command_line(system)?;
    let Some(value) = words
        .iter()
        .rev()
        .find_map(|word| word.strip_prefix("slotd.slot="))
    else {
        return Ok(None);
    };
    let says = value.parse().ok().map(Booted::Slot);
    Ok(Some(Witness {
        source: "command line slotd.slot=".to_owned(),
        found: value.to_owned(),
        says,
    }))
}
