//! The agent with its real host, boot loader backend and image writer, on a node of plain files: whole
//! upgrades with their boots, judged by the entries that the boot loader would read.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use std::fs;
use std::time::Instant;

use slotd::agent::{BootVerdict, InstallRequest, RunFiles};
use slotd::status::{SlotStatus, StatusDocument};
use slotd_bootctl::{GrubConvention, GrubSetting, LoaderKind, LoaderSetting, SlotName};
use slotd_engine::Verdict;
use slotd_image::ImageSource;

use node::{Lab, SOON, write};

fn slot(status: &StatusDocument, index: usize) -> &SlotStatus {
    &status.slots[index]
}

#[test]
fn a_fresh_node_shows_its_slots_and_loader() {
    let lab = Lab::new();
    let agent = lab.agent();
    let status = agent.status();
    assert_eq!((status.version, status.slots.len()), (1, 2));
    assert_eq!(slot(&status, 0).state, "good");
    assert!(slot(&status, 0).booted);
    assert_eq!(slot(&status, 0).version.as_deref(), Some("1.0.0"));
    assert_eq!(slot(&status, 1).state, "empty");
    let loader = status.loader.as_ref().unwrap();
    assert_eq!(
        (loader.backend.as_str(), loader.counting.as_str()),
        ("systemd-boot", "active")
    );
    assert!(status.conditions.is_empty(), "{:?}", status.conditions);
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(
        json["slots"][1]["device"],
        lab.path("dev/vda3").to_str().unwrap()
    );
    assert_eq!(json["upgrade"]["phase"], "Idle");
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_look_at_the_slots_alone_makes_no_state_directory() {
    let lab = Lab::new();
    let view = slotd::agent::Host::survey(&lab.host());
    assert_eq!(view.slots.len(), 2);
    assert!(!lab.path("data").exists());
}

#[test]
fn a_proven_slot_gets_the_try_back_that_raucs_script_took() {
    let lab = Lab::new();
    let path = lab.node.system().path("/efi/grub/grubenv");
    let text =
        "# GRUB Environment Block\nORDER=A B\nA_OK=1\nA_TRY=1\nB_OK=0\nB_TRY=0\nother=kept\n";
    write(&path, &format!("{text:#<1024}"));
    let host = lab.host_with(LoaderSetting {
        kind: LoaderKind::Grub,
        grub: GrubSetting {
            environment: Some("/efi/grub/grubenv".into()),
            convention: GrubConvention::Rauc,
            variables: None,
        },
        ..LoaderSetting::default()
    });
    for _ in 0..2 {
        slotd::agent::Host::settle(&host).unwrap();
        let after = fs::read_to_string(&path).unwrap();
        assert!(
            after.contains("\nA_TRY=0\n") && after.contains("\nother=kept\n"),
            "{after}"
        );
        assert_eq!(after.len(), 1024);
    }
}

#[test]
fn a_healthy_image_is_tried_confirmed_and_kept() {
    let mut lab = Lab::new();
    let before = lab.slot_bytes("vda2");
    let agent = lab.install(0x5a);
    assert_eq!(lab.entries(), ["slotd-a.conf", "slotd-b+3.conf"]);
    let entry = fs::read_to_string(lab.node.esp().join("loader/entries/slotd-b+3.conf")).unwrap();
    // What slotd-boot-generator reads.
    assert!(
        entry.contains(" slotd.trial_deadline=600 slotd.tries=3"),
        "{entry}"
    );
    let written = lab.slot_bytes("vda3");
    assert_eq!(written[4 << 10], 0x5a);
    assert_eq!(
        lab.slot_bytes("vda2"),
        before,
        "the booted slot was touched"
    );
    assert_eq!(lab.reboot(agent), SlotName::B);
    lab.node
        .set_command_line("root=x panic=10 slotd.slot=b")
        .unwrap();
    let panic = lab.path("proc/sys/kernel/panic");

    let agent = lab.agent();
    let run = RunFiles::at(lab.path("run/slotd"));
    assert!(agent.wait_for(SOON, |upgrade| upgrade.step == "awaitBootComplete"));
    // The trial still reboots when it panics; the proven boot below does not.
    assert_eq!(fs::read_to_string(&panic).unwrap(), "10\n");
    assert_eq!(run.read_verdict().unwrap(), Some(BootVerdict::Healthy));
    assert_eq!(lab.entries(), ["slotd-a.conf", "slotd-b+2-1.conf"]);
    assert_eq!(slot(&agent.status(), 1).state, "trial");
    run.announce_boot_complete().unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Completed"));
    assert_eq!(lab.entries(), ["slotd-a.conf", "slotd-b.conf"]);
    let deadline = Instant::now() + SOON;
    while !run.settled().exists() || lab.history().is_empty() {
        assert!(Instant::now() < deadline, "never settled");
        std::thread::yield_now();
    }
    assert_eq!(fs::read_to_string(&panic).unwrap(), "0");
    let entry = &lab.history()[0];
    assert_eq!(
        (entry.result.as_str(), entry.version.as_deref()),
        ("Completed", Some("2.0.0"))
    );
    assert_eq!(*lab.machine.reboots.lock().unwrap(), [false]);
    for _ in 0..5 {
        assert_eq!(lab.reboot(lab.agent()), SlotName::B);
    }
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_failing_check_ends_on_the_old_slot_with_its_output() {
    let mut lab = Lab::new();
    let agent = lab.install(0x11);
    assert_eq!(lab.reboot(agent), SlotName::B);
    *lab.machine.verdict.lock().unwrap() = Some(Verdict::Unhealthy {
        check: "required.d/50-web".to_owned(),
        output: "connection refused".to_owned(),
    });
    let agent = lab.agent();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.step == "reboot"));
    assert_eq!(lab.entries(), ["slotd-a.conf", "slotd-b+0-1.conf"]);
    assert_eq!(lab.reboot(agent), SlotName::A);
    assert_eq!(*lab.machine.reboots.lock().unwrap(), [false, true]);
    let agent = lab.agent();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "RolledBack"));
    let failure = agent.status().last_result.unwrap().failure.unwrap();
    assert_eq!(failure.check.as_deref(), Some("required.d/50-web"));
    assert_eq!(failure.output.as_deref(), Some("connection refused"));
    lab.reported();
    assert!(agent.shutdown(SOON));
    assert_eq!(lab.history()[0].result, "RolledBack");
    for _ in 0..5 {
        assert_eq!(lab.reboot(lab.agent()), SlotName::A);
    }
}

