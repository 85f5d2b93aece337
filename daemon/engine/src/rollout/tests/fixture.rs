//! Small fleets: `n1`, `n2`, … with an agent, and an upgrade `u` of the image `v2` that matches them all.

use crate::rollout::{
    Action, At, End, Failure, Fit, Fleet, Holder, ImageId, Limit, Node, NodeUid, Outlook, Place,
    Plan, Progress, ProgressUid, Resolution, Status, Upgrade, UpgradeUid, Wait, Write, plan,
};

pub(super) fn node(name: &str) -> Node {
    Node {
        uid: node_uid(name),
        name: name.to_owned(),
        agent: true,
        ready: true,
        unschedulable: false,
        cordoned_by_us: false,
        control_plane: false,
        hold: None,
    }
}

pub(super) fn node_uid(name: &str) -> NodeUid {
    NodeUid(format!("uid-{name}"))
}

pub(super) fn upgrade_uid(name: &str) -> UpgradeUid {
    UpgradeUid(format!("uid-{name}"))
}

pub(super) fn progress_uid(upgrade: &str, node: &str) -> ProgressUid {
    ProgressUid(format!("uid-{upgrade}-{node}"))
}

pub(super) fn upgrade(name: &str, created: i64, nodes: &[&str]) -> Upgrade {
    Upgrade {
        uid: upgrade_uid(name),
        name: name.to_owned(),
        created,
        attempt: 0,
        suspended: false,
        deleting: false,
        bound: false,
        completed: false,
        resolution: Resolution::Image(ImageId("v2".to_owned())),
        matches: nodes
            .iter()
            .map(|name| (node_uid(name), Fit::Follows))
            .collect(),
        max_unavailable: Limit::Nodes(1),
        max_staging: Some(Limit::Nodes(1)),
        max_failures: 1,
    }
}

pub(super) fn fleet(nodes: &[&str]) -> Fleet {
    Fleet {
        nodes: nodes.iter().map(|name| node(name)).collect(),
        upgrades: vec![upgrade("u", 0, nodes)],
        ..Fleet::default()
    }
}

/// A progress object that says Stage, of which the agent says `at`.
pub(super) fn progress(upgrade: &str, node: &str, at: At) -> Progress {
    Progress {
        uid: progress_uid(upgrade, node),
        name: format!("{upgrade}-{node}"),
        upgrade: Some(upgrade_uid(upgrade)),
        node: node_uid(node),
        image: ImageId("v2".to_owned()),
        action: Action::Stage,
        attempt: 0,
        upgrade_attempt: 0,
        suspended: false,
        activated: None,
        deleting: false,
        runs_target: false,
        status: Some(Status {
            attempt: 0,
            at,
            ended: None,
            failure: Failure::default(),
        }),
    }
}

pub(super) fn failed(upgrade: &str, node: &str, end: End, ended: i64) -> Progress {
    let mut progress = progress(upgrade, node, At::Ended(end));
    if let Some(status) = &mut progress.status {
        status.ended = Some(ended);
        status.failure.reason = format!("{end:?} on {node}");
    }
    progress
}

/// The same, activated.
pub(super) fn activated(upgrade: &str, node: &str, at: At) -> Progress {
    Progress {
        action: Action::Activate,
        activated: Some(0),
        ..progress(upgrade, node, at)
    }
}

pub(super) fn place(upgrade: &str, node: &str, attempt: u32) -> Place {
    Place {
        node: node_uid(node),
        node_name: node.to_owned(),
        holder: Some(Holder {
            upgrade: upgrade_uid(upgrade),
            progress: progress_uid(upgrade, node),
            attempt,
        }),
    }
}

/// Each write in a few words.
pub(super) fn words(plan: &Plan) -> Vec<String> {
    plan.writes
        .iter()
        .map(|write| {
            let text = match write {
                Write::Free { node, because } => format!("free {} {because:?}", node.0),
                Write::Claim(place) => format!("claim {}", place.node_name),
                Write::BindUpgrade(uid) => format!("bind {}", uid.0),
                Write::UnbindUpgrade(uid) => format!("unbind {}", uid.0),
                Write::Unbind {
                    progress,
                    node_gone,
                } => format!(
                    "unbind {}{}",
                    progress.0,
                    if *node_gone { " NodeGone" } else { "" }
                ),
                Write::Delete { progress, because } => format!("delete {} {because:?}", progress.0),
                Write::Create {
                    upgrade,
                    node,
                    attempt,
                } => format!("create {} {} {attempt}", upgrade.0, node.0),
                Write::Raise {
                    progress,
                    attempt,
                    because,
                } => format!("raise {} {attempt} {because:?}", progress.0),
                Write::Activate { progress, attempt } => {
                    format!("activate {} {attempt}", progress.0)
                }
            };
            text.replace("uid-", "")
        })
        .collect()
}

pub(super) fn writes(fleet: &Fleet) -> Vec<String> {
    words(&plan(fleet))
}

pub(super) fn outlook(fleet: &Fleet, upgrade: &str) -> Outlook {
    plan(fleet)
        .upgrades
        .into_iter()
        .find(|outlook| outlook.upgrade == upgrade_uid(upgrade))
        .unwrap()
}

/// Which nodes wait for what in an upgrade.
pub(super) fn waits(fleet: &Fleet, upgrade: &str) -> Vec<(String, Wait)> {
    outlook(fleet, upgrade)
        .waiting
        .into_iter()
        .map(|waiting| (waiting.node_name, waiting.wait))
        .collect()
}

pub(super) fn wait(node: &str, wait: Wait) -> (String, Wait) {
    (node.to_owned(), wait)
}

/// Lets nodes run the upgrade's image.
pub(super) fn runs(fleet: &mut Fleet, upgrade: usize, nodes: &[&str]) {
    for name in nodes {
        fleet.upgrades[upgrade]
            .matches
            .insert(node_uid(name), Fit::Runs);
        for progress in &mut fleet.progress {
            if progress.node == node_uid(name) {
                progress.runs_target = true;
            }
        }
    }
}
