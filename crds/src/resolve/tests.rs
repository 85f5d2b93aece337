//! Every line of the resolution table.

use super::{Reason, Rejection, Step, may_follow, resolve};
use crate::api::OSUpgradeSpec;
use crate::catalog::{Catalog, INLINE_LIMIT, LIMIT};
use crate::image::Image;
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
use serde_json::{Value, json};

const CHECKSUM: &str = "sha256:99af82a263deca44ad91d21d684f0fa944d5d0456a1da540f1c644f8aa59b14b";

/// A catalog of the given versions, with the first lines as they are.
fn catalog(head: &str, versions: &[&str]) -> Catalog {
    let mut text = format!("{head}\nimages:\n");
    for version in versions {
        text.push_str(&format!(
            "- {{version: {version}, url: 'https://catalog/{version}', checksum: '{CHECKSUM}'}}\n"
        ));
    }
    Catalog::parse(text.as_bytes(), LIMIT).unwrap()
}

fn asked(spec: Value, catalog: Option<&Catalog>) -> Result<Image, Rejection> {
    let spec: OSUpgradeSpec = serde_json::from_value(spec).unwrap();
    resolve(&spec, catalog)
}

/// What a catalog gives for a version that is asked for.
fn version_of(wanted: Value, catalog: &Catalog) -> Result<String, (Reason, String)> {
    asked(
        json!({"version": wanted, "nodeSelector": {}}),
        Some(catalog),
    )
    .map(|image| image.version)
    .map_err(|rejection| (rejection.reason, rejection.message))
}

fn given(
    change: impl FnOnce(&mut Value),
    catalog: Option<&Catalog>,
) -> Result<Image, (Reason, String)> {
    let mut spec = json!({
        "version": "v1.35.3",
        "imageURL": "https://updates.example.com/monok8s-1.2.3.img.zst",
        "checksum": CHECKSUM,
        "nodeSelector": {},
    });
    change(&mut spec);
    asked(spec, catalog).map_err(|rejection| (rejection.reason, rejection.message))
}

#[test]
fn a_version_with_an_image_url_is_that_image_whatever_the_catalog_says() {
    let image = given(
        |spec| spec["size"] = json!(4096),
        Some(&catalog("", &["v1.35.3"])),
    )
    .unwrap();
    assert_eq!(
        image,
        Image {
            version: "v1.35.3".to_owned(),
            url: "https://updates.example.com/monok8s-1.2.3.img.zst".to_owned(),
            checksum: CHECKSUM.to_owned(),
            expanded_checksum: None,
            size: Some(4096),
        }
    );
    assert!(given(|_| {}, None).is_ok());
    assert!(given(|_| {}, Some(&catalog("", &[]))).is_ok());
    assert_eq!(
        given(|_| {}, Some(&catalog("blocked: [1.35.3]", &[]))),
        Err((Reason::Blocked, "the catalog blocks v1.35.3".to_owned()))
    );
    // A catalog that is named and was not read could block it.
    let unread = given(|spec| spec["catalog"] = json!({"inline": "{}"}), None).unwrap_err();
    assert_eq!(
        unread,
        (Reason::NoCatalog, "the catalog was not read".to_owned())
    );
}

#[test]
fn an_image_url_needs_its_version_and_checksum() {
    for (field, value, reason, start) in [
        (
            "checksum",
            json!("sha256:..."),
            Reason::InvalidChecksum,
            "checksum \"sha256:...\" is not sha256: and 64",
        ),
        (
            "checksum",
            json!(""),
            Reason::InvalidChecksum,
            "checksum \"\" is not",
        ),
        (
            "checksum",
            Value::Null,
            Reason::InvalidChecksum,
            "imageURL needs the checksum",
        ),
        (
            "expandedChecksum",
            json!("sha256:abc"),
            Reason::InvalidChecksum,
            "expandedChecksum \"sha256:abc\" is not",
        ),
        (
            "version",
            json!("stable"),
            Reason::InvalidVersion,
            "imageURL needs version to be",
        ),
        (
            "version",
            json!("latest"),
            Reason::InvalidVersion,
            "imageURL needs version to be",
        ),
        (
            "version",
            json!(""),
            Reason::InvalidVersion,
            "imageURL needs version to be",
        ),
        (
            "version",
            Value::Null,
            Reason::InvalidVersion,
            "imageURL needs version to be",
        ),
        (
            "version",
            json!("1.2"),
            Reason::InvalidVersion,
            "\"1.2\" is not a version",
        ),
        (
            "imageURL",
            json!("rootfs.zst"),
            Reason::InvalidURL,
            "imageURL: it starts with neither",
        ),
        ("size", json!(0), Reason::InvalidSize, "size 0 is not"),
    ] {
        let (got, message) = given(|spec| spec[field] = value.clone(), None).unwrap_err();
        assert_eq!(got, reason, "{field}: {value}");
        assert!(message.starts_with(start), "{field}: {value}: {message}");
    }
}

