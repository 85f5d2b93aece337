use proptest::prelude::{Just, Strategy, prop_assert_eq, prop_oneof, proptest};

use super::*;
use crate::uboot::environment::Layout;
use SlotName::{A, B};

fn environment(variables: &[(&str, &str)]) -> Environment {
    let mut data = vec![0; 1020];
    let mut bytes = crc32fast::hash(&data).to_le_bytes().to_vec();
    bytes.append(&mut data);
    let (_, mut environment) = Environment::decode(&bytes, Layout::Single).unwrap();
    for (name, value) in variables {
        environment.set(name, value).unwrap();
    }
    environment
}

fn mender() -> BootCount {
    BootCount {
        variable: "mender_boot_part".to_owned(),
        values: ["2".to_owned(), "10".to_owned()],
    }
}

fn text(variables: &[(String, String)]) -> String {
    let words: Vec<String> = variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    words.join(" ")
}

const fn trial(left: u32, done: u32) -> SlotState {
    SlotState::Trial { left, done }
}

/// A record with A good and preferred, B in some state.
fn record(b: SlotState, first: SlotName) -> Record {
    Record {
        a: SlotState::Good,
        b,
        first,
    }
}

#[test]
fn our_variables_are_those_of_the_script() {
    for (record, wanted) in [
        (
            record(SlotState::Empty, A),
            "slotd_order=A B slotd_a_ok=1 slotd_a_tries= slotd_b_ok= slotd_b_tries= slotd_tries=",
        ),
        (
            record(trial(2, 1), B),
            "slotd_order=B A slotd_a_ok=1 slotd_a_tries= slotd_b_ok=0 slotd_b_tries=2 slotd_tries=3",
        ),
        (
            record(SlotState::Bad, A),
            "slotd_order=A B slotd_a_ok=1 slotd_a_tries= slotd_b_ok=0 slotd_b_tries= slotd_tries=",
        ),
    ] {
        assert_eq!(text(&Own.variables(&record).unwrap()), wanted);
    }
}

#[test]
fn raucs_variables_are_those_that_rauc_sets() {
    // As `r_uboot_set_primary` and `r_uboot_set_state` leave them, with slotd's own behind.
    for (record, wanted) in [
        (
            record(trial(11, 0), B),
            "BOOT_ORDER=B A BOOT_A_LEFT=3 slotd_a_state=good BOOT_B_LEFT=b slotd_b_state=trial slotd_tries=b",
        ),
        (
            record(SlotState::Bad, A),
            "BOOT_ORDER=A BOOT_A_LEFT=3 slotd_a_state=good BOOT_B_LEFT=0 slotd_b_state=bad slotd_tries=",
        ),
    ] {
        assert_eq!(text(&Rauc.variables(&record).unwrap()), wanted);
    }
}

#[test]
fn bootcounts_variables_are_those_of_u_boot_and_decimal() {
    for (record, wanted) in [
        (
            record(trial(11, 1), B),
            "mender_boot_part=10 mender_boot_part_hex=a upgrade_available=1 bootcount=1 bootlimit=12 \
             slotd_a_state=good slotd_b_state=trial",
        ),
        (
            record(SlotState::Bad, A),
            "mender_boot_part=2 mender_boot_part_hex=2 upgrade_available=0 bootcount=0 slotd_a_state=good \
             slotd_b_state=bad",
        ),
    ] {
        assert_eq!(text(&mender().variables(&record).unwrap()), wanted);
    }
    assert!(mender().variables(&record(trial(1, 0), A)).is_err());
}

#[test]
fn a_disk_of_rauc_is_taken_over_as_rauc_left_it() {
    let read = |variables: &[(&str, &str)]| {
        let meaning = Rauc.read(&environment(variables), Booted::Slot(A)).unwrap();
        (meaning.record.a, meaning.record.b, meaning.record.first)
    };
    let both = (SlotState::Good, SlotState::Good);
    let order = ("BOOT_ORDER", "A B");
    assert_eq!(read(&[]), (both.0, both.1, A));
    assert_eq!(read(&[("BOOT_ORDER", "B A")]), (both.0, both.1, B));
    assert_eq!(
        read(&[order, ("BOOT_A_LEFT", "3"), ("BOOT_B_LEFT", "0x2")]),
        (both.0, both.1, A)
    );
    let bad = (SlotState::Good, SlotState::Bad, A);
    assert_eq!(read(&[("BOOT_ORDER", "A"), ("BOOT_B_LEFT", "0")]), bad);
    assert_eq!(read(&[order, ("BOOT_B_LEFT", "0")]), bad);
    assert_eq!(
        read(&[("BOOT_ORDER", "A")]),
        (SlotState::Good, SlotState::Empty, A)
    );
    for variables in [[("BOOT_B_LEFT", "x")], [("BOOT_ORDER", "C D")]] {
        let error = Rauc
            .read(&environment(&variables), Booted::Slot(A))
            .unwrap_err();
        assert!(error.contains(variables[0].0), "{error}");
    }
}

