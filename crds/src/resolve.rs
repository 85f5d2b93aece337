//! What an upgrade means: one image, or a rule that forbids it.
//!
//! Pure: the catalog was read before. Whoever could not read it has no answer yet, and an upgrade stays Pending; one that
//! is no catalog at all is a [`Rejection`] (from its [`CatalogError`]).

use std::cmp::Ordering;
use std::fmt;

use crate::api::OSUpgradeSpec;
use crate::catalog::{Catalog, CatalogError, Found};
use crate::image::{Image, check_web_url, is_checksum};
use crate::version::Version;

/// Why an upgrade, or one target of it, is Rejected: the reason of its condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The catalog blocks the version.
    Blocked,
    /// The version is older than the one that runs.
    Downgrade,
    /// Neither a version nor `stable` nor `latest`, or not a version where one is needed.
    InvalidVersion,
    /// `imageURL` cannot be used.
    InvalidURL,
    /// A checksum is missing or malformed.
    InvalidChecksum,
    /// The size is none.
    InvalidSize,
    /// The selector of nodes cannot be read.
    InvalidNodeSelector,
    /// No catalog, where one is needed.
    NoCatalog,
    /// The catalog has more bytes than allowed.
    CatalogTooLarge,
    /// The catalog cannot be read as a whole.
    CatalogUnreadable,
    /// The catalog's entry of that version cannot be used.
    InvalidEntry,
    /// The catalog lists different images under that version.
    AmbiguousVersion,
    /// The catalog does not list that version.
    VersionNotFound,
    /// The catalog names no stable version.
    StableNotSet,
    /// The catalog lists no version that `latest` could mean.
    NothingToInstall,
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names of the variants are the reasons of the conditions.
        fmt::Debug::fmt(self, formatter)
    }
}

/// An upgrade that is not done, with the rule that says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// For a condition's `reason`.
    pub reason: Reason,
    /// For a condition's `message`: a sentence for people.
    pub message: String,
}

