//! See [`crate::fuzzing`].

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use std::path::Path;

use super::merged::Merged;
use super::{ConfigError, Settings, parse};

pub(crate) fn file(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let path = Path::new("/etc/slotd/config.yaml");
    // YAML's lines also end at a carriage return.
    let lines = text.split(['\n', '\r']).count();
    let read = || {
        let mut merged = Merged::default();
        merged.take(parse(path, text)?, path)?;
        Settings::from_merged(merged, Vec::new())
    };
    match read() {
        Ok(_) => true,
        Err(error) => {
            let shown = error.to_string();
            match error {
                ConfigError::Content { line, problem, .. } => {
                    assert!(line <= lines as u64 && !problem.is_empty(), "{shown}");
                }
                ConfigError::Value { problem, .. } => assert!(!problem.is_empty(), "{shown}"),
                other => panic!("another error than that of content: {other}"),
            }
            false
        }
    }
}
