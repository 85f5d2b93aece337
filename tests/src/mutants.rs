//! Seeded faults: small breakages of the product, each of which some test has to notice.
//!
//! One after the other they are put into a copy of the sources, whose tests are built and run. A fault that no test
//! notices shows that a promise is kept by luck; one that does not compile shows nothing. That each still fits the sources
//! is a test of its own, so that they do not rot between two runs.

mod cluster;
mod image;
mod loaders;
mod node;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::artifacts::repository;
use crate::build::{cargo, target_folder};
use crate::earlier::Earlier;
use crate::process;
use crate::runner::{Outcome, Verdict};
use crate::selection::Selection;

/// Seconds after which tests that do not end have noticed the fault.
const LONGEST: u32 = 1200;

/// What writes something that a power cut can tear, or that others go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Writer {
    /// The image, into a slot.
    Image,
    /// Boot entries and files on a FAT partition.
    SystemdBoot,
    /// The environment block.
    Grub,
    /// The environment.
    Uboot,
    /// The partition table's attributes.
    Gptprio,
    /// The firmware's variables.
    Efi,
    /// The record and the history.
    State,
    /// Objects of the API server.
    Cluster,
}

/// The tests that have to notice a fault: arguments of `cargo test`.
pub type Tests = &'static [&'static str];

