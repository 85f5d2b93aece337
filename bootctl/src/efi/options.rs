//! The kernel command line in an option. Pure.

use uuid::Uuid;

use crate::backend::BootOptions;
use crate::block::split_command_line;
use crate::error::{Error, Result};
use crate::marker::BootRecord;
use crate::options::{SLOT_OPTION, TRIAL_OPTION, unreserved};
use crate::slot::SlotName;

/// Most characters that every kernel takes (`COMMAND_LINE_SIZE` of x86 and ARM64 is 2048 with the NUL).
pub(crate) const LONGEST: usize = 2047;

/// What an option has on a trial only.
const TRIAL_ONLY: [&str; 4] = [
    TRIAL_OPTION,
    "slotd.tries=",
    "slotd.trial_deadline=",
    "panic=",
];

/// The kernel's EFI stub reads the initrd from the partition that it was started from.
const INITRD: &str = "initrd=";

/// The command line of a trial.
///
/// # Errors
/// [`Error::Rejected`] where it is too long, or holds what the EFI stub takes for its end.
pub(crate) fn trial(
    slot: SlotName,
    partition: Uuid,
    initrd: bool,
    options: &BootOptions,
    boot: Option<&BootRecord>,
) -> Result<String> {
    let mut words = vec![
        format!("root=PARTUUID={partition}"),
        "ro".to_owned(),
        format!("systemd.machine_id={}", options.machine_id),
        format!("{SLOT_OPTION}{}", slot.lower()),
    ];
    if initrd {
        words.push(format!("{INITRD}\\EFI\\slotd\\{}\\initrd", slot.lower()));
    }
    words.extend([
        TRIAL_OPTION.to_owned(),
        "slotd.tries=1".to_owned(),
        format!("slotd.trial_deadline={}", options.trial_deadline_seconds),
        format!("panic={}", options.panic_seconds),
    ]);
    let image = boot.and_then(|boot| boot.cmdline.as_deref());
    for text in [image.unwrap_or_default(), options.extra.as_str()] {
        let words_of = unreserved(text).into_iter();
        words.extend(words_of.filter(|word| !word.starts_with(INITRD)));
    }
    let line = words.join(" ");
    if let Some(control) = line.chars().find(|c| c.is_control()) {
        return Err(Error::Rejected {
            reason: format!(
                "the kernel options of slot {slot} hold the control character {control:?}, at \
                 which the kernel's EFI stub cuts them off"
            ),
        });
    }
    // The stub hands them on in UTF-8.
    if line.len() > LONGEST {
        return Err(Error::Rejected {
            reason: format!(
                "the kernel options of slot {slot} are {} bytes long, the kernel takes {LONGEST}",
                line.len()
            ),
        });
    }
    Ok(line)
}

/// A command line without what is for trials only.
pub(crate) fn without_trial(line: &str) -> String {
    let words = split_command_line(line).into_iter();
    let words = words.filter(|word| !TRIAL_ONLY.iter().any(|only| word.starts_with(only)));
    let words: Vec<String> = words
        .map(|word| {
            if word.contains(' ') {
                format!("\"{word}\"")
            } else {
                word
            }
        })
        .collect();
    words.join(" ")
}
