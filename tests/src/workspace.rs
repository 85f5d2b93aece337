//! The workspace's own tests, run by cargo and counted one by one.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::artifacts::{cargo, repository};
use crate::runner::{Outcome, Verdict};

/// Runs `cargo test` over the workspace, only what contains one of the filters if there are any, and prints what is not a single passed test. Each test is an outcome
/// of its own, named `workspace/crate::module::test`.
pub fn run(filters: &[&str]) -> Result<Vec<Outcome>> {
    let mut command = Command::new(cargo());
    command
        .current_dir(repository())
        .args([
            "test",
            "--workspace",
            "--locked",
            "--no-fail-fast",
            "--color",
            "never",
            "--",
        ])
        .args(filters)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let began = Instant::now();
    let mut child = command.spawn().context("starting cargo test")?;
    let stderr = child.stderr.take().context("cargo's errors")?;
    let stdout = child.stdout.take().context("cargo's output")?;
    // Which program runs is said on standard error, what its tests do on standard output; each program's tests end with a summary.
    let programs = std::thread::spawn(move || {
        let mut programs = Vec::new();
        let mut errors = Vec::new();
        for line in BufReader::new(stderr)
            .lines()
            .map_while(std::io::Result::ok)
        {
            if let Some(program) = program_name(&line) {
                programs.push(program);
            } else if !line.trim_start().starts_with("Compiling") {
                eprintln!("{line}");
                errors.push(line);
            }
        }
        (programs, errors)
    });
    let mut reports = vec![Vec::new()];
    let mut failures = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("reading cargo's output")?;
        if let Some(result) = parse_result(&line) {
            if let Some(last) = reports.last_mut() {
                last.push(result);
            }
        } else if line.starts_with("test result:") {
            reports.push(Vec::new());
        } else if !line.is_empty() && !line.starts_with("running ") {
            failures.push(line);
        }
    }
    let status = child.wait().context("waiting for cargo test")?;
    let (programs, _) = programs
        .join()
        .map_err(|_| anyhow::anyhow!("the reader of cargo's errors died"))?;
    let seconds = began.elapsed().as_secs_f64();
    // Each summary opened the next program's report; the last one opened none.
    reports.pop();
    let outcomes = outcomes(&programs, &reports);
    let failed = outcomes
        .iter()
        .any(|outcome| outcome.result == Verdict::Failed);
    if failed {
        for line in &failures {
            println!("    {line}");
        }
    }
    if !status.success() && !failed {
        bail!(
            "cargo test failed ({status}) without a failing test: it does not compile, or a test program crashed"
        );
    }
    println!("workspace ... {} tests ({seconds:.1} s)", outcomes.len());
    Ok(outcomes)
}

/// Names of all tests of the workspace.
pub fn list() -> Result<Vec<String>> {
    let output = Command::new(cargo())
        .current_dir(repository())
        .args([
            "test",
            "--workspace",
            "--locked",
            "--quiet",
            "--",
            "--list",
            "--format",
            "terse",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo test")?;
    if !output.status.success() {
        bail!("cargo test --list failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(|name| format!("workspace/{name}"))
        .collect())
}

/// `     Running unittests src/lib.rs (target/debug/deps/slotd_image-0123456789abcdef)` or `   Doc-tests slotd_image`.
fn program_name(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name} (doc)"));
    }
    let path = line
        .strip_prefix("Running ")?
        .rsplit_once('(')?
        .1
        .trim_end_matches(')');
    let file = path.rsplit('/').next()?;
    Some(
        file.rsplit_once('-')
            .map_or(file, |(name, _)| name)
            .to_owned(),
    )
}

/// One line of a test program's output: the test's name, its verdict and the reason it was ignored for.
fn parse_result(line: &str) -> Option<(String, Verdict, Option<String>)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let name = name.trim_end_matches(" - should panic").to_owned();
    let result = result.trim();
    if result == "ok" || result.starts_with("ok ") {
        Some((name, Verdict::Passed, None))
    } else if result.starts_with("FAILED") {
        Some((
            name,
            Verdict::Failed,
            Some("see its output above".to_owned()),
        ))
    } else if let Some(reason) = result.strip_prefix("ignored") {
        let reason = reason.trim_start_matches(", ").trim();
        let reason = if reason.is_empty() {
            "ignored without a reason"
        } else {
            reason
        };
        Some((name, Verdict::Skipped, Some(reason.to_owned())))
    } else {
        None
    }
}

type Report = Vec<(String, Verdict, Option<String>)>;

/// Joins the programs' names with their reports. A program that crashed leaves no report, so names are only used when there are as
/// many as reports.
fn outcomes(programs: &[String], reports: &[Report]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (index, report) in reports.iter().enumerate() {
        let program = programs
            .get(index)
            .filter(|_| programs.len() == reports.len());
        for (name, result, reason) in report {
            let name = match program {
                Some(program) => format!("workspace/{program}::{name}"),
                None => format!("workspace/{name}"),
            };
            outcomes.push(Outcome::new(&name, *result, 0.0, reason.clone()));
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::{parse_result, program_name};
    use crate::runner::Verdict;

    #[test]
    fn a_program_is_named_after_its_crate() {
        let line =
            "     Running unittests src/lib.rs (target/debug/deps/slotd_image-0123456789abcdef)";
        assert_eq!(program_name(line).as_deref(), Some("slotd_image"));
        assert_eq!(
            program_name("   Doc-tests slotd_image").as_deref(),
            Some("slotd_image (doc)")
        );
        assert_eq!(program_name("   Compiling x v1 (/y)"), None);
    }

    #[test]
    fn results_are_read_as_the_test_program_prints_them() {
        assert_eq!(
            parse_result("test size::tests::a ... ok"),
            Some(("size::tests::a".to_owned(), Verdict::Passed, None))
        );
        assert_eq!(
            parse_result("test b ... FAILED").unwrap().1,
            Verdict::Failed
        );
        assert_eq!(
            parse_result("test c ... ignored, needs a tape"),
            Some((
                "c".to_owned(),
                Verdict::Skipped,
                Some("needs a tape".to_owned())
            ))
        );
        assert_eq!(parse_result("test result: ok. 3 passed"), None);
    }
}