/// One breakage.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// What the product does wrong then.
    pub name: &'static str,
    /// Numbers of the promises that this breaks, as ARCHITECTURE.md has them.
    pub promises: &'static [u8],
    /// Whose work is broken, where it is one writer's.
    pub writer: Option<Writer>,
    /// The source file, from the repository's root.
    pub file: &'static str,
    /// What stands there, once.
    pub before: &'static str,
    /// What is put in its place.
    pub after: &'static str,
    /// Who has to notice.
    pub tests: Tests,
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Mutant> {
    [
        image::MUTANTS,
        loaders::MUTANTS,
        node::MUTANTS,
        cluster::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

/// What became of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    /// This test failed, of so many.
    Caught { first: String, failed: usize },
    /// The tests did not end.
    Hung,
    /// All tests passed.
    Survived,
    /// No test was run.
    Broken(String),
}

impl Mutant {
    /// The file's text with the fault in it.
    fn put_into(&self, text: &str) -> Result<String> {
        let found = text.matches(self.before).count();
        ensure!(
            found == 1,
            "{:?}: its text stands {found} times in {}, not once",
            self.name,
            self.file
        );
        Ok(text.replacen(self.before, self.after, 1))
    }

    fn promised(&self) -> String {
        let numbers: Vec<String> = self.promises.iter().map(u8::to_string).collect();
        numbers.join(", ")
    }
}

/// The faults that are taken.
fn taken(selection: &Selection<'_>) -> Result<Vec<&'static Mutant>> {
    let taken: Vec<&Mutant> = all()
        .filter(|mutant| selection.takes(mutant.name))
        .collect();
    let names: Vec<&str> = taken.iter().map(|mutant| mutant.name).collect();
    selection.check(&names, &[])?;
    Ok(taken)
}

/// Prints the names of the faults that are taken.
///
/// # Errors
/// When a pattern takes none.
pub fn list(selection: &Selection<'_>) -> Result<()> {
    for mutant in taken(selection)? {
        println!("{}", mutant.name);
    }
    Ok(())
}

/// Puts each fault that is taken into a copy of the sources and runs its tests; whether all were caught. Prints what it does.
/// What was caught earlier with the same sources is not tried again, where that was kept.
///
/// # Errors
/// When the copy cannot be made, a fault does not fit the sources, or the tests fail without any.
pub fn run(selection: &Selection<'_>, earlier: Option<&Earlier>) -> Result<bool> {
    let taken = taken(selection)?;
    let known = |mutant: &Mutant| earlier.and_then(|earlier| earlier.of(mutant.name));
    let copy = Copy::make()?;
    let without: BTreeSet<Tests> = taken
        .iter()
        .filter(|mutant| known(mutant).is_none())
        .map(|mutant| mutant.tests)
        .collect();
    for tests in without {
        let began = Instant::now();
        match copy.test(tests)? {
            Fate::Survived => {}
            fate => bail!(
                "without any fault, cargo test {}: {fate:?}",
                tests.join(" ")
            ),
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "no fault: cargo test {} ... passed ({seconds:.0} s)",
            tests.join(" ")
        );
    }
    let mut fates = Vec::new();
    for mutant in taken {
        if let Some(outcome) = known(mutant) {
            fates.push((mutant, outcome.clone()));
            continue;
        }
        let began = Instant::now();
        let fate = copy.with(mutant)?;
        let seconds = began.elapsed().as_secs_f64();
        let outcome = outcome(mutant, &fate, seconds);
        println!("{} ... {} ({seconds:.0} s)", mutant.name, told(&outcome));
        if let Some(earlier) = earlier {
            earlier.keep(&outcome);
        }
        fates.push((mutant, outcome));
    }
    Ok(summarise(&fates))
}

/// What became of a fault, which is well where it was caught.
fn outcome(mutant: &Mutant, fate: &Fate, seconds: f64) -> Outcome {
    let (verdict, told) = match fate {
        Fate::Caught { first, failed: 1 } => (Verdict::Passed, format!("caught by {first}")),
        Fate::Caught { first, failed } => {
            let more = failed.saturating_sub(1);
            (
                Verdict::Passed,
                format!("caught by {first} and {more} more"),
            )
        }
        Fate::Hung => (
            Verdict::Passed,
            format!("caught: its tests did not end within {LONGEST} s"),
        ),
        Fate::Survived => (Verdict::Failed, "NOT CAUGHT".to_owned()),
        Fate::Broken(reason) => (Verdict::Failed, format!("BROKEN: {reason}")),
    };
    Outcome::new(mutant.name, verdict, seconds, Some(told))
}

fn told(outcome: &Outcome) -> &str {
    outcome.reason.as_deref().unwrap_or_default()
}

fn summarise(fates: &[(&Mutant, Outcome)]) -> bool {
    let width = fates
        .iter()
        .map(|(mutant, _)| mutant.name.chars().count())
        .max();
    let width = width.unwrap_or(0).max("SEEDED FAULT".len());
    println!("\n{:width$}  {:8}  CAUGHT BY", "SEEDED FAULT", "PROMISE");
    for (mutant, outcome) in fates {
        println!(
            "{:width$}  {:8}  {}",
            mutant.name,
            mutant.promised(),
            told(outcome)
        );
    }
    let count = fates
        .iter()
        .filter(|(_, outcome)| outcome.result == Verdict::Passed)
        .count();
    println!("\n{count} of {} seeded faults caught", fates.len());
    count == fates.len()
}

/// A copy of the sources, with a target folder of its own, which is kept for the next time.
struct Copy {
    sources: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// As the working tree is now, with what git does not ignore.
    fn make() -> Result<Self> {
        let folder = target_folder()?.join("lab/mutants");
        let copy = Self {
            sources: folder.join("sources"),
            target: folder.join("target"),
        };
        fs::create_dir_all(&copy.sources)
            .with_context(|| format!("creating {}", copy.sources.display()))?;
        let wanted = tracked(
            repository(),
            &["--cached", "--others", "--exclude-standard"],
        )?;
        for file in files_below(&copy.sources, Path::new(""))? {
            if !wanted.contains(&file) {
                let path = copy.sources.join(&file);
                fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
            }
        }
        for file in &wanted {
            bring(&repository().join(file), &copy.sources.join(file))
                .with_context(|| format!("copying {}", file.display()))?;
        }
        Ok(copy)
    }

    fn with(&self, mutant: &Mutant) -> Result<Fate> {
        let path = self.sources.join(mutant.file);
        let whole =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        write(&path, &mutant.put_into(&whole)?)?;
        let fate = self.test(mutant.tests);
        write(&path, &whole)?;
        fate
    }

    fn test(&self, tests: Tests) -> Result<Fate> {
        let output = Command::new("timeout")
            .args(["--kill-after=10", &LONGEST.to_string()])
            .arg(cargo())
            .args(["test", "--locked"])
            .args(tests)
            .current_dir(&self.sources)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_TERM_COLOR", "never")
            // What another fault made a test fail with is not tried again.
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .stdin(Stdio::null())
            .output()
            .context("starting timeout (of coreutils)")?;
        let text = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(judge(output.status.code(), &text.concat()))
    }
}

/// What came of a run of `cargo test`, by its exit code and what it printed.
fn judge(code: Option<i32>, output: &str) -> Fate {
    let lines = || output.lines().map(str::trim_end);
    let failed: Vec<&str> = lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
        .collect();
    if let Some(first) = failed.first() {
        let first = first.trim_end_matches(" - should panic").to_owned();
        return Fate::Caught {
            first,
            failed: failed.len(),
        };
    }
    let passed = lines().any(|line| {
        line.strip_prefix("test result: ok. ")
            .is_some_and(|counts| !counts.starts_with("0 passed"))
    });
    match code {
        Some(0) if passed => Fate::Survived,
        Some(0) => Fate::Broken("no test was run".to_owned()),
        // Of `timeout`; a test program that is killed with it has no verdict.
        Some(124 | 137) => Fate::Hung,
        _ => {
            let error = lines()
                .find(|line| line.starts_with("error"))
                .unwrap_or("no verdict");
            Fate::Broken(error.to_owned())
        }
    }
}

fn tracked(repository: &Path, which: &[&str]) -> Result<BTreeSet<PathBuf>> {
    let names = process::output("git", |command| {
        command
            .current_dir(repository)
            .args(["ls-files", "-z"])
            .args(which)
    })?;
    let names = names.split('\0').filter(|name| !name.is_empty());
    Ok(names.map(PathBuf::from).collect())
}

fn files_below(root: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let shown = root.join(folder);
    let mut found = Vec::new();
    for entry in fs::read_dir(&shown).with_context(|| format!("reading {}", shown.display()))? {
        let entry = entry.with_context(|| format!("reading {}", shown.display()))?;
        let path = folder.join(entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(files_below(root, &path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Copies a file or a link, and leaves a file as old as it is where it is the same already: cargo builds what is newer.
fn bring(from: &Path, to: &Path) -> io::Result<()> {
    let meta = match fs::symlink_metadata(from) {
        Ok(meta) => meta,
        // Removed, and that is not committed yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    if meta.is_symlink() {
        match fs::remove_file(to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return symlink(fs::read_link(from)?, to),
        }
    }
    let bytes = fs::read(from)?;
    if fs::read(to).is_ok_and(|known| known == bytes) {
        return Ok(());
    }
    fs::write(to, bytes)?;
    fs::set_permissions(to, meta.permissions())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::{Fate, Writer, all, judge};
    use crate::artifacts::repository;

    #[test]
    fn every_fault_fits_the_sources_and_changes_them() {
        for mutant in all() {
            let path = repository().join(mutant.file);
            let text = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{:?}: {}: {error}", mutant.name, mutant.file));
            // What stands behind is test code, which breaks no promise.
            let product = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
            let broken = mutant.put_into(product).unwrap();
            assert_ne!(broken, product, "{:?}", mutant.name);
        }
    }

    #[test]
    fn there_are_two_for_each_promise_and_each_writer_and_each_has_its_own_name() {
        let names: BTreeSet<&str> = all().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 30, "{}", names.len());
        for promise in 1..=11 {
            let count = all()
                .filter(|mutant| mutant.promises.contains(&promise))
                .count();
            assert!(count >= 2, "promise {promise}: {count}");
        }
        for writer in [
            Writer::Image,
            Writer::SystemdBoot,
            Writer::Grub,
            Writer::Uboot,
            Writer::Gptprio,
            Writer::Efi,
            Writer::State,
            Writer::Cluster,
        ] {
            let count = all().filter(|mutant| mutant.writer == Some(writer)).count();
            assert!(count >= 2, "{writer:?}: {count}");
        }
    }

    #[test]
    fn a_fault_is_caught_by_a_test_that_fails_and_by_nothing_else() {
        // cargo 1.95, shortened.
        let running = "   Compiling slotd-engine v0.1.0\n     Running unittests src/lib.rs\n\nrunning 2 tests\n";
        let failed = format!(
            "{running}test a::b ... ok\ntest a::c ... FAILED\n\nfailures:\n    a::c\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\nerror: test failed, to rerun pass `--lib`\n"
        );
        let caught = Fate::Caught {
            first: "a::c".to_owned(),
            failed: 1,
        };
        assert_eq!(judge(Some(101), &failed), caught);
        let passed = format!("{running}test a::b ... ok\n\ntest result: ok. 2 passed; 0 failed\n");
        assert_eq!(judge(Some(0), &passed), Fate::Survived);
        let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 9 filtered out\n";
        assert!(matches!(judge(Some(0), none), Fate::Broken(_)));
        let wrong =
            "error[E0308]: mismatched types\nerror: could not compile `slotd-engine` (lib)\n";
        let broken = Fate::Broken("error[E0308]: mismatched types".to_owned());
        assert_eq!(judge(Some(101), wrong), broken);
        assert_eq!(judge(Some(124), running), Fate::Hung);
        // One that failed before another one hung has noticed it.
        assert_eq!(judge(Some(124), &failed), caught);
    }
}
