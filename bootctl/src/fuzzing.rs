//! What fuzzers run: each target reads its input as a parser of this crate does, and asserts what has to hold of any input
//! beside that nothing panics. True where the input was accepted. Not part of the product: only tests and fuzzers
//! build this.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

pub(crate) mod disks;

use std::io::Cursor;

use crate::block::split_command_line;
use crate::efi;
use crate::efivar;
use crate::entry::{EntryName, EntryText, with_version};
use crate::facts::parse_os_release;
use crate::gptprio;
use crate::grub;
use crate::marker::Marker;
use crate::mounts::Mounts;
use crate::options::{reserved, unreserved};
use crate::part_uuid::PartUuid;
use crate::pe;
use crate::slot::SlotLocator;
use crate::uboot;

/// Reads an input, and judges what came of it; whether it was accepted.
pub type Target = fn(&[u8]) -> bool;

/// The targets by name. Inputs of each lie in `tests/fuzz/corpus/bootctl`.
pub const TARGETS: &[(&str, Target)] = &[
    ("dos", disks::dos_table),
    ("efi-load-option", efi::fuzzing::load_option),
    ("efi-variable", efi_variable),
    ("entry-name", entry_name),
    ("entry-text", entry_text),
    ("gpt", disks::gpt_table),
    ("gptprio", gptprio::fuzzing::tables),
    ("grubenv", grub::fuzzing::environment),
    ("kernel-options", kernel_options),
    ("locator", locator),
    ("marker", marker),
    ("mountinfo", mountinfo),
    ("os-release", os_release),
    ("pe", pe_image),
    ("uboot-config", uboot::fuzzing::config),
    ("uboot-environment", uboot::fuzzing::environment),
];

fn efi_variable(input: &[u8]) -> bool {
    let Some(text) = efivar::text(input) else {
        let unset = input.len() < 2 || input.starts_with(&[0, 0]);
        assert!(unset, "{input:?} says nothing");
        return false;
    };
    assert!(!text.contains('\0') && text.chars().count() <= input.len() / 2);
    // What was whole UTF-16 says the same when it is written again.
    let mut again: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    if !text.contains(char::REPLACEMENT_CHARACTER) {
        assert!(input.starts_with(&again));
    }
    again.extend([0, 0]);
    assert_eq!(efivar::text(&again).as_deref(), Some(text.as_str()));
    true
}

fn entry_name(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let Some(name) = EntryName::parse(text) else {
        return false;
    };
    let shown = name.to_string();
    assert_eq!(
        EntryName::parse(&shown).as_ref(),
        Some(&name),
        "{text:?} is shown as {shown:?}"
    );
    assert_eq!(name.started().id(), name.id());
    let started = name.started().to_string();
    assert_eq!(
        EntryName::parse(&started),
        Some(name.started()),
        "{started:?}"
    );
    if let (Some(before), Some(after)) = (name.counter, name.started().counter) {
        assert_eq!(after.left, before.left.saturating_sub(1));
        assert!(after.done >= before.done);
    }
    if name.counter.is_none() {
        assert_eq!(shown, text);
        assert_eq!(name.started(), name);
    }
    true
}

fn entry_text(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let entry = EntryText::parse(text);
    let rendered = entry.render();
    let again = EntryText::parse(&rendered);
    // The loader takes a pair of quotes away each time. A value of nothing but blanks is none to it.
    if !text.contains('"') {
        assert_eq!(EntryText::parse(&again.render()), again, "{text:?}");
    }
    assert!(again.initrds.len() <= entry.initrds.len());
    assert!(rendered.len() <= text.len().saturating_add(64).saturating_mul(2));
    // An entry put first or last by its version says nothing else then.
    let numbered = EntryText::parse(&with_version(text, 12));
    let expected = EntryText {
        version: Some("12".to_owned()),
        ..entry
    };
    assert_eq!(numbered, expected, "{text:?}");
    assert_eq!(
        with_version(&with_version(text, 5), 12),
        with_version(text, 12),
        "{text:?}"
    );
    true
}

