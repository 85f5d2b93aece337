//! What the cluster asks of the node, as one more source of requests. Level-triggered: whatever was missed meanwhile, the
//! same record and the same wish give the same request.

use crate::record::{Drain, ImageRequest, Record, Task};
use crate::table::{Phase, Point};
use crate::world::Request;

/// What one object in the cluster wants of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The image; its `task` says which attempt of which object this is. It is staged only, until [`Assignment::activate`].
    pub image: ImageRequest,
    /// Whether the node may go further than staged.
    pub activate: bool,
    /// Whether the node starts nothing new: it stages nothing, and it does not drain.
    pub suspended: bool,
    /// How the node is drained before its reboot.
    pub drain: Drain,
}

impl Assignment {
    fn task(&self) -> Option<&Task> {
        self.image.task.as_ref()
    }
}

/// What is to be asked of the node so that it comes nearer to what the cluster wants; `None` where nothing is, or where
/// what is under way has to end first. `assignment` is `None` once no object wants anything: what was begun for one is taken
/// back then, unless its trial boot runs, which is confirmed or rolled back first.
#[must_use]
pub fn assign(record: &Record, assignment: Option<&Assignment>) -> Option<Request> {
    let Some(upgrade) = record.under_way() else {
        return begin(record, assignment?);
    };
    let phase = record.phase();
    let request = upgrade.request.as_ref()?;
    // Somebody on the node asked for it: that ends first.
    let task = request.task.as_ref()?;
    if phase == Phase::Confirming || upgrade.ending.is_some() {
        return None;
    }
    let wanted = assignment.filter(|wanted| {
        wanted
            .task()
            .is_some_and(|wanted| wanted.uid == task.uid && record.ended(wanted).is_none())
    });
    let Some(wanted) = wanted else {
        return Some(Request::Cancel(upgrade.id));
    };
    if wanted.image != *request {
        return other_image(record, request, &wanted.image);
    }
    let goes_on = wanted.activate && !wanted.suspended;
    match record.at {
        Point::Staged if goes_on => Some(Request::Activate {
            drain: Some(wanted.drain),
        }),
        Point::Drain if !goes_on => Some(Request::Hold),
        _ => None,
    }
}

/// Another image is staged anew; the same one for a later attempt is not, once it is there.
fn other_image(record: &Record, now: &ImageRequest, wanted: &ImageRequest) -> Option<Request> {
    let later = ImageRequest {
        task: now.task.clone(),
        asked_anew: now.asked_anew,
        ..wanted.clone()
    };
    if later != *now {
        return Some(Request::Retarget(wanted.clone()));
    }
    match record.at {
        Point::Staged | Point::Drain => wanted.task.clone().map(Request::Renew),
        // It comes to be staged, and is renewed there.
        _ if record.phase() == Phase::Staging => None,
        _ => Some(Request::Retarget(wanted.clone())),
    }
}

fn begin(record: &Record, assignment: &Assignment) -> Option<Request> {
    let task = assignment.task()?;
    if assignment.suspended || record.ended(task).is_some() {
        return None;
    }
    Some(Request::Install(assignment.image.clone()))
}
