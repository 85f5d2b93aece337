//! The workspace's own tests: built by cargo, then run each in a process of its own. So each has its own time, and one that
//! crashes or ends its process takes no other's verdict with it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::artifacts::repository;
use crate::build::cargo;
use crate::process;
use crate::runner::{Outcome, Verdict};

/// One of the workspace's own tests.
#[derive(Debug, Clone)]
pub struct WorkspaceTest {
    /// `workspace/program::module::function`, where the program is named after its crate or its file in `tests`; or
    /// `workspace/documentation`.
    pub name: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// A test function, by its path in its program.
    Function(Arc<Program>, String),
    /// All examples in documentation: rustdoc runs them together, so they are one test.
    Documentation,
}

/// A program of tests that cargo built.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    name: String,
    executable: PathBuf,
    /// Its package's folder, where cargo would run it.
    package: PathBuf,
}

/// Builds the programs and asks them for their tests.
pub fn build() -> Result<Vec<WorkspaceTest>> {
    eprintln!("lab: building the workspace's tests");
    let messages = process::output_with_errors(&cargo(), |command| {
        command.current_dir(repository()).args([
            "test",
            "--workspace",
            "--locked",
            "--quiet",
            "--no-run",
            "--message-format",
            "json-render-diagnostics",
        ])
    })?;
    let mut programs = Vec::new();
    for message in messages.lines() {
        programs.extend(parse_program(message)?);
    }
    // Cargo tells them in the order in which they were built.
    programs.sort();
    let mut tests = Vec::new();
    for program in programs {
        tests.extend(Arc::new(program).tests()?);
    }
    tests.push(WorkspaceTest {
        name: "workspace/documentation".to_owned(),
        kind: Kind::Documentation,
    });
    Ok(tests)
}

/// Runs tests, as many at a time as there are processors, and prints those that did not pass and one line about all.
pub fn run(tests: &[WorkspaceTest]) -> Vec<Outcome> {
    let began = Instant::now();
    let outcomes = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = test.run();
                    let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                    if outcome.result != Verdict::Passed {
                        outcome.print();
                    }
                    outcomes.push(outcome);
                }
            });
        }
    });
    let mut outcomes = outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by(|one, other| one.name.cmp(&other.name));
    println!(
        "workspace ... {} tests ({:.1} s)",
        outcomes.len(),
        began.elapsed().as_secs_f64()
    );
    outcomes
}

impl Program {
    fn tests(self: &Arc<Self>) -> Result<Vec<WorkspaceTest>> {
        let listing = process::output_with_errors(&self.executable, |command| {
            self.place(command).args(["--list", "--format", "terse"])
        })?;
        let functions = listing
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        Ok(functions
            .map(|function| WorkspaceTest {
                name: format!("workspace/{}::{function}", self.name),
                kind: Kind::Function(Arc::clone(self), function.to_owned()),
            })
            .collect())
    }

    /// Folder and variables as `cargo test` sets them; the lab's own are of another package.
    fn place<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .current_dir(&self.package)
            .env("CARGO", cargo())
            .env("CARGO_MANIFEST_DIR", &self.package)
    }
}

impl WorkspaceTest {
    fn run(&self) -> Outcome {
        let began = Instant::now();
        let (verdict, reason) = self
            .attempt()
            .unwrap_or_else(|error| (Verdict::Failed, Some(format!("{error:#}"))));
        Outcome::new(&self.name, verdict, began.elapsed().as_secs_f64(), reason)
    }

    fn attempt(&self) -> Result<(Verdict, Option<String>)> {
        let command = match &self.kind {
            Kind::Function(program, function) => {
                let mut command = Command::new(&program.executable);
                program
                    .place(&mut command)
                    .arg(function)
                    // Also of one that passes: it may say that it left something out.
                    .args(["--exact", "--show-output"]);
                command
            }
            Kind::Documentation => {
                let mut command = Command::new(cargo());
                command.current_dir(repository()).args([
                    "test",
                    "--workspace",
                    "--locked",
                    "--doc",
                ]);
                command
            }
        };
        let (status, output) = self.finish(command)?;
        Ok(judge(status, &output))
    }

    /// Runs a program to its end; what it prints is kept, but for the complaint that a test takes long.
    fn finish(&self, mut command: Command) -> Result<(ExitStatus, String)> {
        let (reader, writer) = std::io::pipe().context("making a pipe")?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone().context("making a pipe")?)
            .stderr(writer);
        let mut child = command.spawn().context("starting a test program")?;
        // It holds the pipe's other end, without which reading never ends.
        drop(command);
        let mut output = String::new();
        for line in BufReader::new(reader).split(b'\n') {
            let line = line.context("reading a test's output")?;
            let line = String::from_utf8_lossy(&line);
            if line.contains("has been running for over") {
                println!("{} ... still running", self.name);
            } else {
                output.push_str(&line);
                output.push('\n');
            }
        }
        let status = child.wait().context("waiting for a test program")?;
        Ok((status, output))
    }
}