#[test]
fn a_version_is_the_catalogs_entry_or_the_nearest_are_named() {
    let catalog = catalog(
        "blocked: [v1.35.4]",
        &[
            "v1.34.9",
            "v1.33.0",
            "v1.35.1+k3s2",
            "v1.35.4",
            "v1.36.0",
            "v1.36.1-rc.1",
            "2.0.0",
        ],
    );
    assert_eq!(
        version_of(json!("1.36.0"), &catalog),
        Ok("v1.36.0".to_owned())
    );
    assert_eq!(
        version_of(json!("v1.36.1-rc.1"), &catalog),
        Ok("v1.36.1-rc.1".to_owned())
    );
    assert_eq!(
        version_of(json!("v1.35.3"), &catalog),
        Err((
            Reason::VersionNotFound,
            "the catalog does not list v1.35.3; the nearest are v1.34.9, v1.35.1+k3s2, v1.36.0, v1.36.1-rc.1".to_owned()
        ))
    );
    let (_, message) = version_of(json!("v1.35.1"), &catalog).unwrap_err();
    assert!(
        message.ends_with("the nearest are v1.33.0, v1.34.9, v1.35.1+k3s2, v1.36.0"),
        "{message}"
    );
    let (_, message) = version_of(json!("9.0.0"), &catalog).unwrap_err();
    assert!(
        message.ends_with("the nearest are v1.36.1-rc.1, 2.0.0"),
        "{message}"
    );
    assert_eq!(
        version_of(json!("v1.0.0"), &self::catalog("", &[]))
            .unwrap_err()
            .1,
        "the catalog does not list v1.0.0, nor any version that could be asked for"
    );
    assert_eq!(
        version_of(json!("v1.35.4"), &catalog),
        Err((Reason::Blocked, "the catalog blocks v1.35.4".to_owned()))
    );
    assert_eq!(
        version_of(json!("newest"), &catalog).unwrap_err().0,
        Reason::InvalidVersion
    );
}

#[test]
fn stable_is_what_the_catalog_calls_so_and_its_entry_must_exist() {
    let versions = ["v1.35.1", "v1.36.0-rc.1", "v1.36.0"];
    let stable = |head: &str| version_of(json!("stable"), &catalog(head, &versions));
    assert_eq!(stable("stable: 1.35.1"), Ok("v1.35.1".to_owned()));
    assert_eq!(
        stable("stable: v1.36.0-rc.1"),
        Ok("v1.36.0-rc.1".to_owned())
    );
    assert_eq!(
        stable("stable:"),
        Err((
            Reason::StableNotSet,
            "the catalog names no stable version".to_owned()
        ))
    );
    assert_eq!(
        stable("stable: v1.34.0"),
        Err((
            Reason::VersionNotFound,
            "the catalog's stable: the catalog does not list v1.34.0; the nearest are v1.35.1, v1.36.0-rc.1".to_owned()
        ))
    );
    assert_eq!(
        stable("stable: v1.35.1\nblocked: [1.35.1]"),
        Err((
            Reason::Blocked,
            "the catalog's stable: the catalog blocks v1.35.1".to_owned()
        ))
    );
    assert_eq!(
        stable("stable: newest").unwrap_err().0,
        Reason::InvalidVersion
    );
}

#[test]
fn latest_and_empty_are_the_highest_that_is_neither_blocked_nor_a_prerelease() {
    let catalog = catalog(
        "blocked: [v1.36.1]",
        &[
            "v1.36.0",
            "v1.36.1",
            "v1.37.0-alpha.1",
            "v1.9.0",
            "v1.36.0+k3s2",
            "v1.36.0+k3s1",
        ],
    );
    for wanted in [json!("latest"), json!(""), Value::Null] {
        assert_eq!(version_of(wanted, &catalog), Ok("v1.36.0+k3s2".to_owned()));
    }
    let (reason, _) = version_of(
        json!("latest"),
        &self::catalog("blocked: [v1.0.0]", &["v1.0.0", "v2.0.0-rc.1"]),
    )
    .unwrap_err();
    assert_eq!(reason, Reason::NothingToInstall);
    assert_eq!(
        asked(json!({"version": "latest", "nodeSelector": {}}), None)
            .unwrap_err()
            .reason,
        Reason::NoCatalog
    );
}

