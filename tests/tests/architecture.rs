//! ARCHITECTURE.md names a test for each promise. Those tests exist.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has to fail"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Names of test functions in all Rust files that are tracked.
fn functions(repository: &Path) -> BTreeSet<String> {
    let listed = Command::new("git")
        .current_dir(repository)
        .args(["ls-files", "*.rs"])
        .output()
        .unwrap();
    assert!(listed.status.success(), "git ls-files failed");
    let mut names = BTreeSet::new();
    for file in String::from_utf8(listed.stdout).unwrap().lines() {
        // A file that is removed but not yet committed is listed too.
        let text = std::fs::read_to_string(repository.join(file)).unwrap_or_default();
        for line in text.lines() {
            if let Some((name, _)) = line
                .trim_start()
                .strip_prefix("fn ")
                .and_then(|rest| rest.split_once('('))
            {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

#[test]
fn every_test_that_architecture_md_names_for_a_promise_exists() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(repository.join("ARCHITECTURE.md")).unwrap();
    let functions = functions(&repository);
    let scenarios: BTreeSet<&str> = slotd_tests::scenarios::all()
        .iter()
        .map(|test| test.name)
        .collect();
    let (_, promises) = page.split_once("## The promises").unwrap();
    let (promises, _) = promises.split_once("\n## ").unwrap();
    let (mut promised, mut missing) = (0, Vec::new());
    for row in promises.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let Ok(number) = cells[0].trim().parse::<u8>() else {
            continue;
        };
        promised += 1;
        for name in cells[3].split('`').skip(1).step_by(2) {
            if !functions.contains(name) && !scenarios.contains(name) {
                missing.push(format!("promise {number}: {name}"));
            }
        }
    }
    assert_eq!(promised, 11, "there are eleven promises");
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}
