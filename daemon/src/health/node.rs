//! The machine that the checks look at: PID 1 by `systemctl` and `systemd-run`, which speak to it over its own socket
//! and need no D-Bus daemon (`systemd-run --wait` and `--pipe` would).

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use slotd_image::Cancel;

use super::http::HttpCheck;
use super::process::{self, End};
use super::scripts::Script;

/// What a look at something found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probed {
    /// It is as it has to be.
    Passed,
    /// Not yet; what was seen.
    NotYet(String),
    /// It will never be; what was seen.
    Failed(String),
}

/// How a script ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptEnd {
    /// With exit status 0.
    Succeeded,
    /// In any other way.
    Failed {
        /// What it printed, and how it ended.
        output: String,
    },
}

/// A unit's state, as PID 1 tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitState {
    load: String,
    active: String,
    sub: String,
    result: String,
}

impl UnitState {
    /// Reads the answer of `systemctl show`.
    pub fn parse(text: &str) -> Self {
        let mut state = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let value = value.to_owned();
            match key {
                "LoadState" => state.load = value,
                "ActiveState" => state.active = value,
                "SubState" => state.sub = value,
                "Result" => state.result = value,
                _ => {}
            }
        }
        state
    }

    pub(super) fn is_active(&self) -> bool {
        matches!(self.active.as_str(), "active" | "reloading")
    }

    pub(super) fn is_failed(&self) -> bool {
        self.active == "failed"
    }

    pub(super) fn can_never_start(&self) -> bool {
        !self.is_active() && matches!(self.load.as_str(), "not-found" | "masked" | "bad-setting")
    }
}

impl fmt::Display for UnitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.load != "loaded" {
            return f.write_str(&self.load);
        }
        write!(f, "{} ({})", self.active, self.sub)?;
        if !self.result.is_empty() && self.result != "success" {
            write!(f, ": {}", self.result)?;
        }
        Ok(())
    }
}

/// A machine as the checks see it. Errors are sentences for people: they are tried again.
pub trait Node {
    /// A unit's state.
    ///
    /// # Errors
    /// When PID 1 does not answer.
    fn unit(&self, unit: &str) -> Result<UnitState, String>;

    /// The failed units.
    ///
    /// # Errors
    /// When PID 1 does not answer.
    fn failed_units(&self) -> Result<Vec<String>, String>;

    /// The units that are starting, ours left out.
    ///
    /// # Errors
    /// When PID 1 does not answer.
    fn starting_units(&self) -> Result<Vec<String>, String>;

    /// What can be said of a unit that does not do what it should.
    fn explain(&self, unit: &str) -> Option<String>;

    /// Whether a file is there.
    fn has(&self, file: &Path) -> bool;

    /// Asks an HTTP probe once, for at most `left`.
    fn probe(&self, probe: &HttpCheck, left: Duration) -> Probed;

    /// Runs a script until it ends or `timeout` is over.
    fn script(&self, script: &Script, timeout: Duration, cancel: &Cancel) -> ScriptEnd;
}

/// Whether a unit is part of slotd's own confirmation, which waits for the checks.
pub(super) fn is_ours(unit: &str) -> bool {
    unit.starts_with("slotd-") || unit == "slotd.service"
}

/// This machine.
#[derive(Debug)]
pub struct SystemdNode {
    outputs: PathBuf,
}

impl Default for SystemdNode {
    fn default() -> Self {
        Self {
            outputs: PathBuf::from("/run/slotd/checks"),
        }
    }
}

/// How long PID 1 may take for an answer.
const ANSWER: Duration = Duration::from_secs(20);

/// Numbers the units of scripts, so that one that is left over is in nobody's way.
static RUNS: AtomicU32 = AtomicU32::new(0);

impl SystemdNode {
    fn ask(program: &str, arguments: &[&str]) -> Result<String, String> {
        let said = format!("{program} {}", arguments.first().unwrap_or(&""));
        let mut command = Command::new(program);
        command.args(arguments).env("LC_ALL", "C");
        match process::run(&mut command, ANSWER, &|| false) {
            Ok(End::Exited { status, output }) if status.success() => Ok(output),
            Ok(End::Exited { status, output }) => {
                Err(format!("{said}: {status}: {}", output.trim()))
            }
            Ok(End::Killed) => Err(format!("{said}: no answer from PID 1")),
            Err(error) => Err(format!("{said}: {error}")),
        }
    }

