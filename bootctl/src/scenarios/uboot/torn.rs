//! Power lost in the middle of a change: whatever sectors reached the medium, U-Boot finds the old variables or the new
//! ones.

use std::fs;

use super::model::Variables;
use super::{B, CONFIG, Machine, Medium, SIZE, Uboot, mender};
use crate::backend::{ProblemCode, SlotState};
use crate::uboot::UbootConvention;

const SECTOR: usize = 512;

fn pairs() -> Vec<Uboot> {
    vec![
        Uboot::new(Medium::Files, UbootConvention::Slotd),
        Uboot::new(Medium::Raw, UbootConvention::Slotd),
        Uboot::new(Medium::Raw, UbootConvention::Rauc),
        Uboot::new(Medium::Raw, mender()),
    ]
}

/// Does `change`, and goes through every set of its sectors that can have reached the medium.
fn every_subset(machine: &mut Uboot, what: &str, change: impl Fn(&mut Uboot)) {
    let before: Vec<Vec<u8>> = (0..2).map(|which| machine.copies.copy(which)).collect();
    let old = machine.copies.load().unwrap();
    change(machine);
    let after: Vec<Vec<u8>> = (0..2).map(|which| machine.copies.copy(which)).collect();
    let new = machine.copies.load().unwrap();
    let sectors: Vec<(usize, usize)> = (0..2)
        .flat_map(|which| (0..SIZE / SECTOR).map(move |sector| (which, sector)))
        .filter(|(which, sector)| {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            before[*which][range.clone()] != after[*which][range]
        })
        .collect();
    assert!(!sectors.is_empty(), "{what} wrote nothing");
    for arrived in 0..1_u32 << sectors.len() {
        let mut medium = before.clone();
        for (at, (which, sector)) in sectors.iter().enumerate() {
            if arrived & (1 << at) != 0 {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                medium[*which][range.clone()].copy_from_slice(&after[*which][range]);
            }
        }
        for (which, bytes) in medium.iter().enumerate() {
            machine.copies.put(which, bytes);
        }
        let found: Option<Variables> = machine.copies.load();
        assert!(
            found.as_ref() == Some(&old) || found.as_ref() == Some(&new),
            "{what}, sectors {arrived:b} of {sectors:?}: {found:?}"
        );
        // And the backend reads what U-Boot reads.
        let state = machine.backend().state().unwrap();
        assert!(
            [state.a, state.b].contains(&SlotState::Good),
            "{what}: {state:?}"
        );
    }
    for (which, bytes) in after.iter().enumerate() {
        machine.copies.put(which, bytes);
    }
}

#[test]
fn a_pair_is_old_or_new_whichever_sectors_of_a_change_arrived() {
    for mut machine in pairs() {
        for slot in [B, !B, B, !B] {
            let verified = machine.stage(slot);
            every_subset(&mut machine, "arm", |machine| {
                let options = super::super::options();
                machine.backend().arm(&verified, 3, &options).unwrap();
            });
            assert_eq!(machine.power_cycle(), Some(slot));
            every_subset(&mut machine, "confirm", |machine| {
                machine.backend().mark_good(slot).unwrap();
            });
            every_subset(&mut machine, "go back", |machine| {
                machine.backend().select(!slot).unwrap();
            });
            every_subset(&mut machine, "go forth", |machine| {
                machine.backend().select(slot).unwrap();
            });
            assert_eq!(machine.power_cycle(), Some(slot));
        }
    }
}

#[test]
fn a_torn_copy_is_named_and_written_anew_by_the_next_change() {
    let mut machine = Uboot::new(Medium::Raw, UbootConvention::Slotd);
    machine.stage_and_arm(B);
    for which in 0..2 {
        let whole = machine.copies.copy(which);
        let mut torn = whole.clone();
        torn[100] ^= 0xff;
        machine.copies.put(which, &torn);
        let problems = machine.backend().state().unwrap().problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].code, ProblemCode::Unreadable);
        assert!(problems[0].message.contains("is damaged"), "{problems:?}");
        machine.copies.put(which, &whole);
    }
    let mut torn = machine.copies.copy(0);
    torn[100] ^= 0xff;
    machine.copies.put(0, &torn);
    let states = machine.states();
    machine.power_cycle();
    assert_eq!(machine.states().0, states.0);
    assert_eq!(machine.backend().state().unwrap().problems, []);
}

#[test]
fn the_numbers_of_a_pair_go_around() {
    let mut machine = Uboot::new(Medium::Raw, UbootConvention::Slotd);
    for _ in 0..150 {
        machine.stage_and_arm(B);
        machine.backend().disarm(B).unwrap();
    }
    machine.stage_and_arm(B);
    assert_eq!(machine.power_cycle(), Some(B));
}

#[test]
fn that_a_single_copy_can_tear_is_said() {
    let machine = Uboot::new(Medium::File, UbootConvention::Slotd);
    let problems = machine.backend().state().unwrap().problems;
    assert_eq!(problems[0].code, ProblemCode::PromiseNotKept);
    assert!(problems[0].message.contains("single copy"), "{problems:?}");
    // A copy within one sector cannot.
    let root = machine.node.system().path("/");
    fs::write(
        machine.node.system().path(CONFIG),
        "/boot/small.env 0 200\n",
    )
    .unwrap();
    let file = root.join("boot/small.env");
    let small = super::model::Copies::new(vec![(file, 0)], 0x200);
    let variables = [("slotd_a_ok", "1"), ("slotd_order", "A B")];
    small.write_first(
        &variables
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    );
    assert_eq!(machine.backend().state().unwrap().problems, []);
}
