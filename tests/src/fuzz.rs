//! Coverage-guided fuzzers of everything that is read from disks, networks, other programs and people.
//!
//! What they run are the `fuzzing` modules of the crates, which assert what has to hold of any input. libFuzzer finds its way
//! by what the compiler of a plain stable Rust counts for it (LLVM's SanitizerCoverage), in the crates of this workspace
//! alone: what they are made of is the same as everywhere else and is not built a second time.
//!
//! Each run begins with faults that are there on purpose: fuzzers that do not find these within seconds prove nothing.

mod process;
mod report;
mod seeded;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::process::Fuzzer;
pub use self::report::Report;
use crate::artifacts::repository;
use crate::build::{cargo, target_folder};
use crate::selection::Selection;

/// Fuzzers that run at a time.
const AT_A_TIME: usize = 2;

/// What is told the compiler for this workspace's crates: counters at each edge, comparisons reported, checks for overflow.
const FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions=yes",
    "-Coverflow-checks=yes",
];

/// The compiler, with these flags behind its arguments. Less optimised than this, a crate shares generic functions of the
/// standard library with it, which are not watched; the service, which reads with what it derives, takes many minutes otherwise.
fn wrapper() -> String {
    let flags = FLAGS.join(" ");
    format!(
        "#!/bin/sh\ncase \" $* \" in *\" --crate-name slotd \"*) level=1 ;; *) level=2 ;; esac\n\
         exec \"$@\" {flags} -Copt-level=$level\n"
    )
}

/// The names of the fuzzers that are taken, `crate/target`, sorted.
///
/// # Errors
/// When a pattern takes none.
pub fn names(selection: &Selection) -> Result<Vec<String>> {
    let mut names = all()?;
    names.retain(|name| selection.takes(name));
    let taken: Vec<&str> = names.iter().map(String::as_str).collect();
    selection.check(&taken, &[])?;
    Ok(names)
}

/// Runs each of these fuzzers for so long. Tells on standard error what it does.
///
/// # Errors
/// When the fuzzers cannot be built or started, or do not find the faults that are there on purpose.
pub fn run(names: &[String], minutes: f64) -> Result<Report> {
    let time = Duration::try_from_secs_f64(minutes * 60.0).context("--minutes")?;
    ensure!(
        time >= Duration::from_secs(1),
        "--minutes: less than a second"
    );
    let folder = target_folder()?.join("lab/fuzz");
    let program = build(&folder)?;
    seeded::check(&program, &folder)?;
    eprintln!(
        "lab: {} fuzzers, {AT_A_TIME} at a time, {} s each",
        names.len(),
        time.as_secs()
    );
    let runs = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fuzzer = Fuzzer::new(name, Some(corpora().join(name)), &program, &folder);
                    let run = fuzzer.run(time);
                    if let Ok(run) = &run {
                        eprintln!("{name} ... {}", run.verdict());
                    }
                    let mut runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
                    runs.push(run);
                }
            });
        }
    });
    let runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    let runs = runs.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(Report::new(runs, time.as_secs()))
}

/// Where the inputs lie that are checked in: a folder for each crate, in it one for each fuzzer.
fn corpora() -> PathBuf {
    repository().join("tests/fuzz/corpus")
}

fn all() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for crate_folder in folders(&corpora())? {
        for target in folders(&corpora().join(&crate_folder))? {
            names.push(format!("{crate_folder}/{target}"));
        }
    }
    Ok(names)
}

fn folders(path: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(path).with_context(|| format!("listing {}", path.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("listing {}", path.display()))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Builds the program with all fuzzers in it.
fn build(folder: &Path) -> Result<PathBuf> {
    let began = Instant::now();
    eprintln!("lab: building the fuzzers");
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    // Cargo puts a wrapper around the compiler for the workspace's crates only, and keeps what comes of it apart. It goes by
    // the wrapper's path, not by what it holds: other flags have another path.
    let script = wrapper();
    let wrapper = folder.join(format!("rustc-{:08x}", crc32fast::hash(script.as_bytes())));
    if !wrapper.exists() {
        let partial = folder.join("rustc.partial");
        fs::write(&partial, script).with_context(|| format!("writing {}", partial.display()))?;
        fs::set_permissions(&partial, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("making {} executable", partial.display()))?;
        fs::rename(&partial, &wrapper)
            .with_context(|| format!("renaming {}", partial.display()))?;
    }
    let target = target_folder()?;
    crate::process::inherit(&cargo(), |command| {
        command
            .current_dir(repository())
            .env("RUSTC_WORKSPACE_WRAPPER", &wrapper)
            .args(["build", "--quiet", "--locked", "--bin=slotd-fuzz"])
            // With the lab, so that all they share has the features that it has there, and is there already.
            .args(["--package=slotd-fuzz", "--package=slotd-tests"])
            .args(["--features=slotd-fuzz/libfuzzer", "--target-dir"])
            .arg(&target)
    })?;
    eprintln!("lab: built in {:.0} s", began.elapsed().as_secs_f64());
    Ok(target.join("debug/slotd-fuzz"))
}

#[cfg(test)]
mod tests {
    use super::{corpora, names};
    use crate::selection::Selection;

    #[test]
    fn each_fuzzer_is_named_after_its_crate_and_its_folder_of_inputs() {
        let all = names(&Selection::new(&[])).unwrap();
        assert!(all.contains(&"bootctl/gpt".to_owned()), "{all:?}");
        for name in &all {
            assert!(corpora().join(name).is_dir());
        }
        let only = ["image/".to_owned()];
        let some = names(&Selection::new(&only)).unwrap();
        assert!(some.len() < all.len());
        assert!(some.iter().all(|name| name.starts_with("image/")));
    }
}
