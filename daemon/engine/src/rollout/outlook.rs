//! What is shown of an upgrade.

use super::answer::{FirstFailure, Halted, Outlook, Phase, Wait, Waiting, Write};
use super::fleet::{Failure, Fit, Node, Resolution};
use super::ledger::Ledger;
use super::ownership::Ownership;
use super::standing::{Course, Standing, failed, failure};
use super::view::View;

/// How an upgrade stands, with the targets that wait and what is written now.
pub(super) fn of<'a>(
    view: &View<'a>,
    ownership: &Ownership<'a>,
    course: &Course<'a>,
    ledger: &Ledger<'_, 'a>,
    writes: &[Write],
    mut waiting: Vec<Waiting>,
) -> Outlook {
    let upgrade = course.upgrade;
    let count = |which: &dyn Fn(&Node, &Standing<'_>) -> bool| {
        let nodes = course.standings.iter();
        number(
            nodes
                .filter(|(node, standing)| which(node, standing))
                .count(),
        )
    };
    let targets = number(course.targets.len());
    let ok = count(&|_, standing| *standing == Standing::Done);
    let fail = count(&|node, standing| match standing {
        Standing::Refused(_) | Standing::Failed(_) => true,
        Standing::Done => false,
        // Whatever it still holds or waits for: what halts the upgrade is counted from the same moment on.
        _ => view
            .part(&upgrade.uid, &node.uid)
            .is_some_and(|part| failed(upgrade, part)),
    });
    let starts = |write: &Write| matches!(write, Write::Create { upgrade, .. } if *upgrade == course.upgrade.uid);
    let started = view
        .parts(&upgrade.uid)
        .any(|progress| course.wants(progress))
        || writes.iter().any(starts);
    let mut halted = course.halted;
    let phase = match &upgrade.resolution {
        Resolution::Rejected => Phase::Rejected,
        Resolution::Pending => Phase::Pending,
        _ if ownership.refused_by_all(&upgrade.uid) => Phase::Rejected,
        _ if targets == 0 && upgrade.completed => Phase::Completed,
        _ if targets > 0 && ok == targets => Phase::Completed,
        // Where every target runs it, nobody waits for a further one.
        _ if halted.is_some() => Phase::Halted,
        _ if fail > 0 && ok + fail == targets => {
            halted = Some(Halted::NothingLeft);
            Phase::Halted
        }
        _ if started => Phase::RollingOut,
        _ => Phase::Accepted,
    };
    let ahead = ahead(course, ledger, &waiting);
    waiting.extend(superseded(view, ownership, course));
    let unavailable = course
        .targets
        .iter()
        .filter(|node| node.unavailable() && view.place(&node.uid).is_none());
    let away = view.fleet.places.iter().filter_map(|place| {
        let holder = place.holder.as_ref()?;
        let node = view.node(&place.node)?;
        (holder.upgrade == upgrade.uid && !node.ready).then_some(node)
    });
    let without_agent = upgrade
        .matches
        .keys()
        .filter_map(|uid| view.node(uid))
        .filter(|node| !node.agent);
    Outlook {
        upgrade: upgrade.uid.clone(),
        phase,
        halted: halted.filter(|_| phase == Phase::Halted),
        targets,
        ok,
        fail,
        max_unavailable: number(upgrade.max_unavailable.of(course.targets.len())),
        without_agent: number(without_agent.count()),
        first_failure: first_failure(view, course),
        waiting,
        ahead,
        unavailable: unavailable.map(|node| node.uid.clone()).collect(),
        away: by_name(away.collect())
            .into_iter()
            .map(|node| node.uid.clone())
            .collect(),
    }
}

/// The targets that do not wait, and have no place either.
fn ahead<'a>(course: &Course<'a>, ledger: &Ledger<'_, 'a>, waiting: &[Waiting]) -> Vec<Waiting> {
    course
        .standings
        .iter()
        .filter_map(|(node, standing)| {
            let part = match standing {
                Standing::Staging(part) | Standing::Staged(part) => Some(*part),
                Standing::ToStage(part) => *part,
                _ => return None,
            };
            let wait = ledger.fits(course.upgrade, &course.targets, node).err()?;
            let waits = waiting.iter().any(|one| one.node == node.uid);
            (!waits).then(|| Waiting {
                node: node.uid.clone(),
                node_name: node.name.clone(),
                progress: part.map(|part| part.uid.clone()),
                wait,
            })
        })
        .collect()
}

/// The nodes that wait in vain for this upgrade, as a younger one has them.
fn superseded<'a>(view: &View<'a>, ownership: &Ownership<'a>, course: &Course<'a>) -> Vec<Waiting> {
    let upgrade = course.upgrade;
    if upgrade.resolution == Resolution::Rejected || upgrade.deleting {
        return Vec::new();
    }
    let mut waiting: Vec<_> = ownership
        .superseded(upgrade)
        .filter(|(uid, _)| upgrade.matches.get(*uid) != Some(&Fit::Runs))
        .filter_map(|(uid, owner)| {
            let node = view.node(uid)?;
            let part = view.part(&upgrade.uid, uid);
            // What is under way does not wait.
            if part.is_some_and(|part| part.under_way() || part.end().is_some()) {
                return None;
            }
            Some(Waiting {
                node: uid.clone(),
                node_name: node.name.clone(),
                progress: part.map(|part| part.uid.clone()),
                wait: Wait::Superseded(owner.name.clone()),
            })
        })
        .collect();
    waiting.sort_by(|one, other| (&one.node_name, &one.node).cmp(&(&other.node_name, &other.node)));
    waiting
}

/// Which node failed or rolled back first; where none did, the first by name that refused.
fn first_failure(view: &View<'_>, course: &Course<'_>) -> Option<FirstFailure> {
    let failures = view
        .parts(&course.upgrade.uid)
        .filter(|progress| failed(course.upgrade, progress));
    let first = failures.min_by_key(|progress| {
        let ended = progress.status.as_ref().and_then(|status| status.ended);
        (ended.is_none(), ended, &progress.name)
    });
    if let Some(first) = first {
        let name = view.node(&first.node).map(|node| node.name.clone());
        return Some(FirstFailure {
            node: name.unwrap_or_else(|| first.node.0.clone()),
            failure: failure(first),
        });
    }
    course.standings.iter().find_map(|(node, standing)| {
        let Standing::Refused(failure) = standing else {
            return None;
        };
        Some(FirstFailure {
            node: node.name.clone(),
            failure: Failure::clone(failure),
        })
    })
}

fn by_name(mut nodes: Vec<&Node>) -> Vec<&Node> {
    nodes.sort_by_key(|node| (&node.name, &node.uid));
    nodes
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