/// One of cargo's messages: a program of tests, or nothing of interest.
fn parse_program(message: &str) -> Result<Option<Program>> {
    let message: Value = serde_json::from_str(message)
        .with_context(|| format!("not a message of cargo: {message}"))?;
    let executable = message["executable"].as_str();
    let (true, Some(executable)) = (message["profile"]["test"] == true, executable) else {
        return Ok(None);
    };
    let name = message["target"]["name"].as_str().context("no name")?;
    let manifest = message["manifest_path"].as_str().context("no manifest")?;
    let package = Path::new(manifest).parent().context("no package")?;
    Ok(Some(Program {
        name: name.replace('-', "_"),
        executable: executable.into(),
        package: package.to_owned(),
    }))
}

/// How a test begins a line, on its standard output, that says what it could not do here, and why.
const LEFT_OUT: &str = "not tested here: ";

/// What became of a program that ran one test, or of rustdoc that ran some, and why.
fn judge(status: ExitStatus, output: &str) -> (Verdict, Option<String>) {
    let summaries: Vec<Summary> = output.lines().filter_map(parse_summary).collect();
    let sum = |count: fn(&Summary) -> usize| summaries.iter().map(count).sum::<usize>();
    let failed = sum(|summary| summary.failed);
    if failed > 0 || !status.success() || sum(|summary| summary.passed + summary.ignored) == 0 {
        let mut reason = complaint(output);
        if failed == 0 {
            reason = format!("its process ended ({status}) without a verdict\n{reason}");
        }
        return (Verdict::Failed, Some(reason));
    }
    let left_out: Vec<&str> = output
        .lines()
        .filter_map(|line| line.strip_prefix(LEFT_OUT))
        .collect();
    if !left_out.is_empty() {
        return (Verdict::Skipped, Some(left_out.join(", ")));
    }
    if sum(|summary| summary.ignored) == 0 {
        return (Verdict::Passed, None);
    }
    let reasons: Vec<&str> = output
        .lines()
        .filter_map(|line| Some(line.strip_prefix("test ")?.split_once(" ... ignored")?.1))
        .map(|reason| reason.trim_start_matches(", "))
        .map(|reason| {
            if reason.is_empty() {
                "ignored without a reason"
            } else {
                reason
            }
        })
        .collect();
    (Verdict::Skipped, Some(reasons.join(", ")))
}

#[derive(Debug, PartialEq, Eq)]
struct Summary {
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// `test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.01s`
fn parse_summary(line: &str) -> Option<Summary> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |word: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(word));
        part?.trim_end().parse().ok()
    };
    Some(Summary {
        passed: count("passed")?,
        failed: count("failed")?,
        ignored: count("ignored")?,
    })
}

