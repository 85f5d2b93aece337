//! One entry of a catalog's list.

use serde_json::{Map, Value};

use crate::image::{Image, URL_LIMIT, check_web_url, is_checksum};
use crate::version::Version;

/// Longest version that fits the schemas.
const VERSION_LIMIT: usize = 128;
/// How much of a bad value a message repeats.
const SHOWN: usize = 80;
const KEYS: [&str; 5] = ["version", "url", "checksum", "expandedChecksum", "size"];

/// Why an entry cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The line of the entry, counted from 1.
    pub line: u64,
    /// Whether one of its checksums is among what is wrong.
    pub checksum: bool,
    /// The entry and all that is wrong with it.
    pub message: String,
}

/// An entry, usable or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) line: u64,
    pub(super) image: Result<Image, Fault>,
}

impl Entry {
    /// Judges the entry at `index` of the list: its version where that can be read, and messages about keys that are not
    /// known and change nothing.
    pub(super) fn judge(
        line: u64,
        index: usize,
        value: &Value,
    ) -> (Option<Version>, Self, Vec<String>) {
        let fault = |checksum: bool, message: String| Fault {
            line,
            checksum,
            message,
        };
        let Value::Object(map) = value else {
            let message = format!(
                "images[{index}] is {}, not an entry with version, url and checksum",
                shown(value)
            );
            let image = Err(fault(false, message));
            return (None, Self { line, image }, Vec::new());
        };
        let mut faults = Faults::default();
        let written = version(map, &mut faults);
        let name = match &written {
            Some(version) => format!("images[{index}] ({version})"),
            None => format!("images[{index}]"),
        };
        let image = Image {
            version: written.as_ref().map(Version::to_string).unwrap_or_default(),
            url: url(map, &mut faults),
            checksum: checksum(map, "checksum", &mut faults).unwrap_or_else(|| {
                if map.get("checksum").is_none_or(Value::is_null) {
                    faults.add_checksum("checksum is missing".to_owned());
                }
                String::new()
            }),
            expanded_checksum: checksum(map, "expandedChecksum", &mut faults),
            size: size(map, &mut faults),
        };
        let unknown = map
            .keys()
            .filter(|key| !KEYS.contains(&key.as_str()))
            .map(|key| format!("{name}: the key {:?} is not known and ignored", cut(key)))
            .collect();
        let image = if faults.problems.is_empty() {
            Ok(image)
        } else {
            Err(fault(
                faults.checksum,
                format!("{name}: {}", faults.problems.join("; ")),
            ))
        };
        (written, Self { line, image }, unknown)
    }
}

#[derive(Default)]
struct Faults {
    problems: Vec<String>,
    checksum: bool,
}

impl Faults {
    fn add(&mut self, problem: String) {
        self.problems.push(problem);
    }

    fn add_checksum(&mut self, problem: String) {
        self.checksum = true;
        self.problems.push(problem);
    }
}

fn version(map: &Map<String, Value>, faults: &mut Faults) -> Option<Version> {
    let text = match map.get("version") {
        None | Some(Value::Null) => {
            faults.add("version is missing".to_owned());
            return None;
        }
        Some(value) => shown(value),
    };
    match text.parse::<Version>() {
        Ok(version) if version.as_str().len() <= VERSION_LIMIT => Some(version),
        Ok(_) => {
            faults.add(format!("version has more than {VERSION_LIMIT} characters"));
            None
        }
        Err(error) => {
            faults.add(error.to_string());
            None
        }
    }
}

/// The URL is never repeated in a message: its query may be a secret.
fn url(map: &Map<String, Value>, faults: &mut Faults) -> String {
    match map.get("url") {
        None | Some(Value::Null) => faults.add("url is missing".to_owned()),
        Some(Value::String(url)) => match check_web_url(url) {
            Ok(()) if u32::try_from(url.chars().count()).is_ok_and(|count| count <= URL_LIMIT) => {
                return url.clone();
            }
            Ok(()) => faults.add(format!("url has more than {URL_LIMIT} characters")),
            Err(problem) => faults.add(format!("url: {problem}")),
        },
        Some(_) => faults.add("url is not a text".to_owned()),
    }
    String::new()
}

fn checksum(map: &Map<String, Value>, key: &str, faults: &mut Faults) -> Option<String> {
    match map.get(key)? {
        Value::Null => None,
        Value::String(text) if is_checksum(text) => Some(text.clone()),
        Value::Number(_) => {
            faults.add_checksum(format!("{key} is a number, not a text: put it in quotes"));
            None
        }
        other => {
            faults.add_checksum(format!(
                "{key} {:?} is not sha256: and 64 hexadecimal digits",
                shown(other)
            ));
            None
        }
    }
}

fn size(map: &Map<String, Value>, faults: &mut Faults) -> Option<u64> {
    let value = map.get("size").filter(|value| !value.is_null())?;
    // The API server's integers are signed.
    match value.as_i64().map(u64::try_from) {
        Some(Ok(size)) if size > 0 => Some(size),
        _ => {
            faults.add(format!("size {} is not a number of bytes", shown(value)));
            None
        }
    }
}

/// A value as a message may repeat it.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => cut(text),
        Value::Null => "empty".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

fn cut(text: &str) -> String {
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    text.chars().take(SHOWN).chain("…".chars()).collect()
}