#[test]
fn an_image_that_never_comes_up_is_given_up_by_the_loader() {
    let mut lab = Lab::new();
    let agent = lab.install(0x22);
    assert_eq!(lab.reboot(agent), SlotName::B);
    lab.node.power_cycle().unwrap();
    lab.node.power_cycle().unwrap();
    lab.new_boot();
    assert_eq!(lab.node.power_cycle().unwrap(), Some(SlotName::A));
    let agent = lab.agent();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "RolledBack"));
    let reason = agent.upgrade().failure.unwrap().reason;
    assert!(reason.contains("gave slot B up after 3 tries"), "{reason}");
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_refused_image_leaves_no_entry_and_no_marker() {
    let lab = Lab::new();
    for (version, agent_inside, expected) in [
        ("2.0.0", false, "the program slotd"),
        ("0.9.0", true, "older than the running 1.0.0"),
    ] {
        lab.image_tree(version, agent_inside);
        let agent = lab.agent();
        let id = agent.install(lab.request(0x33)).unwrap();
        assert!(agent.wait_for(SOON, |upgrade| {
            upgrade.id == Some(id) && upgrade.phase == "Failed"
        }));
        let failure = agent.upgrade().failure.unwrap();
        assert!(failure.reason.contains(expected), "{}", failure.reason);
        assert_eq!(lab.entries(), ["slotd-a.conf"]);
        assert!(!lab.node.esp().join("slotd/b/image.json").exists());
        let left = lab.slot_bytes("vda3");
        assert!(left[..1 << 20].iter().all(|byte| *byte == 0), "{version}");
        assert_eq!(left[1 << 20], 0x33, "only the first MiB is cleared");
        assert_eq!(agent.activate().unwrap_err().kind().name(), "Reject");
        assert!(agent.shutdown(SOON));
    }
    assert!(lab.machine.reboots.lock().unwrap().is_empty());
}