#[test]
fn only_asking_for_a_bad_entry_is_rejected() {
    let text = include_str!("../catalog/golden/bad-entries.yaml");
    let bad = Catalog::parse(text.as_bytes(), LIMIT).unwrap();
    assert_eq!(version_of(json!("latest"), &bad), Ok("v1.0.0".to_owned()));
    assert_eq!(version_of(json!("stable"), &bad), Ok("v1.0.0".to_owned()));
    assert_eq!(
        version_of(json!("v1.1.0"), &bad),
        Err((
            Reason::InvalidChecksum,
            "line 5 of the catalog: images[0] (v1.1.0): checksum \"sha256:abc\" is not sha256: and 64 hexadecimal digits".to_owned()
        ))
    );
    assert_eq!(
        version_of(json!("v1.4.0"), &bad).unwrap_err().0,
        Reason::InvalidEntry
    );
    let text = include_str!("../catalog/golden/duplicates.yaml");
    let double = Catalog::parse(text.as_bytes(), LIMIT).unwrap();
    assert_eq!(
        version_of(json!("v1.1.0"), &double),
        Err((
            Reason::AmbiguousVersion,
            "the catalog lists different images under v1.1.0, on lines 10, 13".to_owned()
        ))
    );
}

#[test]
fn what_is_no_catalog_has_its_own_reason() {
    let reason =
        |content: &[u8], limit| Rejection::from(Catalog::parse(content, limit).unwrap_err()).reason;
    assert_eq!(
        reason(&[b'#'; INLINE_LIMIT + 1], INLINE_LIMIT),
        Reason::CatalogTooLarge
    );
    assert_eq!(reason(b"images: 5", LIMIT), Reason::CatalogUnreadable);
    assert_eq!(Reason::CatalogTooLarge.to_string(), "CatalogTooLarge");
    let selector = crate::api::NodeSelector::default().read().unwrap_err();
    assert_eq!(
        Rejection::from(selector).reason,
        Reason::InvalidNodeSelector
    );
}

#[test]
fn a_downgrade_is_judged_for_each_target() {
    for (running, target, step) in [
        (Some("v1.35.1"), "v1.35.3", Step::Upgrade),
        (Some("v1.35.3"), "1.35.3", Step::Same),
        (Some("v1.35.3"), "v1.35.1", Step::Downgrade),
        (Some("v1.35.3"), "v1.35.3-rc.1", Step::Downgrade),
        (Some("v1.35.3+k3s2"), "v1.35.3+k3s10", Step::Upgrade),
        (Some("v1.35.3+k3s1"), "v1.35.3", Step::Downgrade),
        (None, "v1.35.3", Step::Unknown),
        (Some("20250801"), "v1.35.3", Step::Unknown),
        (Some("20250801"), "20250801", Step::Same),
    ] {
        assert_eq!(
            Step::between(running, target),
            step,
            "{running:?} to {target}"
        );
        assert_eq!(
            may_follow(running, target, true),
            Ok(step),
            "{running:?} to {target}"
        );
        assert_eq!(
            may_follow(running, target, false).is_err(),
            step == Step::Downgrade,
            "{running:?} to {target}"
        );
    }
    let rejection = may_follow(Some("v1.35.3"), "v1.35.1", false).unwrap_err();
    assert_eq!(rejection.reason, Reason::Downgrade);
    assert_eq!(
        rejection.to_string(),
        "v1.35.1 is older than v1.35.3, which runs (policy.allowDowngrade allows that)"
    );
}

proptest! {
    #[test]
    fn what_is_blocked_is_never_resolved(
        wanted in "(stable|latest||v?1\\.[0-2]\\.[0-2])",
        listed in proptest::collection::vec("v?1\\.[0-2]\\.[0-2]", 0..6),
        blocked in proptest::collection::vec("v?1\\.[0-2]\\.[0-2]", 0..6),
        stable in "v?1\\.[0-2]\\.[0-2]",
        with_url in proptest::bool::ANY,
    ) {
        let listed: Vec<_> = listed.iter().map(String::as_str).collect();
        let catalog = catalog(&format!("stable: {stable}\nblocked: [{}]", blocked.join(", ")), &listed);
        let mut spec = json!({"version": wanted, "nodeSelector": {}});
        if with_url {
            spec["imageURL"] = json!("https://h/x");
            spec["checksum"] = json!(CHECKSUM);
        }
        let result = asked(spec, Some(&catalog));
        let plain = |text: &str| text.trim_start_matches('v').to_owned();
        if let Ok(image) = &result {
            prop_assert!(!blocked.iter().any(|version| plain(version) == plain(&image.version)));
            if !["stable", "latest", ""].contains(&wanted.as_str()) {
                prop_assert_eq!(plain(&image.version), plain(&wanted));
            }
        }
    }
}
