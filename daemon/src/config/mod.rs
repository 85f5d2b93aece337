//! The node's configuration, in three stages, each its own type: files as written ([`fragment`]), all of them
//! merged with the place of each value ([`merged`]), and what the program works with ([`Settings`]).
//!
//! Read, later wins: `/usr/lib/slotd/config.yaml` (the image's), `/etc/slotd/config.yaml`, then
//! `/etc/slotd/config.d/*.yaml` by name. Maps are merged key by key, lists are replaced. Everything has a default. What looks
//! like one of these files and is not read is an error or a warning ([`files`]).
//!
//! `null` goes back to the default, as in a JSON merge patch: a later file could not take a proxy or a header away otherwise.
//! A key with nothing behind it is refused: `trial:` above commented-out lines would reset what nobody meant.

mod files;
mod fragment;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod merged;
mod scalar;
mod settings;

use std::io;
use std::path::{Path, PathBuf};

use crate::error::ErrorKind;
use fragment::Fragment;
use merged::Merged;

pub use merged::{Origin, ShownValue, Sourced};
pub use settings::{BootSettings, ControllerSettings, InstallSettings, Settings, TrialSettings};

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not what a configuration file has to be: unknown key, wrong type, no YAML.
    #[error("{}:{line}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, 0 where it is not known.
        line: u64,
        /// What is wrong there.
        problem: String,
    },
    /// A file that would be ignored, by its name.
    #[error("{} would be ignored: {expected}", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// How it has to be called.
        expected: &'static str,
    },
    /// A value that is wrong by itself or beside another.
    #[error("{origin}: {key}: {problem}")]
    Value {
        /// The key, with dots.
        key: &'static str,
        /// Where the value stands.
        origin: Origin,
        /// What is wrong with it.
        problem: String,
    },
}

impl ConfigError {
    fn read(path: &Path, source: io::Error) -> Self {
        Self::Read {
            path: path.to_path_buf(),
            source,
        }
    }

    fn value(key: &'static str, origin: &Origin, problem: &str) -> Self {
        Self::Value {
            key,
            origin: origin.clone(),
            problem: problem.to_owned(),
        }
    }

    /// The kind: the configuration has to change.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Configuration
    }
}

/// Reads the configuration below `root`, which is `/` on a node.
///
/// # Errors
/// The first file or value that is wrong, with its place.
pub fn load(root: &Path) -> Result<Settings, ConfigError> {
    let mut merged = Merged::default();
    let files = files::find(root)?;
    for path in files.read {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // Nothing there is fine; a link that leads nowhere hides what somebody wanted to say.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() =>
            {
                continue;
            }
            Err(error) => return Err(ConfigError::read(&path, error)),
        };
        merged.take(parse(&path, &text)?, &path)?;
    }
    Settings::from_merged(merged, files.warnings)
}

fn parse(path: &Path, text: &str) -> Result<Fragment, ConfigError> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options::<Option<Fragment>>(text, options)
        .map(Option::unwrap_or_default)
        .map_err(|error| {
            let line = error.location().map_or(0, |location| location.line());
            ConfigError::Content {
                path: path.to_path_buf(),
                line,
                problem: with_key(&without_place(&error.to_string()), text, line),
            }
        })
}

/// The message without the parser's own "at line …", which stands in front already, and in words for people.
fn without_place(message: &str) -> String {
    let first = message.lines().next().unwrap_or(message);
    let first = first
        .rsplit_once(" at line ")
        .map_or(first, |(before, _)| before);
    match first {
        "invalid u32" => "a number from 0 up is needed".to_owned(),
        other => other.to_owned(),
    }
}

/// The message with the line's key in front, unless it names that. Never the value, which may be a secret.
fn with_key(message: &str, text: &str, line: u64) -> String {
    let key = usize::try_from(line)
        .ok()
        .and_then(|line| text.lines().nth(line.checked_sub(1)?))
        // A colon within a word is none of a key, as in a URL.
        .and_then(|line| {
            line.split_once(": ")
                .or(line.strip_suffix(':').map(|key| (key, "")))
        })
        .map(|(key, _)| key.trim_start_matches(['-', ' ']).trim())
        .filter(|key| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric()));
    match key {
        Some(key) if !message.contains(key) => format!("{key}: {message}"),
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests;
