//! What libFuzzer says of a run, and what is said of all.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The last figures that were printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Figures {
    /// Inputs tried.
    executions: u64,
    /// Edges of the program that were reached.
    edges: u64,
    /// Those of them that the inputs it began with did not reach.
    new_edges: u64,
    /// Edges, how often they were taken, and outcomes of comparisons.
    features: u64,
    /// Inputs kept.
    inputs: u64,
    /// The most memory that the process had, in MiB.
    memory: u64,
    /// The file of an input for which a property does not hold.
    finding: Option<PathBuf>,
    /// What was said of it: the panic's message, or libFuzzer's own.
    said: Vec<String>,
}

/// Lines of a panic's message that are kept.
const SAID: usize = 4;
/// Bytes of a finding up to which it is shown, since its file may lie on a machine that is gone by then.
const SHOWN: usize = 2048;

impl Figures {
    /// Takes what one line says: `#4096 pulse  cov: 120 ft: 300 corp: 25/1Kb … rss: 41Mb`, or where a finding was written.
    pub(super) fn take(&mut self, line: &str) {
        if let Some((_, path)) = line.split_once("Test unit written to ") {
            self.finding = Some(path.trim().into());
        }
        let begins = line.contains(" panicked at ") || line.contains("ERROR: libFuzzer: ");
        let goes_on = !self.said.is_empty() && !line.starts_with(['=', '#']);
        if (begins || goes_on) && self.said.len() < SAID {
            self.said.push(line.to_owned());
        }
        let mut words = line.split_whitespace();
        let Some(executions) = words
            .next()
            .and_then(|word| word.strip_prefix('#')?.parse().ok())
        else {
            return;
        };
        self.executions = executions;
        let before = self.edges.saturating_sub(self.new_edges);
        let mut first = false;
        while let Some(word) = words.next() {
            let place = match word {
                "INITED" => {
                    first = true;
                    continue;
                }
                "cov:" => &mut self.edges,
                "ft:" => &mut self.features,
                "corp:" => &mut self.inputs,
                "rss:" => &mut self.memory,
                _ => continue,
            };
            let digits: String = words
                .next()
                .into_iter()
                .flat_map(str::chars)
                .take_while(char::is_ascii_digit)
                .collect();
            if let Ok(number) = digits.parse() {
                *place = number;
            }
        }
        let before = if first { self.edges } else { before };
        self.new_edges = self.edges.saturating_sub(before);
    }

    pub(super) fn finding(&self) -> Option<&Path> {
        self.finding.as_deref()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} executions, {} edges ({} new), {} inputs kept, {} MiB",
            self.executions, self.edges, self.new_edges, self.inputs, self.memory
        )
    }
}

/// A run that ended.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// How the process ended.
    pub(super) status: String,
    /// Whether it went on until its time was over and found nothing.
    pub(super) clean: bool,
    pub(super) log: PathBuf,
    /// The command that tries a file again, without the file.
    pub(super) again: String,
}

impl Run {
    pub(super) fn verdict(&self) -> String {
        if self.clean {
            return format!("{}, nothing found", self.figures);
        }
        let log = self.log.display();
        let Some(finding) = &self.figures.finding else {
            return format!("ended without a verdict ({})\n  log: {log}", self.status);
        };
        let said = self.figures.said.join("\n  ");
        let input = match fs::read(finding) {
            Ok(bytes) if bytes.len() <= SHOWN => format!("\"{}\"", bytes.escape_ascii()),
            Ok(bytes) => format!("{} bytes", bytes.len()),
            Err(error) => error.to_string(),
        };
        let finding = finding.display();
        format!(
            "FOUND: {finding}\n  {said}\n  input: {input}\n  log: {log}\n  again: {} {finding}\n  as a test: cp {finding} tests/fuzz/corpus/{}/any-NAME",
            self.again, self.name
        )
    }
}

/// What all fuzzers found.
#[derive(Debug, Serialize)]
pub struct Report {
    fuzzers: Vec<Run>,
    /// Seconds that each had.
    seconds: u64,
    /// Whether none found anything.
    pub clean: bool,
}

impl Report {
    pub(super) fn new(mut fuzzers: Vec<Run>, seconds: u64) -> Self {
        fuzzers.sort_by(|one, other| one.name.cmp(&other.name));
        let clean = fuzzers.iter().all(|run| run.clean);
        Self {
            fuzzers,
            seconds,
            clean,
        }
    }

