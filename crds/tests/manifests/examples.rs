//! The examples beside the manifests: documents as people write them.

use std::fs;

use kube::core::cel::Validator;
use serde_json::Value;
use sha2::{Digest, Sha256};
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};
use slotd_crds::catalog::{Catalog, INLINE_LIMIT, LIMIT, content};
use slotd_crds::resolve::{Reason, resolve};

use crate::definitions::{definitions, schema};
use crate::folder;
use crate::rules::tell_types;

fn read(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder().join("examples").join(name)).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Fields of a value that its schema does not have, which kubectl would refuse, and values of another type.
fn misfits(path: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        _ => value.is_i64() || value.is_string(),
    };
    let listed = schema["enum"]
        .as_array()
        .is_none_or(|words| words.contains(value));
    if !fits || !listed {
        found.push(format!("{path}: {value}"));
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        if value.get(required.as_str().unwrap()).is_none() {
            found.push(format!("{path}: {required} is missing"));
        }
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        match schema["properties"].get(name) {
            Some(schema) => misfits(&format!("{path}.{name}"), schema, value, found),
            None => found.push(format!("{path}.{name} is not in the schema")),
        }
    }
}

#[test]
fn every_example_is_what_the_api_server_admits() {
    let definitions = definitions();
    let mut kinds = Vec::new();
    for entry in fs::read_dir(folder().join("examples")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for document in read(&name) {
            let kind = document["kind"].as_str().unwrap().to_owned();
            if let Some(definition) = definitions
                .iter()
                .find(|definition| definition["spec"]["names"]["kind"] == kind.as_str())
            {
                assert_eq!(document["apiVersion"], "monok8s.io/v1alpha1", "{name}");
                let mut spec = schema(definition)["properties"]["spec"].clone();
                let mut found = Vec::new();
                misfits("spec", &spec, &document["spec"], &mut found);
                assert_eq!(found, [""; 0], "{name}");
                tell_types(&mut spec, &document["spec"]);
                Validator::new()
                    .validate(&spec, &document["spec"], None)
                    .unwrap();
            }
            kinds.push(kind);
        }
    }
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, ["ConfigMap", "OSUpgrade", "OSUpgradeProgress"]);
}

/// The owner's document, as it stands: admitted, with a checksum that then leads to Rejected.
#[test]
fn the_owners_document_is_admitted_and_its_checksum_rejected() {
    let document = read("osupgrade.yaml").remove(0);
    let upgrade: OSUpgrade = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(
        serde_json::to_value(&upgrade).unwrap()["spec"],
        document["spec"],
        "every field is kept"
    );
    assert_eq!(upgrade.metadata.name.as_deref(), Some("my-upgrade-2"));
    assert!(upgrade.spec.node_selector.read().unwrap().selects_all());
    let inline = upgrade
        .spec
        .catalog
        .as_ref()
        .unwrap()
        .inline
        .clone()
        .unwrap();
    let catalog = Catalog::parse(inline.as_bytes(), INLINE_LIMIT).unwrap();
    assert!(catalog.problems().is_empty());
    assert_eq!(
        resolve(&upgrade.spec, Some(&catalog)).unwrap_err().reason,
        Reason::InvalidChecksum
    );
    // Without its image, the same document means what the catalog says.
    let mut spec = upgrade.spec.clone();
    (spec.image_url, spec.checksum, spec.version) = (None, None, Some("stable".to_owned()));
    let image = resolve(&spec, Some(&catalog)).unwrap();
    assert_eq!(
        (image.version.as_str(), image.size),
        ("v1.35.1", Some(1_858_076_672))
    );
    // What it resolves from, in every release: `printf %s JSON | sha256sum`, the JSON being the fields in their order.
    let json = serde_json::json!(inline).to_string();
    let input = format!(
        r#"{{"version":"v1.35.3","imageUrl":"https://updates.example.com/monok8s-1.2.3.img.zst","checksum":"sha256:...","expandedChecksum":null,"size":null,"catalog":{{"inline":{json}}},"allowDowngrade":false}}"#
    );
    let expected: String = Sha256::digest(input)
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(upgrade.spec.resolution_digest(), expected);
}

#[test]
fn only_what_an_upgrade_is_resolved_from_changes_its_digest() {
    let mut upgrade: OSUpgrade = serde_json::from_value(read("osupgrade.yaml").remove(0)).unwrap();
    let before = upgrade.spec.resolution_digest();
    upgrade.spec.suspend = Some(true);
    upgrade.spec.attempt = Some(3);
    upgrade.spec.policy = Some(slotd_crds::api::Policy {
        allow_downgrade: Some(false),
    });
    upgrade.spec.rollout = Some(slotd_crds::api::Rollout::default());
    assert_eq!(upgrade.spec.resolution_digest(), before);
    upgrade.spec.policy = Some(slotd_crds::api::Policy {
        allow_downgrade: Some(true),
    });
    assert_ne!(upgrade.spec.resolution_digest(), before);
}

#[test]
fn the_catalog_of_the_config_map_example_is_read() {
    let documents = read("osupgrade-from-configmap.yaml");
    let config_map = serde_json::from_value(documents[0].clone()).unwrap();
    let upgrade: OSUpgrade = serde_json::from_value(documents[1].clone()).unwrap();
    let catalog = Catalog::parse(content(&config_map).unwrap(), LIMIT).unwrap();
    assert!(catalog.problems().is_empty());
    assert_eq!(
        resolve(&upgrade.spec, Some(&catalog)).unwrap().version,
        "v1.35.1"
    );
}

#[test]
fn a_hand_made_progress_object_is_read() {
    let document = read("osupgradeprogress.yaml").remove(0);
    let progress: OSUpgradeProgress = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(
        serde_json::to_value(&progress).unwrap()["spec"],
        document["spec"]
    );
    assert_eq!(progress.spec.source_ref, None);
}
