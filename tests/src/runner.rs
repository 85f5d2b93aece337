//! Running tests: which ones, in what order, how many at a time, and what is said of them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::earlier::Earlier;
use crate::images::{NODE_NEW, NODE_OLD, NODE_WITHOUT_KUBELET};
use crate::lab::Lab;

/// What a test runs on, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// This process.
    Process,
    /// Loop devices of this machine.
    Loop,
    /// The control plane that tests share.
    Cluster,
    /// Virtual machines.
    Machine,
    /// Virtual machines that are the nodes of a cluster.
    Node,
}

/// When a test runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// With every `lab test`, so in CI.
    Test,
    /// Only with `lab prove`.
    Prove,
}

/// One test of the lab.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    /// `tier/what-it-shows`.
    pub name: &'static str,
    /// What it runs on.
    pub tier: Tier,
    /// When it runs.
    pub set: Set,
    /// The reason why it cannot run here, if there is one.
    pub unavailable: fn() -> Option<&'static str>,
    /// The test.
    pub run: fn(&Lab) -> Result<()>,
}

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should.
    Passed,
    /// Not so.
    Failed,
    /// It was not run, for the reason given.
    Skipped,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The test's name.
    pub name: String,
    /// How it ended.
    pub result: Verdict,
    /// How long it took by the clock; 0 if it was not run.
    pub seconds: f64,
    /// Why it failed or was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Figures and facts that the test kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Outcome {
    /// What became of a test, without notes.
    pub fn new(name: &str, result: Verdict, seconds: f64, reason: Option<String>) -> Self {
        Self {
            name: name.to_owned(),
            result,
            seconds,
            reason,
            notes: Vec::new(),
        }
    }

    pub(crate) fn print(&self) {
        match (self.result, &self.reason) {
            (Verdict::Passed, _) => println!("{} ... ok ({:.1} s)", self.name, self.seconds),
            (Verdict::Skipped, reason) => {
                println!(
                    "{} ... skipped: {}",
                    self.name,
                    reason.as_deref().unwrap_or("no reason")
                );
            }
            (Verdict::Failed, reason) => {
                println!("{} ... FAILED ({:.1} s)", self.name, self.seconds);
                for line in reason.as_deref().unwrap_or("no reason").lines() {
                    println!("    {line}");
                }
            }
        }
        for note in &self.notes {
            println!("    {note}");
        }
    }
}

/// Runs tests one after the other, those with machines `parallel` at a time and those with a cluster beside them, and prints
/// each result as it comes. A cluster's tests wait for most of their time, and what they need is built in what machines
/// leave of the processors. So are the images of nodes, whose tests come last and have the machine to themselves. What passes is
/// kept for a later run, where it is given a place.
pub fn run(lab: &Lab, tests: &[Test], parallel: usize, earlier: Option<&Earlier>) -> Vec<Outcome> {
    let results = Results {
        outcomes: Mutex::default(),
        earlier,
    };
    for tier in [Tier::Process, Tier::Loop] {
        run_tier(lab, tier, tests, 1, &results);
    }
    std::thread::scope(|scope| {
        // The control plane lives as long as the thread that starts it.
        scope.spawn(|| {
            run_tier(lab, Tier::Cluster, tests, 1, &results);
            // What this cannot make is the failure of the tests that need it.
            if tests.iter().any(|test| test.tier == Tier::Node) {
                let _ = prepare_nodes(lab);
            }
        });
        run_tier(lab, Tier::Machine, tests, parallel, &results);
    });
    run_tier(lab, Tier::Node, tests, 1, &results);
    results
        .outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

/// What came of the tests so far.
struct Results<'a> {
    outcomes: Mutex<Vec<Outcome>>,
    earlier: Option<&'a Earlier>,
}

impl Results<'_> {
    fn record(&self, outcome: Outcome) {
        let mut outcomes = lock(&self.outcomes);
        outcome.print();
        if let Some(earlier) = self.earlier {
            earlier.keep(&outcome);
        }
        outcomes.push(outcome);
    }
}

/// Runs the tests of one tier.
fn run_tier(lab: &Lab, tier: Tier, tests: &[Test], parallel: usize, results: &Results<'_>) {
    let tests: Vec<Test> = tests
        .iter()
        .copied()
        .filter(|test| test.tier == tier)
        .collect();
    if let Err(error) = prepare(lab, tier, &tests) {
        for test in &tests {
            let reason = Some(format!("{error:#}"));
            let outcome = Outcome::new(test.name, Verdict::Failed, 0.0, reason);
            results.record(outcome);
        }
    } else if parallel > 1 {
        run_at_once(lab, &tests, parallel, results);
    } else {
        for test in &tests {
            results.record(run_one(lab, test));
        }
    }
}

