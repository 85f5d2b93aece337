use std::sync::Arc;

use serde_json::json;
use slotd_crds::api::OSUpgrade;
use slotd_crds::catalog::Catalog;
use slotd_crds::resolve::{Reason, Rejection};

use super::{Insight, Meaning, frozen, settle};
use crate::controller::catalogs::{Reading, Trouble};
use crate::controller::snapshot::tests::{read, upgrade};

fn catalog(blocked: &str) -> Arc<Catalog> {
    let text = format!(
        "images: [{{version: v1.35.1, url: 'https://h/i.zst', checksum: '{}'}}]\nblocked: [{blocked}]\n",
        "a".repeat(64)
    );
    Catalog::parse(text.as_bytes(), 1 << 20).unwrap().into()
}

/// One that asks a catalog, frozen, and what was said of it.
fn stored(reason: &str) -> OSUpgrade {
    let mut document = upgrade("v1.35.1", json!({}));
    let spec = document["spec"].as_object_mut().unwrap();
    spec.remove("imageURL");
    spec.remove("checksum");
    spec.insert(
        "catalog".to_owned(),
        json!({"URL": "https://h/images.yaml"}),
    );
    let asked: OSUpgrade = serde_json::from_value(document.clone()).unwrap();
    document["status"]["resolvedFrom"] = json!(asked.spec.resolution_digest());
    document["status"]["conditions"] = json!([{
        "type": "Resolved", "status": "True", "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:20Z",
    }]);
    OSUpgrade::clone(&read(document))
}

fn unread() -> [Reading; 3] {
    [
        Reading::Unknown,
        Reading::Unreachable(Trouble {
            reason: "Timeout",
            message: String::new(),
        }),
        Reading::Unusable(Rejection {
            reason: Reason::NoCatalog,
            message: String::new(),
        }),
    ]
}

#[test]
fn what_was_blocked_stays_so_until_a_catalog_says_otherwise() {
    let (blocked, free) = (stored("Blocked"), stored("Resolved"));
    let meaning = |upgrade: &OSUpgrade, reading| settle(upgrade, Some(&reading), &[]).meaning;
    for reading in unread() {
        let known = meaning(&blocked, reading.clone());
        assert!(
            matches!(known, Meaning::Blocked(_)),
            "{reading:?}: {known:?}"
        );
        let known = meaning(&free, reading.clone());
        assert!(
            matches!(known, Meaning::Frozen(_)),
            "{reading:?}: {known:?}"
        );
    }
    let readings = |blocked: &str| {
        let catalog = catalog(blocked);
        [Reading::Kept(catalog.clone()), Reading::Read(catalog, None)]
    };
    for reading in readings("v1.35.1") {
        assert!(matches!(meaning(&free, reading), Meaning::Blocked(_)));
    }
    for reading in readings("v1.34.0") {
        assert!(matches!(meaning(&blocked, reading), Meaning::Frozen(_)));
    }
}

#[test]
fn nobody_chooses_by_a_catalog_of_the_past_nor_begins_without_any() {
    let insight = |upgrade: &OSUpgrade, reading| settle(upgrade, Some(&reading), &[]).insight;
    let frozen = stored("Resolved");
    let [unknown, unreachable, unusable] = unread();
    let kept = Reading::Kept(catalog(""));
    assert_eq!(insight(&frozen, unknown.clone()), Insight::None);
    assert_eq!(insight(&frozen, kept.clone()), Insight::Last);
    for reading in [unreachable, unusable, Reading::Read(catalog(""), None)] {
        assert_eq!(insight(&frozen, reading), Insight::Whole);
    }
    let new = OSUpgrade {
        status: None,
        ..frozen
    };
    for reading in [unknown, kept] {
        let settled = settle(&new, Some(&reading), &[]);
        assert!(
            matches!(settled.meaning, Meaning::Pending(_)),
            "{reading:?}"
        );
        assert_eq!(settled.insight, Insight::Whole);
    }
}

#[test]
fn a_url_that_is_not_whole_is_not_taken_for_the_whole_one_by_who_does_not_know() {
    let mut upgrade = stored("Resolved");
    let plain = upgrade.spec.resolution_digest();
    let status = upgrade.status.as_mut().unwrap();
    status.resolved_from = Some(plain + "?");
    status.resolved_url_digest = Some("0".repeat(40));
    assert!(frozen(&upgrade).is_some());
    // A schema of before has taken the field away.
    upgrade.status.as_mut().unwrap().resolved_url_digest = None;
    assert!(frozen(&upgrade).is_none());
}
