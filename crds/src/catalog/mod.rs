//! Catalogs: documents that list images by version, name the stable one, and block versions.
//!
//! ```yaml
//! stable: v1.35.1
//! images:
//!   - version: v1.35.1
//!     url: https://updates.example.com/rootfs-1.35.1.ext4.zst
//!     checksum: sha256:99af82a263deca44ad91d21d684f0fa944d5d0456a1da540f1c644f8aa59b14b
//!     expandedChecksum: sha256:30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58  # optional
//!     size: 1858076672                                                                           # optional
//! blocked:
//!   - v1.34.0
//! ```
//!
//! A document that cannot be read as a whole is an error with its line: no YAML, a key that is not known (a misspelt `blocked`
//! must not unblock what it lists), a list that is none. Below that, an entry that cannot be used spoils only itself; it is kept with its
//! problem, so that asking for it can say why not. Entries of one version that mean different images are ambiguous, and asking for that
//! version is refused. A version is blocked exactly, not its revisions.

mod config_map;
mod entry;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::image::{Image, same_checksum};
use crate::version::Version;

pub use config_map::{ConfigMapName, content};
pub use entry::Fault;
use entry::{Entry, shown};

/// Most bytes of a catalog inside an OSUpgrade.
pub const INLINE_LIMIT: usize = 128 << 10;
/// Most bytes of a catalog anywhere else.
pub const LIMIT: usize = 1 << 20;

/// Why there is no catalog to resolve with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// More bytes than allowed.
    #[error("the catalog has more than the {limit} bytes that are allowed here")]
    TooLarge {
        /// The most that are allowed.
        limit: usize,
    },
    /// No catalog, as a whole.
    #[error("line {line} of the catalog: {problem}")]
    Unreadable {
        /// Counted from 1; 0 where it is not known.
        line: u64,
        /// What is wrong there.
        problem: String,
    },
    /// A ConfigMap in which it is not clear what to read.
    #[error("the ConfigMap has {found}; it needs the key {expected}, or one key alone", expected = crate::names::CATALOG_KEY)]
    WrongKeys {
        /// Its keys, in words.
        found: String,
    },
}

/// Something in a catalog that cannot be used, or is not understood. The rest of the catalog is not touched by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Counted from 1.
    pub line: u64,
    /// The place, and what is wrong with it.
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.message)
    }
}

/// A catalog that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Catalog {
    stable: Option<String>,
    entries: BTreeMap<Version, Vec<Entry>>,
    blocked: BTreeSet<Version>,
    problems: Vec<Problem>,
}

/// What a catalog has for a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found<'a> {
    /// One image, or several entries that mean the same one.
    Image(&'a Image),
    /// Nothing.
    Nothing,
    /// Entries of that version that mean different images; their lines.
    Different(Vec<u64>),
    /// An entry that cannot be used.
    Spoilt(&'a Fault),
}

/// The document, before its entries are judged.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    stable: Option<Spanned<Value>>,
    images: Option<Vec<Spanned<Value>>>,
    blocked: Option<Vec<Spanned<Value>>>,
}

impl Catalog {
    /// Reads a catalog of at most `limit` bytes: [`INLINE_LIMIT`] or [`LIMIT`].
    ///
    /// # Errors
    /// It is too large, or cannot be read as a whole.
    pub fn parse(content: &[u8], limit: usize) -> Result<Self, CatalogError> {
        if content.len() > limit {
            return Err(CatalogError::TooLarge { limit });
        }
        let text = std::str::from_utf8(content).map_err(|error| {
            let before = content.get(..error.valid_up_to()).unwrap_or_default();
            let line = before.iter().filter(|byte| **byte == b'\n').count();
            CatalogError::Unreadable {
                line: u64::try_from(line).unwrap_or(u64::MAX).saturating_add(1),
                problem: "it is not UTF-8".to_owned(),
            }
        })?;
        // A number that is none is a value of its entry, not the end of the document.
        let options = serde_saphyr::options! {
            with_snippet: false,
            non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::AsString,
        };
        let document = serde_saphyr::from_str_with_options::<Option<Document>>(text, options)
            .map_err(|error| CatalogError::Unreadable {
                line: error.location().map_or(0, |location| location.line()),
                problem: without_place(&error.to_string()),
            })?
            .ok_or_else(|| CatalogError::Unreadable {
                line: 1,
                problem: "it is empty".to_owned(),
            })?;
        Ok(Self::judge(document))
    }

