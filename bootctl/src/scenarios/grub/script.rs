//! The shipped script, run by GRUB itself (grub-emu).

use std::fs;

use proptest::prelude::{ProptestConfig, Strategy, TestCaseError, prop_assert_eq, proptest};
use proptest::{option, sample};

use crate::backend::{Counting, NextBoot, ProblemCode, SlotState};
use crate::fixture::FixtureNode;
use crate::scenarios::machines::grub::{BlockFileSystem, Emulator, InGrub, block, model};
use crate::scenarios::machines::{Machine, options};
use crate::scenarios::{A, B, boots, trial};
use crate::slot::SlotName;

fn emulator() -> (tempfile::TempDir, Emulator) {
    let dir = tempfile::tempdir().unwrap();
    let node = FixtureNode::create(&dir.path().join("node")).unwrap();
    let emulator = Emulator::new(&dir.path().join("emulator"), &node);
    (dir, emulator)
}

/// What is in the block as others would write it, sensible or not.
fn variables() -> impl Strategy<Value = String> {
    let order = ["a b", "b a", "a", "b", "", "b b a", "c b a", "ab", " b  a "];
    let digit = || {
        option::of(sample::select(vec![
            "0", "1", "2", "3", "9", "10", "", "x", "-1", "01",
        ]))
    };
    let order = option::of(sample::select(order.to_vec()));
    (order, digit(), digit(), digit(), digit(), digit()).prop_map(|(order, a, b, c, d, e)| {
        let names = [
            "slotd_order",
            "slotd_a_ok",
            "slotd_a_tries",
            "slotd_b_ok",
            "slotd_b_tries",
            "slotd_tries",
        ];
        let set = names.into_iter().zip([order, a, b, c, d, e]);
        let lines: Vec<String> = set
            .filter_map(|(name, value)| Some(format!("{name}={}\n", value?)))
            .collect();
        lines.concat()
    })
}

/// That GRUB does to these blocks what the model does, and starts the same slot with the same command line.
fn script_and_model_agree(emulator: &Emulator, list: Vec<String>) -> Result<(), TestCaseError> {
    for variables in list {
        let (mut ours, mut theirs) = (block(&variables), block(&variables));
        let started = emulator.boot(&mut theirs);
        let expected = model(&mut ours);
        prop_assert_eq!(
            started.as_ref().map(|(slot, _)| *slot),
            expected.as_ref().map(|(slot, _)| *slot),
            "{}",
            variables
        );
        prop_assert_eq!(
            String::from_utf8(ours).unwrap(),
            String::from_utf8(theirs).unwrap()
        );
        if let (Some((slot, line)), Some((_, own))) = (started, expected) {
            let uuid = format!(
                "root=PARTUUID=00000000-0000-0000-0000-00000000a00{}",
                if slot == A { 2 } else { 3 }
            );
            let image = if slot == A {
                ""
            } else {
                "quiet root=/dev/evil "
            };
            prop_assert_eq!(line, format!("ro {uuid} {own} {image}{uuid} {own}"));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1))]

    #[test]
    fn the_model_is_what_the_script_does(list in proptest::collection::vec(variables(), 60..61)) {
        let (_dir, emulator) = emulator();
        script_and_model_agree(&emulator, list)?;
    }

    #[test]
    fn the_model_is_what_the_script_does_with_a_block_on_ext4(list in proptest::collection::vec(variables(), 20..21)) {
        let (_dir, emulator) = emulator();
        script_and_model_agree(&emulator.on(BlockFileSystem::Ext4), list)?;
    }
}

#[test]
fn a_proven_slot_is_power_cycled_ten_times_without_a_byte_being_changed() {
    let mut machine = InGrub::real();
    machine.stage_and_arm(B);
    machine.power_cycle();
    machine.backend().mark_good(B).unwrap();
    let before = fs::read(machine.grubenv()).unwrap();
    for _ in 0..10 {
        assert_eq!(machine.power_cycle(), Some(B));
    }
    assert_eq!(fs::read(machine.grubenv()).unwrap(), before);
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    assert_eq!(
        machine.backend().state().unwrap().counting,
        Counting::Active
    );
}