impl Rejection {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

impl From<CatalogError> for Rejection {
    fn from(error: CatalogError) -> Self {
        let reason = match &error {
            CatalogError::TooLarge { .. } => Reason::CatalogTooLarge,
            CatalogError::Unreadable { .. } | CatalogError::WrongKeys { .. } => {
                Reason::CatalogUnreadable
            }
        };
        Self::new(reason, error.to_string())
    }
}

impl From<crate::api::UnreadableSelector> for Rejection {
    fn from(error: crate::api::UnreadableSelector) -> Self {
        Self::new(Reason::InvalidNodeSelector, error.to_string())
    }
}

/// The image that an upgrade means. `catalog` is what was read from where `spec.catalog` points.
///
/// # Errors
/// The rule that forbids it.
pub fn resolve(spec: &OSUpgradeSpec, catalog: Option<&Catalog>) -> Result<Image, Rejection> {
    if spec.catalog.is_some() && catalog.is_none() {
        return Err(Rejection::new(
            Reason::NoCatalog,
            "the catalog was not read",
        ));
    }
    let wanted = spec.version.as_deref().unwrap_or_default();
    if let Some(url) = &spec.image_url {
        return given(spec, wanted, url, catalog);
    }
    let Some(catalog) = catalog else {
        return Err(Rejection::new(
            Reason::NoCatalog,
            "neither imageURL nor catalog is given",
        ));
    };
    match wanted {
        "" | "latest" => catalog.latest().cloned().ok_or_else(|| {
            Rejection::new(
                Reason::NothingToInstall,
                "the catalog lists no version that can be used and is neither blocked nor a pre-release",
            )
        }),
        "stable" => {
            let stable = catalog
                .stable()
                .ok_or_else(|| Rejection::new(Reason::StableNotSet, "the catalog names no stable version"))?;
            let version = version(stable).map_err(|error| in_front("the catalog's stable: ", error))?;
            listed(catalog, &version).map_err(|error| in_front("the catalog's stable: ", error))
        }
        other => listed(catalog, &version(other)?),
    }
}

fn in_front(place: &str, rejection: Rejection) -> Rejection {
    Rejection::new(rejection.reason, format!("{place}{}", rejection.message))
}

fn version(text: &str) -> Result<Version, Rejection> {
    text.parse()
        .map_err(|error| Rejection::new(Reason::InvalidVersion, format!("{error}")))
}

fn not_blocked(catalog: &Catalog, version: &Version) -> Result<(), Rejection> {
    if catalog.blocks(version) {
        return Err(Rejection::new(
            Reason::Blocked,
            format!("the catalog blocks {version}"),
        ));
    }
    Ok(())
}

/// The image that the document itself describes.
fn given(
    spec: &OSUpgradeSpec,
    wanted: &str,
    url: &str,
    catalog: Option<&Catalog>,
) -> Result<Image, Rejection> {
    if ["", "stable", "latest"].contains(&wanted) {
        return Err(Rejection::new(
            Reason::InvalidVersion,
            "imageURL needs version to be the version of that image, not stable, latest or none",
        ));
    }
    let version = version(wanted)?;
    if let Some(catalog) = catalog {
        not_blocked(catalog, &version)?;
    }
    check_web_url(url)
        .map_err(|problem| Rejection::new(Reason::InvalidURL, format!("imageURL: {problem}")))?;
    let checksum = |field: &str, text: &str| {
        if is_checksum(text) {
            return Ok(text.to_owned());
        }
        let start: String = text.chars().take(80).collect();
        Err(Rejection::new(
            Reason::InvalidChecksum,
            format!("{field} {start:?} is not sha256: and 64 hexadecimal digits"),
        ))
    };
    let Some(written) = &spec.checksum else {
        return Err(Rejection::new(
            Reason::InvalidChecksum,
            "imageURL needs the checksum of that file: sha256: and 64 hexadecimal digits",
        ));
    };
    if spec.size == Some(0) {
        return Err(Rejection::new(
            Reason::InvalidSize,
            "size 0 is not a number of bytes",
        ));
    }
    Ok(Image {
        version: version.to_string(),
        url: url.to_owned(),
        checksum: checksum("checksum", written)?,
        expanded_checksum: spec
            .expanded_checksum
            .as_deref()
            .map(|text| checksum("expandedChecksum", text))
            .transpose()?,
        size: spec.size,
    })
}

/// The image that the catalog has under a version.
fn listed(catalog: &Catalog, version: &Version) -> Result<Image, Rejection> {
    not_blocked(catalog, version)?;
    match catalog.find(version) {
        Found::Image(image) => Ok(image.clone()),
        Found::Different(lines) => {
            let lines: Vec<_> = lines.iter().map(u64::to_string).collect();
            Err(Rejection::new(
                Reason::AmbiguousVersion,
                format!(
                    "the catalog lists different images under {version}, on lines {}",
                    lines.join(", ")
                ),
            ))
        }
        Found::Spoilt(fault) => {
            let reason = if fault.checksum {
                Reason::InvalidChecksum
            } else {
                Reason::InvalidEntry
            };
            Err(Rejection::new(
                reason,
                format!("line {} of the catalog: {}", fault.line, fault.message),
            ))
        }
        Found::Nothing => {
            let nearest: Vec<_> = catalog
                .nearest(version)
                .iter()
                .map(ToString::to_string)
                .collect();
            let message = if nearest.is_empty() {
                format!(
                    "the catalog does not list {version}, nor any version that could be asked for"
                )
            } else {
                format!(
                    "the catalog does not list {version}; the nearest are {}",
                    nearest.join(", ")
                )
            };
            Err(Rejection::new(Reason::VersionNotFound, message))
        }
    }
}

/// What a target version is to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The node runs it.
    Same,
    /// It is newer than what runs.
    Upgrade,
    /// It is older than what runs.
    Downgrade,
    /// It cannot be said here: what runs is not known, or versioned in another way. The node itself judges before it writes.
    Unknown,
}

impl Step {
    /// Compares what a node runs with what it is to run.
    #[must_use]
    pub fn between(running: Option<&str>, target: &str) -> Self {
        let Some(running) = running else {
            return Self::Unknown;
        };
        match (running.parse::<Version>(), target.parse::<Version>()) {
            (Ok(running), Ok(target)) => match target.cmp(&running) {
                Ordering::Equal => Self::Same,
                Ordering::Greater => Self::Upgrade,
                Ordering::Less => Self::Downgrade,
            },
            _ if running == target => Self::Same,
            _ => Self::Unknown,
        }
    }
}

/// Whether one node may go from what it runs to `target`; judged for each target, so that the others go on.
///
/// # Errors
/// [`Reason::Downgrade`], where that is not allowed by name.
pub fn may_follow(
    running: Option<&str>,
    target: &str,
    allow_downgrade: bool,
) -> Result<Step, Rejection> {
    match Step::between(running, target) {
        Step::Downgrade if !allow_downgrade => Err(Rejection::new(
            Reason::Downgrade,
            format!(
                "{target} is older than {}, which runs (policy.allowDowngrade allows that)",
                running.unwrap_or_default()
            ),
        )),
        step => Ok(step),
    }
}

#[cfg(test)]
mod tests;
