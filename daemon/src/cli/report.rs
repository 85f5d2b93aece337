//! What is seen while an upgrade runs: a bar on a terminal, plain lines elsewhere, nothing for programs.

mod line;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, TermLike};

use self::line::{Line, figures};
use super::arguments::OutputFormat;
use crate::status::UpgradeStatus;

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
    /// A line that is drawn over and over, and the columns that it may take, which change with the terminal.
    Bar(ProgressBar, Box<dyn Fn() -> u16>),
    Lines,
    Silent,
}

impl How {
    fn bar(target: ProgressDrawTarget, width: Box<dyn Fn() -> u16>) -> Self {
        Self::Bar(ProgressBar::with_draw_target(Some(100), target), width)
    }
}

impl Report {
    /// A report on standard error, which leaves standard output to results.
    pub(super) fn new(output: OutputFormat) -> Self {
        let how = match output {
            OutputFormat::Json => How::Silent,
            OutputFormat::Table if std::io::stderr().is_terminal() => {
                let width = || Term::stderr().width();
                How::bar(ProgressDrawTarget::stderr(), Box::new(width))
            }
            OutputFormat::Table => How::Lines,
        };
        Self::how(how)
    }

    fn how(how: How) -> Self {
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
            How::Bar(bar, width) => {
                if is_new && !self.sentence.is_empty() {
                    bar.println(&self.sentence);
                }
                let line = Line::fit(usize::from(width()), &sentence, progress.as_ref());
                // All of the line is in the style, so that none is drawn half old and half new.
                bar.set_style(line.style());
                let percent = progress.and_then(|now| now.percent).unwrap_or(0);
                bar.set_position(u64::from(percent));
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
            How::Bar(bar, _) => {
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
            How::Bar(bar, _) => bar.println(words),
        }
    }
}

impl Drop for Report {
    /// A bar that is left standing would garble what is printed next.
    fn drop(&mut self) {
        if let How::Bar(bar, _) = &self.how {
            bar.finish_and_clear();
        }
    }
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::{ProgressDrawTarget, TermLike};

    use super::{How, Report, sentence};
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

    /// A terminal that keeps all that is written to it.
    #[derive(Clone, Debug)]
    struct Screen {
        columns: u16,
        written: Arc<Mutex<Vec<String>>>,
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            self.columns
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.written.lock().unwrap().push(text.to_owned());
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The last that is drawn for these states; nothing drawn before it is wider than the terminal.
    fn drawn(columns: u16, states: &[UpgradeStatus]) -> String {
        let screen = Screen {
            columns,
            written: Arc::default(),
        };
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let mut report = Report::how(How::bar(target, Box::new(move || columns)));
        for state in states {
            report.show(state);
        }
        let written = screen.written.lock().unwrap().clone();
        for text in &written {
            let width = text.trim_end_matches(' ').chars().count();
            assert!(width <= usize::from(columns), "{columns}: {text:?}");
        }
        let last = written.iter().rfind(|text| !text.trim().is_empty());
        last.map_or_else(String::new, |text| text.trim_end().to_owned())
    }

    fn writing(version: Option<&str>, progress: Option<ProgressStatus>) -> UpgradeStatus {
        UpgradeStatus {
            target_version: version.map(str::to_owned),
            progress,
            ..at("Staging", "write")
        }
    }

    const FAR: ProgressStatus = ProgressStatus {
        percent: Some(100),
        bytes_written: 1_073_741_823,
        bytes_verified: 0,
        bytes_total: Some(1_099_511_627_775),
        published_bytes: 0,
        published_total: None,
        rate: 1_073_741_823,
        seconds_left: Some(3600 * 17),
    };

    #[test]
    fn what_moves_fits_the_terminal_and_the_most_important_stays() {
        let version = Some("v1.35.3+k3s1-rc.20261201");
        for (columns, kept, left_out) in [
            (
                160,
                "100 %  1024.00 MiB of 1024.00 GiB  1024.00 MiB/s  17 hours left",
                "…",
            ),
            (80, "] 100 %  17 hours left", "GiB"),
            (60, "100 %  17 hours left", "MiB"),
            (30, "100 %", "hours"),
        ] {
            let line = drawn(columns, &[writing(version, Some(FAR))]);
            assert!(line.ends_with(kept), "{columns}: {line}");
            assert!(!line.contains(left_out), "{columns}: {line}");
            assert!(line.starts_with("Writing v1.35.3"), "{columns}: {line}");
        }
    }

    #[test]
    fn no_width_and_no_sentence_makes_a_line_wrap() {
        let long =
            "waits for the inhibitor of a program with a long name and a longer reason".to_owned();
        let mut inhibited = at("Activating", "reboot");
        inhibited.message = Some(long);
        let mut early = FAR;
        (early.percent, early.seconds_left) = (Some(0), None);
        let mut unknown = early;
        (unknown.percent, unknown.bytes_total) = (None, None);
        let states = [
            at("Staging", "preflight"),
            writing(None, Some(unknown)),
            writing(Some("2.0"), Some(early)),
            writing(Some("2.0"), Some(FAR)),
            inhibited,
        ];
        for columns in [1, 5, 12, 20, 40, 59, 60, 61, 79, 80, 81, 120, 200] {
            for state in &states {
                drawn(columns, std::slice::from_ref(state));
            }
        }
        let line = drawn(60, &states[4..]);
        assert!(line.ends_with('…'), "{line}");
    }
}