    fn start(
        &self,
        script: &Script,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<ScriptEnd, String> {
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let unit = format!(
            "slotd-check-{}-{}-{number}.service",
            std::process::id(),
            unit_name_part(&script.name)
        );
        fs::create_dir_all(&self.outputs)
            .map_err(|error| format!("cannot create {}: {error}", self.outputs.display()))?;
        let output = self.outputs.join(&unit);
        // A oneshot: starting it ends when the script does, which takes no more than PID 1's own socket.
        let mut command = Command::new("systemd-run");
        command
            .args(["--quiet", "--no-ask-password"])
            .arg(format!("--unit={unit}"))
            .arg(format!("--description=Health check {}", script.check()))
            .arg("--property=Type=oneshot")
            .arg(format!(
                "--property=TimeoutStartSec={}ms",
                timeout.as_millis()
            ))
            .arg("--property=TimeoutStopSec=5s")
            .arg(format!(
                "--property=StandardOutput=file:{}",
                output.display()
            ))
            .arg("--property=StandardError=inherit")
            .arg("--")
            .arg(&script.path);
        let run = process::run(&mut command, timeout.saturating_add(ANSWER), &|| {
            cancel.is_cancelled()
        });
        let printed = fs::read(&output).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let end = match run {
            Ok(End::Exited { status, .. }) if status.success() => Ok(ScriptEnd::Succeeded),
            Ok(End::Exited { output: said, .. }) => {
                let how = Self::how_it_ended(&unit).unwrap_or(said);
                let output = format!("{printed}\n{how}").trim_start().to_owned();
                Ok(ScriptEnd::Failed { output })
            }
            Ok(End::Killed) => Ok(ScriptEnd::Failed {
                output: format!("{printed}\nit did not end in time")
                    .trim_start()
                    .to_owned(),
            }),
            Err(error) => Err(format!("systemd-run: {error}")),
        };
        // Best effort: a failed unit that stays is named after us, and left out of the failed ones.
        let _ = Self::ask("systemctl", &["stop", &unit]);
        let _ = Self::ask("systemctl", &["reset-failed", &unit]);
        let _ = fs::remove_file(&output);
        end
    }

    fn how_it_ended(unit: &str) -> Option<String> {
        let shown = Self::ask(
            "systemctl",
            &["show", "--property=Result,ExecMainStatus", unit],
        )
        .ok()?;
        let value = |key: &str| {
            shown
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .unwrap_or_default()
        };
        Some(match value("Result") {
            "timeout" => "it did not end in time".to_owned(),
            "exit-code" => format!("exit status {}", value("ExecMainStatus")),
            "signal" | "core-dump" => format!("killed by signal {}", value("ExecMainStatus")),
            other => format!("it ended with result {other}"),
        })
    }
}

impl Node for SystemdNode {
    fn unit(&self, unit: &str) -> Result<UnitState, String> {
        let properties = "--property=LoadState,ActiveState,SubState,Result";
        Self::ask("systemctl", &["show", properties, "--", unit])
            .map(|text| UnitState::parse(&text))
    }

    fn failed_units(&self) -> Result<Vec<String>, String> {
        let text = Self::ask(
            "systemctl",
            &[
                "list-units",
                "--state=failed",
                "--all",
                "--plain",
                "--full",
                "--no-legend",
                "--no-pager",
            ],
        )?;
        Ok(first_words(&text))
    }

    fn starting_units(&self) -> Result<Vec<String>, String> {
        let text = Self::ask(
            "systemctl",
            &[
                "list-jobs",
                "--plain",
                "--full",
                "--no-legend",
                "--no-pager",
            ],
        )?;
        Ok(running_jobs(&text))
    }

    fn explain(&self, unit: &str) -> Option<String> {
        let mut parts = Vec::new();
        if let Ok(jobs) = self.starting_units()
            && !jobs.is_empty()
        {
            parts.push(format!("still starting: {}", jobs.join(", ")));
        }
        if !unit.is_empty() {
            let journal = [
                "--boot",
                "--unit",
                unit,
                "--lines=20",
                "--no-pager",
                "--output=cat",
            ];
            if let Ok(lines) = Self::ask("journalctl", &journal) {
                parts.push(lines);
            }
        }
        (!parts.is_empty()).then(|| parts.join("\n"))
    }

    fn has(&self, file: &Path) -> bool {
        file.exists()
    }

    fn probe(&self, probe: &HttpCheck, left: Duration) -> Probed {
        probe.ask(left)
    }

    fn script(&self, script: &Script, timeout: Duration, cancel: &Cancel) -> ScriptEnd {
        if let Err(output) = executable(&script.path) {
            return ScriptEnd::Failed { output };
        }
        self.start(script, timeout, cancel)
            .unwrap_or_else(|output| ScriptEnd::Failed { output })
    }
}

/// Whether a script can be run at all; a check that is there and cannot run is no check that passed.
fn executable(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?;
    if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
        Ok(())
    } else {
        Err(format!("{shown} is not executable"))
    }
}

/// A script's name as part of a unit's name.
fn unit_name_part(name: &str) -> String {
    name.chars()
        .take(64)
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect()
}

fn first_words(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The units of jobs that PID 1 is working on (`1234 unit start running`), ours left out: those wait for us.
fn running_jobs(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (_, unit, _, state) = (words.next()?, words.next()?, words.next()?, words.next()?);
            (state == "running" && !is_ours(unit)).then(|| unit.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{UnitState, running_jobs, unit_name_part};

    #[test]
    fn a_units_state_is_read_from_what_systemctl_shows() {
        let text = "Result=exit-code\nLoadState=loaded\nActiveState=failed\nSubState=failed\n";
        let state = UnitState::parse(text);
        assert!(state.is_failed() && !state.is_active() && !state.can_never_start());
        assert_eq!(state.to_string(), "failed (failed): exit-code");
        let text = "LoadState=not-found\nActiveState=inactive\nSubState=dead\n";
        let state = UnitState::parse(text);
        assert!(state.can_never_start());
        assert_eq!(state.to_string(), "not-found");
    }

    #[test]
    fn only_jobs_that_run_and_are_not_ours_count_as_starting() {
        let text = "  1 multi-user.target start waiting\n 64 slotd-health.service start running\n \
                    70 slow.service start running\n";
        assert_eq!(running_jobs(text), ["slow.service"]);
        assert!(running_jobs("No jobs running.\n").is_empty());
    }

    #[test]
    fn script_names_become_unit_names() {
        assert_eq!(unit_name_part("10 api@x.sh"), "10-api-x-sh");
    }
}