#[test]
fn what_can_be_refused_early_is_refused_before_the_slot_is_touched() {
    let lab = Lab::new();
    let before = lab.slot_bytes("vda3");
    let agent = lab.agent();
    let mut same = lab.request(0x44);
    same.version = Some("1.0.0".to_owned());
    let mut wide = lab.request(0x44);
    wide.size = Some(1 << 40);
    let missing = InstallRequest::new(ImageSource::File("/nonexistent/image".into()));
    for (request, expected) in [
        (same, "runs already"),
        (wide, "bytes of the slot"),
        (missing, "/nonexistent/image"),
    ] {
        let id = agent.install(request).unwrap();
        assert!(agent.wait_for(SOON, |upgrade| {
            upgrade.id == Some(id) && upgrade.phase == "Failed"
        }));
        let reason = agent.upgrade().failure.unwrap().reason;
        assert!(reason.contains(expected), "{reason}");
    }
    assert!(agent.shutdown(SOON));
    assert_eq!(lab.slot_bytes("vda3"), before);
}

#[test]
fn a_plan_names_every_change_and_changes_nothing() {
    let lab = Lab::new();
    let before = (lab.slot_bytes("vda3"), lab.entries());
    let plan = lab.host().plan(lab.request(0x55)).unwrap();
    assert!(plan.refusals.is_empty(), "{:?}", plan.refusals);
    assert_eq!(plan.refused, None);
    let text: Vec<String> = plan
        .steps
        .iter()
        .map(|step| format!("{} {}", step.target, step.change))
        .collect();
    let text = text.join("\n");
    for part in [
        "vda3",
        "2097152 bytes",
        "image.json",
        "slotd-b+3.conf",
        "state.json",
        "history",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    // The order in which a crash would meet them.
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}"));
    let order = [
        at("slotd-b+3.conf"),
        at("failed-before.json replaced"),
        at("the machine reboots"),
        at("failed-before.json removed"),
        at("slotd-b.conf"),
        at("history.jsonl"),
    ];
    assert!(order.is_sorted(), "{order:?}\n{text}");
    assert_eq!((lab.slot_bytes("vda3"), lab.entries()), before);
    // The write tests left nothing: neither beside the loader's entries nor in the state directory.
    let beside = fs::read_dir(lab.node.esp().join("loader/entries")).unwrap();
    assert_eq!(beside.count(), 1);
    assert_eq!(fs::read_dir(lab.path("data/slotd")).unwrap().count(), 0);
}

#[test]
fn a_plan_to_stage_only_ends_before_anything_that_boots() {
    let lab = Lab::new();
    let mut request = lab.request(0x58);
    request.stage_only = true;
    let plan = lab.host().plan(request).unwrap();
    assert!(plan.steps.iter().all(|step| step.moment == "stage"));
    let mut targets = plan.steps.iter().map(|step| step.target.as_str());
    assert!(
        !targets
            .clone()
            .any(|target| target.contains("failed-before"))
    );
    assert!(targets.next_back().unwrap().ends_with("history.jsonl"));
}

#[test]
fn a_plan_that_would_be_refused_says_why_and_of_which_kind() {
    let lab = Lab::new();
    let mut request = lab.request(0x56);
    request.version = Some("0.9.0".to_owned());
    request.size = Some(1 << 40);
    let plan = lab.host().plan(request).unwrap();
    assert_eq!(plan.refusals.len(), 2, "{:?}", plan.refusals);
    assert_eq!(plan.refused.unwrap().exit_code(), 4);
    // The running slot as the one to be written: its entry says bad, so nothing would be left.
    let entries = lab.node.esp().join("loader/entries");
    fs::rename(
        entries.join("slotd-a.conf"),
        entries.join("slotd-a+0-3.conf"),
    )
    .unwrap();
    let plan = lab.host().plan(lab.request(0x57)).unwrap();
    assert_eq!(plan.refused.unwrap().exit_code(), 5, "{:?}", plan.refusals);
}

