//! One run of the checks: what is asked in which order, what is waited for and how long.

use std::time::{Duration, Instant};

use slotd_image::Cancel;

use super::node::{Node, Probed, ScriptEnd, is_ours};
use super::scripts::{Script, collect};
use super::{HealthEvent, HealthSettings, HttpCheck, OUTPUT_LIMIT, Verdict};

/// Everything that one run of the checks has in common.
pub(super) struct Round<'a> {
    pub(super) node: &'a dyn Node,
    pub(super) settings: &'a HealthSettings,
    pub(super) deadline: Instant,
    pub(super) cancel: &'a Cancel,
    pub(super) on_event: &'a dyn Fn(HealthEvent),
}

impl Round<'_> {
    /// All checks in their order; the first that is not fulfilled is the verdict.
    pub(super) fn all(&self) -> Result<(), Verdict> {
        self.unit("basic.target")?;
        for unit in &self.settings.units {
            self.unit(unit)?;
        }
        let probes = match &self.settings.http {
            Some(probes) => probes.clone(),
            None if self.settings.kubelet_before || self.settings.has_kubelet(self.node) => {
                HttpCheck::kubelet().into_iter().collect()
            }
            None => Vec::new(),
        };
        for probe in &probes {
            self.wait(&format!("http {}", probe.name), || {
                self.node.probe(probe, self.left())
            })?;
        }
        self.rest()?;
        for script in self.scripts("required.d")? {
            self.required(&script)?;
        }
        self.no_new_failures()?;
        for script in self.scripts("wanted.d")? {
            let check = script.check();
            match self.script(&script)? {
                ScriptEnd::Succeeded => self.tell(HealthEvent::Passed { check }),
                ScriptEnd::Failed { output } => {
                    self.tell(HealthEvent::WantedFailed { check, output });
                }
            }
        }
        Ok(())
    }

    fn unit(&self, unit: &str) -> Result<(), Verdict> {
        let mut failed_since = None;
        self.wait(&format!("unit {unit}"), || {
            let state = match self.node.unit(unit) {
                Ok(state) => state,
                Err(seen) => return Probed::NotYet(seen),
            };
            if state.is_active() {
                return Probed::Passed;
            }
            let seen = format!("{unit} is {state}");
            if state.can_never_start() {
                return Probed::Failed(self.explained(unit, seen));
            }
            if !state.is_failed() {
                failed_since = None;
                return Probed::NotYet(seen);
            }
            let since = *failed_since.get_or_insert_with(Instant::now);
            if since.elapsed() < self.settings.patience {
                return Probed::NotYet(seen);
            }
            Probed::Failed(self.explained(unit, seen))
        })
    }

    /// What was seen, and what PID 1 and the journal have to say of it.
    fn explained(&self, unit: &str, seen: String) -> String {
        match self.node.explain(unit) {
            Some(more) => format!("{seen}\n{more}"),
            None => seen,
        }
    }

    /// Looks again and again until `look` passes, fails for good, or the deadline is over.
    fn wait(&self, check: &str, mut look: impl FnMut() -> Probed) -> Result<(), Verdict> {
        let (mut pause, longest) = self.settings.pauses;
        let mut last_seen = String::new();
        loop {
            self.not_cancelled()?;
            match look() {
                Probed::Passed => {
                    self.tell(HealthEvent::Passed {
                        check: check.to_owned(),
                    });
                    return Ok(());
                }
                Probed::Failed(output) => {
                    return Err(Verdict::Unhealthy {
                        check: check.to_owned(),
                        output: tail(&output),
                    });
                }
                Probed::NotYet(seen) => {
                    if seen != last_seen {
                        self.tell(HealthEvent::Waiting {
                            check: check.to_owned(),
                            seen: seen.clone(),
                        });
                        last_seen = seen;
                    }
                }
            }
            if self.left().is_zero() {
                let unit = check.strip_prefix("unit ").unwrap_or_default();
                return Err(Verdict::Late {
                    check: check.to_owned(),
                    output: tail(&self.explained(unit, last_seen)),
                });
            }
            self.pause(pause)?;
            pause = pause.saturating_mul(2).min(longest);
        }
    }

    /// Gives starting units time to fail or to start, so that they are judged by what they become. A unit that
    /// starts for ever does not hold the boot up.
    fn rest(&self) -> Result<(), Verdict> {
        let (mut pause, longest) = self.settings.pauses;
        let began = Instant::now();
        // Most of a short deadline belongs to the checks.
        let limit = self.settings.rest.min(self.left() / 4);
        let mut last_seen = Vec::new();
        while began.elapsed() < limit {
            match self.node.starting_units() {
                Ok(units) if units.is_empty() => return Ok(()),
                Ok(units) if units == last_seen => {}
                Ok(units) => {
                    self.tell(HealthEvent::Waiting {
                        check: "boot at rest".to_owned(),
                        seen: format!("starting: {}", units.join(", ")),
                    });
                    last_seen = units;
                }
                Err(seen) => self.tell(HealthEvent::Waiting {
                    check: "boot at rest".to_owned(),
                    seen,
                }),
            }
            self.pause(pause)?;
            pause = pause.saturating_mul(2).min(longest);
        }
        Ok(())
    }

    fn scripts(&self, kind: &str) -> Result<Vec<Script>, Verdict> {
        collect(&self.settings.script_folders, kind).map_err(|error| Verdict::Unhealthy {
            check: kind.to_owned(),
            output: error.to_string(),
        })
    }

    fn required(&self, script: &Script) -> Result<(), Verdict> {
        let check = script.check();
        let (mut pause, longest) = self.settings.pauses;
        let mut attempt: u32 = 1;
        loop {
            match self.script(script)? {
                ScriptEnd::Succeeded => {
                    self.tell(HealthEvent::Passed { check });
                    return Ok(());
                }
                ScriptEnd::Failed { output } if attempt >= self.settings.attempts => {
                    return Err(Verdict::Unhealthy { check, output });
                }
                ScriptEnd::Failed { output } if self.left().is_zero() => {
                    return Err(Verdict::Late { check, output });
                }
                ScriptEnd::Failed { output } => self.tell(HealthEvent::Waiting {
                    check: check.clone(),
                    seen: output,
                }),
            }
            attempt = attempt.saturating_add(1);
            self.pause(pause)?;
            pause = pause.saturating_mul(2).min(longest);
        }
    }

    fn script(&self, script: &Script) -> Result<ScriptEnd, Verdict> {
        self.not_cancelled()?;
        let left = self.left();
        if left.is_zero() {
            return Err(Verdict::Late {
                check: script.check(),
                output: "the deadline passed before it could run".to_owned(),
            });
        }
        let timeout = self.settings.script_timeout.min(left);
        let end = self.node.script(script, timeout, self.cancel);
        self.not_cancelled()?;
        Ok(match end {
            ScriptEnd::Succeeded => ScriptEnd::Succeeded,
            ScriptEnd::Failed { output } => ScriptEnd::Failed {
                output: tail(&output),
            },
        })
    }

    fn no_new_failures(&self) -> Result<(), Verdict> {
        let Some(before) = &self.settings.failed_before else {
            return Ok(());
        };
        let mut since: Option<(Instant, Vec<String>)> = None;
        self.wait("no newly failed units", || {
            let failed = match self.node.failed_units() {
                Ok(failed) => failed,
                Err(seen) => return Probed::NotYet(seen),
            };
            let new: Vec<String> = failed
                .into_iter()
                .filter(|unit| !before.contains(unit) && !is_ours(unit))
                .collect();
            if new.is_empty() {
                return Probed::Passed;
            }
            let seen = format!("failed, and did not before the upgrade: {}", new.join(", "));
            match &since {
                Some((began, which)) if *which == new => {
                    if began.elapsed() < self.settings.patience {
                        return Probed::NotYet(seen);
                    }
                    let first = new.first().map(String::as_str).unwrap_or_default();
                    Probed::Failed(self.explained(first, seen))
                }
                _ => {
                    since = Some((Instant::now(), new));
                    Probed::NotYet(seen)
                }
            }
        })
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn tell(&self, event: HealthEvent) {
        (self.on_event)(event);
    }

    fn not_cancelled(&self) -> Result<(), Verdict> {
        if self.cancel.is_cancelled() {
            return Err(Verdict::Cancelled);
        }
        Ok(())
    }

    /// Waits, no longer than the deadline, and looks for a cancellation meanwhile.
    fn pause(&self, pause: Duration) -> Result<(), Verdict> {
        let end = Instant::now() + pause.min(self.left());
        loop {
            self.not_cancelled()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(200)));
        }
    }
}

/// The end of a text, at most [`OUTPUT_LIMIT`] bytes of it.
pub(super) fn tail(text: &str) -> String {
    let text = text.trim_end();
    let start = text.len().saturating_sub(OUTPUT_LIMIT);
    let start = (start..text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    match text.get(start..) {
        Some(end) if start > 0 => format!("…{end}"),
        _ => text.to_owned(),
    }
}