    /// Prints the table for people, and behind it what was found.
    pub fn print(&self) {
        println!(
            "{:24}  {:>10}  {:>6}  {:>5}  {:>8}  {:>6}  {:>4}  RESULT",
            "FUZZER", "EXECUTIONS", "EDGES", "NEW", "FEATURES", "INPUTS", "MIB"
        );
        for run in &self.fuzzers {
            let figures = &run.figures;
            println!(
                "{:24}  {:>10}  {:>6}  {:>5}  {:>8}  {:>6}  {:>4}  {}",
                run.name,
                figures.executions,
                figures.edges,
                figures.new_edges,
                figures.features,
                figures.inputs,
                figures.memory,
                if run.clean { "ok" } else { "FOUND" }
            );
        }
        for run in self.fuzzers.iter().filter(|run| !run.clean) {
            println!("\n{}: {}", run.name, run.verdict());
        }
        let clean = self.fuzzers.iter().filter(|run| run.clean).count();
        println!(
            "\n{clean} of {} fuzzers found nothing in {} s each",
            self.fuzzers.len(),
            self.seconds
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{Figures, Report, Run};

    // Lines of libFuzzer 20.
    #[test]
    fn the_last_figures_count_and_a_finding_is_kept() {
        let mut figures = Figures::default();
        figures.take("INFO: Loaded 1 modules   (3402 inline 8-bit counters)");
        assert_eq!(figures, Figures::default());
        figures.take("#3\tINITED cov: 110 ft: 150 corp: 3/1130b exec/s: 0 rss: 40Mb");
        figures.take(
            "#8192\tNEW    cov: 120 ft: 301 corp: 25/12Kb lim: 80 exec/s: 0 rss: 41Mb L: 7/9",
        );
        figures.take("#9000\tDONE   cov: 121 ft: 302 corp: 26/12Kb lim: 80 exec/s: 3000 rss: 42Mb");
        let expected = "9000 executions, 121 edges (11 new), 26 inputs kept, 42 MiB";
        assert_eq!(figures.to_string(), expected);
        assert_eq!(figures.finding(), None);
        figures.take("artifact_prefix='./'; Test unit written to ./crash-44");
        assert_eq!(figures.finding(), Some(Path::new("./crash-44")));
        assert_eq!(figures.executions, 9000);
    }

    #[test]
    fn one_that_found_something_or_did_not_end_well_is_enough() {
        let run = |name: &str, clean| Run {
            name: name.to_owned(),
            figures: Figures::default(),
            status: String::new(),
            clean,
            log: "log".into(),
            again: "again".to_owned(),
        };
        assert!(Report::new(vec![run("b", true), run("a", true)], 1).clean);
        let report = Report::new(vec![run("b", true), run("a", false)], 1);
        assert!(!report.clean);
        assert_eq!(report.fuzzers[0].name, "a");
        assert!(report.fuzzers[0].verdict().contains("without a verdict"));
    }

    #[test]
    fn a_finding_is_shown_with_the_command_that_tries_it_again() {
        let mut run = Run {
            name: "image/zstd".to_owned(),
            figures: Figures::default(),
            status: String::new(),
            clean: false,
            log: "log".into(),
            again: "SLOTD_FUZZ_TARGET=image/zstd fuzz".to_owned(),
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("crash-1");
        fs::write(&file, b"\x28\xb5a\n").unwrap();
        let file = file.display();
        for line in [
            "#8 NEW    cov: 120 ft: 301 corp: 25/12Kb",
            "thread '<unnamed>' (7) panicked at image/src/fuzzing.rs:88:13:",
            "pieces make no difference",
            "==7== ERROR: libFuzzer: deadly signal",
            &format!("artifact_prefix='/f/'; Test unit written to {file}"),
        ] {
            run.figures.take(line);
        }
        let verdict = run.verdict();
        for part in [
            "panicked at image/src/fuzzing.rs:88:13:\n  pieces make no difference\n",
            "input: \"(\\xb5a\\n\"\n",
            &format!("again: SLOTD_FUZZ_TARGET=image/zstd fuzz {file}\n"),
            &format!("cp {file} tests/fuzz/corpus/image/zstd/"),
        ] {
            assert!(verdict.contains(part), "{verdict}");
        }
    }
}