#[test]
fn a_proven_boot_loses_its_panic_option_unless_somebody_set_another() {
    for (cmdline, set, after) in [
        ("root=x panic=10", "10\n", "0"),
        ("root=x panic=10", "60\n", "60"),
        ("root=x", "5\n", "5"),
    ] {
        let lab = Lab::new();
        lab.node
            .set_command_line(&format!("{cmdline} slotd.slot=a"))
            .unwrap();
        write(&lab.path("proc/sys/kernel/panic"), set);
        let agent = lab.agent();
        let settled = lab.path("run/slotd/settled");
        let panic = lab.path("proc/sys/kernel/panic");
        let deadline = Instant::now() + SOON;
        while !settled.exists() || fs::read_to_string(&panic).unwrap().trim() != after {
            assert!(Instant::now() < deadline, "{cmdline} {set}");
            std::thread::yield_now();
        }
        assert!(agent.shutdown(SOON));
        assert_eq!(
            *lab.machine.reloads.lock().unwrap(),
            0,
            "no trial, no drop-ins"
        );
    }
}

#[test]
fn an_unhealthy_trial_with_nothing_to_go_back_to_stays_unblessed_and_is_released_from_the_guards() {
    let mut lab = Lab::new();
    let agent = lab.install(0x77);
    assert_eq!(lab.reboot(agent), SlotName::B);
    let entries = lab.node.esp().join("loader/entries");
    fs::rename(
        entries.join("slotd-a.conf"),
        entries.join("slotd-a+0-3.conf"),
    )
    .unwrap();
    let options = fs::read_to_string(entries.join("slotd-b+2-1.conf")).unwrap();
    assert!(options.contains(" panic=10 "), "{options}");
    lab.node
        .set_command_line("root=x panic=10 slotd.slot=b")
        .unwrap();
    let panic = lab.path("proc/sys/kernel/panic");
    write(&panic, "10\n");
    *lab.machine.verdict.lock().unwrap() = Some(Verdict::Unhealthy {
        check: "required.d/50-web".to_owned(),
        output: "connection refused".to_owned(),
    });
    let agent = lab.agent();
    let run = RunFiles::at(lab.path("run/slotd"));
    let deadline = Instant::now() + SOON;
    while !run.settled().exists() {
        assert!(Instant::now() < deadline, "never released");
        std::thread::yield_now();
    }
    let Some(BootVerdict::Stays { reason }) = run.read_verdict().unwrap() else {
        panic!("{:?}", run.read_verdict());
    };
    assert!(reason.contains("nothing to go back to"), "{reason}");
    assert!(run.stays().exists() && !run.proven().exists());
    assert_eq!(*lab.machine.reloads.lock().unwrap(), 1, "the drop-ins go");
    assert_eq!(fs::read_to_string(&panic).unwrap(), "0");
    lab.reported();
    assert_eq!(lab.history()[0].result, "Failed");
    assert!(agent.shutdown(SOON));
    // What it said stands for the rest of the boot, whatever becomes of the agent.
    let agent = lab.agent();
    assert!(matches!(
        run.read_verdict().unwrap(),
        Some(BootVerdict::Stays { .. })
    ));
    assert!(agent.shutdown(SOON));
    assert_eq!(lab.entries(), ["slotd-a+0-3.conf", "slotd-b+2-1.conf"]);
    assert_eq!(*lab.machine.reboots.lock().unwrap(), [false]);
    assert_eq!(*lab.machine.reloads.lock().unwrap(), 1);
}

/// A trial boot of slot B whose entry somebody removed.
fn without_its_entry(lab: &mut Lab) {
    let agent = lab.install(0x79);
    assert_eq!(lab.reboot(agent), SlotName::B);
    let entry = lab.node.esp().join("loader/entries/slotd-b+2-1.conf");
    fs::remove_file(entry).unwrap();
}

#[test]
fn a_counted_boot_that_nobody_remembers_and_whose_entry_is_gone_is_neither_kept_nor_rebooted() {
    let mut lab = Lab::new();
    without_its_entry(&mut lab);
    fs::remove_file(lab.path("data/slotd/state.json")).unwrap();
    let agent = lab.agent();
    let run = RunFiles::at(lab.path("run/slotd"));
    let deadline = Instant::now() + SOON;
    while !run.settled().exists() {
        assert!(Instant::now() < deadline, "{:?}", run.read_verdict());
        std::thread::yield_now();
    }
    let Some(BootVerdict::Stays { reason }) = run.read_verdict().unwrap() else {
        panic!("{:?}", run.read_verdict());
    };
    assert!(reason.contains("no entry any more"), "{reason}");
    assert!(run.stays().exists() && !run.proven().exists());
    assert_eq!(*lab.machine.reloads.lock().unwrap(), 1, "the drop-ins go");
    assert_eq!(lab.entries(), ["slotd-a.conf"]);
    let reboots = lab.machine.reboots.lock().unwrap().clone();
    assert_eq!(reboots, [false], "the install's alone");
    assert_eq!(lab.reboot(agent), SlotName::A);
}