fn kernel_options(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let words = split_command_line(&text);
    assert!(
        words
            .iter()
            .all(|word| !word.is_empty() && !word.contains('"'))
    );
    let length: usize = words.iter().map(String::len).sum();
    assert!(length <= text.len());
    let kept = unreserved(&text);
    assert_eq!(
        kept.len().checked_add(reserved(&text).len()),
        Some(words.len())
    );
    // Nothing that is slotd's to set comes back when they are put on a line again.
    let line = kept.join(" ");
    assert!(reserved(&line).is_empty(), "{text:?} becomes {line:?}");
    let free: Vec<String> = words
        .into_iter()
        .filter(|word| reserved(&format!("\"{word}\"")).is_empty())
        .collect();
    assert_eq!(split_command_line(&line), free, "{text:?} becomes {line:?}");
    true
}

fn locator(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    if let Ok(uuid) = text.parse::<PartUuid>() {
        assert_eq!(
            uuid.to_string().parse::<PartUuid>().ok(),
            Some(uuid),
            "{text:?}"
        );
    }
    match text.parse::<SlotLocator>() {
        Ok(locator) => {
            assert_eq!(
                locator.to_string().parse::<SlotLocator>().ok(),
                Some(locator)
            );
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn marker(input: &[u8]) -> bool {
    match Marker::parse(input) {
        Ok(marker) => {
            assert_eq!(Marker::parse(&marker.render()), Ok(marker));
            true
        }
        Err(problem) => {
            assert!(!problem.is_empty());
            false
        }
    }
}

fn mountinfo(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    match Mounts::parse(&text) {
        Ok(mounts) => {
            assert_eq!(mounts.all().len(), text.lines().count());
            for mount in mounts.all() {
                let topmost = mounts.at(&mount.point);
                assert_eq!(
                    topmost.is_some(),
                    mounts
                        .all()
                        .iter()
                        .any(|other| { other.point == mount.point && other.kind != "autofs" })
                );
                assert!(mount.source.len() <= text.len());
            }
            !mounts.all().is_empty()
        }
        Err(problem) => {
            assert!(problem.starts_with("line "), "{problem}");
            false
        }
    }
}

fn os_release(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let values = parse_os_release(&text);
    assert!(values.len() <= text.lines().count());
    // Each value comes back as it was when it is quoted as os-release(5) has it.
    for (key, value) in &values {
        assert!(!key.contains(['\n', '=']) && !value.contains('\n'));
        let quoted: String = value
            .chars()
            .flat_map(|c| {
                ['\\']
                    .into_iter()
                    .filter(move |_| "\\\"$`".contains(c))
                    .chain([c])
            })
            .collect();
        if !key.starts_with('#') {
            let line = format!("{key}=\"{quoted}\"");
            assert_eq!(parse_os_release(&line).get(key), Some(value), "{line:?}");
        }
    }
    !values.is_empty()
}

fn pe_image(input: &[u8]) -> bool {
    let mut file = Cursor::new(input);
    match pe::Image::read(&mut file) {
        Ok(image) => {
            for section in &image.sections {
                let end = section.offset.checked_add(section.size);
                assert!(section.size == 0 || end.is_some_and(|end| end <= input.len() as u64));
                let text = pe::text(&mut file, section, 100).expect("it lies in the file");
                assert!(text.chars().count() <= 100);
            }
            true
        }
        Err(pe::PeError::Malformed(problem)) => {
            assert!(!problem.is_empty());
            false
        }
        Err(pe::PeError::Io(error)) => panic!("memory cannot be read: {error}"),
    }
}

#[cfg(test)]
#[path = "../../tests/fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{TARGETS, corpus};

    #[test]
    fn inputs_that_are_checked_in_are_read_as_their_names_say() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/bootctl");
        corpus::check(&folder, TARGETS);
    }
}
