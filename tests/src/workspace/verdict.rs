//! What became of a program that ran tests, by its exit status and what libtest printed.

use std::process::ExitStatus;

use crate::runner::Verdict;

/// How a test begins a line, on its standard output, that says what it could not do here, and why.
const LEFT_OUT: &str = "not tested here: ";

/// How a test begins a line, on its standard output, that says how much it went through.
const COUNTED: &str = "counted: ";

/// What a test counted, to be shown whether or not it passed.
pub(super) fn counted(output: &str) -> Vec<String> {
    let counts = output.lines().filter_map(|line| line.strip_prefix(COUNTED));
    counts.map(str::to_owned).collect()
}

/// What became of a program that ran one test, or of rustdoc that ran some, and why.
pub(super) fn judge(status: ExitStatus, output: &str) -> (Verdict, Option<String>) {
    let summaries: Vec<Summary> = output.lines().filter_map(parse_summary).collect();
    let sum = |count: fn(&Summary) -> usize| summaries.iter().map(count).sum::<usize>();
    let failed = sum(|summary| summary.failed);
    if failed > 0 || !status.success() || sum(|summary| summary.passed + summary.ignored) == 0 {
        let mut reason = complaint(output);
        if failed == 0 {
            reason = format!("its process ended ({status}) without a verdict\n{reason}");
        }
        return (Verdict::Failed, Some(reason));
    }
    let left_out: Vec<&str> = output
        .lines()
        .filter_map(|line| line.strip_prefix(LEFT_OUT))
        .collect();
    if !left_out.is_empty() {
        return (Verdict::Skipped, Some(left_out.join(", ")));
    }
    if sum(|summary| summary.ignored) == 0 {
        return (Verdict::Passed, None);
    }
    let reasons: Vec<&str> = output
        .lines()
        .filter_map(|line| Some(line.strip_prefix("test ")?.split_once(" ... ignored")?.1))
        .map(|reason| reason.trim_start_matches(", "))
        .map(|reason| {
            if reason.is_empty() {
                "ignored without a reason"
            } else {
                reason
            }
        })
        .collect();
    (Verdict::Skipped, Some(reasons.join(", ")))
}

#[derive(Debug, PartialEq, Eq)]
struct Summary {
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// `test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.01s`
fn parse_summary(line: &str) -> Option<Summary> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |word: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(word));
        part?.trim_end().parse().ok()
    };
    Some(Summary {
        passed: count("passed")?,
        failed: count("failed")?,
        ignored: count("ignored")?,
    })
}

/// What a failed test printed, without what every failed test does.
fn complaint(output: &str) -> String {
    let common = |line: &&str| {
        line.trim().is_empty()
            || line.starts_with("running ")
            || line.starts_with("test ")
            || *line == "failures:"
            || *line == "successes:"
            || line.starts_with("---- ")
            || line.starts_with("note: run with `RUST_BACKTRACE=1`")
    };
    let lines: Vec<&str> = output.lines().filter(|line| !common(line)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::{counted, judge};
    use crate::runner::Verdict;

    /// What libtest of Rust 1.95 prints of one test.
    fn printed(result: &str, between: &str, summary: &str) -> String {
        format!(
            "\nrunning 1 test\ntest a::b ... {result}\n{between}\ntest result: {summary}; 0 measured; 9 filtered out; finished in 0.01s\n\n"
        )
    }

    #[test]
    fn a_verdict_needs_a_good_end_and_the_programs_own_word() {
        let [good, bad, abort] = [0, 101 << 8, 6].map(ExitStatus::from_raw);
        let passed = printed("ok", "", "ok. 1 passed; 0 failed; 0 ignored");
        assert_eq!(judge(good, &passed), (Verdict::Passed, None));
        assert_eq!(judge(bad, &passed).0, Verdict::Failed);
        let cut_short = "\nrunning 1 test\nlast words\n";
        for status in [good, abort] {
            let (verdict, reason) = judge(status, cut_short);
            assert_eq!(verdict, Verdict::Failed);
            let reason = reason.unwrap();
            assert!(
                reason.contains(&status.to_string()) && reason.ends_with("last words"),
                "{reason}"
            );
        }
        let none = printed("ok", "", "ok. 0 passed; 0 failed; 0 ignored");
        assert_eq!(judge(good, &none).0, Verdict::Failed);

        let ignored = printed(
            "ignored, needs a tape",
            "",
            "ok. 0 passed; 0 failed; 1 ignored",
        );
        assert_eq!(
            judge(good, &ignored),
            (Verdict::Skipped, Some("needs a tape".to_owned()))
        );
        let ignored = printed("ignored", "", "ok. 0 passed; 0 failed; 1 ignored");
        assert_eq!(judge(good, &ignored).1.unwrap(), "ignored without a reason");

        let left_out = "\nsuccesses:\n\n---- a::b stdout ----\nwrote 3 files\nskipped: x/y (no reason)\nnot tested here: no tape here\n\n\nsuccesses:\n    a::b\n";
        let left_out = printed("ok", left_out, "ok. 1 passed; 0 failed; 0 ignored");
        assert_eq!(
            judge(good, &left_out),
            (Verdict::Skipped, Some("no tape here".to_owned()))
        );
    }

    #[test]
    fn a_failure_is_told_by_what_the_test_printed() {
        let between = "\nfailures:\n\n---- a::b stdout ----\n\nthread 'a::b' (7) panicked at src/a.rs:3:5:\nboom\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n\n\nfailures:\n    a::b\n";
        let output = printed("FAILED", between, "FAILED. 0 passed; 1 failed; 0 ignored");
        let (verdict, reason) = judge(ExitStatus::from_raw(101 << 8), &output);
        assert_eq!(verdict, Verdict::Failed);
        assert_eq!(
            reason.unwrap(),
            "thread 'a::b' (7) panicked at src/a.rs:3:5:\nboom\n    a::b"
        );
        let shown = output.replace(
            "\nfailures:\n\n----",
            "\nsuccesses:\n\nsuccesses:\n\nfailures:\n\n----",
        );
        assert_eq!(
            judge(ExitStatus::from_raw(101 << 8), &shown).1,
            judge(ExitStatus::from_raw(101 << 8), &output).1
        );
    }

    #[test]
    fn what_was_counted_is_taken_of_one_that_failed_too() {
        let failed = "\nfailures:\n\n---- a::b stdout ----\ncounted: 1 state\n\n";
        assert_eq!(counted(failed), ["1 state"]);
    }
}
