//! Every directory that an interrupted rename can leave, and every transition on it: what the loader would start,
//! what is said of it, and that the transition repairs it, at every instant with a good slot, or refuses it by name.

mod directory;

use std::fs;
use std::os::unix::fs::MetadataExt;

use self::directory::Leads::{Absent, Nowhere, Whole};
use self::directory::{Directory, Names, Running, entries, file, is_double, listed};
use super::{A, B, boots, options, trial};
use crate::backend::{Backend, NextBoot, ProblemCode, SlotState, Transition};
use crate::error::ErrorKind;
use crate::fixture::FixtureNode;
use crate::slot::SlotName;

/// No name that shares its clusters may be let go as long as the other one is there.
fn nothing_shared_was_let_go(node: &FixtureNode, directory: Directory, what: &str) {
    let doubles = SlotName::BOTH.into_iter();
    let doubles = doubles.filter(|slot| is_double(directory.names(*slot)));
    let expected = if directory.shared {
        doubles.count() * 2
    } else {
        0
    };
    let names = node.entries().unwrap().into_iter();
    let found = names
        .filter(|name| fs::metadata(entries(node).join(name)).unwrap().nlink() == 2)
        .count();
    assert_eq!(found, expected, "{what}: {:?}", node.entries().unwrap());
}

fn transitions(slot: SlotName) -> [Transition; 6] {
    [
        Transition::Invalidate { slot },
        Transition::Arm {
            slot,
            options: options(),
        },
        Transition::Disarm { slot },
        Transition::MarkGood { slot },
        Transition::MarkBad { slot },
        Transition::Select { slot },
    ]
}

#[test]
fn what_is_said_of_every_torn_directory_is_what_the_loader_makes_of_it() {
    for booted in SlotName::BOTH {
        let running = Running::new(booted);
        for directory in Directory::all() {
            running.make(directory);
            let state = running.backend.state().unwrap();
            let (a, b) = (directory.a, directory.b);
            assert_eq!((state.a, state.b), (a.state(), b.state()), "{directory:?}");
            let next = b.boots(B).or(a.boots(A)).unwrap_or(NextBoot::Nothing);
            assert_eq!(state.next, next, "{directory:?}");
            // Whatever is not in order is named.
            for slot in SlotName::BOTH {
                let names = directory.names(slot);
                for (leads, other, counter) in [
                    (names.plain, names.counted, ""),
                    (names.counted, names.plain, "+2-1"),
                ] {
                    let odd = leads == Nowhere || (leads == Whole && other == Whole);
                    let name = file(slot, counter);
                    let named = |code| {
                        let mut problems = state.problems.iter();
                        problems
                            .any(|problem| problem.code == code && problem.message.contains(&name))
                    };
                    let said = named(ProblemCode::Leftovers) || named(ProblemCode::Unreadable);
                    assert!(!odd || said, "{directory:?}: {:?}", state.problems);
                }
            }
        }
    }
}

#[test]
fn every_transition_repairs_a_torn_directory_or_refuses_it_by_name() {
    for booted in SlotName::BOTH {
        let running = Running::new(booted);
        // The running slot's own transitions and the other one's; those on A while it runs are B's mirrored.
        let slots = if booted == A { &[B][..] } else { &[A, B] };
        for transition in slots.iter().copied().flat_map(transitions) {
            for directory in Directory::all() {
                try_out(&running, &transition, directory);
            }
        }
    }
}

fn slot_of(transition: &Transition) -> SlotName {
    match transition {
        Transition::Invalidate { slot }
        | Transition::Arm { slot, .. }
        | Transition::Disarm { slot }
        | Transition::MarkGood { slot }
        | Transition::MarkBad { slot }
        | Transition::Select { slot }
        | Transition::InstallBootFiles { slot, .. }
        | Transition::TrialBoot { slot } => *slot,
    }
}

/// Whether there is no reason to refuse: the slot has what is asked for, and the other one covers it.
fn is_due(transition: &Transition, directory: Directory, booted: SlotName) -> bool {
    let slot = slot_of(transition);
    let (own, other) = (
        directory.names(slot).state(),
        directory.names(!slot).state(),
    );
    let (covered, runs) = (other == SlotState::Good, booted == slot);
    match transition {
        Transition::Invalidate { .. } => covered && !runs,
        Transition::Arm { .. } => covered && !runs && own != SlotState::Good,
        Transition::Disarm { .. } => !runs && own != SlotState::Good,
        Transition::MarkGood { .. } => runs && own != SlotState::Empty,
        Transition::MarkBad { .. } => covered,
        Transition::Select { .. } => own == SlotState::Good && (runs || covered),
        Transition::InstallBootFiles { .. } | Transition::TrialBoot { .. } => false,
    }
}

