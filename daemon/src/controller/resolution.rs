//! Which image an upgrade means, fixed once.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::core::Selector;
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};
use slotd_crds::catalog::Found;
use slotd_crds::image::Image;
use slotd_crds::names::url_digest;
use slotd_crds::resolve::{Reason, Rejection, resolve};
use slotd_crds::version::Version;

use super::catalogs::{Reading, Trouble};
use super::conditions::{Holds, find};

/// The type of the condition that says what an upgrade means.
const RESOLVED: &str = "Resolved";

/// What an upgrade means now.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    pub(super) meaning: Meaning,
    /// The nodes that it is for.
    pub(super) selector: Option<Selector>,
    /// What is known of its catalog.
    pub(super) catalog: Vec<Holds>,
    /// What there is of the catalog of an image that is frozen already.
    pub(super) insight: Insight,
}

/// Whether nothing is known yet of the catalog of an upgrade's frozen image.
pub(super) fn nothing_known(settled: &BTreeMap<String, Settled>, upgrade: &str) -> bool {
    let settled = settled.get(upgrade);
    settled.is_some_and(|settled| settled.insight == Insight::None)
}

/// How much is known of the catalog of a frozen image, which may block it by now. Whoever has just begun to lead knows less than
/// who led before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Insight {
    /// All that there is to know, or nothing is frozen that it would matter for.
    Whole,
    /// What was known last: what is shown stays until more is known.
    Last,
    /// Nothing yet: no node may begin, either.
    None,
}

/// The image, or why there is none.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meaning {
    /// Stored in the status before: nodes may be told of it.
    Frozen(Image),
    /// Frozen, and blocked by its catalog since.
    Blocked(Image),
    /// Found just now: to be stored first.
    Found(Image),
    /// Not known yet.
    Pending(String),
    /// A rule forbids it.
    Rejected { reason: String, message: String },
}

/// What an upgrade means. `reading` is of the catalog that it names, if it names one, `told` what nodes were told already.
pub(super) fn settle(
    upgrade: &OSUpgrade,
    reading: Option<&Reading>,
    told: &[Arc<OSUpgradeProgress>],
) -> Settled {
    let catalog = reading.map(said_of).unwrap_or_default();
    let selector = upgrade.spec.node_selector.read();
    let frozen = frozen(upgrade);
    let insight = match reading {
        Some(Reading::Unknown) if frozen.is_some() => Insight::None,
        Some(Reading::Kept(_)) if frozen.is_some() => Insight::Last,
        _ => Insight::Whole,
    };
    let meaning = match &selector {
        Err(error) => rejected(&Rejection::from(error.clone())),
        Ok(_) => limits(upgrade).unwrap_or_else(|| meaning(upgrade, frozen, reading, told)),
    };
    Settled {
        meaning,
        selector: selector.ok(),
        catalog,
        insight,
    }
}

/// What `status.resolvedFrom` says of a wish with this digest. A URL that is not shown whole is marked: who does not know the field
/// with its digest, an older release or one before the schema that has it, resolves anew instead of taking it for the whole one.
pub(super) fn resolved_from(digest: String, hidden: bool) -> String {
    if hidden { digest + "?" } else { digest }
}

/// The image in the status, as it is shown, and the digest of its URL where that is not shown whole; none where it was found for
/// another wish.
fn frozen(upgrade: &OSUpgrade) -> Option<(Image, Option<&str>)> {
    let status = upgrade.status.as_ref()?;
    let url = status.resolved_url_digest.as_deref();
    let from = resolved_from(upgrade.spec.resolution_digest(), url.is_some());
    let same = status.resolved_from.as_deref() == Some(from.as_str());
    Some((status.resolved.clone().filter(|_| same)?, url))
}

/// Whether an image is frozen for what is asked for now.
pub(super) fn is_frozen(upgrade: &OSUpgrade) -> bool {
    frozen(upgrade).is_some()
}

/// Whether a leader has said that the catalog blocks the frozen image.
fn said_blocked(upgrade: &OSUpgrade) -> bool {
    let conditions = upgrade
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    find(conditions, RESOLVED).is_some_and(|said| said.reason == Reason::Blocked.to_string())
}

/// A limit that is none: the schema lets no such through, and nobody guesses what it may mean.
fn limits(upgrade: &OSUpgrade) -> Option<Meaning> {
    let rollout = upgrade.spec.rollout.as_ref()?;
    let bad = |field: &str, error: String| Meaning::Rejected {
        reason: "InvalidLimit".to_owned(),
        message: format!("rollout.{field}: {error}"),
    };
    rollout
        .max_unavailable(1)
        .err()
        .map(|error| bad("maxUnavailable", error.to_string()))
        .or_else(|| {
            rollout
                .max_staging(1)
                .err()
                .map(|error| bad("maxStaging", error.to_string()))
        })
}

