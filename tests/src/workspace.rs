//! The workspace's own tests: built by cargo, then run each in a process of its own. So each has its own time, and one that
//! crashes or ends its process takes no other's verdict with it.

mod verdict;

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
use verdict::{counted, judge};

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

/// Runs tests, as many at a time as there are processors, and prints those that did not pass or that counted something, and
/// one line about all.
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
                    if outcome.result != Verdict::Passed || !outcome.notes.is_empty() {
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
        let (verdict, reason, notes) = self.attempt().unwrap_or_else(|error| {
            let reason = Some(format!("{error:#}"));
            (Verdict::Failed, reason, Vec::new())
        });
        Outcome {
            notes,
            ..Outcome::new(&self.name, verdict, began.elapsed().as_secs_f64(), reason)
        }
    }

    /// How it ended, why, and what it counted.
    fn attempt(&self) -> Result<(Verdict, Option<String>, Vec<String>)> {
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
        let (verdict, reason) = judge(status, &output);
        Ok((verdict, reason, counted(&output)))
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::{Kind, Program, WorkspaceTest, parse_program, run};
    use crate::runner::Verdict;

    /// This very program.
    fn program() -> Arc<Program> {
        Arc::new(Program {
            name: "slotd_tests".to_owned(),
            executable: std::env::current_exe().unwrap(),
            package: env!("CARGO_MANIFEST_DIR").into(),
        })
    }

    /// A test of this program by the name of its function.
    fn function(name: &str) -> WorkspaceTest {
        WorkspaceTest {
            name: "workspace/x".to_owned(),
            kind: Kind::Function(program(), name.to_owned()),
        }
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

    /// Prints what the next test looks for, so that it goes the whole way from here to the report.
    #[test]
    fn counts() {
        println!("counted: 3 states, 9 faults");
        println!("counted by somebody else");
    }

    #[test]
    fn what_a_test_counts_is_a_note_of_its_outcome() {
        let outcomes = run(&[function("workspace::tests::counts")]);
        assert_eq!(outcomes[0].result, Verdict::Passed);
        assert_eq!(outcomes[0].notes, ["3 states, 9 faults"]);
    }

    #[test]
    fn a_test_that_does_not_run_has_failed() {
        // Part of one name, which without --exact would run; all of none.
        let outcomes = run(&[function("setup::tests::only_packages")]);
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
}
