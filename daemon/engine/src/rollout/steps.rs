//! The next steps of one upgrade: staging, claiming, activating, and going back on a claim.

use super::answer::{Raised, Unwanted, Wait, Waiting, Write};
use super::fleet::{Action, At, Node, Progress};
use super::ledger::{self, Ledger};
use super::standing::{Course, Standing};
use super::view::View;

/// Adds what is to be written for one upgrade, and answers which of its targets wait for what. `ledger` is of what is stored,
/// `next` of what will be once the claims and frees of this plan are.
pub(super) fn take<'a>(
    view: &View<'a>,
    course: &Course<'a>,
    ledger: &Ledger<'_, 'a>,
    next: &mut Ledger<'_, 'a>,
    writes: &mut Vec<Write>,
) -> Vec<Waiting> {
    let mut waits = Vec::new();
    retarget(view, course, writes);
    use_claims(view, course, ledger, writes, &mut waits);
    claim(course, next, writes, &mut waits);
    stage(view, course, next, writes, &mut waits);
    for (node, standing) in &course.standings {
        if let Standing::Stuck(wait) = standing {
            let progress = view.part(&course.upgrade.uid, &node.uid);
            waits.push(waiting(node, progress, wait.clone()));
        }
    }
    waits.sort_by(|one, other| (&one.node_name, &one.node).cmp(&(&other.node_name, &other.node)));
    waits
}

/// What stages, waits or is under way for another image than is wanted now is told so at once; the agent stops, or first ends
/// a trial boot that runs. Where nothing may be started, the object goes instead.
fn retarget(view: &View<'_>, course: &Course<'_>, writes: &mut Vec<Write>) {
    let known = course.upgrade.resolution.image().is_some();
    for (node, standing) in &course.standings {
        let progress = match standing {
            Standing::Astray(progress) => Some(*progress),
            Standing::UnderWay => view.part(&course.upgrade.uid, &node.uid),
            _ => None,
        };
        let Some(progress) = progress else { continue };
        if course.wants(progress) || progress.end().is_some() || progress.deleting {
            continue;
        }
        // While it is not known what is wanted, it may be the same; only a place is not kept for that.
        if !known && !ledger::unused(view, progress) {
            continue;
        }
        // A node that restarts is not Ready; that is no reason to take its object away.
        let closed = match standing {
            Standing::UnderWay => course.gate.is_some(),
            _ => course.gate(node, Some(progress)).is_some(),
        };
        writes.push(if closed {
            Write::Delete {
                progress: progress.uid.clone(),
                because: Unwanted::OtherImage,
            }
        } else {
            raise(course, progress, Raised::OtherImage)
        });
    }
}

/// Claims that are seen stored are used where they still fit, and taken back where they do not, the last by name first.
fn use_claims<'a>(
    view: &View<'a>,
    course: &Course<'a>,
    ledger: &Ledger<'_, 'a>,
    writes: &mut Vec<Write>,
    waits: &mut Vec<Waiting>,
) {
    let mut usable = Vec::new();
    let mut closed = Vec::new();
    for (node, standing) in &course.standings {
        if *standing != Standing::UnderWay {
            continue;
        }
        let Some(progress) = view.part(&course.upgrade.uid, &node.uid) else {
            continue;
        };
        if progress.deleting || !course.wants(progress) {
            continue;
        }
        // Activated, but the node has not begun, and somebody holds this one back.
        let withheld = progress.suspended
            && progress.action == Action::Activate
            && matches!(progress.at(), At::Before | At::Staged);
        if !ledger::unused(view, progress) && !withheld {
            continue;
        }
        match course.gate(node, Some(progress)) {
            None => usable.push((*node, progress)),
            Some(wait) => closed.push((*node, progress, wait)),
        }
    }
    // With all claims counted: another controller may see fewer of them than this one, or more.
    for (node, progress) in &usable {
        if course.upgrade.bound && ledger.fits(course.upgrade, &course.targets, node).is_ok() {
            writes.push(Write::Activate {
                progress: progress.uid.clone(),
                attempt: progress.attempt,
            });
        }
    }
    let mut left = ledger.after_frees();
    for (node, progress, wait) in closed {
        left.forget(&node.uid);
        writes.push(raise(course, progress, Raised::HeldBack));
        waits.push(waiting(node, Some(progress), wait));
    }
    for (node, progress) in usable.into_iter().rev() {
        if let Err(wait) = left.fits(course.upgrade, &course.targets, node) {
            left.forget(&node.uid);
            writes.push(raise(course, progress, Raised::HeldBack));
            waits.push(waiting(node, Some(progress), wait));
        }
    }
}

