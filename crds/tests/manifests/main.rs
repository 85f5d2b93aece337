//! The generated YAML in `crds/manifests`: that it is what the types say, that the API server can take it, what its rules let
//! through, and that the examples beside it are good.
//!
//! The controller's Deployment lies beside them, in `crds/deployment`: a kustomization of its own, which brings the manifests with it.
//!
//! `UPDATE_MANIFESTS=1 cargo test -p slotd-crds --test manifests` writes it anew.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail where it stands"
)]

mod access;
mod admission;
mod definitions;
mod deployment;
mod examples;
mod rules;
mod structural;

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

const HEAD: &str = "# Generated from the types in crds/src; written by\n#   UPDATE_MANIFESTS=1 cargo test -p slotd-crds --test manifests\n";

/// A generated file's name, and its documents.
type File = (String, Vec<Value>);

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

/// Every generated file with its documents.
fn files() -> Vec<File> {
    let mut files: Vec<File> = definitions::definitions()
        .into_iter()
        .map(|definition| {
            let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
            (format!("{plural}.yaml"), vec![definition])
        })
        .collect();
    files.push(("agent-access.yaml".to_owned(), access::agent()));
    files.push(("controller-access.yaml".to_owned(), access::controller()));
    files.push(("admission-policies.yaml".to_owned(), admission::policies()));
    let resources: Vec<_> = files.iter().map(|(name, _)| name.clone()).collect();
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    });
    files.push(("kustomization.yaml".to_owned(), vec![kustomization]));
    files
}

/// The files of the Deployment.
fn deployment_files() -> Vec<File> {
    let name = "deployment.yaml".to_owned();
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../manifests", name],
    });
    vec![
        (name, vec![deployment::deployment()]),
        ("kustomization.yaml".to_owned(), vec![kustomization]),
    ]
}

/// Both folders with their generated files.
fn folders() -> [(PathBuf, Vec<File>); 2] {
    let beside = folder().with_file_name("deployment");
    [(folder(), files()), (beside, deployment_files())]
}

fn written(documents: &[Value]) -> String {
    let documents: Vec<_> = documents
        .iter()
        .map(|document| serde_saphyr::to_string(document).unwrap())
        .collect();
    format!("{HEAD}{}", documents.join("---\n"))
}

#[test]
fn the_manifests_are_what_the_types_say() {
    let update = std::env::var_os("UPDATE_MANIFESTS").is_some();
    let mut stale = Vec::new();
    for (folder, files) in folders() {
        for (name, documents) in files {
            let path = folder.join(&name);
            let text = written(&documents);
            if update {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, &text).unwrap();
            } else if fs::read_to_string(&path).unwrap_or_default() != text {
                stale.push(path);
            }
        }
    }
    assert!(
        stale.is_empty(),
        "not what the types say: {stale:?}; write them anew with UPDATE_MANIFESTS=1 cargo test -p slotd-crds --test manifests"
    );
}

#[test]
fn nothing_else_lies_beside_the_manifests() {
    for (path, files) in folders() {
        let mut found: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        let mut expected: Vec<_> = files.into_iter().map(|(name, _)| name).collect();
        if path == folder() {
            expected.push("examples".to_owned());
        }
        expected.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn what_is_written_reads_back_the_same() {
    for (name, documents) in folders().into_iter().flat_map(|(_, files)| files) {
        let read: Vec<Value> = serde_saphyr::from_multiple(&written(&documents)).unwrap();
        assert_eq!(read, documents, "{name}");
    }
}
