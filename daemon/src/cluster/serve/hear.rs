//! What is stopped whether or not the own Node can be read and written.

use slotd_crds::api::OSUpgradeProgress;
use slotd_engine::{Assignment, Point, Record, Request, assign};
use tracing::{debug, info};

use super::Side;
use crate::cluster::wish::{Judgement, choose, judge};

impl Side<'_> {
    /// Stops what the cluster does not want any more, also while the own Node is gone or cannot be written. Nothing is begun or
    /// gone on with: that waits for the Node, except that what is armed is flipped back, whatever comes of it then.
    pub(super) fn hear(&self) {
        let (Some(snapshot), Some(uid)) = (self.agent.snapshot(), &self.uid) else {
            return;
        };
        let (Some(objects), Some((_, running, _))) = (self.watch.objects(), &self.facts) else {
            return;
        };
        let all: Vec<&OSUpgradeProgress> = objects.collect();
        let chosen = choose(&all, uid, &snapshot.record);
        let judgement = chosen.map(|object| judge(object, &snapshot.record, running));
        let wanted = judgement.as_ref().and_then(Judgement::wanted);
        if let Some(request) = stops(&snapshot.record, wanted) {
            match self.agent.order(request) {
                Ok(id) => info!(id, "stopped: the cluster wants it no more"),
                Err(error) => debug!(%error, "the agent takes no request now"),
            }
        }
    }
}

/// What is to be asked of the node so that it stops what is not wanted any more; `None` where nothing is to be stopped.
fn stops(record: &Record, wanted: Option<&Assignment>) -> Option<Request> {
    match (assign(record, wanted)?, record.at) {
        (request @ (Request::Cancel(_) | Request::Hold), _) => Some(request),
        // It waits staged until the Node is there again, and is told what is wanted instead then.
        (Request::Retarget(_) | Request::Renew(_), Point::Drain) => Some(Request::Hold),
        // The next boot would be of an image that is wanted no more.
        (request @ Request::Retarget(_), Point::Arm | Point::Select | Point::Restart) => {
            Some(request)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use slotd_engine::{Point, Record, Request};

    use super::stops;
    use crate::cluster::tests::{object, running, under_way};
    use crate::cluster::wish::{Judgement, judge};

    /// What is stopped of the upgrade to v1.35.1 at `at` where its object now says `change`.
    fn stopped(at: Point, change: &serde_json::Value) -> Option<Request> {
        let record: Record = under_way(&object("x", 1, &json!({})), at);
        let object = object("x", 1, change);
        let Judgement::Take(wanted) = judge(&object, &record, &running("v1.34.0")) else {
            panic!("it is not wanted");
        };
        stops(&record, Some(&wanted))
    }

    #[test]
    fn an_image_that_is_wanted_no_more_is_not_booted_while_the_node_cannot_be_written() {
        let edited = json!({"spec": {"image": {"version": "v1.35.2"}}});
        assert_eq!(stopped(Point::Drain, &edited), Some(Request::Hold));
        for at in [Point::Arm, Point::Restart] {
            let stopped = stopped(at, &edited);
            assert!(
                matches!(&stopped, Some(Request::Retarget(image)) if image.version.as_deref() == Some("v1.35.2")),
                "{at:?}: {stopped:?}"
            );
        }
        // Nothing is begun: what stages or is staged goes nowhere by itself, and a trial ends first.
        for at in [Point::Preflight, Point::Write, Point::Staged, Point::Check] {
            assert_eq!(stopped(at, &edited), None, "{at:?}");
        }
        // A later attempt is no reason to end a drain by the reboot of the former one.
        let renewed = json!({"spec": {"attempt": 1, "action": "Stage"}});
        assert_eq!(stopped(Point::Drain, &renewed), Some(Request::Hold));
        assert_eq!(stopped(Point::Staged, &renewed), None);
        // As wanted, and held back.
        let as_it_was = json!({});
        for at in [Point::Staged, Point::Drain, Point::Arm, Point::Restart] {
            assert_eq!(stopped(at, &as_it_was), None, "{at:?}");
        }
        let suspended = json!({"spec": {"suspend": true}});
        assert_eq!(stopped(Point::Drain, &suspended), Some(Request::Hold));
        let record = under_way(&object("x", 1, &as_it_was), Point::Restart);
        assert_eq!(stops(&record, None), Some(Request::Cancel(1)));
    }
}
