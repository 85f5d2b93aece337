//! What the firmware's boot manager holds, and which part of it is slotd's. Pure but for the reading.
//!
//! Each slot has up to two options: `slotd B trial`, never in `BootOrder` and started through `BootNext` only, whose
//! command line announces a trial; and `slotd B`, in `BootOrder` once the slot is proven.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::load_option::{HardDrive, LoadOption};
use super::variables::Variables;
use crate::backend::SlotState;
use crate::error::{Error, Result};
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;

/// What an option of slotd's is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Started once, through `BootNext`.
    Trial,
    /// Proven, in `BootOrder`.
    Good,
}

/// The boot variables as they were read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct BootVariables {
    /// `Boot####` by number: what can be understood.
    pub(crate) options: BTreeMap<u16, LoadOption>,
    /// Those that cannot, with the problem.
    pub(crate) unreadable: BTreeMap<u16, String>,
    /// `BootOrder`.
    pub(crate) order: Vec<u16>,
    /// `BootNext`.
    pub(crate) next: Option<u16>,
    /// `BootCurrent`: what this boot was started by. The firmware makes it anew with every boot.
    pub(crate) current: Option<u16>,
    /// Numbers in names that the specification does not know, such as `Boot00ab`. Not to be used for others.
    reserved: BTreeSet<u16>,
}

/// Name of an option's variable.
pub(crate) fn option_name(number: u16) -> String {
    format!("Boot{number:04X}")
}

/// Name in the firmware's menu.
pub(crate) fn description(slot: SlotName, role: Role) -> String {
    match role {
        Role::Good => format!("slotd {slot}"),
        Role::Trial => format!("slotd {slot} trial"),
    }
}

/// The slot's program on the EFI system partition, as the firmware spells paths.
pub(crate) fn program(slot: SlotName) -> String {
    format!("\\EFI\\slotd\\{}\\linux.efi", slot.lower())
}

/// Which slot an option starts, by its name and file.
pub(crate) fn slot_of(option: &LoadOption) -> Option<(SlotName, Role)> {
    let name = option.description();
    let file = option.file()?;
    SlotName::BOTH
        .into_iter()
        .flat_map(|slot| [(slot, Role::Trial), (slot, Role::Good)])
        .find(|(slot, role)| {
            name == description(*slot, *role) && file.eq_ignore_ascii_case(&program(*slot))
        })
}

impl BootVariables {
    pub(crate) fn read(variables: &Variables) -> Result<Self> {
        let mut read = Self::default();
        for name in variables.names()? {
            let Some(digits) = name.strip_prefix("Boot").filter(|rest| rest.len() == 4) else {
                continue;
            };
            let Ok(number) = u16::from_str_radix(digits, 16) else {
                continue;
            };
            // The specification has upper-case digits; a firmware looks for nothing else.
            if name != option_name(number) {
                read.reserved.insert(number);
                continue;
            }
            let Some(data) = variables.read(&name)? else {
                continue;
            };
            match LoadOption::parse(&data) {
                Ok(option) => drop(read.options.insert(number, option)),
                Err(problem) => drop(read.unreadable.insert(number, problem)),
            }
        }
        read.order = numbers(variables, "BootOrder")?;
        read.next = one(variables, "BootNext")?;
        read.current = one(variables, "BootCurrent")?;
        Ok(read)
    }

    /// The option that `BootNext` leads to. One that is not there is passed over by the firmware.
    pub(crate) fn leads_to(&self) -> Option<u16> {
        self.next
            .filter(|next| self.options.contains_key(next) || self.unreadable.contains_key(next))
    }

    /// A number that nothing has, and nothing speaks of: an old one in `BootCurrent` would make a trial of this boot.
    pub(crate) fn free_number(&self) -> Option<u16> {
        (0..=u16::MAX).find(|number| {
            !self.options.contains_key(number)
                && !self.unreadable.contains_key(number)
                && !self.reserved.contains(number)
                && !self.order.contains(number)
                && self.next != Some(*number)
                && self.current != Some(*number)
        })
    }

    /// The options of slotd's on that partition.
    pub(crate) fn own(&self, esp: Uuid) -> OwnOptions {
        let mut own = OwnOptions::default();
        for (number, option) in &self.options {
            let here = option
                .hard_drive()
                .is_some_and(|drive: HardDrive| drive.signature == esp);
            if let Some((slot, role)) = slot_of(option).filter(|_| here) {
                own.0.push((*number, slot, role));
            }
        }
        own
    }
}

fn numbers(variables: &Variables, name: &str) -> Result<Vec<u16>> {
    let data = variables.read(name)?.unwrap_or_default();
    if data.len() % 2 != 0 {
        return Err(Error::malformed(
            &variables.directory().join(name),
            format!("{} bytes of data are no list of 16-bit numbers", data.len()),
        ));
    }
    Ok(data
        .chunks_exact(2)
        .filter_map(|pair| Some(u16::from_le_bytes(*pair.first_chunk()?)))
        .collect())
}

