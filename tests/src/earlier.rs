//! What passed earlier with the very same sources, so that a run that takes hours may be interrupted and gone on with.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::artifacts::repository;
use crate::process;
use crate::runner::{Outcome, Verdict};

/// Results of one command of the lab, with the sources as they are committed.
#[derive(Debug)]
pub struct Earlier {
    path: PathBuf,
    sources: String,
    passed: BTreeMap<String, Outcome>,
}

/// One line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    /// Git's name of all sources together.
    sources: String,
    /// When it was seen.
    at: Timestamp,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Earlier {
    /// Opens the results of a command below the target folder: those of before to go on with, or none, to begin anew. `None` where
    /// the sources are not those of a commit, and nothing can be kept for later.
    ///
    /// # Errors
    /// Where that cannot be gone on with, or the file cannot be read or written.
    pub fn open(target: &Path, command: &str, go_on: bool) -> Result<Option<Self>> {
        let git = |arguments: &[&str]| {
            process::output("git", |git| git.current_dir(repository()).args(arguments))
        };
        let clean = git(&["status", "--porcelain"]).is_ok_and(|changes| changes.is_empty());
        ensure!(
            clean || !go_on,
            "the sources are not those of a commit: what passed earlier says nothing of them"
        );
        if !clean {
            return Ok(None);
        }
        let sources = git(&["rev-parse", "HEAD^{tree}"])?.trim().to_owned();
        let path = target.join(format!("lab/passed-{command}.jsonl"));
        Self::read(path, sources, go_on).map(Some)
    }

    fn read(path: PathBuf, sources: String, go_on: bool) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let mut passed = BTreeMap::new();
        if go_on && path.exists() {
            let text =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            // A line that was cut off says nothing.
            let lines = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Line>(line).ok())
                .filter(|line| line.sources == sources && line.outcome.result == Verdict::Passed);
            for line in lines {
                let mut outcome = line.outcome;
                outcome.notes.push(format!("seen at {}", line.at));
                passed.insert(outcome.name.clone(), outcome);
            }
        } else {
            File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        }
        Ok(Self {
            path,
            sources,
            passed,
        })
    }

    /// How this test passed earlier, if it did.
    pub fn of(&self, name: &str) -> Option<&Outcome> {
        self.passed.get(name)
    }

    /// Keeps what passed now for a later run. What cannot be kept is said, and is no test's failure.
    pub fn keep(&self, outcome: &Outcome) {
        if outcome.result != Verdict::Passed {
            return;
        }
        let line = Line {
            sources: self.sources.clone(),
            at: Timestamp::now(),
            outcome: outcome.clone(),
        };
        let kept = serde_json::to_string(&line)
            .map_err(anyhow::Error::from)
            .and_then(|line| {
                let mut file = File::options().append(true).open(&self.path)?;
                Ok(file.write_all(format!("{line}\n").as_bytes())?)
            });
        if let Err(error) = kept {
            eprintln!("lab: keeping a result in {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Earlier;
    use crate::runner::{Outcome, Verdict};

    fn outcome(name: &str, result: Verdict) -> Outcome {
        Outcome::new(name, result, 1.5, None)
    }

    #[test]
    fn only_what_passed_with_the_same_sources_is_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let open = |sources: &str, go_on| {
            let path = folder.path().join("lab/passed-prove.jsonl");
            Earlier::read(path, sources.to_owned(), go_on).unwrap()
        };
        let first = open("1234", true);
        first.keep(&outcome("vm/passed", Verdict::Passed));
        first.keep(&outcome("vm/failed", Verdict::Failed));
        first.keep(&outcome("vm/skipped", Verdict::Skipped));
        let path = folder.path().join("lab/passed-prove.jsonl");
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"sources\":\"1234\",\"at\"");
        std::fs::write(&path, text).unwrap();

        let later = open("1234", true);
        assert!(later.of("vm/failed").is_none() && later.of("vm/skipped").is_none());
        let passed = later.of("vm/passed").unwrap();
        assert_eq!((passed.seconds, passed.result), (1.5, Verdict::Passed));
        assert!(passed.notes[0].starts_with("seen at 2"), "{passed:?}");
        assert!(open("5678", true).of("vm/passed").is_none());

        open("1234", false);
        assert!(open("1234", true).of("vm/passed").is_none());
    }
}
