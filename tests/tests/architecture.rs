//! ARCHITECTURE.md names a test for each promise. Those tests exist.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has to fail"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Names of test functions in all Rust files that are tracked.
fn tests(repository: &Path) -> BTreeSet<String> {
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
        names.extend(tests_in(&text).map(str::to_owned));
    }
    names
}

/// Names of the functions behind a `#[test]`, which those of `proptest!` have as well.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let mut marked = false;
    text.lines().map(str::trim_start).filter_map(move |line| {
        marked |= line == "#[test]";
        let mut words = line.split_whitespace();
        if line.starts_with("//") || !words.any(|word| word == "fn") {
            return None;
        }
        let (name, _) = words.next()?.split_once('(')?;
        std::mem::take(&mut marked).then_some(name)
    })
}

/// The rows of a section's table, each as its cells.
fn rows(page: &str, section: &str) -> Vec<Vec<String>> {
    let (_, section) = page.split_once(section).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let cells = |row: &str| {
        let cells = row.trim_matches('|').split(" | ");
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    // The first one is the head.
    rows.skip(1).map(cells).collect()
}

/// Names in backquotes that are neither of a test nor of a scenario.
fn missing(cell: &str) -> Vec<String> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tests = tests(&repository);
    let scenarios = slotd_tests::scenarios::all();
    cell.split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| !tests.contains(*name) && scenarios.iter().all(|test| test.name != *name))
        .map(str::to_owned)
        .collect()
}

fn page() -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(repository.join("ARCHITECTURE.md")).unwrap()
}

#[test]
fn every_test_that_architecture_md_names_for_a_promise_exists() {
    let promises = rows(&page(), "## The promises");
    let numbers: Vec<&str> = promises.iter().map(|cells| cells[0].as_str()).collect();
    let expected: Vec<String> = (1..=11).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected);
    for cells in promises {
        assert!(cells[3].contains('`'), "promise {}: no test", cells[0]);
        assert_eq!(missing(&cells[3]), [""; 0], "promise {}", cells[0]);
    }
}

#[test]
fn every_kind_of_failure_elsewhere_has_a_test_that_exists() {
    let kinds = rows(&page(), "## What went wrong elsewhere");
    assert_eq!(kinds.len(), 26);
    for cells in kinds {
        assert_eq!(cells.len(), 3, "{cells:?}");
        assert!(cells[2].contains('`'), "{}: no test", cells[0]);
        assert_eq!(missing(&cells[2]), [""; 0], "{}", cells[0]);
    }
}

#[test]
fn a_function_that_no_test_attribute_marks_is_no_test() {
    let text = "
        fn before() {}
        #[test]
        // Of fn and such.
        #[should_panic(expected = \"x\")]
        fn marked() {
            fn inside() {}
        }
        pub(super) fn helper(x: u8) {}
        proptest! {
            #[test]
            fn drawn(
                x in 0..3,
            ) {}
        }
        fn after() {}";
    let names: Vec<&str> = tests_in(text).collect();
    assert_eq!(names, ["marked", "drawn"]);
}
