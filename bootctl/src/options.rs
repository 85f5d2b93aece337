//! Kernel options that are slotd's to set.

use crate::backend::{Problem, ProblemCode, Refusal, RefusalCode};
use crate::block::{command_line, split_command_line};
use crate::system::System;

/// What says which slot a boot is of.
pub(crate) const SLOT_OPTION: &str = "slotd.slot=";

/// What says that a boot is a trial, where the loader has no variable for that: added by our scripts and entries to
/// a trial's command line only.
pub const TRIAL_OPTION: &str = "slotd.trial";

/// The image's and the configuration's are left out.
pub(crate) const RESERVED: [&str; 7] = [
    "root=",
    SLOT_OPTION,
    "slotd.trial_deadline=",
    TRIAL_OPTION,
    "slotd.tries=",
    "systemd.machine_id=",
    "panic=",
];

/// Words of a command line that are not slotd's to set.
pub(crate) fn unreserved(text: &str) -> Vec<String> {
    split_command_line(text)
        .into_iter()
        .filter(|word| !RESERVED.iter().any(|reserved| word.starts_with(reserved)))
        .map(|word| quoted(&word))
        .collect()
}

/// A word as it stands on a command line. In quotes where it holds anything that could end it: beside what is a blank to us,
/// the kernel's `isspace` takes a vertical tab and the byte 0xa0, which is part of many a character in UTF-8, for one.
pub(crate) fn quoted(word: &str) -> String {
    if word.chars().all(|c| c.is_ascii_graphic()) {
        word.to_owned()
    } else {
        format!("\"{word}\"")
    }
}

/// One refusal for each option of the configuration that is slotd's to set.
pub(crate) fn reserved(extra: &str) -> Vec<Refusal> {
    split_command_line(extra)
        .iter()
        .filter_map(|word| {
            let reserved = RESERVED
                .iter()
                .find(|reserved| word.starts_with(**reserved))?;
            Some(Refusal {
                code: RefusalCode::ReservedOption,
                message: format!("boot.options sets {word:?}, but {reserved} is slotd's to set"),
            })
        })
        .collect()
}

/// What does not hold where the loader's script or entry announces no trial: nothing but the agent bounds one.
pub(crate) fn unannounced_trials(system: &System) -> Problem {
    let panics =
        command_line(system).is_ok_and(|words| words.iter().any(|word| word.starts_with("panic=")));
    let panics = if panics {
        ""
    } else {
        "; and `panic=` is missing on the kernel's command line, so that one that panics stands still"
    };
    Problem {
        code: ProblemCode::PromiseNotKept,
        message: format!(
            "this loader does not tell the system that a boot is a trial: one that hangs before the agent runs is not \
             rebooted by itself{panics} (a hardware watchdog helps)"
        ),
    }
}

/// Whether the running kernel's command line announces a trial boot. One that cannot be read announces nothing.
#[must_use]
pub fn trial_announced(system: &System) -> bool {
    command_line(system).is_ok_and(|words| words.iter().any(|word| word == TRIAL_OPTION))
}

#[cfg(test)]
mod tests {
    use super::{reserved, unreserved};
    use crate::block::split_command_line;

    #[test]
    fn what_stands_within_quotes_does_not_become_an_option_of_its_own() {
        for hidden in [
            "a\troot=/dev/sdb",
            "a\u{b}slotd.slot=b",
            "a\nslotd.trial",
            "a root=/dev/sdb",
            "\u{e0}panic=0",
        ] {
            let words = unreserved(&format!("quiet x=\"{hidden}\" ro"));
            assert_eq!(words, ["quiet", &format!("\"x={hidden}\""), "ro"]);
            let line = words.join(" ");
            assert_eq!(
                split_command_line(&line),
                ["quiet", &format!("x={hidden}"), "ro"]
            );
            assert!(reserved(&line).is_empty(), "{line:?}");
        }
    }
}
