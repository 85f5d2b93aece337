//! The one line that shows what moves, made to fit the terminal: a line that wraps is not drawn over but piles up.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{HumanBytes, HumanDuration, ProgressState, ProgressStyle};

use crate::status::ProgressStatus;

/// Columns of a bar that is worth looking at, its brackets and a space included.
const BAR: usize = 13;

/// Columns of the spinner and a space.
const SPINNER: usize = 2;

/// Columns of a sentence that still says what is done: an estimate is worth its end, but no more.
const SENTENCE: usize = 20;

/// The line's parts, as wide together as there is room, without the bar's own width.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    sentence: String,
    figures: String,
    bar: bool,
}

impl Line {
    /// Leaves out what there is no room for: the bytes first, then the pace, the bar, the end of the sentence, the
    /// estimate; the percentage, or what stands for it, last.
    pub(super) fn fit(columns: usize, sentence: &str, progress: Option<&ProgressStatus>) -> Self {
        let parts = progress.map(parts).unwrap_or_default();
        let with_bar = progress.is_some_and(|now| now.percent.is_some());
        let all = width(sentence);
        let choice = [
            (true, [true, true, true], all),
            (true, [false, true, true], all),
            (true, [false, false, true], all),
            (false, [false, false, true], all.min(SENTENCE)),
        ]
        .into_iter()
        .map(|(bar, wanted, text)| (bar && with_bar, joined(&parts, wanted), text))
        .find(|(bar, figures, text)| {
            let ornament = if *bar { BAR } else { SPINNER };
            text + ornament + width(figures) + usize::from(!figures.is_empty()) <= columns
        })
        .map(|(bar, figures, _)| (bar, figures));
        let (bar, figures) = choice.unwrap_or_else(|| (false, joined(&parts, [false; 3])));
        if bar {
            let sentence = sentence.to_owned();
            return Self {
                sentence,
                figures,
                bar,
            };
        }
        let figures = truncated(&figures, columns.saturating_sub(SPINNER));
        let taken = SPINNER + width(&figures) + usize::from(!figures.is_empty());
        Self {
            sentence: truncated(sentence, columns.saturating_sub(taken)),
            figures,
            bar,
        }
    }

    /// The line as indicatif draws it.
    pub(super) fn style(self) -> ProgressStyle {
        let template = match (self.bar, self.sentence.is_empty(), self.figures.is_empty()) {
            (true, _, _) => "{sentence} [{wide_bar}] {figures}",
            (false, true, _) => "{figures}",
            (false, false, true) => "{spinner} {sentence}",
            (false, false, false) => "{sentence} {figures}",
        };
        let Self {
            sentence, figures, ..
        } = self;
        // Only a malformed template is an error, and these are not.
        ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ")
            .with_key("sentence", text(sentence))
            .with_key("figures", text(figures))
    }
}

/// A part of a template that is always the same.
fn text(text: String) -> impl Fn(&ProgressState, &mut dyn Write) + Clone + Send + Sync {
    move |_, out| {
        // The writer is a String, which takes everything.
        let _ = out.write_str(&text);
    }
}

/// Percentage, bytes, pace, estimate, where they are known. Without a percentage the bytes stand for it.
fn parts(progress: &ProgressStatus) -> [Option<String>; 4] {
    let written = HumanBytes(progress.bytes_written);
    let bytes = match progress.bytes_total {
        Some(total) => format!("{written} of {}", HumanBytes(total)),
        None => written.to_string(),
    };
    let (first, bytes) = match progress.percent {
        Some(percent) => (format!("{percent:3} %"), Some(bytes)),
        None => (bytes, None),
    };
    let pace = (progress.rate > 0).then(|| format!("{}/s", HumanBytes(progress.rate)));
    let left = progress.seconds_left.map(Duration::from_secs);
    let left = left.map(|time| format!("{} left", HumanDuration(time)));
    [Some(first), bytes, pace, left]
}

/// The first part, and of the others those that are wanted.
fn joined(parts: &[Option<String>; 4], wanted: [bool; 3]) -> String {
    let [first, others @ ..] = parts;
    let others = others
        .iter()
        .zip(wanted)
        .filter_map(|(part, wanted)| part.as_deref().filter(|_| wanted));
    let all: Vec<&str> = first.as_deref().into_iter().chain(others).collect();
    all.join("  ")
}

/// All that is known: percentage, bytes, pace, estimate.
pub(super) fn figures(progress: &ProgressStatus) -> String {
    joined(&parts(progress), [true; 3])
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn truncated(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let kept = text.chars().take(columns.saturating_sub(1));
    let mark = (columns > 0).then_some('…');
    kept.chain(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::figures;
    use crate::status::ProgressStatus;

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