/// What a failed test printed, without what every failed test does.
fn complaint(output: &str) -> String {
    let common = |line: &&str| {
        line.trim().is_empty()
            || line.starts_with("running ")
            || line.starts_with("test ")
            || *line == "failures:"
            || *line == "successes:"
            || line.starts_with("---- ")
            || line.starts_with("note: run with `RUST_BACKTRACE=1`")
    };
    let lines: Vec<&str> = output.lines().filter(|line| !common(line)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::ExitStatus;
    use std::sync::Arc;

    use super::{Kind, Program, WorkspaceTest, judge, parse_program, run};
    use crate::runner::Verdict;

    /// This very program.
    fn program() -> Arc<Program> {
        Arc::new(Program {
            name: "slotd_tests".to_owned(),
            executable: std::env::current_exe().unwrap(),
            package: env!("CARGO_MANIFEST_DIR").into(),
        })
    }

    #[test]
    fn a_test_is_run_under_the_name_that_the_list_has_and_takes_its_own_time() {
        let listed = program().tests().unwrap();
        let name = "workspace/slotd_tests::setup::tests::only_packages_of_what_is_missing_are_named_each_once";
        let one = listed.iter().find(|test| test.name == name).unwrap();
        let outcomes = run(std::slice::from_ref(one));
        assert_eq!(outcomes.len(), 1);
        assert_eq!(
            (outcomes[0].name.as_str(), outcomes[0].result),
            (name, Verdict::Passed)
        );
        assert!(outcomes[0].seconds > 0.0);
    }

    #[test]
    fn a_test_that_does_not_run_has_failed() {
        let missing = WorkspaceTest {
            name: "workspace/x".to_owned(),
            // Part of one name, which without --exact would run; all of none.
            kind: Kind::Function(program(), "setup::tests::only_packages".to_owned()),
        };
        let outcomes = run(&[missing]);
        assert_eq!(outcomes[0].result, Verdict::Failed);
        let reason = outcomes[0].reason.as_ref().unwrap();
        assert!(reason.contains("without a verdict"), "{reason}");
    }

    #[test]
    fn programs_are_found_in_cargos_messages() {
        // cargo 1.95, shortened.
        let program = r#"{"reason":"compiler-artifact","package_id":"path+file:///s/image#slotd-image@0.1.0","manifest_path":"/s/image/Cargo.toml","target":{"kind":["bin"],"crate_types":["bin"],"name":"slotd-mkimage"},"profile":{"opt_level":"0","test":true},"features":[],"filenames":["/s/target/debug/deps/slotd_mkimage-1"],"executable":"/s/target/debug/deps/slotd_mkimage-1","fresh":true}"#;
        let found = parse_program(program).unwrap().unwrap();
        assert_eq!(found.name, "slotd_mkimage");
        assert_eq!(found.package, Path::new("/s/image"));
        assert_eq!(
            found.executable,
            Path::new("/s/target/debug/deps/slotd_mkimage-1")
        );
        let no_test = program.replace(r#""test":true"#, r#""test":false"#);
        assert_eq!(parse_program(&no_test).unwrap(), None);
        let library = program.replace(
            r#""/s/target/debug/deps/slotd_mkimage-1","fresh""#,
            r#"null,"fresh""#,
        );
        assert_eq!(parse_program(&library).unwrap(), None);
        let end = r#"{"reason":"build-finished","success":true}"#;
        assert_eq!(parse_program(end).unwrap(), None);
    }

    /// What libtest of Rust 1.95 prints of one test.
    fn printed(result: &str, between: &str, summary: &str) -> String {
        format!(
            "\nrunning 1 test\ntest a::b ... {result}\n{between}\ntest result: {summary}; 0 measured; 9 filtered out; finished in 0.01s\n\n"
        )
    }

    #[test]
    fn a_verdict_needs_a_good_end_and_the_programs_own_word() {
        let [good, bad, abort] = [0, 101 << 8, 6].map(ExitStatus::from_raw);
        let passed = printed("ok", "", "ok. 1 passed; 0 failed; 0 ignored");
        assert_eq!(judge(good, &passed), (Verdict::Passed, None));
        assert_eq!(judge(bad, &passed).0, Verdict::Failed);
        let cut_short = "\nrunning 1 test\nlast words\n";
        for status in [good, abort] {
            let (verdict, reason) = judge(status, cut_short);
            assert_eq!(verdict, Verdict::Failed);
            let reason = reason.unwrap();
            assert!(
                reason.contains(&status.to_string()) && reason.ends_with("last words"),
                "{reason}"
            );
        }
        let none = printed("ok", "", "ok. 0 passed; 0 failed; 0 ignored");
        assert_eq!(judge(good, &none).0, Verdict::Failed);

        let ignored = printed(
            "ignored, needs a tape",
            "",
            "ok. 0 passed; 0 failed; 1 ignored",
        );
        assert_eq!(
            judge(good, &ignored),
            (Verdict::Skipped, Some("needs a tape".to_owned()))
        );
        let ignored = printed("ignored", "", "ok. 0 passed; 0 failed; 1 ignored");
        assert_eq!(judge(good, &ignored).1.unwrap(), "ignored without a reason");

        let left_out = "\nsuccesses:\n\n---- a::b stdout ----\nwrote 3 files\nskipped: x/y (no reason)\nnot tested here: no tape here\n\n\nsuccesses:\n    a::b\n";
        let left_out = printed("ok", left_out, "ok. 1 passed; 0 failed; 0 ignored");
        assert_eq!(
            judge(good, &left_out),
            (Verdict::Skipped, Some("no tape here".to_owned()))
        );
    }

    #[test]
    fn a_failure_is_told_by_what_the_test_printed() {
        let between = "\nfailures:\n\n---- a::b stdout ----\n\nthread 'a::b' (7) panicked at src/a.rs:3:5:\nboom\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n\n\nfailures:\n    a::b\n";
        let output = printed("FAILED", between, "FAILED. 0 passed; 1 failed; 0 ignored");
        let (verdict, reason) = judge(ExitStatus::from_raw(101 << 8), &output);
        assert_eq!(verdict, Verdict::Failed);
        assert_eq!(
            reason.unwrap(),
            "thread 'a::b' (7) panicked at src/a.rs:3:5:\nboom\n    a::b"
        );
        let shown = output.replace(
            "\nfailures:\n\n----",
            "\nsuccesses:\n\nsuccesses:\n\nfailures:\n\n----",
        );
        assert_eq!(
            judge(ExitStatus::from_raw(101 << 8), &shown).1,
            judge(ExitStatus::from_raw(101 << 8), &output).1
        );
    }
}