/// What is staged takes a place, by name.
fn claim<'a>(
    course: &Course<'a>,
    ledger: &mut Ledger<'_, 'a>,
    writes: &mut Vec<Write>,
    waits: &mut Vec<Waiting>,
) {
    let mut bound = course.upgrade.bound;
    for (node, standing) in &course.standings {
        match standing {
            Standing::Staged(progress) => {
                let wait = course
                    .gate(node, Some(progress))
                    .or_else(|| ledger.fits(course.upgrade, &course.targets, node).err());
                if let Some(wait) = wait {
                    waits.push(waiting(node, Some(progress), wait));
                    continue;
                }
                if !bound {
                    writes.push(Write::BindUpgrade(course.upgrade.uid.clone()));
                    bound = true;
                }
                writes.extend(ledger.claim(node, progress));
            }
            // Bound by the claim of an earlier plan, or not: that write may have been lost.
            Standing::UnderWay if !bound && !course.upgrade.deleting => {
                writes.push(Write::BindUpgrade(course.upgrade.uid.clone()));
                bound = true;
            }
            _ => {}
        }
    }
}

/// As many targets stage, or wait staged, as may, by name; where nothing may be staged ahead, no more than there are places.
fn stage<'a>(
    view: &View<'a>,
    course: &Course<'a>,
    ledger: &Ledger<'_, 'a>,
    writes: &mut Vec<Write>,
    waits: &mut Vec<Waiting>,
) {
    let ahead = course.upgrade.max_staging;
    let limit = ahead
        .unwrap_or(course.upgrade.max_unavailable)
        .of(course.targets.len());
    // Where nothing is staged ahead, what could not take a place that is free neither stages for it nor keeps others from it.
    let busy = |node: &'a Node| {
        let wait = ledger.fits(course.upgrade, &course.targets, node).err();
        wait.filter(|wait| ahead.is_none() && matches!(wait, Wait::ControlPlane(_)))
    };
    // One that is held back for a reason of its own takes nobody's turn.
    let mut staging = course
        .standings
        .iter()
        .filter(|(node, standing)| match standing {
            Standing::Staged(part) => {
                course.gate(node, Some(part)).is_none() && busy(node).is_none()
            }
            Standing::Staging(part) | Standing::Astray(part) => {
                course.gate(node, Some(part)).is_none()
            }
            // Nobody stages ahead of those that have a place.
            Standing::UnderWay => ahead.is_none(),
            _ => false,
        })
        .count();
    for (node, standing) in &course.standings {
        match standing {
            Standing::ToStage(part) => {
                let wait = course.gate(node, *part).or_else(|| busy(node)).or_else(|| {
                    let turn = staging < limit;
                    (!turn).then_some(Wait::StagingTurn)
                });
                if let Some(wait) = wait {
                    waits.push(waiting(node, *part, wait));
                    continue;
                }
                staging += 1;
                writes.push(match part {
                    Some(part) if course.wants(part) => raise(course, part, Raised::AskedAnew),
                    Some(part) => raise(course, part, Raised::OtherImage),
                    None => Write::Create {
                        upgrade: course.upgrade.uid.clone(),
                        node: node.uid.clone(),
                        attempt: course.upgrade.attempt,
                    },
                });
            }
            Standing::Staging(part) | Standing::Astray(part) => {
                // It is not kept from staging by the upgrade, but does not get further.
                if let Some(wait) = course.gate(node, view.part(&course.upgrade.uid, &node.uid)) {
                    waits.push(waiting(node, Some(part), wait));
                }
            }
            _ => {}
        }
    }
}

fn raise(course: &Course<'_>, progress: &Progress, because: Raised) -> Write {
    Write::Raise {
        progress: progress.uid.clone(),
        attempt: progress
            .attempt
            .saturating_add(1)
            .max(course.upgrade.attempt),
        because,
    }
}

fn waiting(node: &Node, progress: Option<&Progress>, wait: Wait) -> Waiting {
    Waiting {
        node: node.uid.clone(),
        node_name: node.name.clone(),
        progress: progress.map(|progress| progress.uid.clone()),
        wait,
    }
}
