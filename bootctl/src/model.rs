//! A model of what systemd-boot starts next, from the files it reads. Pure.
//!
//! The rules are those of `config_entry_compare`, `config_default_entry_select` and
//! `config_entry_bump_counters` in `src/boot/efi/boot.c` and of `strverscmp_improved` in
//! `src/fundamental/string-util-fundamental.c`, systemd 252.

use std::cmp::Ordering;

use crate::entry::{Counter, EntryName};

/// An entry that the loader can start, as far as its order counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// Its file name.
    pub name: EntryName,
    /// `sort-key`, or what stands for it in a unified kernel image.
    pub sort_key: Option<String>,
    /// `machine-id`.
    pub machine_id: Option<String>,
    /// `version`.
    pub version: Option<String>,
}

impl ModelEntry {
    fn spent(&self) -> bool {
        matches!(self.name.counter, Some(Counter { left: 0, .. }))
    }

    /// The id that patterns are matched with: older versions keep the counter in it, newer ones do
    /// not.
    fn matches(&self, pattern: &str) -> bool {
        let pattern = pattern.to_lowercase();
        glob(&pattern, &self.name.to_string().to_lowercase()) || glob(&pattern, &self.name.id())
    }
}

/// What is set beside the entries and outranks their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preferences {
    /// `LoaderEntryOneShot`.
    pub one_shot: Option<String>,
    /// `LoaderEntryDefault`.
    pub default_variable: Option<String>,
    /// `default` (or `preferred`) in `loader.conf`.
    pub default_config: Option<String>,
    /// `LoaderEntryLastBooted`, which `@saved` stands for.
    pub saved: Option<String>,
}

/// The order in which the loader lists two entries.
#[must_use]
pub fn compare(a: &ModelEntry, b: &ModelEntry) -> Ordering {
    let by_sort_key = || match (&a.sort_key, &b.sort_key) {
        (Some(left), Some(right)) => compare_text(left, right)
            .then_with(|| compare_option(a.machine_id.as_deref(), b.machine_id.as_deref()))
            .then_with(|| {
                let version = |entry: &ModelEntry| entry.version.clone().unwrap_or_default();
                version_compare(&version(b), &version(a))
            }),
        // One that has a sort key comes before one that has none.
        (left, right) => left.is_none().cmp(&right.is_none()),
    };
    let file = |entry: &ModelEntry| entry.name.to_string().to_lowercase();
    let by_counter = || match (a.name.counter, b.name.counter) {
        (Some(left), Some(right)) => right
            .left
            .cmp(&left.left)
            .then_with(|| left.done.cmp(&right.done)),
        _ => Ordering::Equal,
    };
    a.spent()
        .cmp(&b.spent())
        .then_with(by_sort_key)
        .then_with(|| version_compare(&file(b), &file(a)))
        .then_with(by_counter)
}

/// The entry that the loader starts when nobody touches a key.
#[must_use]
pub fn next<'a>(entries: &'a [ModelEntry], preferences: &Preferences) -> Option<&'a ModelEntry> {
    let mut sorted: Vec<&ModelEntry> = entries.iter().collect();
    sorted.sort_by(|a, b| compare(a, b));
    let saved = preferences.saved.as_deref();
    let named = |pattern: &Option<String>| match pattern.as_deref() {
        Some(text) if text.eq_ignore_ascii_case("@saved") => saved.map(str::to_owned),
        other => other.map(str::to_owned),
    };
    [
        &preferences.one_shot,
        &preferences.default_variable,
        &preferences.default_config,
    ]
    .into_iter()
    .filter_map(named)
    .find_map(|pattern| sorted.iter().find(|entry| entry.matches(&pattern)).copied())
    .or_else(|| sorted.first().copied())
}

/// UTF-16 order, as `strcmp16` has it.
fn compare_text(a: &str, b: &str) -> Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}

