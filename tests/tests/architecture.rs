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

#[test]
fn every_test_that_architecture_md_names_for_a_promise_exists() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(repository.join("ARCHITECTURE.md")).unwrap();
    let tests = tests(&repository);
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
            if !tests.contains(name) && !scenarios.contains(name) {
                missing.push(format!("promise {number}: {name}"));
            }
        }
    }
    assert_eq!(promised, 11, "there are eleven promises");
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
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
