//! What RAUC's script cannot keep, by name. What it can is in the scenarios of all.

use std::fs;

use crate::backend::{Counting, NextBoot, ProblemCode, SlotState};
use crate::scenarios::machines::Machine;
use crate::scenarios::machines::grub::InGrub;
use crate::scenarios::{A, B, boots, trial};

fn machine() -> InGrub {
    InGrub::rauc(true)
}

#[test]
fn status_says_which_promises_its_script_cannot_keep() {
    let state = machine().backend().state().unwrap();
    assert_eq!(state.counting, Counting::EveryBoot);
    let kept: Vec<_> = state.problems.iter().map(|problem| problem.code).collect();
    assert_eq!(kept, [ProblemCode::PromiseNotKept; 2]);
    let unannounced = &state.problems[1].message;
    assert!(
        unannounced.contains("does not tell the system that a boot is a trial")
            && unannounced.contains("`panic=` is missing"),
        "{unannounced}"
    );
    for words in ["every boot", "one boot", "first menu entry", "slotd.trial"] {
        assert!(
            state.problems[0].message.contains(words),
            "{:?}",
            state.problems
        );
    }
}

/// Not kept: a proven slot loses its try to a power cycle where nothing gave it back in between.
#[test]
fn a_proven_slot_that_is_cut_off_twice_is_passed_over_and_said_to_be() {
    let mut machine = InGrub::rauc(false);
    machine.stage_and_arm(B);
    machine.power_cycle();
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    let problem = |machine: &InGrub| {
        let problems = machine.backend().state().unwrap().problems;
        problems
            .iter()
            .map(|problem| problem.message.clone())
            .collect::<String>()
    };
    assert!(
        problem(&machine).contains("slot B is proven, but has no try left"),
        "{}",
        problem(&machine)
    );
    assert_eq!(machine.power_cycle(), Some(A));
    // It is not lost: the slot that came up is preferred, and brings it back as its fallback.
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    assert!(
        problem(&machine).contains("slot B is proven"),
        "{}",
        problem(&machine)
    );
    assert_eq!(machine.next(), boots(A, false));
    machine.backend().mark_good(A).unwrap();
    assert!(
        !problem(&machine).contains("slot B is proven"),
        "{}",
        problem(&machine)
    );
    let text = String::from_utf8(fs::read(machine.grubenv()).unwrap()).unwrap();
    assert!(
        text.contains("\nORDER=A B\nA_OK=1\nA_TRY=0\nB_OK=1\nB_TRY=0\n"),
        "{text}"
    );
}

/// Not kept: with no try left on either slot, the script starts its first menu entry and begins anew.
#[test]
fn two_proven_slots_that_are_cut_off_end_in_the_first_menu_entry() {
    let mut machine = InGrub::rauc(false);
    machine.stage_and_arm(B);
    machine.power_cycle();
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.power_cycle(), Some(A));
    assert_eq!(machine.power_cycle(), None);
    assert_eq!(machine.power_cycle(), Some(B));
}

#[test]
fn a_disk_of_rauc_is_taken_over_as_it_is() {
    let mut machine = machine();
    // As RAUC leaves it: B was installed and confirmed, A is the old one; and a variable of others.
    let variables = "ORDER=B A\nA_OK=1\nA_TRY=0\nB_OK=1\nB_TRY=0\nrauc=1\n";
    fs::write(
        machine.grubenv(),
        crate::scenarios::machines::grub::block(variables),
    )
    .unwrap();
    machine.reopen();
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    assert_eq!(
        machine.next(),
        NextBoot::Slot {
            slot: B,
            trial: false
        }
    );
    assert_eq!(machine.power_cycle(), Some(B));
    machine.stage_and_arm(A);
    assert_eq!(machine.states(), (trial(1, 0), SlotState::Good));
    assert_eq!(machine.power_cycle(), Some(A));
    machine.backend().mark_good(A).unwrap();
    let text = String::from_utf8(fs::read(machine.grubenv()).unwrap()).unwrap();
    // What RAUC's own tools read as good, primary and untouched.
    for line in [
        "\nORDER=A B\n",
        "\nA_OK=1\n",
        "\nA_TRY=0\n",
        "\nB_OK=1\n",
        "\nB_TRY=0\n",
        "\nrauc=1\n",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}