#[test]
fn where_neither_slot_can_be_started_it_waits_and_changes_nothing() {
    let (_dir, emulator) = emulator();
    for variables in [
        "slotd_order=b a\nslotd_a_ok=0\nslotd_b_ok=0\nslotd_b_tries=0\n",
        "slotd_order=a b\nslotd_a_ok=0\nslotd_b_tries=0\n",
        // Lost order.
        "slotd_a_ok=1\nslotd_b_ok=1\n",
    ] {
        let mut bytes = block(variables);
        let (started, screen) = emulator.boot_with(&mut bytes, "");
        assert_eq!(started, None);
        assert_eq!(bytes, block(variables));
        let at = |text: &str| {
            screen
                .find(text)
                .unwrap_or_else(|| panic!("no {text:?} in {screen}"))
        };
        // It went on only because a key was pressed.
        assert!(at("NEITHER SLOT CAN BE STARTED") < at("LEFT THE SCRIPT"));
        at("slotd-bootctl status");
        at("slotd_start a hd1,gpt2");
    }
}

#[test]
fn a_trial_whose_try_cannot_be_taken_is_not_started() {
    let (dir, emulator) = emulator();
    let variables = "slotd_order=b a\nslotd_a_ok=1\nslotd_b_ok=0\nslotd_b_tries=3\nslotd_tries=3\n";
    let mut bytes = block(variables);
    let before = bytes.clone();
    // GRUB can read it there, and not write it.
    let place = dir.path().join("emulator/boot/grubenv");
    let lines = format!("set slotd_env=(host){}", place.display());
    let (started, screen) = emulator.boot_with(&mut bytes, &lines);
    assert_eq!(started.unwrap().0, A);
    assert!(screen.contains("is not started"), "{screen}");
    assert_eq!(bytes, before);
}

#[test]
fn the_repaired_block_is_counted_in_again() {
    let mut machine = InGrub::real();
    let mut bytes = fs::read(machine.grubenv()).unwrap();
    bytes.push(b'\n');
    fs::write(machine.grubenv(), &bytes).unwrap();
    let problems = machine.backend().state().unwrap().problems;
    assert!(problems[0].message.contains("newline"), "{problems:?}");
    machine.stage_and_arm(B);
    assert_eq!(fs::read(machine.grubenv()).unwrap().len(), 1025);
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.states(), (SlotState::Good, trial(2, 1)));
}

#[test]
fn a_slot_without_a_kernel_is_passed_over() {
    let (_dir, emulator) = emulator();
    let variables = "slotd_order=b a\nslotd_a_ok=1\nslotd_b_tries=2\nslotd_tries=3\n";
    let mut bytes = block(variables);
    // The partition in front of the slots has no file system.
    let (started, screen) = emulator.boot_with(&mut bytes, "set slotd_b_device=hd1,gpt9");
    assert_eq!(started.unwrap().0, A);
    assert!(
        screen.contains("slot b (hd1,gpt9) has no kernel"),
        "{screen}"
    );
    // Its try is spent, so that it ends.
    assert_eq!(bytes, block(&variables.replace("b_tries=2", "b_tries=1")));
}

#[test]
fn what_was_set_before_the_script_does_not_count_for_the_block() {
    let (_dir, emulator) = emulator();
    let mut bytes = block("slotd_order=b a\nslotd_a_ok=1\n");
    let lines = "set slotd_b_ok=1\nset slotd_a_partuuid=mine";
    let (started, _) = emulator.boot_with(&mut bytes, lines);
    let (slot, line) = started.unwrap();
    let own = "root=PARTUUID=mine slotd.slot=a";
    assert_eq!((slot, line), (A, format!("ro {own} {own}")));
}

