//! What preflight finds, and that nothing was changed by looking.

use std::fs;
use std::os::unix::fs::symlink;

use crate::backend::{
    Counting, PreflightRequest, ProblemCode, Refusal, RefusalCode, SlotState, Transition,
};
use crate::record::RecordStore;
use crate::scenarios::machines::grub::{InGrub, block};
use crate::scenarios::machines::{Machine, options};
use crate::scenarios::{A, B, trial};
use crate::slot::SlotName;

fn preflight(machine: &InGrub, slot: SlotName) -> Vec<Refusal> {
    machine.backend().preflight(&PreflightRequest {
        slot,
        boot_files: None,
        extra: String::new(),
    })
}

/// The only refusal, by its code and a part of its text; the block stays as it is.
fn only(machine: &InGrub, code: RefusalCode, part: &str) {
    let before = fs::read(machine.grubenv()).ok();
    let found = preflight(machine, B);
    assert!(
        found.len() == 1 && found[0].code == code && found[0].message.contains(part),
        "{found:?}"
    );
    assert_eq!(fs::read(machine.grubenv()).ok(), before);
}

#[test]
fn nothing_stands_in_the_way_of_an_installation() {
    let machine = InGrub::modelled();
    let before = fs::read(machine.grubenv()).unwrap();
    assert_eq!(preflight(&machine, B), []);
    assert_eq!(fs::read(machine.grubenv()).unwrap(), before);
    // Nor where the block is to be made.
    fs::remove_file(machine.grubenv()).unwrap();
    assert_eq!(preflight(&machine, B), []);
    assert!(!machine.grubenv().exists());
}

#[test]
fn a_block_without_room_is_refused_before_anything_is_changed() {
    let machine = InGrub::modelled();
    let full = block(&format!(
        "slotd_order=a b\nslotd_a_ok=1\nx={}\n",
        "x".repeat(940)
    ));
    assert_eq!(full.len(), 1024);
    fs::write(machine.grubenv(), &full).unwrap();
    only(
        &machine,
        RefusalCode::NoSpace,
        "environment block too small",
    );
}

#[test]
fn what_is_no_block_or_cannot_be_reached_is_refused() {
    let machine = InGrub::modelled();
    let place = machine.grubenv();
    fs::write(&place, "set default=0\n").unwrap();
    only(
        &machine,
        RefusalCode::Unreadable,
        "no GRUB environment block",
    );
    fs::remove_file(&place).unwrap();
    fs::create_dir(&place).unwrap();
    only(&machine, RefusalCode::Unreadable, "not a regular file");
    fs::remove_dir(&place).unwrap();
    symlink("/boot/other", &place).unwrap();
    let found = preflight(&machine, B);
    assert!(
        found
            .iter()
            .any(|refusal| refusal.code == RefusalCode::LoaderDataMissing),
        "{found:?}"
    );
    fs::remove_file(&place).unwrap();
    fs::remove_dir_all(place.parent().unwrap()).unwrap();
    let found = preflight(&machine, B);
    assert!(
        found
            .iter()
            .any(|refusal| refusal.code == RefusalCode::LoaderDataMissing),
        "{found:?}"
    );
}

#[test]
fn a_file_system_that_the_loader_cannot_write_is_refused() {
    let machine = InGrub::modelled();
    let mounts = |line: &str| {
        let root = "22 1 254:2 / / ro - ext4 /dev/root ro\n";
        machine.node.set_mounts(&format!("{root}{line}\n")).unwrap();
    };
    mounts("30 22 254:1 / /efi rw - btrfs /dev/vda1 rw");
    only(&machine, RefusalCode::UnsupportedLayout, "btrfs");
    machine.node.add_mapped("dm-0", 0, &["vda4"]).unwrap();
    mounts("30 22 253:0 / /efi rw - ext4 /dev/dm-0 rw");
    only(&machine, RefusalCode::UnsupportedLayout, "dm-0");
}

#[test]
fn a_system_that_the_script_did_not_start_is_refused() {
    let machine = InGrub::modelled();
    let root = format!("root=PARTUUID={} ro", machine.node.slot_uuid(A));
    machine.node.set_command_line(&root).unwrap();
    only(
        &machine,
        RefusalCode::LoaderDataMissing,
        "was not started by slotd's script",
    );
    assert_eq!(
        machine.backend().state().unwrap().counting,
        Counting::Unknown
    );
}

#[test]
fn the_only_good_slot_is_not_overwritten() {
    let mut machine = InGrub::modelled();
    machine.stage_and_arm(B);
    machine.power_cycle();
    let found = preflight(&machine, A);
    assert!(
        found
            .iter()
            .any(|refusal| refusal.code == RefusalCode::LastGoodSlot),
        "{found:?}"
    );
}

#[test]
fn a_trial_that_took_no_try_is_said_not_to_be_counted() {
    let machine = InGrub::modelled();
    machine.stage_and_arm(B);
    // Started by hand at GRUB's prompt.
    machine.node.run_slot(B, "auto-grub").unwrap();
    let mut machine = machine;
    machine.reopen();
    let state = machine.backend().state().unwrap();
    assert_eq!((state.b, state.counting), (trial(3, 0), Counting::Inactive));
    assert!(
        state
            .problems
            .iter()
            .any(|problem| problem.code == ProblemCode::CountingInactive)
    );
}

#[test]
fn a_plan_names_the_variables_and_changes_nothing() {
    let machine = InGrub::modelled();
    machine.stage(B);
    let before = fs::read(machine.grubenv()).unwrap();
    let plan = machine
        .backend()
        .plan_sequence(&[
            Transition::Arm {
                slot: B,
                options: options(),
            },
            Transition::MarkGood { slot: B },
        ])
        .unwrap();
    let lines: Vec<String> = plan
        .iter()
        .map(|change| format!("{}: {}", change.target, change.change))
        .collect();
    assert_eq!(
        lines,
        [
            "/efi/grub/grubenv: set in place: slotd_order=b a, slotd_b_ok=0, slotd_b_tries=3, slotd_tries=3, \
             slotd_machine_id=0123456789abcdef0123456789abcdef, slotd_deadline=600, slotd_panic=10",
            "/efi/grub/grubenv: set in place: slotd_b_tries=2",
            "/efi/grub/grubenv: set in place: slotd_b_ok=1, no slotd_b_tries, no slotd_tries",
        ]
    );
    assert_eq!(fs::read(machine.grubenv()).unwrap(), before);
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
}

#[test]
fn the_markers_lie_beside_the_block() {
    let machine = InGrub::modelled();
    machine.stage(B);
    assert!(machine.node.esp().join("grub/slotd/b/image.json").is_file());
}

#[test]
fn a_block_knows_slots_once_it_holds_a_variable_of_the_convention() {
    let machine = InGrub::modelled();
    for (variables, knows) in [
        ("slotd_b_tries=0\n", true),
        ("slotd_order=b a\n", true),
        ("saved_entry=0\nORDER=A B\nslotd_order=\n", false),
    ] {
        fs::write(machine.grubenv(), block(variables)).unwrap();
        assert_eq!(machine.store().knows_slots().unwrap(), knows, "{variables}");
    }
    fs::remove_file(machine.grubenv()).unwrap();
    assert!(!machine.store().knows_slots().unwrap());
}
