//! The kernel command line in an option. Pure.

use uuid::Uuid;

use crate::backend::BootOptions;
use crate::block::split_command_line;
use crate::error::{Error, Result};
use crate::marker::BootRecord;
use crate::options::{SLOT_OPTION, TRIAL_OPTION, quoted, unreserved};
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

/// The kernel's EFI stub reads the initrd from the partition that it was started from. It looks for these letters anywhere in the
/// line, also within a word (`find_file_option` in `drivers/firmware/efi/libstub/file.c`).
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
        words.extend(words_of.filter(|word| !word.contains(INITRD)));
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
    let words: Vec<String> = words.map(|word| quoted(&word)).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{trial, without_trial};
    use crate::backend::BootOptions;
    use crate::slot::SlotName;

    #[test]
    fn the_stub_finds_no_initrd_but_ours() {
        let options = BootOptions {
            tries: 1,
            extra: r#"quiet initrd=/x "initrd=/y z" "a initrd=/z" b=initrd=\q rd.x=initrd ro"#
                .to_owned(),
            machine_id: "0123456789abcdef0123456789abcdef".to_owned(),
            trial_deadline_seconds: 600,
            panic_seconds: 30,
        };
        let line = |initrd| trial(SlotName::B, Uuid::nil(), initrd, &options, None).unwrap();
        let found: Vec<usize> = line(true)
            .match_indices("initrd=")
            .map(|(at, _)| at)
            .collect();
        assert_eq!(found.len(), 1, "{}", line(true));
        assert!(line(true).contains(r" initrd=\EFI\slotd\b\initrd "));
        assert!(!line(false).contains("initrd="), "{}", line(false));
        assert!(line(false).ends_with(" quiet rd.x=initrd ro"));
    }

    #[test]
    fn what_stands_within_quotes_stays_there_when_the_trial_is_over() {
        let line = "quiet slotd.trial x=\"a\troot=/dev/sdb\" panic=3";
        assert_eq!(without_trial(line), "quiet \"x=a\troot=/dev/sdb\"");
    }
}