#[test]
fn an_images_file_sets_its_options_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let node = FixtureNode::create(&dir.path().join("node")).unwrap();
    let names = [
        "deadline",
        "panic",
        "tries",
        "env",
        "extra",
        "announced",
        "partuuid",
        "kernel",
        "initrd",
        "machine_id",
        "slot",
        "b_tries",
        "b_device",
        "b_partuuid",
    ];
    let mut config: String = names
        .iter()
        .map(|name| format!("set slotd_{name}=evil\n"))
        .collect();
    config.push_str("set slotd_options=\"quiet -- init\"\n");
    let emulator = Emulator::with_options(&dir.path().join("emulator"), &node, &config);
    let variables = "slotd_order=b a\nslotd_b_ok=0\nslotd_b_tries=2\nslotd_tries=3\n";
    let mut bytes = block(variables);
    let lines = "set slotd_b_partuuid=mine\nset slotd_extra=ours";
    let (slot, line) = emulator.boot_with(&mut bytes, lines).0.unwrap();
    let own = "root=PARTUUID=mine slotd.slot=b slotd.trial slotd.tries=3 slotd.trial_deadline=600 panic=10";
    // In front of the `--`, too, behind which it is the init's.
    assert_eq!(
        (slot, line),
        (B, format!("ro {own} quiet -- init ours {own}"))
    );
    assert_eq!(bytes, block(&variables.replace("b_tries=2", "b_tries=1")));
}

#[test]
fn a_lost_block_says_nothing_against_a_slot() {
    let mut machine = InGrub::real();
    machine.stage_and_arm(B);
    // As `grub-editenv set` leaves it when it is cut off.
    fs::write(machine.grubenv(), "").unwrap();
    assert_eq!(machine.power_cycle(), Some(A));
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
    let state = machine.backend().state().unwrap();
    assert_eq!(state.next, boots(A, false));
    assert!(
        state
            .problems
            .iter()
            .any(|problem| problem.code == ProblemCode::Unreadable
                && problem.message.contains("missing or empty")),
        "{:?}",
        state.problems
    );
    // The image is still there, and is tried when asked: the block is made anew.
    let staged = machine.backend().staged(&machine.table()).unwrap().unwrap();
    machine.backend().arm(&staged, 3, &options()).unwrap();
    assert_eq!(fs::read(machine.grubenv()).unwrap().len(), 1024);
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.states(), (SlotState::Good, trial(2, 1)));
}

#[test]
fn a_block_that_is_lost_during_a_trial_proves_nothing() {
    let mut machine = InGrub::real();
    machine.stage_and_arm(B);
    assert_eq!(machine.power_cycle(), Some(B));
    fs::write(machine.grubenv(), "").unwrap();
    machine.reopen();
    assert_eq!(machine.states(), (SlotState::Empty, trial(0, 1)));
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.next(), boots(B, false));
    assert_eq!(machine.power_cycle(), Some(B));
}

#[test]
fn others_variables_outlive_a_whole_upgrade() {
    let mut machine = InGrub::real();
    let others = format!(
        "saved_entry=linux\\\\6\nnext=a\\\nb\nkernelopts={}\n",
        "quiet ".repeat(60)
    );
    let own = "slotd_order=a b\nslotd_a_ok=1\n";
    fs::write(machine.grubenv(), block(&format!("{others}{own}"))).unwrap();
    machine.stage_and_arm(B);
    assert_eq!(machine.power_cycle(), Some(B));
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    let listed = std::process::Command::new("grub-editenv")
        .arg(machine.grubenv())
        .arg("list")
        .output()
        .expect("grub-editenv (package grub-common)");
    let listed = String::from_utf8(listed.stdout).unwrap();
    for line in [
        "saved_entry=linux\\6\n",
        "next=a\nb\n",
        "quiet quiet",
        "slotd_order=b a\n",
    ] {
        assert!(listed.contains(line), "{line:?} in {listed}");
    }
}

#[test]
fn nine_boots_are_counted_and_more_are_not_promised() {
    let mut machine = InGrub::real();
    let verified = machine.stage(B);
    machine.backend().arm(&verified, 12, &options()).unwrap();
    for left in (0..9).rev() {
        assert_eq!(machine.power_cycle(), Some(B));
        assert_eq!(machine.states().1, trial(left, 9 - left));
    }
    assert_eq!(machine.power_cycle(), Some(SlotName::A));
    assert_eq!(
        machine.next(),
        NextBoot::Slot {
            slot: A,
            trial: false
        }
    );
}
