//! What fuzzers run: the configuration, the history, what comes over D-Bus, objects of the cluster. True where the input was
//! accepted. Not part of the product: only tests and fuzzers build this.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use std::collections::HashMap;

use slotd_image::ImageSource;
use zbus::OwnedVariant;
use zbus::wire::LE;
use zbus::wire::serialized::{Context, Data};

use crate::agent::fuzzing::history;
use crate::cluster::fuzzing::progress;
use crate::config::fuzzing::file;
use crate::dbus::wire::{CallError, InstallOptions};

/// Reads an input, and judges what came of it; whether it was accepted.
pub type Target = fn(&[u8]) -> bool;

/// The targets by name. Inputs of each lie in `tests/fuzz/corpus/slotd`.
pub const TARGETS: &[(&str, Target)] = &[
    ("config", file),
    ("dbus-install", dbus_install),
    ("history", history),
    ("progress", progress),
];

/// The body of a call of `Install`, `sa{sv}`, as it comes over the bus.
fn dbus_install(input: &[u8]) -> bool {
    let data = Data::new(input, Context::new(LE, 0));
    let Ok(((source, dict), _)) = data.deserialize::<(String, HashMap<String, OwnedVariant>)>()
    else {
        return false;
    };
    let known = dict.len();
    let options = match InstallOptions::from_dict(dict) {
        Ok(options) => options,
        Err(CallError::Reject(message)) => {
            assert!(message.starts_with("the option `"), "{message}");
            return false;
        }
        Err(other) => panic!("another error than a refusal: {other:?}"),
    };
    // What is false is not sent, and nothing else is lost.
    assert!(options.to_dict().len() <= known);
    // Standard input is another call's.
    let Some(Ok(source)) = (source != "-").then(|| ImageSource::parse(&source)) else {
        return false;
    };
    match options.request(source) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), crate::error::ErrorKind::Reject, "{error}");
            false
        }
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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/slotd");
        corpus::check(&folder, TARGETS);
    }
}
