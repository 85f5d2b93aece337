//! Faults that are there on purpose (`tests/fuzz/src/seeded.rs`), one of each kind that a fuzzer has to tell.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::process::Fuzzer;

/// The fuzzers with a fault, and what the file of a finding is called then. A panic is a crash, and so is memory that is not to
/// be had; the first needs counters, comparisons and checks for overflow to be found.
const FAULTS: [(&str, &str); 3] = [
    ("seeded/overflow", "crash-"),
    ("seeded/memory", "crash-"),
    ("seeded/time", "timeout-"),
];
/// For how long they are looked for. Seconds are usual.
const LONGEST: Duration = Duration::from_secs(90);

/// Looks for each of them, without any inputs to begin with.
///
/// # Errors
/// When one is not found, or not found again with the file that was kept: the fuzzers are blind.
pub(super) fn check(program: &Path, folder: &Path) -> Result<()> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        FAULTS
            .map(|(name, kind)| scope.spawn(move || find(name, kind, program, folder)))
            .into_iter()
            .try_for_each(|search| {
                let result = search.join();
                result.unwrap_or_else(|_| anyhow::bail!("looking for a fault panicked"))
            })
    })?;
    eprintln!(
        "lab: {} faults that are there on purpose were found in {:.0} s",
        FAULTS.len(),
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

fn find(name: &str, kind: &str, program: &Path, folder: &Path) -> Result<()> {
    let mut fuzzer = Fuzzer::new(name, None, program, folder);
    fuzzer.patience = 1;
    fuzzer.forget()?;
    let run = fuzzer.run(LONGEST)?;
    let told = format!(
        "{name} has a fault on purpose, which was not found: {}",
        run.verdict()
    );
    let finding = run.figures.finding().context(told.clone())?;
    let file = finding.file_name().unwrap_or_default().to_string_lossy();
    ensure!(!run.clean && file.contains(kind), told);
    ensure!(
        fuzzer.again(finding)?,
        "{name} is found, but not with {}",
        finding.display()
    );
    fs::remove_file(finding).with_context(|| format!("removing {}", finding.display()))
}