fn compare_option(a: Option<&str>, b: Option<&str>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => compare_text(a, b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

/// Shell patterns with `*`, `?`, `[set]` and `\\` (`efi_fnmatch`).
fn glob(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    // Positions in the pattern that are reachable after each character of the text.
    let mut reachable = vec![false; pattern.len() + 1];
    let skip_stars = |reachable: &mut Vec<bool>| {
        for (at, c) in pattern.iter().enumerate() {
            if reachable[at] && *c == '*' {
                reachable[at + 1] = true;
            }
        }
    };
    reachable[0] = true;
    skip_stars(&mut reachable);
    for c in text {
        let mut next = vec![false; pattern.len() + 1];
        for at in 0..pattern.len() {
            if !reachable[at] {
                continue;
            }
            if pattern[at] == '*' {
                next[at] = true;
            } else if let Some(length) = matches_one(&pattern[at..], c) {
                next[at + length] = true;
            }
        }
        reachable = next;
        skip_stars(&mut reachable);
    }
    reachable[pattern.len()]
}

/// How many characters of the pattern `c` uses up, if it matches.
fn matches_one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['\\', literal, ..] => (*literal == c).then_some(2),
        ['[', rest @ ..] => {
            // A `]` directly after the bracket is a member of the set.
            let end = rest.iter().skip(1).position(|c| *c == ']')? + 1;
            let set = &rest[..end];
            let mut at = 0;
            let mut found = false;
            while at < set.len() {
                match set[at..] {
                    [low, '-', high, ..] => {
                        found |= (low..=high).contains(&c);
                        at += 3;
                    }
                    [one, ..] => {
                        found |= one == c;
                        at += 1;
                    }
                    [] => break,
                }
            }
            found.then_some(end + 2)
        }
        [literal, ..] => (*literal == c).then_some(1),
        [] => None,
    }
}

/// Compares versions as systemd does (`strverscmp_improved`).
#[must_use]
pub fn version_compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        a = skip_while(a, |c| !is_version_char(c));
        b = skip_while(b, |c| !is_version_char(c));
        // A segment that begins with `~` is the oldest, older than the end.
        match strip_prefix(&mut a, &mut b, b'~') {
            Ordering::Equal => {}
            order => return order,
        }
        if a.is_empty() || b.is_empty() {
            return (!a.is_empty()).cmp(&!b.is_empty());
        }
        for separator in [b'-', b'^', b'.'] {
            match strip_prefix(&mut a, &mut b, separator) {
                Ordering::Equal => {}
                order => return order,
            }
        }
        let order = if starts_with_digit(a) || starts_with_digit(b) {
            compare_numbers(&mut a, &mut b)
        } else {
            compare_words(&mut a, &mut b)
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn is_version_char(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"~-^.".contains(&c)
}

fn starts_with_digit(text: &[u8]) -> bool {
    text.first().is_some_and(u8::is_ascii_digit)
}

fn skip_while(text: &[u8], skip: impl Fn(u8) -> bool) -> &[u8] {
    let end = text.iter().position(|&c| !skip(c)).unwrap_or(text.len());
    text.get(end..).unwrap_or_default()
}

/// Takes `prefix` off both; the one that has it alone is older.
fn strip_prefix(a: &mut &[u8], b: &mut &[u8], prefix: u8) -> Ordering {
    let has = |text: &[u8]| text.first() == Some(&prefix);
    let order = (!has(a)).cmp(&!has(b));
    if order == Ordering::Equal && has(a) {
        *a = a.get(1..).unwrap_or_default();
        *b = b.get(1..).unwrap_or_default();
    }
    order
}

fn take_while<'a>(text: &mut &'a [u8], take: impl Fn(u8) -> bool) -> &'a [u8] {
    let end = text.iter().position(|&c| !take(c)).unwrap_or(text.len());
    let (head, tail) = text.split_at(end);
    *text = tail;
    head
}

fn compare_numbers(a: &mut &[u8], b: &mut &[u8]) -> Ordering {
    let (left, right) = (
        take_while(a, |c| c.is_ascii_digit()),
        take_while(b, |c| c.is_ascii_digit()),
    );
    // A number is newer than no number.
    let order = (!left.is_empty()).cmp(&!right.is_empty());
    if order != Ordering::Equal {
        return order;
    }
    let (left, right) = (
        skip_while(left, |c| c == b'0'),
        skip_while(right, |c| c == b'0'),
    );
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

fn compare_words(a: &mut &[u8], b: &mut &[u8]) -> Ordering {
    let (left, right) = (
        take_while(a, |c| c.is_ascii_alphabetic()),
        take_while(b, |c| c.is_ascii_alphabetic()),
    );
    let shared = left.len().min(right.len());
    left.get(..shared)
        .cmp(&right.get(..shared))
        .then_with(|| left.len().cmp(&right.len()))
}

#[cfg(test)]
mod tests;
