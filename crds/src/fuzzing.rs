//! What fuzzers run: what people write into objects and catalogs. True where the input was accepted. Not part of the product:
//! only tests and fuzzers build this.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use crate::api::OSUpgradeSpec;
use crate::catalog::{Catalog, CatalogError, Found, LIMIT};
use crate::image::{Image, check_web_url, is_checksum};
use crate::names::version_label;
use crate::place::Place;
use crate::resolve::{Step, resolve};
use crate::version::Version;

/// Reads an input, and judges what came of it; whether it was accepted.
pub type Target = fn(&[u8]) -> bool;

/// The targets by name. Inputs of each lie in `tests/fuzz/corpus/crds`.
pub const TARGETS: &[(&str, Target)] = &[
    ("catalog", catalog),
    ("place", place),
    ("upgrade", upgrade),
    ("versions", versions),
];

/// A catalog that the specs of inputs are resolved with.
const CATALOG: &str = "stable: v1.2.0\nblocked: [v1.3.0]\nimages:\n- {version: v1.2.0, url: https://h/1.2, checksum: \
     'sha256:abababababababababababababababababababababababababababababababab'}\n- {version: v1.3.0, url: https://h/1.3, checksum: \
     'sha256:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd'}\n";

/// An image that may go to nodes is one in every field.
fn sound(image: &Image) {
    assert!(is_checksum(&image.checksum), "{image:?}");
    assert!(
        image.expanded_checksum.as_deref().is_none_or(is_checksum),
        "{image:?}"
    );
    assert!(image.size != Some(0), "{image:?}");
    assert_eq!(check_web_url(&image.url), Ok(()), "{image:?}");
    assert!(image.version.parse::<Version>().is_ok(), "{image:?}");
}

fn catalog(input: &[u8]) -> bool {
    let lines =
        u64::try_from(input.iter().filter(|byte| **byte == b'\n').count()).unwrap_or(u64::MAX);
    let catalog = match Catalog::parse(input, LIMIT) {
        Ok(catalog) => catalog,
        Err(CatalogError::Unreadable { problem, .. }) => {
            assert!(!problem.is_empty());
            return false;
        }
        Err(error) => {
            assert!(input.len() > LIMIT, "{error}");
            return false;
        }
    };
    for problem in catalog.problems() {
        // YAML's lines also end at a carriage return.
        let returns =
            u64::try_from(input.iter().filter(|byte| **byte == b'\r').count()).unwrap_or(u64::MAX);
        assert!(
            problem.line <= lines.saturating_add(returns).saturating_add(1),
            "{problem}"
        );
        assert!(!problem.message.is_empty());
    }
    if let Some(latest) = catalog.latest() {
        sound(latest);
        let version: Version = latest.version.parse().expect("a version");
        assert!(!catalog.blocks(&version) && !version.is_prerelease());
        assert!(matches!(catalog.find(&version), Found::Image(_)));
    }
    for wanted in ["latest", "stable", "v1.2.3", ""] {
        let spec = OSUpgradeSpec {
            version: Some(wanted.to_owned()),
            ..OSUpgradeSpec::default()
        };
        judge(&spec, &catalog);
    }
    true
}

fn judge(spec: &OSUpgradeSpec, catalog: &Catalog) -> bool {
    match resolve(spec, Some(catalog)) {
        Ok(image) => {
            sound(&image);
            let version: Version = image.version.parse().expect("a version");
            assert!(!catalog.blocks(&version), "{image:?} is blocked");
            if let Some(wanted) = spec
                .version
                .as_ref()
                .and_then(|text| text.parse::<Version>().ok())
            {
                assert_eq!(version, wanted);
            }
            true
        }
        Err(rejection) => {
            assert!(!rejection.message.is_empty());
            false
        }
    }
}

fn upgrade(input: &[u8]) -> bool {
    let Ok(spec) = serde_json::from_slice::<OSUpgradeSpec>(input) else {
        return false;
    };
    let written = serde_json::to_vec(&spec).expect("a spec is JSON");
    let again: OSUpgradeSpec = serde_json::from_slice(&written).expect("what was written");
    assert_eq!(serde_json::to_vec(&again).expect("a spec is JSON"), written);
    match spec.node_selector.read() {
        Ok(selector) => {
            let everything = selector.selects_all();
            let text = serde_json::to_string(&spec.node_selector).expect("a selector is JSON");
            let empty = ["{}", r#"{"matchLabels":{}}"#, r#"{"matchExpressions":[]}"#]
                .contains(&text.as_str())
                || text.contains("{}") && text.contains("[]");
            assert!(!everything || empty, "{text} selects the whole fleet");
        }
        Err(error) => assert!(error.to_string().starts_with("nodeSelector"), "{error}"),
    }
    let limit = spec
        .rollout
        .as_ref()
        .and_then(|rollout| rollout.max_unavailable.as_ref());
    if let Some(Ok(nodes)) = limit.map(|limit| limit.of(10)) {
        assert!(nodes >= 1);
    }
    let catalog = Catalog::parse(CATALOG.as_bytes(), LIMIT).expect("a catalog");
    judge(&spec, &catalog)
}

fn place(input: &[u8]) -> bool {
    let Ok(place) = serde_json::from_slice::<Place>(input) else {
        return false;
    };
    let written = serde_json::to_vec(&place).expect("a place is JSON");
    assert_eq!(serde_json::from_slice::<Place>(&written).ok(), Some(place));
    true
}

/// Three versions, one a line: the order is total, whatever they are.
fn versions(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let all: Vec<Version> = text
        .lines()
        .take(3)
        .filter_map(|line| line.parse().ok())
        .collect();
    for version in &all {
        assert_eq!(
            version.to_string().parse::<Version>().ok().as_ref(),
            Some(version)
        );
        assert!(version_label(version.as_str()).is_none_or(|label| label.len() <= 63));
        for other in &all {
            assert_eq!(version.cmp(other), other.cmp(version).reverse());
            assert_eq!(version == other, version.cmp(other).is_eq());
            let same = Step::between(Some(version.as_str()), other.as_str()) == Step::Same;
            assert_eq!(same, version == other);
            for third in &all {
                if version <= other && other <= third {
                    assert!(version <= third, "{version}, {other}, {third}");
                }
            }
        }
    }
    !all.is_empty()
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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/crds");
        corpus::check(&folder, TARGETS);
    }
}