fn one(variables: &Variables, name: &str) -> Result<Option<u16>> {
    let found = numbers(variables, name)?;
    match found.as_slice() {
        [] => Ok(None),
        [number] => Ok(Some(*number)),
        more => Err(Error::malformed(
            &variables.directory().join(name),
            format!("holds {} numbers instead of one", more.len()),
        )),
    }
}

/// slotd's options: number, slot, role. More than one of a kind is possible where firmware or people copied some.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnOptions(Vec<(u16, SlotName, Role)>);

impl OwnOptions {
    /// Numbers of a kind, ascending.
    pub(crate) fn numbers(&self, slot: SlotName, role: Role) -> Vec<u16> {
        let of_kind = |option: &&(u16, SlotName, Role)| option.1 == slot && option.2 == role;
        self.0
            .iter()
            .filter(of_kind)
            .map(|option| option.0)
            .collect()
    }

    pub(crate) fn is(&self, number: u16) -> Option<(SlotName, Role)> {
        let found = self.0.iter().find(|option| option.0 == number)?;
        Some((found.1, found.2))
    }

    /// The trial option of a slot that counts: the one that runs or is next, else the lowest.
    pub(crate) fn trial(&self, variables: &BootVariables, slot: SlotName) -> Option<u16> {
        let numbers = self.numbers(slot, Role::Trial);
        let named = [variables.current, variables.next];
        let named = named.into_iter().flatten();
        named
            .into_iter()
            .find(|number| numbers.contains(number))
            .or(numbers.first().copied())
    }

    /// The good option of a slot that counts: the first one in `BootOrder`, else the lowest.
    pub(crate) fn good(&self, variables: &BootVariables, slot: SlotName) -> Option<u16> {
        let numbers = self.numbers(slot, Role::Good);
        let ordered = variables.order.iter().copied();
        ordered
            .into_iter()
            .find(|number| numbers.contains(number))
            .or(numbers.first().copied())
    }
}

/// Whether a slot's trial runs, by the firmware's word and by the slot that is booted.
pub(crate) fn runs(variables: &BootVariables, trial: u16, slot: SlotName, booted: Booted) -> bool {
    variables.current == Some(trial) && booted == Booted::Slot(slot)
}

/// What the variables say of one slot.
///
/// A trial option that is neither next nor running has been started and was not confirmed: it is spent. One that is
/// inactive was given up, also while it runs.
pub(crate) fn state(
    variables: &BootVariables,
    esp: Uuid,
    slot: SlotName,
    booted: Booted,
) -> SlotState {
    let own = variables.own(esp);
    let option = |number: &u16| variables.options.get(number);
    let good = own.good(variables, slot);
    let in_order = good.filter(|number| {
        variables.order.contains(number) && option(number).is_some_and(LoadOption::starts_by_itself)
    });
    if in_order.is_some() {
        return SlotState::Good;
    }
    match own.trial(variables, slot) {
        Some(trial) if runs(variables, trial, slot, booted) => {
            if option(&trial).is_some_and(LoadOption::is_active) {
                SlotState::Trial { left: 0, done: 1 }
            } else {
                SlotState::Bad
            }
        }
        // The firmware starts what BootNext names, active or not.
        Some(trial) if variables.next == Some(trial) => SlotState::Trial { left: 1, done: 0 },
        Some(_) => SlotState::Bad,
        // Proven once, and taken out of the order.
        None if good.is_some() => SlotState::Bad,
        None => SlotState::Empty,
    }
}

/// What the variables say of both slots. Where none can be started, the booted one is called the first.
pub(crate) fn record(variables: &BootVariables, esp: Uuid, booted: Booted) -> Record {
    let own = variables.own(esp);
    let [a, b] = SlotName::BOTH.map(|slot| state(variables, esp, slot, booted));
    let mut record = Record {
        a,
        b,
        first: booted.slot().unwrap_or(SlotName::A),
    };
    let armed = SlotName::BOTH
        .into_iter()
        .find(|slot| matches!(record.state(*slot), SlotState::Trial { left: 1.., .. }));
    let ordered = variables.order.iter().find_map(|number| {
        let (slot, role) = own.is(*number)?;
        (role == Role::Good && record.state(slot) == SlotState::Good).then_some(slot)
    });
    if let Some(first) = armed.or(ordered) {
        record.first = first;
    }
    record
}

/// An option that is not slotd's and comes before its options, or in their place: number and name.
pub(crate) fn foreign_first(variables: &BootVariables, esp: Uuid) -> Option<(u16, String)> {
    let own = variables.own(esp);
    let starts = variables
        .order
        .iter()
        .find(|number| {
            variables
                .options
                .get(number)
                .is_some_and(LoadOption::starts_by_itself)
        })
        .filter(|number| own.is(**number).is_none())?;
    Some((*starts, variables.name_of(*starts)))
}

impl BootVariables {
    /// Number and name of an option, for people.
    pub(crate) fn name_of(&self, number: u16) -> String {
        let name = option_name(number);
        match self.options.get(&number) {
            Some(option) => format!("{name} ({})", option.description()),
            None => name,
        }
    }
}