#[test]
fn a_trial_whose_entry_is_gone_is_never_called_good_and_ends_with_the_boot() {
    let mut lab = Lab::new();
    without_its_entry(&mut lab);
    let agent = lab.agent();
    let run = RunFiles::at(lab.path("run/slotd"));
    run.announce_boot_complete().unwrap();
    let blessing = agent.wait_for(SOON, |upgrade| {
        upgrade.step == "markGood" && upgrade.failure.is_some()
    });
    assert!(blessing, "{:?} {:?}", agent.upgrade(), run.read_verdict());
    assert!(!run.proven().exists());
    assert_eq!(lab.entries(), ["slotd-a.conf"]);
    let reboots = lab.machine.reboots.lock().unwrap().clone();
    assert_eq!(reboots, [false], "the install's alone");
    assert_eq!(lab.reboot(agent), SlotName::A);
    let agent = lab.agent();
    lab.reported();
    assert_ne!(lab.history()[0].result, "Completed");
    assert!(agent.shutdown(SOON));
}

#[test]
fn what_failed_before_belongs_to_one_trial_alone() {
    let mut lab = Lab::new();
    let remembers = |lab: &Lab| *lab.machine.remembers.lock().unwrap();
    let agent = lab.install(0x7a);
    assert_eq!(lab.reboot(agent), SlotName::B);
    assert!(remembers(&lab), "the trial is judged by it");
    // The trial never gets to its checks.
    lab.node.power_cycle().unwrap();
    lab.node.power_cycle().unwrap();
    lab.new_boot();
    assert_eq!(lab.node.power_cycle().unwrap(), Some(SlotName::A));
    let agent = lab.agent();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "RolledBack"));
    lab.reported();
    let verdict = RunFiles::at(lab.path("run/slotd")).verdict();
    let deadline = Instant::now() + SOON;
    while !verdict.exists() {
        assert!(Instant::now() < deadline, "never at rest");
        std::thread::yield_now();
    }
    assert!(!remembers(&lab), "a trial that somebody else begins is not");
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_reboot_that_leads_to_no_trial_keeps_no_failed_units() {
    let mut lab = Lab::new();
    let remembers = |lab: &Lab| *lab.machine.remembers.lock().unwrap();
    let agent = lab.install(0x7b);
    assert_eq!(lab.reboot(agent), SlotName::B);
    let agent = lab.agent();
    RunFiles::at(lab.path("run/slotd"))
        .announce_boot_complete()
        .unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Completed"));
    lab.reported();
    agent.rollback().unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.step == "reboot"));
    assert_eq!(lab.reboot(agent), SlotName::A);
    assert_eq!(*lab.machine.reboots.lock().unwrap(), [false, false]);
    assert!(!remembers(&lab), "a rollback's reboot");

    // A trial that was taken back before it ran: what somebody else arms next is another one.
    let agent = lab.agent();
    agent.install(lab.request(0x7c)).unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.step == "reboot"));
    let deadline = Instant::now() + SOON;
    while !remembers(&lab) {
        assert!(Instant::now() < deadline, "the trial's reboot");
        std::thread::yield_now();
    }
    agent.cancel(agent.upgrade().id.unwrap()).unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Idle"));
    assert!(!remembers(&lab), "taken back");
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_node_without_slots_says_why_and_refuses_to_install() {
    let lab = Lab::new();
    fs::remove_dir_all(lab.path("sys/class/block")).unwrap();
    let agent = lab.agent();
    let status = agent.status();
    assert_eq!(status.conditions[0].kind, "SlotsUnreadable");
    agent.install(lab.request(0x66)).unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Failed"));
    let failure = agent.upgrade().failure.unwrap();
    assert_eq!(failure.reason, status.conditions[0].message);
    assert!(agent.shutdown(SOON));
}
