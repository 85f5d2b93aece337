//! See [`crate::fuzzing`].

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use super::history::{cut, parse};

pub(crate) fn history(input: &[u8]) -> bool {
    let history = parse(input);
    let lines = input.split(|byte| *byte == b'\n').count();
    assert!(history.entries.len() + history.skipped <= lines);
    for entry in &history.entries {
        let line = serde_json::to_vec(entry).expect("an entry is JSON");
        assert_eq!(parse(&line).entries, std::slice::from_ref(entry));
    }
    // What is left when the older half goes are the younger entries, and the new one.
    if let Some(last) = history.entries.last() {
        let line = [
            serde_json::to_vec(last).expect("an entry is JSON"),
            b"\n".to_vec(),
        ]
        .concat();
        let kept = parse(&cut(input, &line));
        assert_eq!(kept.entries.last(), Some(last));
        let before = kept
            .entries
            .split_last()
            .map_or(&[][..], |(_, before)| before);
        assert!(history.entries.ends_with(before));
        assert!(kept.skipped <= history.skipped);
    }
    !history.entries.is_empty()
}
