use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::Event;
use serde_json::json;

use super::Shared;
use super::seen::Seen;

fn node(name: &str, unschedulable: bool, ready: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"unschedulable": unschedulable},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }))
    .unwrap()
}

fn pod(name: &str, ready: &str, leaving: bool) -> Pod {
    let gone = leaving.then_some("2026-12-01T00:00:00Z");
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "web", "deletionTimestamp": gone},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }))
    .unwrap()
}

fn unavailable(shared: &Shared) -> Vec<String> {
    let seen = shared.seen.lock().unwrap();
    let last = seen.moments.last().unwrap();
    last.unavailable.iter().cloned().collect()
}

#[test]
fn a_node_is_unavailable_while_it_is_unschedulable_or_not_ready_or_unknown() {
    let shared = Shared::default();
    let mut listed = BTreeSet::new();
    let mut take = |event| shared.take(Instant::now(), |seen| seen.node(event, &mut listed));
    take(Event::Apply(node("a", false, "True")));
    take(Event::Apply(node("b", true, "True")));
    assert_eq!(unavailable(&shared), ["b"]);
    take(Event::Apply(node("a", false, "Unknown")));
    assert_eq!(unavailable(&shared), ["a", "b"]);
    take(Event::Apply(node("b", false, "True")));
    take(Event::Apply(node("a", false, "False")));
    assert_eq!(unavailable(&shared), ["a"]);
    take(Event::Delete(node("a", false, "False")));
    assert_eq!(unavailable(&shared), [""; 0]);
    // A node that says the same again is no new moment.
    let count = shared.seen.lock().unwrap().moments.len();
    take(Event::Apply(node("b", false, "True")));
    assert_eq!(shared.seen.lock().unwrap().moments.len(), count);
}

#[test]
fn a_node_that_is_only_not_heard_of_was_not_taken_down() {
    let shared = Shared::default();
    let mut listed = BTreeSet::new();
    let mut taken_down = |node| {
        shared.take(Instant::now(), |seen| {
            seen.node(Event::Apply(node), &mut listed)
        });
        let seen = shared.seen.lock().unwrap();
        seen.moments.last().unwrap().taken_down()
    };
    assert_eq!(taken_down(node("a", false, "Unknown")), 0);
    assert_eq!(taken_down(node("b", false, "False")), 1);
    assert_eq!(taken_down(node("a", true, "Unknown")), 2);
    assert_eq!(taken_down(node("b", true, "True")), 2);
    assert_eq!(taken_down(node("a", false, "Unknown")), 1);
}

#[test]
fn what_a_new_list_does_not_hold_is_gone() {
    let mut seen = Seen::default();
    let mut listed = BTreeSet::new();
    for name in ["a", "b"] {
        seen.node(Event::Apply(node(name, true, "True")), &mut listed);
    }
    seen.node(Event::Init, &mut listed);
    seen.node(Event::InitApply(node("b", true, "True")), &mut listed);
    let unavailable = |seen: &Seen| seen.moment(Duration::ZERO, String::new()).unavailable;
    assert_eq!(unavailable(&seen).len(), 2, "not before the list is whole");
    seen.node(Event::InitDone, &mut listed);
    assert_eq!(unavailable(&seen), BTreeSet::from(["b".to_owned()]));
}

#[test]
fn pods_count_while_they_are_ready_and_stay() {
    let mut seen = Seen::default();
    let mut listed = BTreeSet::new();
    for pod in [
        pod("one", "True", false),
        pod("two", "True", true),
        pod("three", "False", false),
    ] {
        seen.pod(Event::Apply(pod), &mut listed);
    }
    let moment = seen.moment(Duration::ZERO, String::new());
    assert_eq!(moment.ready_pods["web"], 1);
}
