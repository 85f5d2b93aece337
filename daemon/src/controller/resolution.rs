//! Which image an upgrade means, fixed once.

use std::sync::Arc;

use kube::core::Selector;
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};
use slotd_crds::catalog::Found;
use slotd_crds::image::Image;
use slotd_crds::names::url_digest;
use slotd_crds::resolve::{Reason, Rejection, resolve};
use slotd_crds::version::Version;

use super::catalogs::{Reading, Trouble};
use super::conditions::Holds;

/// What an upgrade means now.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    pub(super) meaning: Meaning,
    /// The nodes that it is for.
    pub(super) selector: Option<Selector>,
    /// What is known of its catalog.
    pub(super) catalog: Vec<Holds>,
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
    let meaning = match &selector {
        Err(error) => rejected(&Rejection::from(error.clone())),
        Ok(_) => limits(upgrade).unwrap_or_else(|| meaning(upgrade, reading, told)),
    };
    Settled {
        meaning,
        selector: selector.ok(),
        catalog,
    }
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
    reading: Option<&Reading>,
    told: &[Arc<OSUpgradeProgress>],
) -> Meaning {
    let status = upgrade.status.as_ref();
    let frozen = status
        .filter(|status| {
            status.resolved_from.as_deref() == Some(upgrade.spec.resolution_digest().as_str())
        })
        .and_then(|status| status.resolved.clone());
    if let Some(shown) = frozen {
        let digest = status.and_then(|status| status.resolved_url_digest.as_deref());
        let Some(image) = whole(upgrade, shown, digest, reading, told) else {
            let message = "the whole URL of the image is known to its catalog alone, which does not name it any more, or cannot be \
                           read";
            return Meaning::Pending(message.to_owned());
        };
        let blocks = |version: Version| {
            reading
                .and_then(Reading::catalog)
                .is_some_and(|catalog| catalog.blocks(&version))
        };
        return if image.version.parse().is_ok_and(blocks) {
            Meaning::Blocked(image)
        } else {
            Meaning::Frozen(image)
        };
    }
    match reading {
        Some(Reading::Unknown) => Meaning::Pending("the catalog was not read yet".to_owned()),
        Some(Reading::Unreachable(trouble)) => {
            Meaning::Pending(format!("the catalog cannot be read: {}", trouble.message))
        }
        Some(Reading::Unusable(rejection)) => rejected(rejection),
        Some(Reading::Read(catalog, _)) => resolved(upgrade, Some(catalog)),
        None => resolved(upgrade, None),
    }
}

/// A frozen image with its whole URL, which the status does not show. None where nobody knows that any more.
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
            Found::Image(image) => Some(image.url.as_str()),
            _ => None,
        }
    };
    let objects = told.iter().filter(|object| {
        let source = object.spec.source_ref.as_ref();
        source.is_some_and(|source| Some(&source.uid) == upgrade.metadata.uid.as_ref())
    });
    let url = given
        .into_iter()
        .chain(listed())
        .chain(objects.map(|object| object.spec.image.url.as_str()))
        .find(|url| url_digest(url) == digest)?
        .to_owned();
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
        Reading::Unknown => {}
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
            "Resolved",
            true,
            "Resolved",
            format!("the image is {}", image.version),
        ),
        Meaning::Blocked(image) => Holds::new(
            "Resolved",
            true,
            &Reason::Blocked.to_string(),
            format!(
                "the image is {}, which the catalog blocks since",
                image.version
            ),
        ),
        Meaning::Pending(message) => Holds::new("Resolved", false, "Pending", message.clone()),
        Meaning::Rejected { reason, message } => {
            Holds::new("Resolved", false, reason, message.clone())
        }
    }
}
