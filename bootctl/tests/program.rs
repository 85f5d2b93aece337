//! The program as it is run.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod common;

use std::fs;
use std::process::{Command, Output};

use slotd_bootctl::SlotName;
use slotd_bootctl::fixture::{FixtureNode, FixtureTable, usual_partitions};

use self::common::Machine;

impl Machine {
    /// A verified image in slot B, as the daemon leaves it.
    fn staged() -> Self {
        let machine = Self::new();
        machine.node.put_image(SlotName::B, "2.0.0").unwrap();
        machine
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_slotd-bootctl"))
            .arg("--system-root")
            .arg(self.dir.path())
            .args(arguments)
            .env("COLUMNS", "200")
            .output()
            .unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn the_status_document_is_the_golden_one() {
    let machine = Machine::staged();
    insta::assert_snapshot!("status_json", machine.ok(&["status", "--output", "json"]));
    insta::assert_snapshot!("list_json", machine.ok(&["--output", "json", "list"]));
}

#[test]
fn the_status_table_explains_what_it_found_and_from_what() {
    let machine = Machine::staged();
    insta::assert_snapshot!("status_table", machine.ok(&["status"]));
    machine.ok(&["activate", "B"]);
    machine.node.power_cycle().unwrap();
    insta::assert_snapshot!("status_table_on_trial", machine.ok(&["status"]));
}

#[test]
fn verbose_status_says_of_every_candidate_why_it_was_taken_or_not() {
    let machine = Machine::staged();
    let mut partitions = usual_partitions("root-a", "root-b", 0xc000);
    partitions[3].label = "ROOT-A".to_owned();
    machine
        .node
        .add_disk("sda", 8, 0, 4096, &partitions)
        .unwrap();
    // A disk whose table cannot be read.
    machine
        .node
        .add_disk("sdb", 8, 16, 512, &partitions)
        .unwrap();
    fs::write(machine.dir.path().join("dev/sdb"), vec![0; 64 << 20]).unwrap();
    let dos = FixtureTable::Dos(0x0bad_cafe);
    machine
        .node
        .add_disk_with(dos, "mmcblk0", (179, 0), 512, &partitions)
        .unwrap();
    insta::assert_snapshot!("status_verbose", machine.ok(&["status", "-v"]));
    let document = machine.ok(&["status", "--verbose", "--output", "json"]);
    let mut document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let survey = document.as_object_mut().unwrap().remove("survey").unwrap();
    let plain = machine.ok(&["status", "--output", "json"]);
    let plain: serde_json::Value = serde_json::from_str(&plain).unwrap();
    assert_eq!(document, plain);
    let survey = serde_json::to_string_pretty(&survey).unwrap();
    insta::assert_snapshot!("status_verbose_survey", survey);
    let named = [
        "-v",
        "--slot-a",
        "PARTLABEL=root-a",
        "--slot-b",
        "/dev/vda3",
    ];
    let text = machine.ok(&named);
    for reason in [
        "taken: it is PARTLABEL=root-a",
        "taken: it is /dev/vda3",
        "not taken: matches PARTLABEL=root-a, but is not on a disk of the running root",
        "not taken: the configuration does not name it",
    ] {
        assert!(text.contains(reason), "{reason}: {text}");
    }
}

#[test]
fn verbose_status_shows_the_candidates_where_none_was_taken() {
    let machine = Machine::new();
    let partitions = usual_partitions("root-a", "root-b", 0xc000);
    machine
        .node
        .add_disk("sda", 8, 0, 512, &partitions)
        .unwrap();
    machine.node.set_command_line("quiet").unwrap();
    machine
        .node
        .set_mounts("1 1 0:2 / / rw - tmpfs tmpfs rw\n")
        .unwrap();
    let error = machine.fails(&["status"], 3);
    assert_eq!(error.lines().count(), 1, "{error}");
    let text = machine.fails(&["status", "-v"], 3);
    assert!(text.ends_with(&error), "{text}");
    for word in ["Disk sda", "vda3", "not the only one that could be meant"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = machine.fails(&["status", "-v", "--output", "json"], 3);
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
}

#[test]
fn an_upgrade_by_hand_goes_there_and_back() {
    let machine = Machine::staged();
    machine.ok(&["activate", "b", "--tries", "2"]);
    assert_eq!(
        machine.node.entries().unwrap(),
        ["slotd-a.conf", "slotd-b+2.conf"]
    );
    assert_eq!(machine.node.power_cycle().unwrap(), Some(SlotName::B));
    machine.ok(&["mark-good"]);
    assert_eq!(
        machine.node.entries().unwrap(),
        ["slotd-a.conf", "slotd-b.conf"]
    );
    machine.ok(&["activate", "A"]);
    assert_eq!(machine.node.power_cycle().unwrap(), Some(SlotName::A));
    machine.ok(&["mark-bad", "B"]);
    assert_eq!(
        machine.node.entries().unwrap(),
        ["slotd-a.conf", "slotd-b+0.conf"]
    );
}

#[test]
fn a_slot_without_a_verified_image_is_not_activated() {
    let machine = Machine::new();
    let error = machine.fails(&["activate", "B"], 4);
    assert!(error.contains("slot B holds no verified image"), "{error}");
}

#[test]
fn a_default_set_by_someone_else_refuses_activation_by_name() {
    let machine = Machine::staged();
    machine
        .node
        .set_string("LoaderEntryDefault", Some("slotd-a.conf"))
        .unwrap();
    let error = machine.fails(&["activate", "B"], 5);
    assert!(error.contains("LoaderEntryDefault"), "{error}");
    assert_eq!(machine.node.entries().unwrap(), ["slotd-a.conf"]);
}

#[test]
fn what_is_not_booted_cannot_be_called_good_and_the_last_good_slot_not_bad() {
    let machine = Machine::staged();
    machine.ok(&["activate", "B"]);
    machine.fails(&["mark-good", "B"], 5);
    machine.fails(&["mark-bad", "A"], 5);
}

#[test]
fn kinds_of_failure_have_their_exit_codes() {
    let machine = Machine::new();
    machine.fails(&["activate", "C"], 2);
    machine.fails(&["status", "--slot-a", "LABEL=x", "--slot-b", "LABEL=y"], 2);
    machine.fails(
        &[
            "status",
            "--slot-a",
            "PARTLABEL=nothing",
            "--slot-b",
            "PARTLABEL=root-b",
        ],
        3,
    );
    machine
        .node
        .set_string("LoaderEntrySelected", Some("slotd-b.conf"))
        .unwrap();
    let error = machine.fails(&["status"], 5);
    assert!(error.contains("LoaderEntrySelected says slot B"), "{error}");
}

#[test]
fn errors_are_json_where_that_is_asked_for() {
    let no_loader = Machine::new();
    no_loader
        .node
        .set_mounts("22 1 254:2 / / ro - ext4 /dev/root ro\n")
        .unwrap();
    let disagreeing = Machine::new();
    disagreeing
        .node
        .set_string("LoaderEntrySelected", Some("slotd-b.conf"))
        .unwrap();
    for (machine, arguments, code, kind) in [
        (&no_loader, &["mark-good"][..], 3, "Configuration"),
        (&Machine::new(), &["activate", "B"], 4, "Reject"),
        (&disagreeing, &["status"], 5, "Unsafe"),
    ] {
        let with_format = |format| [arguments, &["--output", format]].concat();
        let output = machine.run(&with_format("json"));
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let said: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        let words = machine.fails(&with_format("table"), code);
        let message = words.strip_prefix("slotd-bootctl: ").unwrap().trim_end();
        // The document that `slotd` prints, see daemon/README.md.
        let expected = serde_json::json!({"error": {"kind": kind, "message": message}});
        assert_eq!(said, expected);
    }
}

#[test]
fn without_a_boot_loader_the_slots_are_shown_and_the_exit_code_says_so() {
    let machine = Machine::new();
    machine
        .node
        .set_mounts("22 1 254:2 / / ro - ext4 /dev/root ro\n")
        .unwrap();
    let output = machine.run(&["status"]);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("/dev/vda2") && text.contains("/efi is not a mount point"),
        "{text}"
    );
    let error = machine.fails(&["mark-good"], 3);
    assert!(error.contains("/efi is not a mount point"), "{error}");
}

#[test]
fn machine_ids_of_entries_stay_those_of_the_node_in_a_rescue_system() {
    let machine = Machine::staged();
    fs::create_dir_all(machine.dir.path().join("etc")).unwrap();
    fs::write(machine.dir.path().join("etc/machine-id"), "f".repeat(32)).unwrap();
    machine.ok(&["activate", "B"]);
    let entry = machine.node.esp().join("loader/entries/slotd-b+3.conf");
    let text = fs::read_to_string(entry).unwrap();
    assert!(
        text.contains(&format!("machine-id {}\n", FixtureNode::MACHINE_ID)),
        "{text}"
    );
}
