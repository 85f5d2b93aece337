//! What is particular to systemd-boot: file names, leftovers, the text of entries.

use std::fs;

use super::{A, B, Machine, OnDisk, boots, image, open, options, trial};
use crate::backend::{Backend, Counting, NextBoot, ProblemCode, SlotState, Transition};
use crate::error::ErrorKind;
use crate::slot::SlotSettings;
use crate::table::SlotTable;

fn entry_path(machine: &OnDisk, name: &str) -> std::path::PathBuf {
    machine.node.esp().join("loader/entries").join(name)
}

fn codes(machine: &OnDisk) -> Vec<ProblemCode> {
    let problems = machine.backend().state().unwrap().problems;
    problems.into_iter().map(|problem| problem.code).collect()
}

#[test]
fn an_entry_binds_kernel_and_root_and_keeps_the_images_options() {
    let machine = OnDisk::new();
    let verified = machine.stage(B);
    let mut options = options();
    options.extra = "loglevel=3 slotd.slot=a slotd.tries=9".to_owned();
    machine.backend().arm(&verified, 3, &options).unwrap();
    assert_eq!(
        machine.node.entries().unwrap(),
        ["slotd-a.conf", "slotd-b+3.conf"]
    );
    // The image's own root= and the configuration's slotd.slot= and slotd.tries= are not slotd's word.
    assert_eq!(
        fs::read_to_string(entry_path(&machine, "slotd-b+3.conf")).unwrap(),
        "title Debian 12 (slot B)\n\
         sort-key slotd\n\
         machine-id 0123456789abcdef0123456789abcdef\n\
         version 2\n\
         linux /slotd/b/linux\n\
         initrd /slotd/b/initrd\n\
         options root=PARTUUID=00000000-0000-0000-0000-00000000a003 ro \
         systemd.machine_id=0123456789abcdef0123456789abcdef panic=10 slotd.slot=b \
         slotd.trial_deadline=600 slotd.tries=3 console=ttyS0 quiet loglevel=3\n"
    );
    let esp = machine.node.esp();
    assert_eq!(
        fs::read(esp.join("slotd/b/linux")).unwrap(),
        b"kernel of the new image"
    );
    assert_eq!(fs::read(esp.join("slotd/b/initrd")).unwrap(), b"initrd");
}

#[test]
fn invalidating_removes_everything_of_the_slot_and_nothing_else() {
    let machine = OnDisk::new();
    machine.stage_and_arm(B);
    let esp = machine.node.esp();
    fs::write(esp.join("slotd/b/linux.tmp"), "half").unwrap();
    fs::write(entry_path(&machine, "slotd-b+3.conf.tmp"), "half").unwrap();
    machine
        .backend()
        .invalidate(machine.table().inactive(B).unwrap())
        .unwrap();
    assert_eq!(fs::read_dir(esp.join("slotd/b")).unwrap().count(), 0);
    assert_eq!(machine.node.entries().unwrap(), ["slotd-a.conf"]);
    assert_eq!(fs::read_dir(esp.join("slotd/a")).unwrap().count(), 2);
}

#[test]
fn of_a_plain_and_a_counted_file_the_blessed_one_stays() {
    let machine = OnDisk::new();
    let plain = fs::read_to_string(entry_path(&machine, "slotd-a.conf")).unwrap();
    let counted = format!("# another file\n{plain}");
    fs::write(entry_path(&machine, "slotd-a+2-1.conf"), counted).unwrap();
    assert_eq!(machine.states().0, SlotState::Good);
    assert_eq!(codes(&machine), [ProblemCode::Leftovers]);
    machine.backend().mark_good(A).unwrap();
    assert_eq!(machine.node.entries().unwrap(), ["slotd-a.conf"]);
    assert_eq!(codes(&machine), []);
}

#[test]
fn of_two_counted_files_the_one_counted_further_stands() {
    let mut machine = OnDisk::new();
    machine.stage_and_arm(B);
    machine.power_cycle();
    let text = fs::read_to_string(entry_path(&machine, "slotd-b+2-1.conf")).unwrap();
    let other = format!("# another file\n{text}");
    fs::write(entry_path(&machine, "slotd-b+3.conf"), other).unwrap();
    assert_eq!(machine.states().1, trial(2, 1));
    machine.backend().mark_good(B).unwrap();
    assert_eq!(
        machine.node.entries().unwrap(),
        ["slotd-a.conf", "slotd-b.conf"]
    );
}