fn try_out(running: &Running, transition: &Transition, directory: Directory) {
    let (backend, node) = (&running.backend, &running.machine.node);
    let slot = slot_of(transition);
    let what = format!("{transition:?} on {directory:?}");
    running.make(directory);
    let changes = match backend.plan(transition) {
        Ok(changes) => changes.len(),
        Err(error) => {
            let due = is_due(transition, directory, running.booted);
            assert!(!due, "{what}: {error}");
            assert!(
                matches!(error.kind(), ErrorKind::Unsafe | ErrorKind::Reject),
                "{what}: {error}"
            );
            let names = directory.names(slot);
            for (leads, counter) in [(names.plain, ""), (names.counted, "+2-1")] {
                let named = error.to_string().contains(&file(slot, counter));
                assert!(leads != Nowhere || named, "{what}: {error}");
            }
            return;
        }
    };
    for cut in 0..=changes {
        running.make(directory);
        backend.run_cut(transition, cut).unwrap();
        let what = format!("{what} after {cut} changes");
        nothing_shared_was_let_go(node, directory, &what);
        let state = backend.state().unwrap();
        if directory.has_good() {
            let good = |slot| state.slot(slot) == SlotState::Good;
            assert!(good(A) || good(B), "{what}: {:?}", node.entries());
            let NextBoot::Slot { slot, trial } = state.next else {
                panic!("{what}: {:?}", state.next);
            };
            assert!(trial || good(slot), "{what}: {:?}", node.entries());
        }
        // Again, from wherever it was cut off.
        backend.run_cut(transition, usize::MAX).unwrap();
        nothing_shared_was_let_go(node, directory, &what);
        check_done(running, transition, &what);
    }
}

fn check_done(running: &Running, transition: &Transition, what: &str) {
    let state = running.backend.state().unwrap();
    let slot = slot_of(transition);
    let files = listed(&running.machine.node, slot);
    let what = format!("{what}, {files:?}");
    assert!(files.len() <= 1, "{what}");
    assert!(files.iter().all(|(_, size)| *size > 0), "{what}");
    let now = state.slot(slot);
    match transition {
        Transition::Invalidate { .. } | Transition::Disarm { .. } => {
            assert_eq!((now, files.len()), (SlotState::Empty, 0), "{what}");
        }
        Transition::Arm { .. } => {
            assert_eq!(
                (now, state.next),
                (trial(3, 0), boots(slot, true)),
                "{what}"
            );
        }
        Transition::MarkGood { .. } => {
            assert_eq!(
                (now, &*files[0].0),
                (SlotState::Good, &*file(slot, "")),
                "{what}"
            );
        }
        Transition::MarkBad { .. } => {
            assert!(matches!(now, SlotState::Bad | SlotState::Empty), "{what}");
            assert_ne!(state.next, boots(slot, true), "{what}");
        }
        Transition::Select { .. } => {
            assert_eq!(state.next, boots(slot, false), "{what}");
        }
        Transition::InstallBootFiles { .. } | Transition::TrialBoot { .. } => {}
    }
}

#[test]
fn a_confirmation_over_an_empty_name_is_read_back_as_good() {
    let running = Running::new(B);
    let good = |plain, counted| Names { plain, counted };
    running.make(Directory {
        a: good(Whole, Absent),
        b: good(Nowhere, Whole),
        shared: false,
    });
    running.backend.mark_good(B).unwrap();
    let names = running.machine.node.entries().unwrap();
    assert_eq!(names, ["slotd-a.conf", "slotd-b.conf"]);
    assert_eq!(running.machine.node.power_cycle().unwrap(), Some(B));
}

#[test]
fn an_entry_that_was_cut_off_does_not_stand_for_its_slot() {
    let running = Running::new(B);
    running.make(Directory {
        a: Names {
            plain: Whole,
            counted: Absent,
        },
        b: Names {
            plain: Absent,
            counted: Whole,
        },
        shared: false,
    });
    let entries = entries(&running.machine.node);
    let text = fs::read_to_string(entries.join("slotd-b+2-1.conf")).unwrap();
    // Up to the kernel, which is enough for the loader to list it, but without root.
    let half = text.split("options").next().unwrap();
    fs::write(entries.join("slotd-b.conf"), half).unwrap();
    assert_eq!(running.backend.state().unwrap().b, trial(2, 1));
    running.backend.mark_good(B).unwrap();
    assert_eq!(
        fs::read_to_string(entries.join("slotd-b.conf")).unwrap(),
        text
    );
}

#[test]
fn files_set_aside_go_once_they_share_nothing_any_more() {
    let running = Running::new(B);
    let whole = Names {
        plain: Whole,
        counted: Whole,
    };
    running.make(Directory {
        a: Names {
            plain: Whole,
            counted: Absent,
        },
        b: whole,
        shared: true,
    });
    let node = &running.machine.node;
    running.backend.mark_good(B).unwrap();
    let aside = ["slotd-b+2-1.conf.1.shared", "slotd-b.conf.1.shared"];
    assert_eq!(
        node.entries().unwrap(),
        [&["slotd-a.conf", aside[0], "slotd-b.conf"][..], &aside[1..]].concat()
    );
    let problems = running.backend.state().unwrap().problems;
    assert!(
        problems.len() == 1 && problems[0].message.contains("fsck.vfat"),
        "{problems:?}"
    );
    running.backend.mark_good(B).unwrap();
    assert_eq!(node.entries().unwrap().len(), 4);
    // A check of the file system cuts one of the two off.
    fs::remove_file(entries(node).join(aside[0])).unwrap();
    fs::write(entries(node).join(aside[0]), "").unwrap();
    running.backend.mark_good(B).unwrap();
    assert_eq!(node.entries().unwrap(), ["slotd-a.conf", "slotd-b.conf"]);
    assert_eq!(running.backend.state().unwrap().problems, []);
}
