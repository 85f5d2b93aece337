//! Keeping the record, and finding it.

use slotd_engine::{Failure, Record};

use super::Driver;
use crate::agent::host::Loaded;
use crate::status::Condition;

impl Driver {
    /// Tells what is to be known of how a record was found.
    pub(super) fn found(&mut self, loaded: Loaded) -> Record {
        for condition in &loaded.conditions {
            tracing::warn!(condition = %condition.kind, "{}", condition.message);
        }
        self.shared.state().conditions = loaded.conditions;
        self.loaded = loaded.record;
        self.loaded.clone()
    }

    /// Where nothing could be kept: whether that is over. Looks while nothing is under way. A record that was out of sight
    /// before is gone on with, as after a restart; of one that was not, memory knows more.
    pub(super) fn can_keep_again(&mut self) -> bool {
        let looks = {
            let state = self.shared.state();
            state.ready && state.keeps_nothing().is_some()
        };
        let again = (looks && self.record.at.is_rest())
            .then(|| self.shared.host.reload())
            .flatten();
        let over = again.is_some();
        if let Some(loaded) = again {
            tracing::info!("the record can be kept again");
            let before = self.loaded.clone();
            let record = self.found(loaded);
            if record != before {
                self.record = record;
            }
        }
        {
            let mut state = self.shared.state();
            if over {
                state.record = self.record.clone();
            }
            state.look_again = false;
        }
        self.shared.notify();
        over
    }

    pub(super) fn keep(&self, record: &Record) -> Result<(), Failure> {
        let kept = self.shared.host.persist(record);
        let trouble = kept.as_ref().err().map(|failure| {
            tracing::error!(reason = %failure.reason, "the record cannot be kept");
            Condition::new("RecordNotKept", failure.reason.clone())
        });
        self.shared.state().unrecorded = trouble;
        kept
    }
}
