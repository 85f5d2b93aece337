//! The program as it is called: exit codes, and what is said where.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has to fail"
)]

use std::fs;
use std::process::{Command, Output};

/// A configuration root, and the program run with it on a machine without a bus.
struct Node {
    root: tempfile::TempDir,
}

impl Node {
    fn new(config: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state");
        fs::create_dir_all(&state).unwrap();
        fs::create_dir_all(root.path().join("etc/slotd")).unwrap();
        let text = format!("stateDirectory: {}\n{config}", state.display());
        fs::write(root.path().join("etc/slotd/config.yaml"), text).unwrap();
        Self { root }
    }

    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new(env!("CARGO_BIN_EXE_slotd"))
            .arg("--config-root")
            .arg(self.root.path())
            .args(arguments)
            .env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus")
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }
}

#[test]
fn a_command_line_that_cannot_be_understood_is_2() {
    let node = Node::new("");
    for arguments in [
        &["instal"][..],
        &["install"],
        &["install", "x", "--size", "much"],
    ] {
        let (code, _, said) = node.run(arguments);
        assert_eq!(code, 2, "{arguments:?}: {said}");
    }
}

#[test]
fn a_wrong_configuration_is_3_and_named_with_its_line() {
    let node = Node::new("trial:\n  tires: 3\n");
    for arguments in [
        &["config", "show"][..],
        &["agent"],
        &["history"],
        &["plan", "https://x/y"],
    ] {
        let (code, _, said) = node.run(arguments);
        assert_eq!(code, 3, "{arguments:?}: {said}");
        assert!(said.contains("etc/slotd/config.yaml:3: "), "{said}");
        assert!(said.contains("tires"), "{said}");
    }
}

#[test]
fn a_request_that_is_wrong_by_itself_is_4_without_asking_anybody() {
    let node = Node::new("");
    for (arguments, named) in [
        (
            &["install", "https://host/x", "--checksum", "sha256:abc"][..],
            "sha256:abc",
        ),
        (
            &["install", "https://host/x", "--expanded-checksum", "md5:1"],
            "md5:1",
        ),
        (&["install", "/nonexistent/image"], "/nonexistent/image"),
        (&["install", "gopher://host/x"], "gopher"),
        (
            &["flash", "/nonexistent/image", "--slot", "B"],
            "/nonexistent/image",
        ),
    ] {
        let (code, _, said) = node.run(arguments);
        assert_eq!(code, 4, "{arguments:?}: {said}");
        assert!(said.contains(named), "{said}");
    }
}

#[test]
fn without_a_daemon_requests_are_8() {
    let node = Node::new("");
    for arguments in [
        &["install", "https://host/x"][..],
        &["activate"],
        &["rollback"],
        &["cancel"],
    ] {
        let (code, _, said) = node.run(arguments);
        assert_eq!(code, 8, "{arguments:?}: {said}");
        assert!(said.contains("the daemon is not running"), "{said}");
    }
}

#[test]
fn errors_are_json_where_that_is_asked_for() {
    let (code, out, said) = Node::new("").run(&["--output", "json", "activate"]);
    assert_eq!((code, out.as_str()), (8, ""));
    let error: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(error["error"]["kind"], "NotRunning");
}

#[test]
fn secrets_of_a_url_are_not_repeated() {
    let node = Node::new("");
    for source in [
        "https://me:hunter2@host/x?token=hunter2",
        "ftp://me:hunter2@host/x",
    ] {
        let (_, out, said) = node.run(&["install", source]);
        assert!(!format!("{out}{said}").contains("hunter2"), "{out}{said}");
    }
}

#[test]
fn the_status_is_shown_without_a_daemon_and_says_so() {
    let node = Node::new("");
    let (code, out, _) = node.run(&["status"]);
    assert_eq!(code, 0);
    assert!(out.contains("DaemonNotRunning"), "{out}");
    let (code, out, _) = node.run(&["status", "--output", "json"]);
    assert_eq!(code, 0);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["version"], 1);
    assert_eq!(document["upgrade"]["phase"], "Idle");
}

#[test]
fn a_damaged_state_file_is_shown_and_left_alone() {
    let node = Node::new("");
    let path = node.root.path().join("state/state.json");
    fs::write(&path, "garbage").unwrap();
    let (code, out, _) = node.run(&["status"]);
    assert_eq!(code, 0);
    assert!(
        out.contains("StateUnreadable") && out.contains("state.json"),
        "{out}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "garbage");
}

#[test]
fn history_prints_what_is_kept_and_counts_what_cannot_be_read() {
    let node = Node::new("");
    let (code, out, said) = node.run(&["history", "--output", "json"]);
    assert_eq!((code, out.trim(), said.as_str()), (0, "[]", ""));
    let path = node.root.path().join("state/history.jsonl");
    let line = r#"{"id":4,"kind":"install","result":"Completed","slot":"B","version":"1.2.3","startedAt":"2026-11-30T10:00:00Z","completedAt":"2026-11-30T10:05:00Z"}"#;
    for (text, warning) in [
        (format!("{line}\n"), None),
        (
            format!("{line}\n{{torn"),
            Some("1 line of PATH cannot be read and is left out"),
        ),
        (
            format!("\n{{}}\n{line}\n{{torn"),
            Some("2 lines of PATH cannot be read and are left out"),
        ),
    ] {
        fs::write(&path, &text).unwrap();
        let warning = warning.map(|words| words.replace("PATH", path.to_str().unwrap()));
        let (code, out, said) = node.run(&["history"]);
        assert_eq!(code, 0);
        let words: Vec<&str> = out.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(
            words,
            [
                "4",
                "install",
                "Completed",
                "B",
                "1.2.3",
                "2026-11-30T10:05:00Z"
            ]
        );
        let shown = warning
            .as_ref()
            .map(|words| format!("slotd: warning: {words}\n"));
        assert_eq!(said, shown.unwrap_or_default());
        let (code, out, said) = node.run(&["history", "--output", "json"]);
        assert_eq!(code, 0);
        let entries: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(entries.as_array().unwrap().len(), 1);
        let said: Option<serde_json::Value> = serde_json::from_str(&said).ok();
        let shown = warning.map(|words| serde_json::json!({"warning": {"message": words}}));
        assert_eq!(said, shown);
    }
    // Where nothing can be read, nothing is said to have happened or not.
    fs::write(&path, "torn").unwrap();
    let (code, out, said) = node.run(&["history"]);
    assert_eq!((code, out.trim()), (0, ""));
    assert!(said.contains("1 line of"), "{said}");
}

#[test]
fn the_configuration_is_shown_with_its_origins() {
    let (code, out, _) = Node::new("trial: {tries: 2}\n").run(&["config", "show"]);
    assert_eq!(code, 0);
    let line = |key: &str| {
        let line = out.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let tries = line("trial.tries");
    assert_eq!(tries[1], "2");
    assert!(tries[2].ends_with("etc/slotd/config.yaml:2"), "{tries:?}");
    assert_eq!(line("trial.deadline")[1..], ["10m", "default"]);
}

#[test]
fn a_file_that_is_not_read_is_named_beside_the_configuration() {
    let node = Node::new("trial: {tries: 2}\n");
    let folder = node.root.path().join("etc/slotd/config.d");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("10-trial.conf"), "trial: {tries: 4}\n").unwrap();
    for output in ["table", "json"] {
        let (code, out, said) = node.run(&["config", "show", "--output", output]);
        assert_eq!(code, 0, "{said}");
        assert!(
            said.contains("config.d/10-trial.conf is not read"),
            "{said}"
        );
        assert!(!out.contains("10-trial.conf"), "{out}");
    }
}
