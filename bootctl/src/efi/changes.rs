//! From what the boot manager holds to a record that is wanted: a list of single variables, in an order in which every
//! prefix can be booted. Pure.
//!
//! What prepares comes first, then what the firmware starts, then what is in the way. The one write that commits is
//!
//! - arming: `BootNext`, after the trial option
//! - confirming and selecting: `BootOrder`, after the good option
//! - giving up: `BootNext`, `BootOrder` or the option that runs, whichever it is that makes the firmware start the slot
//!
//! Where more follows, a cut in between leaves a slot *bad* that was to become *empty* or *trial*: the firmware starts
//! neither, and the transition can be done again.

use uuid::Uuid;

use super::boot_manager::{BootVariables, OwnOptions, Role, description, option_name, runs};
use super::load_option::LoadOption;
use super::options::without_trial;
use crate::backend::{PlannedChange, SlotState};
use crate::error::{Error, Result};
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;

/// One change of one variable, atomic and durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// `Boot####`, written.
    Option { number: u16, option: LoadOption },
    /// `Boot####`, removed.
    RemoveOption { number: u16 },
    /// `BootOrder`; an empty one is none.
    Order(Vec<u16>),
    /// `BootNext`, or its removal.
    Next(Option<u16>),
}

/// A change and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) change: Change,
    pub(crate) why: String,
}

impl Step {
    fn new(change: Change, why: impl Into<String>) -> Self {
        Self {
            change,
            why: why.into(),
        }
    }

    /// For people.
    pub(crate) fn planned(&self) -> PlannedChange {
        let list = |numbers: &[u16]| {
            let numbers: Vec<String> = numbers.iter().map(|n| format!("{n:04X}")).collect();
            numbers.join(",")
        };
        let (name, change, content) = match &self.change {
            Change::Option { number, option } => (
                option_name(*number),
                format!(
                    "write {} option {:?}",
                    if option.is_active() {
                        "active"
                    } else {
                        "inactive"
                    },
                    option.description()
                ),
                Some(format!(
                    "{} {}",
                    option.file().unwrap_or_default(),
                    option.arguments()
                )),
            ),
            Change::RemoveOption { number } => (option_name(*number), "remove".to_owned(), None),
            Change::Order(order) if order.is_empty() => {
                ("BootOrder".to_owned(), "remove".to_owned(), None)
            }
            Change::Order(order) => (
                "BootOrder".to_owned(),
                format!("set to {}", list(order)),
                None,
            ),
            Change::Next(None) => ("BootNext".to_owned(), "remove".to_owned(), None),
            Change::Next(Some(next)) => (
                "BootNext".to_owned(),
                format!("set to {}", list(&[*next])),
                None,
            ),
        };
        PlannedChange {
            target: format!("EFI variable {name}"),
            change,
            content,
            why: self.why.clone(),
        }
    }
}

impl BootVariables {
    /// What the variables are after a change.
    pub(crate) fn apply(&mut self, change: &Change) {
        match change {
            Change::Option { number, option } => {
                self.options.insert(*number, option.clone());
            }
            Change::RemoveOption { number } => {
                self.options.remove(number);
            }
            Change::Order(order) => self.order.clone_from(order),
            Change::Next(next) => self.next = *next,
        }
    }
}

/// What an option has to be: that of a trial, or a proven one that the firmware lost.
pub(crate) struct MadeOption {
    pub(crate) slot: SlotName,
    pub(crate) role: Role,
    pub(crate) option: LoadOption,
}

/// The steps to `wanted`. Of `made`, a trial's is what an armed slot's option has to be; without it the one that is there
/// stays. A good one is for a slot of which the firmware holds none.
///
/// # Errors
/// [`Error::Refused`] where a slot was to be proven or tried of which the firmware holds no option.
pub(crate) fn steps(
    variables: &BootVariables,
    esp: Uuid,
    booted: Booted,
    wanted: &Record,
    made: &[MadeOption],
) -> Result<Vec<Step>> {
    let mut plan = Plan {
        now: variables.clone(),
        esp,
        booted,
        steps: Vec::new(),
    };
    for slot in SlotName::BOTH {
        plan.prepare(slot, wanted.state(slot), made)?;
    }
    let armed = plan.armed(wanted);
    plan.take_back_next(armed);
    plan.order(wanted);
    if let Some(number) = armed.filter(|number| plan.now.next != Some(*number)) {
        let why = "the next boot is the trial; the firmware removes this before it starts it";
        plan.add(Change::Next(Some(number)), why);
    }
    for slot in SlotName::BOTH {
        plan.clear(slot, wanted.state(slot));
    }
    Ok(plan.steps)
}

struct Plan {
    now: BootVariables,
    esp: Uuid,
    booted: Booted,
    steps: Vec<Step>,
}

impl Plan {
    fn own(&self) -> OwnOptions {
        self.now.own(self.esp)
    }

    fn add(&mut self, change: Change, why: impl Into<String>) {
        self.now.apply(&change);
        self.steps.push(Step::new(change, why));
    }

    fn trial_of(&self, slot: SlotName) -> Option<(u16, LoadOption)> {
        let number = self.own().trial(&self.now, slot)?;
        Some((number, self.now.options.get(&number)?.clone()))
    }

    fn good_of(&self, slot: SlotName) -> Option<(u16, LoadOption)> {
        let number = self.own().good(&self.now, slot)?;
        Some((number, self.now.options.get(&number)?.clone()))
    }