/// Makes what all tests of a tier need, so that the first one's time is its own.
fn prepare(lab: &Lab, tier: Tier, tests: &[Test]) -> Result<()> {
    if tests.iter().all(|test| (test.unavailable)().is_some()) {
        return Ok(());
    }
    match tier {
        Tier::Process | Tier::Loop => Ok(()),
        Tier::Cluster => lab.control_plane().map(drop),
        Tier::Machine => lab.acceleration().map(drop),
        Tier::Node => prepare_nodes(lab),
    }
}

/// Makes what nodes run; the first kubelet takes some minutes.
fn prepare_nodes(lab: &Lab) -> Result<()> {
    lab.acceleration()?;
    let artifacts = lab.artifacts()?;
    for variant in [&NODE_OLD, &NODE_NEW, &NODE_WITHOUT_KUBELET] {
        artifacts.image(variant)?;
    }
    Ok(())
}

/// Runs tests so many at a time.
fn run_at_once(lab: &Lab, tests: &[Test], parallel: usize, results: &Results<'_>) {
    let queue: Mutex<VecDeque<Test>> = Mutex::new(tests.iter().copied().collect());
    std::thread::scope(|scope| {
        for _ in 0..parallel.max(1) {
            scope.spawn(|| {
                loop {
                    // A lock in a `while let` would be held for the whole turn.
                    let next = lock(&queue).pop_front();
                    let Some(test) = next else { break };
                    results.record(run_one(lab, &test));
                }
            });
        }
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_one(lab: &Lab, test: &Test) -> Outcome {
    if let Some(reason) = (test.unavailable)() {
        return Outcome::new(test.name, Verdict::Skipped, 0.0, Some(reason.to_owned()));
    }
    let began = Instant::now();
    let mut notes = Vec::new();
    let result = lab.for_test(&test.name.replace('/', "-")).and_then(|lab| {
        let result = catch_unwind(AssertUnwindSafe(|| (test.run)(&lab)))
            .unwrap_or_else(|panic| Err(anyhow!("panicked: {}", panic_text(&panic))));
        clean_up(lab.folder(), result.is_err());
        notes = lab.notes();
        result.with_context(|| format!("logs are in {}", lab.folder().display()))
    });
    let seconds = began.elapsed().as_secs_f64();
    let (verdict, reason) = match result {
        Ok(()) => (Verdict::Passed, None),
        Err(error) => (Verdict::Failed, Some(format!("{error:#}"))),
    };
    Outcome {
        notes,
        ..Outcome::new(test.name, verdict, seconds, reason)
    }
}

fn panic_text(panic: &Box<dyn std::any::Any + Send>) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "something that is no text".to_owned())
}

/// Removes what a test left, except the logs of one that failed. What resists is no test's failure.
fn clean_up(folder: &Path, keep_logs: bool) {
    if !keep_logs {
        let _ = std::fs::remove_dir_all(folder);
        return;
    }
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.path().is_dir() {
            clean_up(&entry.path(), true);
        } else if entry
            .path()
            .extension()
            .is_none_or(|extension| extension != "log")
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a skipped test fails the run: where `CI=true` says that all has to be proven and this machine can run all, being root
/// and having loop devices.
pub fn skips_fail(ci: Option<&str>, no_loop_devices: Option<&str>) -> bool {
    ci == Some("true") && no_loop_devices.is_none()
}

/// Prints the reasons of what was skipped or failed and the line that sums a run up, in which tests alone are counted; returns
/// whether nothing failed, by a skip neither where those fail.
pub fn summarise(outcomes: &[Outcome], skips_fail: bool) -> bool {
    let count = |verdict| {
        outcomes
            .iter()
            .filter(|outcome| outcome.result == verdict)
            .count()
    };
    println!();
    for verdict in [Verdict::Skipped, Verdict::Failed] {
        for outcome in outcomes.iter().filter(|outcome| outcome.result == verdict) {
            let word = if verdict == Verdict::Skipped {
                "skipped"
            } else {
                "FAILED"
            };
            let reason = outcome.reason.as_deref().unwrap_or("no reason");
            println!(
                "{word}: {} ({})",
                outcome.name,
                reason.lines().next().unwrap_or_default()
            );
        }
    }
    let (failed, skipped) = (count(Verdict::Failed), count(Verdict::Skipped));
    let wrongly_skipped = skips_fail && skipped > 0;
    if wrongly_skipped {
        println!("CI=true: this machine can run what was skipped, so that is a failure");
    }
    println!(
        "{} passed, {failed} failed, {skipped} skipped",
        count(Verdict::Passed)
    );
    failed == 0 && !wrongly_skipped
}

/// Writes the report: a list of name, result and seconds.
pub fn write_report(outcomes: &[Outcome], path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(outcomes).context("writing the report")?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Set, Test, Tier, Verdict, run, skips_fail, summarise};
    use crate::build::Profile;
    use crate::lab::Lab;

    fn test(name: &'static str, run: fn(&Lab) -> anyhow::Result<()>) -> Test {
        Test {
            name,
            tier: Tier::Process,
            set: Set::Test,
            unavailable: || None,
            run,
        }
    }

    #[test]
    fn tests_with_machines_run_at_the_same_time() {
        static MEETING: std::sync::Barrier = std::sync::Barrier::new(2);
        let folder = tempfile::tempdir().unwrap();
        let lab = Lab::new(folder.path(), 1, Profile::Debug).unwrap();
        let meet = |_: &Lab| {
            MEETING.wait();
            Ok(())
        };
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let tests = [test("x/one", meet), test("x/other", meet)];
            let tests = tests.map(|test| Test {
                tier: Tier::Machine,
                ..test
            });
            let results = super::Results {
                outcomes: std::sync::Mutex::default(),
                earlier: None,
            };
            super::run_at_once(&lab, &tests, 2, &results);
            let _ = ended.send(super::lock(&results.outcomes).len());
        });
        let count = end.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(count, Ok(2), "one waited for the other in vain");
    }

    #[test]
    fn failures_and_panics_are_told_apart_from_success_and_keep_their_logs() {
        let folder = tempfile::tempdir().unwrap();
        let lab = Lab::new(folder.path(), 1, Profile::Debug).unwrap();
        let tests = [
            test("x/passes", |lab| {
                lab.note("3.4 of 10");
                Ok(std::fs::write(lab.folder().join("a.log"), "")?)
            }),
            test("x/fails", |lab| {
                std::fs::write(lab.folder().join("a.log"), "")?;
                std::fs::write(lab.folder().join("disk.img"), "")?;
                anyhow::bail!("because")
            }),
            test("x/panics", |_| panic!("oh")),
            Test {
                unavailable: || Some("not here"),
                ..test("x/skipped", |_| Ok(()))
            },
        ];
        let outcomes = run(&lab, &tests, 1, None);
        let verdicts: Vec<Verdict> = outcomes.iter().map(|outcome| outcome.result).collect();
        assert_eq!(
            verdicts,
            [
                Verdict::Passed,
                Verdict::Failed,
                Verdict::Failed,
                Verdict::Skipped
            ]
        );
        assert_eq!(outcomes[0].notes, ["3.4 of 10"]);
        assert!(outcomes[1].reason.as_ref().unwrap().contains("because"));
        assert!(outcomes[2].reason.as_ref().unwrap().contains("oh"));
        assert!(!folder.path().join("x-passes").exists());
        assert!(folder.path().join("x-fails/a.log").exists());
        assert!(!folder.path().join("x-fails/disk.img").exists());
    }

    #[test]
    fn a_skip_fails_in_ci_on_a_machine_that_can_run_all() {
        assert!(skips_fail(Some("true"), None));
        assert!(!skips_fail(Some("true"), Some("needs root")));
        for elsewhere in [None, Some(""), Some("false")] {
            assert!(!skips_fail(elsewhere, None), "{elsewhere:?}");
        }

        let outcome = |result| Outcome::new("x/y", result, 0.0, None);
        let [passed, skipped, failed] =
            [Verdict::Passed, Verdict::Skipped, Verdict::Failed].map(outcome);
        for (outcomes, lenient, strict) in [
            (vec![passed.clone()], true, true),
            (vec![passed.clone(), skipped], true, false),
            (vec![passed, failed], false, false),
        ] {
            assert_eq!(summarise(&outcomes, false), lenient, "{outcomes:?}");
            assert_eq!(summarise(&outcomes, true), strict, "{outcomes:?}");
        }
    }
}
