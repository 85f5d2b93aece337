//! Transitions that are cut off after each of their variables.

use std::cell::Cell;

use super::super::changes::Change;
use super::super::firmware::InFirmware;
use super::{ARMED, Bad, Empty, Good, RUNNING, arm, armed, confirmed, on_trial, spent};
use crate::backend::{NextBoot, SlotState};
use crate::error::{Error, Result};
use crate::scenarios::machines::Machine;
use crate::slot::SlotName::{self, A, B};
use crate::table::Booted;

thread_local! {
    /// Changes that are still made before the power goes.
    static CHANGES: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Asked before every change of a variable.
pub(in crate::efi) fn cut_before(change: &Change) -> Result<()> {
    match CHANGES.get() {
        None => Ok(()),
        Some(0) => Err(Error::Internal(format!("cut off before {change:?}"))),
        Some(more) => {
            CHANGES.set(Some(more - 1));
            Ok(())
        }
    }
}

/// Whether `change` was whole after `changes` variables.
pub(super) fn cut<T>(changes: usize, change: impl FnOnce() -> Result<T>) -> bool {
    CHANGES.set(Some(changes));
    let outcome = change();
    CHANGES.set(None);
    match outcome {
        Ok(_) => true,
        Err(Error::Internal(text)) if text.starts_with("cut off") => false,
        Err(error) => panic!("{error}"),
    }
}

/// A transition, from `before` (states of both slots) to `after`, cut off after every prefix of its variables. `cut_to`
/// are the states in between besides these.
pub(super) fn every_prefix(
    name: &str,
    prepare: impl Fn(&mut InFirmware),
    transition: impl Fn(&InFirmware) -> Result<()>,
    (before, after): ((SlotState, SlotState), (SlotState, SlotState)),
    cut_to: &[(SlotState, SlotState)],
) {
    for changes in 0..10 {
        let prepared = || {
            let mut machine = InFirmware::new();
            prepare(&mut machine);
            assert_eq!(machine.states(), before, "{name}");
            machine
        };
        let machine = prepared();
        let booted = machine.table().booted;
        let whole = cut(changes, || transition(&machine));
        let states = machine.states();
        let allowed = [before, after].into_iter().chain(cut_to.iter().copied());
        assert!(
            if whole {
                states == after
            } else {
                allowed.clone().any(|allowed| allowed == states)
            },
            "{name} after {changes}: {states:?}"
        );
        // Doing it again finishes it.
        transition(&machine).unwrap();
        assert_eq!(machine.states(), after, "{name} again after {changes}");

        // And whatever there is, it comes up: good, or on trial with a good one behind it.
        let mut machine = prepared();
        cut(changes, || transition(&machine));
        let expected = machine.next();
        let first = machine.power_cycle();
        let first = first.unwrap_or_else(|| panic!("{name} after {changes}: nothing starts"));
        let trial =
            machine.states() != (Good, Good) && machine.backend().state().unwrap().trial_boot;
        assert_eq!(
            expected,
            NextBoot::Slot { slot: first, trial },
            "{name} after {changes}"
        );
        if trial {
            assert!(
                matches!(booted, Booted::Slot(old) if old != first),
                "{name}"
            );
            assert_eq!(machine.power_cycle(), booted.slot());
        }
        let slot = machine.table().booted.slot().unwrap();
        let state = machine.backend().state().unwrap();
        assert_eq!(state.slot(slot), Good, "{name} after {changes}");
        if whole {
            return;
        }
    }
    panic!("{name} never ended");
}

#[test]
fn arming_can_be_cut_off_anywhere() {
    let staged = |machine: &mut InFirmware| drop(machine.stage(B));
    // The option is there, and nothing leads to it.
    every_prefix(
        "arm",
        staged,
        arm,
        ((Good, Empty), (Good, ARMED)),
        &[(Good, Bad)],
    );
    every_prefix(
        "arm a spent one",
        spent,
        arm,
        ((Good, Bad), (Good, ARMED)),
        &[],
    );
    let given_up = |machine: &mut InFirmware| {
        on_trial(machine);
        machine.backend().mark_bad(B).unwrap();
        machine.power_cycle();
    };
    every_prefix(
        "arm a bad one",
        given_up,
        arm,
        ((Good, Bad), (Good, ARMED)),
        &[],
    );
}

#[test]
fn taking_back_can_be_cut_off_anywhere() {
    let disarm = |machine: &InFirmware| machine.backend().disarm(B);
    every_prefix(
        "disarm",
        armed,
        disarm,
        ((Good, ARMED), (Good, Empty)),
        &[(Good, Bad)],
    );
    // Cut off, it leaves the slot bad, which selecting again does not mind.
    let select = |machine: &InFirmware| {
        machine.backend().select(A)?;
        machine.backend().disarm(B)
    };
    every_prefix(
        "select",
        armed,
        select,
        ((Good, ARMED), (Good, Empty)),
        &[(Good, Bad)],
    );
}

#[test]
fn confirming_and_giving_up_can_be_cut_off_anywhere() {
    let good = |machine: &InFirmware| machine.backend().mark_good(B);
    every_prefix(
        "mark good",
        on_trial,
        good,
        ((Good, RUNNING), (Good, Good)),
        &[],
    );
    let bad = |machine: &InFirmware| machine.backend().mark_bad(B);
    every_prefix(
        "mark bad",
        on_trial,
        bad,
        ((Good, RUNNING), (Good, Bad)),
        &[],
    );
    every_prefix(
        "mark bad before",
        armed,
        bad,
        ((Good, ARMED), (Good, Bad)),
        &[],
    );
    every_prefix(
        "mark bad after",
        confirmed,
        bad,
        ((Good, Good), (Good, Bad)),
        &[],
    );
    // A confirmation that was cut off before it, on the same boot.
    let half = |machine: &mut InFirmware| {
        on_trial(machine);
        assert!(!cut(1, || machine.backend().mark_good(B)));
    };
    every_prefix("half", half, bad, ((Good, RUNNING), (Good, Bad)), &[]);
}

#[test]
fn overwriting_and_going_back_can_be_cut_off_anywhere() {
    let invalidate = |slot: SlotName| {
        move |machine: &InFirmware| {
            let inactive = machine.table().inactive(slot)?;
            machine.backend().invalidate(inactive).map(drop)
        }
    };
    let cut_to = [(Bad, Good)];
    every_prefix(
        "good",
        confirmed,
        invalidate(A),
        ((Good, Good), (Empty, Good)),
        &cut_to,
    );
    let cut_to = [(Good, Bad)];
    every_prefix(
        "armed",
        armed,
        invalidate(B),
        ((Good, ARMED), (Good, Empty)),
        &cut_to,
    );
    every_prefix(
        "spent",
        spent,
        invalidate(B),
        ((Good, Bad), (Good, Empty)),
        &[],
    );
    let select = |machine: &InFirmware| machine.backend().select(A);
    every_prefix("back", confirmed, select, ((Good, Good), (Good, Good)), &[]);
}
