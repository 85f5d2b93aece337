//! Plans of several transitions: what earlier ones leave is not in the variables yet. Pure.

use super::boot_manager::{BootVariables, Role, description, program, state};
use super::changes::steps;
use super::load_option::{HardDrive, LoadOption};
use crate::backend::SlotState;
use crate::error::Result;
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;

/// The slot whose trial begins between two records.
pub(crate) fn started(before: &Record, after: &Record) -> Option<SlotName> {
    SlotName::BOTH.into_iter().find(|slot| {
        matches!(before.state(*slot), SlotState::Trial { left: 1.., .. })
            && matches!(after.state(*slot), SlotState::Trial { left: 0, .. })
    })
}

/// Makes a copy of the variables say of a slot what `before` says.
pub(crate) fn simulate(
    variables: &mut BootVariables,
    esp: &HardDrive,
    slot: SlotName,
    before: &Record,
    booted: Booted,
) -> Result<()> {
    let wanted = before.state(slot);
    if state(variables, esp.signature, slot, booted) == wanted {
        return Ok(());
    }
    let own = variables.own(esp.signature);
    let (role, running) = match wanted {
        SlotState::Trial { left, .. } => (Role::Trial, left == 0),
        _ => (Role::Good, false),
    };
    let number = own.numbers(slot, role).first().copied();
    let number = number.or_else(|| variables.free_number());
    let wants_option = matches!(wanted, SlotState::Good | SlotState::Trial { .. });
    if let Some(number) = number.filter(|_| wants_option) {
        let option = LoadOption::new(&description(slot, role), esp, &program(slot), "");
        let option = variables.options.remove(&number).unwrap_or(option);
        variables.options.insert(number, option.with_active(true));
        if role == Role::Trial {
            variables.next = Some(number).filter(|_| !running);
            variables.current = variables.current.filter(|_| !running).or(Some(number));
        }
    }
    for step in steps(variables, esp.signature, booted, before, &[])? {
        variables.apply(&step.change);
    }
    Ok(())
}