fn meaning(
    upgrade: &OSUpgrade,
    frozen: Option<(Image, Option<&str>)>,
    reading: Option<&Reading>,
    told: &[Arc<OSUpgradeProgress>],
) -> Meaning {
    if let Some((shown, digest)) = frozen {
        let Some(image) = whole(upgrade, shown, digest, reading, told) else {
            let message = "the whole URL of the image is known to its catalog alone, which does not name it any more, or cannot be \
                           read";
            return Meaning::Pending(message.to_owned());
        };
        let blocked = match reading.and_then(Reading::catalog) {
            Some(catalog) => {
                let blocks = |version: Version| catalog.blocks(&version);
                image.version.parse().is_ok_and(blocks)
            }
            // A catalog that cannot be read takes back nothing that it said.
            None => said_blocked(upgrade),
        };
        return if blocked {
            Meaning::Blocked(image)
        } else {
            Meaning::Frozen(image)
        };
    }
    match reading {
        Some(Reading::Unknown | Reading::Kept(_)) => {
            Meaning::Pending("the catalog was not read yet".to_owned())
        }
        Some(Reading::Unreachable(trouble)) => {
            Meaning::Pending(format!("the catalog cannot be read: {}", trouble.message))
        }
        Some(Reading::Unusable(rejection)) => rejected(rejection),
        Some(Reading::Read(catalog, _)) => resolved(upgrade, Some(catalog)),
        None => resolved(upgrade, None),
    }
}

/// A frozen image with its whole URL, which the status does not show. None where nobody knows that any more. Where the catalog has
/// it with another query, such as a newer signature, that serves: the checksum says what the image is.
fn whole(
    upgrade: &OSUpgrade,
    shown: Image,
    digest: Option<&str>,
    reading: Option<&Reading>,
    told: &[Arc<OSUpgradeProgress>],
) -> Option<Image> {
    let Some(digest) = digest else {
        return Some(shown);
    };
    let given = upgrade.spec.image_url.as_deref();
    let listed = || {
        let catalog = reading?.catalog()?;
        match catalog.find(&shown.version.parse().ok()?) {
            Found::Image(image) => Some(image),
            _ => None,
        }
    };
    let objects = told.iter().filter(|object| {
        let source = object.spec.source_ref.as_ref();
        source.is_some_and(|source| Some(&source.uid) == upgrade.metadata.uid.as_ref())
    });
    let url = given
        .into_iter()
        .chain(listed().map(|image| image.url.as_str()))
        .chain(objects.map(|object| object.spec.image.url.as_str()))
        .find(|url| url_digest(url) == digest)
        .map(str::to_owned)
        .or_else(|| {
            let renewed = listed().filter(|image| image.shown() == shown)?;
            Some(renewed.url.clone())
        })?;
    Some(Image { url, ..shown })
}

fn resolved(upgrade: &OSUpgrade, catalog: Option<&slotd_crds::catalog::Catalog>) -> Meaning {
    match resolve(&upgrade.spec, catalog) {
        Ok(image) => Meaning::Found(image),
        Err(rejection) => rejected(&rejection),
    }
}

fn rejected(rejection: &Rejection) -> Meaning {
    Meaning::Rejected {
        reason: rejection.reason.to_string(),
        message: rejection.message.clone(),
    }
}

/// What is said of a catalog that is not in the document itself, and of its bad entries.
fn said_of(reading: &Reading) -> Vec<Holds> {
    let unreachable = |trouble: &Trouble| {
        Holds::new(
            "CatalogReachable",
            false,
            trouble.reason,
            trouble.message.clone(),
        )
    };
    let mut holds = Vec::new();
    match reading {
        Reading::Unknown | Reading::Kept(_) => {}
        Reading::Read(_, None) => holds.push(Holds::new(
            "CatalogReachable",
            true,
            "Read",
            "the catalog was read",
        )),
        Reading::Read(_, Some(trouble)) | Reading::Unreachable(trouble) => {
            holds.push(unreachable(trouble))
        }
        Reading::Unusable(rejection) => {
            holds.push(Holds::new(
                "CatalogReachable",
                false,
                &rejection.reason.to_string(),
                rejection.message.clone(),
            ));
        }
    }
    let problems = reading
        .catalog()
        .map(slotd_crds::catalog::Catalog::problems)
        .unwrap_or_default();
    if let Some(first) = problems.first() {
        let more = problems.len() - 1;
        let message = match more {
            0 => first.to_string(),
            _ => format!("{first}; and {more} more"),
        };
        holds.push(Holds::new("CatalogValid", false, "BadEntries", message));
    }
    holds
}

/// The condition that says what an upgrade means.
pub(super) fn condition(meaning: &Meaning) -> Holds {
    match meaning {
        Meaning::Frozen(image) | Meaning::Found(image) => Holds::new(
            RESOLVED,
            true,
            "Resolved",
            format!("the image is {}", image.version),
        ),
        Meaning::Blocked(image) => Holds::new(
            RESOLVED,
            true,
            &Reason::Blocked.to_string(),
            format!(
                "the image is {}, which the catalog blocks since",
                image.version
            ),
        ),
        Meaning::Pending(message) => Holds::new(RESOLVED, false, "Pending", message.clone()),
        Meaning::Rejected { reason, message } => {
            Holds::new(RESOLVED, false, reason, message.clone())
        }
    }
}

#[cfg(test)]
mod tests;