    fn judge(document: Document) -> Self {
        let mut catalog = Self::default();
        if let Some(stable) = document.stable
            && !stable.value.is_null()
        {
            let text = shown(&stable.value);
            if let Err(error) = text.parse::<Version>() {
                catalog.problem(stable.referenced.line(), format!("stable: {error}"));
            }
            catalog.stable = Some(text);
        }
        for item in document.blocked.unwrap_or_default() {
            match shown(&item.value).parse() {
                Ok(version) => {
                    catalog.blocked.insert(version);
                }
                Err(error) => {
                    catalog.problem(
                        item.referenced.line(),
                        format!("blocked: {error}; it blocks nothing"),
                    );
                }
            }
        }
        for (index, item) in document.images.unwrap_or_default().into_iter().enumerate() {
            let line = item.referenced.line();
            let (version, entry, unknown) = Entry::judge(line, index, &item.value);
            for message in unknown {
                catalog.problem(line, message);
            }
            if let Err(fault) = &entry.image {
                catalog.problem(line, fault.message.clone());
            }
            // Nobody can ask for an entry without a version.
            if let Some(version) = version {
                catalog.entries.entry(version).or_default().push(entry);
            }
        }
        catalog.name_different_entries();
        catalog.problems.sort_by_key(|problem| problem.line);
        catalog
    }

    /// Names each version once whose entries mean different images.
    fn name_different_entries(&mut self) {
        let different: Vec<_> = self
            .entries
            .keys()
            .filter_map(|version| match self.find(version) {
                Found::Different(lines) => Some((version.to_string(), lines)),
                _ => None,
            })
            .collect();
        for (version, lines) in different {
            let all: Vec<_> = lines.iter().map(u64::to_string).collect();
            self.problem(
                lines.last().copied().unwrap_or_default(),
                format!(
                    "{version} is listed with different images, on lines {}",
                    all.join(", ")
                ),
            );
        }
    }

    fn problem(&mut self, line: u64, message: String) {
        self.problems.push(Problem { line, message });
    }

    /// What in this catalog cannot be used, in the order of its lines.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// What the catalog calls stable, as it is written there.
    #[must_use]
    pub fn stable(&self) -> Option<&str> {
        self.stable.as_deref()
    }

    /// Whether the catalog blocks exactly this version; another revision of it (`+k3s2`) is another version.
    #[must_use]
    pub fn blocks(&self, version: &Version) -> bool {
        self.blocked.contains(version)
    }

    /// The image of a version, blocked or not. Of entries that mean one image (the same checksum, and nothing that
    /// contradicts) the first is taken; one that cannot be used does not spoil a good one.
    #[must_use]
    pub fn find(&self, version: &Version) -> Found<'_> {
        let entries = self.entries.get(version).map_or(&[][..], Vec::as_slice);
        let good: Vec<_> = entries
            .iter()
            .filter_map(|entry| Some((entry.line, entry.image.as_ref().ok()?)))
            .collect();
        match good.as_slice() {
            [] => entries
                .iter()
                .find_map(|entry| entry.image.as_ref().err())
                .map_or(Found::Nothing, Found::Spoilt),
            [(_, first), ..] if all_agree(&good) => Found::Image(first),
            different => Found::Different(different.iter().map(|(line, _)| *line).collect()),
        }
    }

    /// The highest version that is neither blocked nor a pre-release and has one image.
    #[must_use]
    pub fn latest(&self) -> Option<&Image> {
        self.entries
            .keys()
            .rev()
            .filter(|version| !version.is_prerelease())
            .find_map(|version| self.can_be_asked_for(version))
    }

    /// The versions next to one that is missing: up to two below and two above that could be asked for, ascending.
    #[must_use]
    pub fn nearest(&self, version: &Version) -> Vec<&Version> {
        let usable = |(other, _): &(&Version, _)| self.can_be_asked_for(other).is_some();
        let mut nearest: Vec<_> = self
            .entries
            .range(..version)
            .rev()
            .filter(usable)
            .take(2)
            .collect();
        nearest.reverse();
        nearest.extend(self.entries.range(version..).filter(usable).take(2));
        nearest.into_iter().map(|(version, _)| version).collect()
    }

    fn can_be_asked_for(&self, version: &Version) -> Option<&Image> {
        match self.find(version) {
            Found::Image(image) if !self.blocks(version) => Some(image),
            _ => None,
        }
    }
}

/// Whether any two of the entries mean one image. Pairwise, since one without a size agrees with two that differ; versions
/// with more than a few entries differ in their first.
fn all_agree(entries: &[(u64, &Image)]) -> bool {
    let mut pairs = entries.iter().enumerate();
    pairs.all(|(index, (_, one))| {
        entries
            .iter()
            .skip(index + 1)
            .all(|(_, other)| same_image(one, other))
    })
}

/// Whether two entries of one version mean one image: its place may differ, its bytes may not.
fn same_image(one: &Image, other: &Image) -> bool {
    let agree = |one: &Option<String>, other: &Option<String>| match (one, other) {
        (Some(one), Some(other)) => same_checksum(one, other),
        _ => true,
    };
    same_checksum(&one.checksum, &other.checksum)
        && agree(&one.expanded_checksum, &other.expanded_checksum)
        && (one.size == other.size || one.size.is_none() || other.size.is_none())
}

/// The message without the parser's own "at line …", which is said in front.
fn without_place(message: &str) -> String {
    let first = message.lines().next().unwrap_or(message);
    first
        .rsplit_once(" at line ")
        .map_or(first, |(before, _)| before)
        .to_owned()
}

#[cfg(test)]
mod tests;
