//! Cut off after every single change of every transition: a good slot can always be selected, and
//! doing the transition again finishes it.

use std::fs;

use super::{A, B, Machine, OnDisk, image, open, options};
use crate::backend::{Backend, NextBoot, SlotState, Transition};
use crate::fixture::FixtureNode;
use crate::slot::SlotName;
use crate::systemd_boot::SystemdBoot;

/// Runs `transition` cut off after `changes` changes; `false` when it was whole by then.
fn cut(backend: &SystemdBoot, transition: &Transition, changes: usize) -> bool {
    let total = backend.plan(transition).unwrap().len();
    backend.run_cut(transition, changes).unwrap();
    changes < total
}

/// The promise: what the loader starts next is good or has a good slot to fall back to.
fn check(node: &FixtureNode, before: &str) {
    let state = open(node).state().unwrap();
    let good = SlotName::BOTH
        .into_iter()
        .any(|slot| state.slot(slot) == SlotState::Good);
    assert!(good, "{before}: {state:?}");
    match state.next {
        NextBoot::Slot { slot, trial } => {
            assert!(
                trial || state.slot(slot) == SlotState::Good,
                "{before}: {state:?}"
            );
        }
        next => panic!("{before}: {next:?}"),
    }
}

fn every_prefix(prepare: impl Fn(&mut OnDisk), transition: &Transition, done: impl Fn(&OnDisk)) {
    for changes in 0..20 {
        let mut machine = OnDisk::new();
        prepare(&mut machine);
        let backend = open(&machine.node);
        let more = cut(&backend, transition, changes);
        check(
            &machine.node,
            &format!("{transition:?} after {changes} changes"),
        );
        // Half written files of the next change are passed over, too.
        let esp = machine.node.esp();
        fs::write(esp.join("loader/entries/slotd-b+3.conf.tmp"), "linux").unwrap();
        check(&machine.node, "with a temporary file");
        backend.run_cut(transition, usize::MAX).unwrap();
        done(&machine);
        check(&machine.node, "finished");
        if !more {
            return;
        }
    }
    panic!("{transition:?} never ended");
}

fn confirmed_b(machine: &mut OnDisk) {
    machine.stage_and_arm(B);
    machine.power_cycle();
    machine.backend().mark_good(B).unwrap();
}

#[test]
fn overwriting_an_old_good_slot_can_be_cut_off_anywhere() {
    let transition = Transition::Invalidate { slot: A };
    every_prefix(confirmed_b, &transition, |machine| {
        assert_eq!(open(&machine.node).state().unwrap().a, SlotState::Empty);
    });
}

#[test]
fn arming_can_be_cut_off_anywhere() {
    let transition = Transition::Arm {
        slot: B,
        options: options(),
    };
    let armed = |machine: &OnDisk| {
        let state = open(&machine.node).state().unwrap();
        assert_eq!(state.b, SlotState::Trial { left: 3, done: 0 });
    };
    every_prefix(|machine| drop(machine.stage(B)), &transition, armed);
    let again = |machine: &mut OnDisk| {
        machine.stage_and_arm(B);
        machine.power_cycle();
        machine.backend().mark_bad(B).unwrap();
        machine.power_cycle();
    };
    every_prefix(again, &transition, armed);
}

#[test]
fn confirming_and_giving_up_can_be_cut_off_anywhere() {
    let on_trial = |machine: &mut OnDisk| {
        machine.stage_and_arm(B);
        machine.power_cycle();
        let entries = machine.node.esp().join("loader/entries");
        // The trace of a torn rename of the loader.
        fs::copy(
            entries.join("slotd-b+2-1.conf"),
            entries.join("slotd-b+3.conf"),
        )
        .unwrap();
    };
    let entries = |machine: &OnDisk| {
        let mut names = machine.node.entries().unwrap();
        names.retain(|name| name.ends_with(".conf"));
        names
    };
    every_prefix(on_trial, &Transition::MarkGood { slot: B }, |machine| {
        assert_eq!(entries(machine), ["slotd-a.conf", "slotd-b.conf"]);
    });
    every_prefix(on_trial, &Transition::MarkBad { slot: B }, |machine| {
        assert_eq!(entries(machine), ["slotd-a.conf", "slotd-b+0-1.conf"]);
    });
}

#[test]
fn going_back_can_be_cut_off_anywhere() {
    every_prefix(confirmed_b, &Transition::Select { slot: A }, |machine| {
        let next = open(&machine.node).state().unwrap().next;
        assert_eq!(
            next,
            NextBoot::Slot {
                slot: A,
                trial: false
            }
        );
    });
}

#[test]
fn a_half_installed_image_is_no_staged_one() {
    let transition = Transition::InstallBootFiles {
        slot: B,
        image: image(),
        kernel: Some(9),
        initrd: Some(9),
    };
    let machine = OnDisk::new();
    let changes = machine.backend().plan(&transition).unwrap();
    let last = changes.last().unwrap();
    assert!(last.target.ends_with("slotd/b/image.json"), "{last:?}");
    assert_eq!(
        changes
            .iter()
            .filter(|change| change.target == last.target)
            .count(),
        1
    );
    // And where a marker is left of an older image, it goes first.
    machine.stage(B);
    let changes = machine.backend().plan(&transition).unwrap();
    assert!(changes[0].target.ends_with("slotd/b/image.json") && changes[0].change == "remove");
}