    /// Writes an option if it is not there as it should be.
    fn put(&mut self, number: Option<u16>, option: LoadOption, why: String) -> Result<()> {
        let full = || Error::Refused {
            reason: "the firmware has no number left for a boot option".to_owned(),
        };
        let number = number.or_else(|| self.now.free_number());
        let number = number.ok_or_else(full)?;
        if self.now.options.get(&number) != Some(&option) {
            self.add(Change::Option { number, option }, why);
        }
        Ok(())
    }

    /// What changes nothing about the next boot, and is there before something leads to it.
    fn prepare(&mut self, slot: SlotName, wanted: SlotState, made: &[MadeOption]) -> Result<()> {
        let missing = |what: &str| Error::Refused {
            reason: format!("the firmware holds no option of slot {slot} that could be {what}"),
        };
        let made = |role| {
            let of_slot = |made: &&MadeOption| made.slot == slot && made.role == role;
            made.iter().find(of_slot).map(|made| made.option.clone())
        };
        let tried = self.trial_of(slot);
        match wanted {
            SlotState::Good => {
                let known = self.good_of(slot);
                let ordered = known.as_ref().is_some_and(|(number, option)| {
                    self.now.order.contains(number) && option.starts_by_itself()
                });
                if ordered {
                    return Ok(());
                }
                // What ran on trial is what was proven.
                let option = match (&tried, &known) {
                    (Some((_, trial)), _) => proven(slot, trial),
                    (None, Some((_, good))) => good.clone().with_active(true),
                    (None, None) => made(Role::Good).ok_or_else(|| missing("proven"))?,
                };
                let why = format!("the option that starts slot {slot} once it is in BootOrder");
                self.put(known.map(|(number, _)| number), option, why)
            }
            SlotState::Trial { left: 1.., .. } => {
                let number = tried.as_ref().map(|(number, _)| *number);
                let option = made(Role::Trial).or_else(|| Some(tried?.1.with_active(true)));
                let why = format!("the option that tries slot {slot}; only BootNext starts it");
                self.put(number, option.ok_or_else(|| missing("tried"))?, why)
            }
            SlotState::Bad => {
                // A trial that runs is only told from a bad one by this; another one is spent as soon as it is not next.
                if let Some((number, option)) = tried
                    && runs(&self.now, number, slot, self.booted)
                {
                    let why = format!("slot {slot} is given up, though it runs");
                    self.put(Some(number), option.with_active(false), why)?;
                }
                Ok(())
            }
            SlotState::Trial { .. } | SlotState::Empty => Ok(()),
        }
    }

    /// Number of the option that is to be next.
    fn armed(&self, wanted: &Record) -> Option<u16> {
        let armed =
            |slot: &SlotName| matches!(wanted.state(*slot), SlotState::Trial { left: 1.., .. });
        let slot = SlotName::BOTH.into_iter().find(armed)?;
        self.own().trial(&self.now, slot)
    }

    fn take_back_next(&mut self, armed: Option<u16>) {
        let own = self.own();
        let stale = |number: &u16| own.is(*number).is_some() && armed != Some(*number);
        if let Some((slot, _)) = self.now.next.filter(stale).and_then(|n| own.is(n)) {
            let why = format!("the next boot is no trial of slot {slot}");
            self.add(Change::Next(None), why);
        }
    }

    /// Good slots in front, the preferred one first; others behind, in the order that they had. Not written where slotd's
    /// part of it is right already.
    fn order(&mut self, wanted: &Record) {
        let own = self.own();
        let good: Vec<u16> = [wanted.first, !wanted.first]
            .into_iter()
            .filter(|slot| wanted.state(*slot) == SlotState::Good)
            .filter_map(|slot| own.good(&self.now, slot))
            .collect();
        let order = &self.now.order;
        let ours: Vec<u16> = order
            .iter()
            .copied()
            .filter(|n| own.is(*n).is_some())
            .collect();
        if ours == good {
            return;
        }
        let others = order.iter().copied().filter(|n| own.is(*n).is_none());
        let order: Vec<u16> = good.iter().copied().chain(others).collect();
        let slots: Vec<String> = good
            .iter()
            .filter_map(|number| Some(format!("slot {}", own.is(*number)?.0)))
            .collect();
        let why = format!("the firmware starts {}", slots.join(", else "));
        self.add(Change::Order(order), why);
    }

    /// Removes options that say nothing any more.
    fn clear(&mut self, slot: SlotName, wanted: SlotState) {
        let own = self.own();
        let (trials, goods) = (
            own.numbers(slot, Role::Trial),
            own.numbers(slot, Role::Good),
        );
        let (kept_trial, kept_good) = match wanted {
            SlotState::Empty => (None, None),
            SlotState::Good => (None, own.good(&self.now, slot)),
            _ => (own.trial(&self.now, slot), own.good(&self.now, slot)),
        };
        for number in trials.into_iter().filter(|n| Some(*n) != kept_trial) {
            let why = format!("slot {slot} is not on trial by this option");
            self.add(Change::RemoveOption { number }, why);
        }
        for number in goods.into_iter().filter(|n| Some(*n) != kept_good) {
            let why = format!("slot {slot} is not started by this option");
            self.add(Change::RemoveOption { number }, why);
        }
    }
}

/// The option of a proven slot: what its trial was started by, without what is for trials only.
fn proven(slot: SlotName, trial: &LoadOption) -> LoadOption {
    trial
        .clone()
        .with_description(&description(slot, Role::Good))
        .with_arguments(&without_trial(&trial.arguments()))
        .with_active(true)
}
