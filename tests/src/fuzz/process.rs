//! One fuzzer: libFuzzer in a process with limits.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::report::{Figures, Run};

/// Memory that a fuzzer's process may ask for, in MiB, whether it uses it or not. An allocation beyond fails, which ends the
/// process with the input at hand: a size that an input merely claims is found, too. The program and its threads take up to 200,
/// the decoder's window may be 8 here.
const ADDRESS_SPACE: u64 = 320;
/// Memory that it may use, in MiB. Up to 50 are usual.
const MEMORY: u64 = 192;
/// Seconds that an input may take; more is a finding. Milliseconds are usual.
const PATIENCE: u64 = 10;
/// How often a running fuzzer is reported on.
const INTERVAL: Duration = Duration::from_secs(20);

/// What a shell is told before it becomes a fuzzer.
fn limit() -> String {
    format!("ulimit -v {};", ADDRESS_SPACE << 10)
}

/// One fuzzer and its files.
pub(super) struct Fuzzer<'a> {
    name: &'a str,
    program: &'a Path,
    /// Inputs that are checked in.
    seeds: Option<PathBuf>,
    /// Inputs that it found to lead elsewhere, kept for the next time.
    corpus: PathBuf,
    /// What a finding's file begins with.
    findings: PathBuf,
    log: PathBuf,
    /// Seconds that an input may take.
    pub(super) patience: u64,
}

impl<'a> Fuzzer<'a> {
    pub(super) fn new(
        name: &'a str,
        seeds: Option<PathBuf>,
        program: &'a Path,
        folder: &Path,
    ) -> Self {
        let flat = name.replace('/', "-");
        Self {
            name,
            program,
            seeds,
            corpus: folder.join("corpus").join(name),
            findings: folder.join("findings").join(format!("{flat}-")),
            log: folder.join("logs").join(format!("{flat}.log")),
            patience: PATIENCE,
        }
    }

    /// libFuzzer with these arguments, within limits.
    fn command(&self) -> Command {
        let mut command = Command::new("sh");
        command
            .env("SLOTD_FUZZ_TARGET", self.name)
            .args(["-c", &format!("{} exec \"$0\" \"$@\"", limit())])
            .arg(self.program)
            .arg(format!("-timeout={}", self.patience))
            .arg(format!("-rss_limit_mb={MEMORY}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// Runs for so long, or until something is found.
    pub(super) fn run(&self, time: Duration) -> Result<Run> {
        for path in [&self.corpus.join("x"), &self.findings, &self.log] {
            let folder = path.parent().context("a file without a folder")?;
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let mut child = self
            .command()
            .arg(format!("-max_total_time={}", time.as_secs()))
            .arg(format!("-artifact_prefix={}", self.findings.display()))
            .arg(&self.corpus)
            .args(&self.seeds)
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        let output = child.stderr.take().context("no output")?;
        let figures = self.follow(BufReader::new(output))?;
        let status = child.wait().context("waiting for a fuzzer")?;
        Ok(Run {
            name: self.name.to_owned(),
            clean: status.success() && figures.finding().is_none(),
            figures,
            status: status.to_string(),
            log: self.log.clone(),
            again: format!(
                "SLOTD_FUZZ_TARGET={} sh -c '{} exec \"$0\" \"$1\"' {}",
                self.name,
                limit(),
                self.program.display()
            ),
        })
    }

    /// Whether the fuzzer finds fault with a file's input alone.
    pub(super) fn again(&self, input: &Path) -> Result<bool> {
        let status = self
            .command()
            .arg("-artifact_prefix=/dev/null/")
            .arg(input)
            .stderr(Stdio::null())
            .status()
            .with_context(|| format!("starting {}", self.program.display()))?;
        Ok(!status.success())
    }

    /// Forgets what former runs left.
    pub(super) fn forget(&self) -> Result<()> {
        match fs::remove_dir_all(&self.corpus) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", self.corpus.display()))
            }
            _ => Ok(()),
        }
    }

    /// Keeps what libFuzzer prints, and says now and then how far it is.
    fn follow(&self, output: impl BufRead) -> Result<Figures> {
        let mut log = fs::File::create(&self.log)
            .with_context(|| format!("creating {}", self.log.display()))?;
        let mut figures = Figures::default();
        let mut told = Instant::now();
        for line in output.split(b'\n') {
            let line = line.context("reading a fuzzer's output")?;
            let line = String::from_utf8_lossy(&line);
            writeln!(log, "{line}").context("writing a fuzzer's log")?;
            figures.take(&line);
            if told.elapsed() >= INTERVAL {
                told = Instant::now();
                eprintln!("{} ... {figures}", self.name);
            }
        }
        Ok(figures)
    }
}