#[test]
fn a_trial_marked_bad_on_its_last_boot_is_told_from_the_running_one() {
    let mut machine = OnDisk::new();
    machine.stage_and_arm(B);
    for _ in 0..3 {
        machine.power_cycle();
    }
    assert_eq!(
        machine.node.entries().unwrap(),
        ["slotd-a.conf", "slotd-b+0-3.conf"]
    );
    assert_eq!(machine.states().1, trial(0, 3));
    machine.backend().mark_bad(B).unwrap();
    assert_eq!(
        machine.node.entries().unwrap(),
        ["slotd-a.conf", "slotd-b+0-4.conf"]
    );
    assert_eq!(machine.states().1, SlotState::Bad);
}

#[test]
fn names_in_upper_case_are_the_same_entries() {
    let machine = OnDisk::new();
    fs::rename(
        entry_path(&machine, "slotd-a.conf"),
        entry_path(&machine, "SLOTD-A.CONF"),
    )
    .unwrap();
    assert_eq!(machine.states().0, SlotState::Good);
}

#[test]
fn an_entry_whose_kernel_is_missing_makes_its_slot_empty() {
    let machine = OnDisk::new();
    fs::remove_file(machine.node.esp().join("slotd/a/linux")).unwrap();
    let state = machine.backend().state().unwrap();
    assert_eq!((state.a, state.next), (SlotState::Empty, NextBoot::Nothing));
    assert_eq!(
        codes(&machine),
        [ProblemCode::Unreadable, ProblemCode::NoGoodSlot]
    );
}

#[test]
fn an_entry_that_starts_another_root_than_its_slots_is_reported() {
    let machine = OnDisk::new();
    let path = entry_path(&machine, "slotd-a.conf");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("a002 ro", "a003 ro")).unwrap();
    let problems = machine.backend().state().unwrap().problems;
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].message.contains("slot A starts root"),
        "{problems:?}"
    );
}

#[test]
fn an_unmounted_partition_is_an_error_and_not_an_empty_one() {
    let machine = OnDisk::new();
    machine.stage(B);
    let inactive = machine.table().inactive(B).unwrap();
    fs::rename(
        machine.node.esp().join("loader"),
        machine.node.esp().join("away"),
    )
    .unwrap();
    assert_eq!(
        machine.backend().state().unwrap_err().kind(),
        ErrorKind::Configuration
    );
    assert!(machine.backend().invalidate(inactive).is_err());
}

#[test]
fn a_trial_that_the_loader_did_not_count_is_reported() {
    let mut machine = OnDisk::new();
    machine.stage_and_arm(B);
    // The loader could not rename: it starts the entry all the same, and sets no path.
    machine.node.run_slot(B, "slotd-b+3.conf").unwrap();
    let backend = open(&machine.node);
    let state = backend.state().unwrap();
    assert_eq!((state.b, state.counting), (trial(3, 0), Counting::Inactive));
    assert!(state.trial_boot);
    assert!(
        state
            .problems
            .iter()
            .any(|problem| problem.code == ProblemCode::CountingInactive)
    );
    machine.power_cycle();
}

#[test]
fn a_marker_that_cannot_be_read_is_no_proof() {
    let machine = OnDisk::new();
    machine.stage(B);
    let marker = machine.node.esp().join("slotd/b/image.json");
    fs::write(&marker, b"{\"version\": 1").unwrap();
    assert_eq!(codes(&machine), [ProblemCode::Unreadable]);
    assert_eq!(machine.backend().state().unwrap().staged, None);
    let error = machine.backend().staged(&machine.table()).unwrap_err();
    assert!(error.to_string().contains("slotd/b/image.json"), "{error}");
}