#[test]
fn of_raucs_slots_only_one_that_is_not_proven_or_not_listed_is_bad_without_tries() {
    for (order, memo, wanted) in [
        ("A B", "good", SlotState::Good),
        ("A B", "trial", SlotState::Bad),
        ("A B", "bad", SlotState::Bad),
        ("A", "good", SlotState::Bad),
    ] {
        let variables = [
            ("BOOT_ORDER", order),
            ("BOOT_A_LEFT", "3"),
            ("BOOT_B_LEFT", "0"),
            ("slotd_b_state", memo),
        ];
        let environment = environment(&variables);
        let meaning = Rauc.read(&environment, Booted::Slot(A)).unwrap();
        assert_eq!(meaning.record.b, wanted, "{variables:?}");
        let said = meaning.problems.iter().any(|problem| {
            problem.code == ProblemCode::PromiseNotKept
                && problem.message.contains("BOOT_B_LEFT is 0")
        });
        assert_eq!(said, wanted == SlotState::Good, "{variables:?}");
        assert!(Rauc.knows(&environment));
    }
    assert!(!Rauc.knows(&environment(&[("bootcmd", "x")])));
}

#[test]
fn without_our_variables_the_booted_slot_is_proven_and_first() {
    for (booted, slot) in [
        (Booted::Slot(A), A),
        (Booted::Slot(B), B),
        (Booted::Neither, A),
    ] {
        // Tries alone say nothing, to the script neither.
        for variables in [&[][..], &[("bootcmd", "x"), ("slotd_b_tries", "2")]] {
            let environment = environment(variables);
            assert!(!Own.knows(&environment));
            let record = Own.read(&environment, booted).unwrap().record;
            assert_eq!(record.first, slot);
            assert_eq!(record.state(slot), SlotState::Good);
            assert_eq!(record.state(!slot), SlotState::Empty);
        }
    }
    assert!(Own.knows(&environment(&[("slotd_b_ok", "0")])));
}

#[test]
fn a_disk_of_mender_is_taken_over_as_mender_left_it() {
    let read = |variables: &[(&str, &str)], booted| {
        let meaning = mender().read(&environment(variables), Booted::Slot(booted));
        meaning.map(|meaning| (meaning.record.a, meaning.record.b, meaning.record.first))
    };
    let part = ("mender_boot_part", "10");
    assert_eq!(
        read(&[part, ("upgrade_available", "0")], B),
        Ok((SlotState::Empty, SlotState::Good, B))
    );
    let running = [
        part,
        ("upgrade_available", "1"),
        ("bootcount", "1"),
        ("bootlimit", "1"),
    ];
    assert_eq!(read(&running, B), Ok((SlotState::Empty, trial(0, 1), B)));
    assert_eq!(read(&running, A), Ok((SlotState::Empty, SlotState::Bad, A)));
    for (variables, word) in [
        (vec![], "mender_boot_part= names no slot"),
        (vec![("mender_boot_part", "4")], "mender_boot_part=4"),
        (vec![part, ("bootcount", "0x1")], "bootcount=0x1"),
        (vec![part, ("slotd_a_state", "x")], "slotd_a_state=x"),
    ] {
        let error = read(&variables, A).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn given_up_while_it_runs_is_not_its_last_boot() {
    for convention in [&Own as &dyn Convention, &Rauc, &mender()] {
        for state in [trial(0, 3), SlotState::Bad] {
            let first = if state == SlotState::Bad { A } else { B };
            let wanted = record(state, first);
            let mut environment = environment(&[("mender_boot_part", "2")]);
            for (name, value) in convention.variables(&wanted).unwrap() {
                environment.set(&name, &value).unwrap();
            }
            let found = convention.read(&environment, Booted::Slot(B)).unwrap();
            assert_eq!(found.record, wanted, "{convention:?}");
            let found = convention.read(&environment, Booted::Slot(A)).unwrap();
            assert_eq!(found.record.b, SlotState::Bad, "{convention:?}");
        }
    }
}

fn state() -> impl Strategy<Value = SlotState> {
    prop_oneof![
        Just(SlotState::Good),
        Just(SlotState::Bad),
        Just(SlotState::Empty),
    ]
}

proptest! {
    #[test]
    fn a_record_is_read_as_it_was_written(
        other in state(),
        own in prop_oneof![
            state(),
            (1_u32..9, 0_u32..9).prop_map(|(left, done)| SlotState::Trial { left, done }),
        ],
        first in prop_oneof![Just(A), Just(B)],
        before in state(),
    ) {
        // Only what can be started is preferred, where anything can.
        let mut wanted = record(SlotState::Good, first);
        wanted.set(first, own);
        wanted.set(!first, other);
        let startable = |state| matches!(state, SlotState::Good | SlotState::Trial { .. });
        if !startable(own) && startable(other) {
            wanted.first = !first;
        }
        for convention in [&Own as &dyn Convention, &Rauc, &mender()] {
            let mut environment = environment(&[("mender_boot_part", "2")]);
            for record in [record(before, A), wanted] {
                for (name, value) in convention.variables(&record).unwrap() {
                    environment.set(&name, &value).unwrap();
                }
            }
            let found = convention.read(&environment, Booted::Slot(A)).unwrap();
            prop_assert_eq!(found.record, wanted, "{:?}", convention);
        }
    }
}
