//! What is seen while an upgrade runs: a bar on a terminal, plain lines elsewhere, nothing for programs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::arguments::OutputFormat;
use crate::status::{ProgressStatus, UpgradeStatus};

/// At most one line of progress in this time, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows an upgrade to a person.
pub(super) struct Report {
    how: How,
    /// What was said last, so that nothing is said twice.
    sentence: String,
    line_at: Option<Instant>,
}

enum How {
    Bar(ProgressBar),
    Lines,
    Silent,
}

impl Report {
    /// A report on standard error, which leaves standard output to results.
    pub(super) fn new(output: OutputFormat) -> Self {
        let how = match output {
            OutputFormat::Json => How::Silent,
            OutputFormat::Table if std::io::stderr().is_terminal() => {
                let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr());
                How::Bar(bar)
            }
            OutputFormat::Table => How::Lines,
        };
        Self {
            how,
            sentence: String::new(),
            line_at: None,
        }
    }

    /// Shows how things stand.
    pub(super) fn show(&mut self, status: &UpgradeStatus) {
        let sentence = sentence(status);
        let progress = status.progress.filter(|_| status.step == "write");
        let is_new = self.sentence != sentence;
        match &self.how {
            How::Silent => {}
            How::Lines => {
                let now = Instant::now();
                let due = self
                    .line_at
                    .is_none_or(|at| now.duration_since(at) >= LINE_EVERY);
                match progress {
                    Some(progress) if is_new || due => {
                        eprintln!("{sentence}: {}", figures(&progress));
                        self.line_at = Some(now);
                    }
                    None if is_new => eprintln!("{sentence}"),
                    _ => {}
                }
            }
            How::Bar(bar) => {
                if is_new && !self.sentence.is_empty() {
                    bar.println(&self.sentence);
                }
                bar.set_style(style(progress.is_some_and(|now| now.percent.is_some())));
                bar.set_message(sentence.clone());
                if let Some(progress) = progress {
                    bar.set_position(u64::from(progress.percent.unwrap_or(0)));
                    bar.set_prefix(figures(&progress));
                } else {
                    bar.set_prefix("");
                }
                bar.tick();
            }
        }
        self.sentence = sentence;
    }

    /// Ends with a last sentence.
    pub(super) fn end(&mut self, last: &str) {
        match &self.how {
            How::Silent => {}
            How::Lines => eprintln!("{last}"),
            How::Bar(bar) => {
                if !self.sentence.is_empty() {
                    bar.println(&self.sentence);
                }
                bar.finish_and_clear();
                eprintln!("{last}");
            }
        }
    }

    /// Says something beside.
    pub(super) fn note(&self, words: &str) {
        match &self.how {
            How::Silent => {}
            How::Lines => eprintln!("{words}"),
            How::Bar(bar) => bar.println(words),
        }
    }
}

impl Drop for Report {
    /// A bar that is left standing would garble what is printed next.
    fn drop(&mut self) {
        if let How::Bar(bar) = &self.how {
            bar.finish_and_clear();
        }
    }
}

fn style(with_bar: bool) -> ProgressStyle {
    let template = if with_bar {
        "{msg} [{bar:28}] {prefix}"
    } else {
        "{spinner} {msg} {prefix}"
    };
    // Only a malformed template is an error, and these are not.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// What an upgrade is doing, in words.
pub(super) fn sentence(status: &UpgradeStatus) -> String {
    let slot = status
        .target_slot
        .map_or_else(|| "the slot".to_owned(), |slot| format!("slot {slot}"));
    let what = status
        .target_version
        .as_ref()
        .map_or_else(String::new, |version| format!(" {version}"));
    let words = match (status.phase.as_str(), status.step.as_str()) {
        (_, "preflight") => "Looking at the source and at what could stand in the way".to_owned(),
        (_, "invalidate") => format!("Marking {slot} empty"),
        (_, "write") => format!("Writing{what} to {slot}"),
        (_, "prepareBoot") => format!("Looking into {slot} and installing what boots it"),
        (_, "discard") => format!("Discarding what was written to {slot}"),
        ("Staged", _) => format!("Staged{what} in {slot}, read back and verified"),
        (_, "arm") => format!("Making the next boot a trial of {slot}"),
        (_, "select") => format!("Making {slot} the one that boots"),
        (_, "disarm") => format!("Taking the trial of {slot} back"),
        ("Activating", "reboot") => format!("Rebooting into {slot}"),
        (_, "reboot") => "Rebooting".to_owned(),
        (_, "check") => format!("Checking the health of {slot}"),
        (_, "awaitBootComplete") => "Waiting for the boot to be complete".to_owned(),
        (_, "markGood") => format!("Marking {slot} good"),
        (_, "markBad") => format!("Giving {slot} up"),
        ("Completed", _) => format!("Completed:{what} runs from {slot}"),
        ("RolledBack", _) => format!("Rolled back from {slot}"),
        ("Failed", _) => "Failed".to_owned(),
        (phase, _) => phase.to_owned(),
    };
    match &status.message {
        // What the words say already is not said twice.
        Some(message) if !words.to_lowercase().contains(message) => format!("{words}; {message}"),
        _ => words,
    }
}

/// Percentage, bytes, pace, estimate.
fn figures(progress: &ProgressStatus) -> String {
    let mut parts = Vec::new();
    if let Some(percent) = progress.percent {
        parts.push(format!("{percent:3} %"));
    }
    let written = HumanBytes(progress.bytes_written);
    parts.push(match progress.bytes_total {
        Some(total) => format!("{written} of {}", HumanBytes(total)),
        None => written.to_string(),
    });
    if progress.rate > 0 {
        parts.push(format!("{}/s", HumanBytes(progress.rate)));
    }
    if let Some(seconds) = progress.seconds_left {
        parts.push(format!(
            "{} left",
            HumanDuration(Duration::from_secs(seconds))
        ));
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::{figures, sentence};
    use crate::status::{ProgressStatus, SlotLetter, UpgradeStatus};

    fn at(phase: &str, step: &str) -> UpgradeStatus {
        UpgradeStatus {
            phase: phase.to_owned(),
            step: step.to_owned(),
            target_slot: Some(SlotLetter::B),
            target_version: Some("2.0".to_owned()),
            ..UpgradeStatus::default()
        }
    }

    #[test]
    fn phases_are_told_in_words() {
        assert_eq!(sentence(&at("Staging", "write")), "Writing 2.0 to slot B");
        assert_eq!(
            sentence(&at("Activating", "reboot")),
            "Rebooting into slot B"
        );
        assert_eq!(
            sentence(&at("Completed", "rest")),
            "Completed: 2.0 runs from slot B"
        );
        let mut waiting = at("Activating", "reboot");
        waiting.message = Some("rebooting".to_owned());
        assert_eq!(sentence(&waiting), "Rebooting into slot B");
        waiting.message = Some("the reboot is inhibited".to_owned());
        assert_eq!(
            sentence(&waiting),
            "Rebooting into slot B; the reboot is inhibited"
        );
    }

    #[test]
    fn figures_leave_out_what_is_not_known() {
        let mut progress = ProgressStatus {
            bytes_written: 1 << 20,
            ..ProgressStatus::default()
        };
        assert_eq!(figures(&progress), "1.00 MiB");
        progress.percent = Some(7);
        progress.bytes_total = Some(1 << 30);
        progress.rate = 5 << 20;
        progress.seconds_left = Some(61);
        assert_eq!(
            figures(&progress),
            "  7 %  1.00 MiB of 1.00 GiB  5.00 MiB/s  61 seconds left"
        );
    }
}
