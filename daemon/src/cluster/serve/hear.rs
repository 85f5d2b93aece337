//! What is stopped whether or not the own Node can be read and written.

use slotd_crds::api::OSUpgradeProgress;
use slotd_engine::{Request, assign};
use tracing::{debug, info};

use super::Side;
use crate::cluster::wish::{Judgement, choose, is_for, judge};

impl Side<'_> {
    /// Stops what the cluster does not want any more, also while the own Node is gone or cannot be written. Nothing is begun or
    /// gone on with: that waits for the Node.
    pub(super) fn hear(&self) {
        let (Some(snapshot), Some(uid)) = (self.agent.snapshot(), &self.uid) else {
            return;
        };
        let (Some(objects), Some((_, running, _))) = (self.watch.objects(), &self.facts) else {
            return;
        };
        let all: Vec<&OSUpgradeProgress> = objects.filter(|object| is_for(object, uid)).collect();
        let chosen = choose(&all, uid, &snapshot.record);
        let judgement = chosen.map(|object| judge(object, &snapshot.record, running));
        let wanted = match &judgement {
            Some(Judgement::Take(assignment)) => Some(&**assignment),
            _ => None,
        };
        if let Some(request @ (Request::Cancel(_) | Request::Hold)) =
            assign(&snapshot.record, wanted)
        {
            match self.agent.order(request) {
                Ok(id) => info!(id, "stopped: the cluster wants it no more"),
                Err(error) => debug!(%error, "the agent takes no request now"),
            }
        }
    }
}