#[test]
fn boot_files_that_changed_since_they_were_installed_are_not_armed() {
    let machine = OnDisk::new();
    let verified = machine.stage(B);
    let kernel = machine.node.esp().join("slotd/b/linux");
    for content in [&b"kernel of the new imagE"[..], b"short", b""] {
        fs::write(&kernel, content).unwrap();
        let error = machine.backend().arm(&verified, 3, &options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsafe, "{error}");
        assert_eq!(machine.node.entries().unwrap(), ["slotd-a.conf"]);
    }
}

#[test]
fn arming_refuses_where_another_entry_would_be_started() {
    let machine = OnDisk::new();
    let verified = machine.stage(B);
    machine
        .node
        .set_string("LoaderEntryDefault", Some("slotd-a.conf"))
        .unwrap();
    let error = machine.backend().arm(&verified, 3, &options()).unwrap_err();
    assert!(error.to_string().contains("would start slot A"), "{error}");
    assert_eq!(machine.node.entries().unwrap(), ["slotd-a.conf"]);
}

#[test]
fn another_install_is_always_the_newest() {
    let mut machine = OnDisk::new();
    for (round, slot) in [B, A, B].into_iter().enumerate() {
        machine.stage_and_arm(slot);
        machine.power_cycle();
        machine.backend().mark_good(slot).unwrap();
        let name = format!("slotd-{}.conf", slot.lower());
        let text = fs::read_to_string(entry_path(&machine, &name)).unwrap();
        assert!(
            text.contains(&format!("\nversion {}\n", round + 2)),
            "{text}"
        );
    }
}

#[test]
fn a_plan_lists_the_very_changes_and_changes_nothing() {
    let machine = OnDisk::new();
    let before = machine.node.entries().unwrap();
    let plan = machine
        .backend()
        .plan_sequence(&[
            Transition::Invalidate { slot: B },
            Transition::InstallBootFiles {
                slot: B,
                image: image(),
                kernel: Some(9),
                initrd: None,
            },
            Transition::Arm {
                slot: B,
                options: options(),
            },
            Transition::TrialBoot { slot: B },
            Transition::MarkGood { slot: B },
        ])
        .unwrap();
    let esp = format!("{}/", machine.node.esp().display());
    let lines: Vec<String> = plan
        .iter()
        .map(|step| {
            let content = step.content.iter().flat_map(|text| text.lines());
            let content: String = content.map(|line| format!("\n  | {line}")).collect();
            format!(
                "{}: {} ({}){content}",
                step.target.replace(&esp, ""),
                step.change,
                step.why
            )
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
    assert_eq!(machine.node.entries().unwrap(), before);
    assert!(!machine.node.esp().join("slotd/b").exists());
}

#[test]
fn a_plan_puts_the_trial_boot_between_arming_and_confirming() {
    let machine = OnDisk::new();
    machine.stage(B);
    let arm = Transition::Arm {
        slot: B,
        options: options(),
    };
    let good = Transition::MarkGood { slot: B };
    let with_boot = [arm.clone(), Transition::TrialBoot { slot: B }, good.clone()];
    let explicit = machine.backend().plan_sequence(&with_boot).unwrap();
    assert_eq!(
        machine
            .backend()
            .plan_sequence(&[arm, good.clone()])
            .unwrap(),
        explicit
    );
    assert_eq!(explicit.len(), 3);
    // Without a trial there is nothing to confirm.
    assert_eq!(
        machine.backend().plan(&good).unwrap_err().kind(),
        ErrorKind::Reject
    );
}

#[test]
fn a_plan_that_cannot_be_carried_out_is_an_error() {
    let machine = OnDisk::new();
    let arm = Transition::Arm {
        slot: B,
        options: options(),
    };
    let error = machine.backend().plan(&arm).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
}

#[test]
fn in_an_initrd_the_loader_and_the_command_line_say_what_is_booted() {
    let machine = OnDisk::new();
    let efi = "30 1 254:1 / /efi rw - vfat /dev/vda1 rw\n";
    machine
        .node
        .set_mounts(&format!("1 1 0:2 / / rw - rootfs rootfs rw\n{efi}"))
        .unwrap();
    let system = machine.node.system();
    // No disk is the root's, and one has the pair.
    let table = SlotTable::discover(&system, &SlotSettings::Auto, None).unwrap();
    assert_eq!(table.booted.slot(), Some(A));
    assert_eq!(machine.next(), boots(A, false));
}
