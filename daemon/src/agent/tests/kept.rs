//! An agent that could keep nothing when it was started.

use std::sync::Arc;

use slotd_engine::Record;

use super::fake::FakeHost;
use super::{SOON, file, started};
use crate::error::ErrorKind;
use crate::status::Condition;

/// A host whose state directory is not fit, for a reason.
fn unfit(reason: &str) -> Arc<FakeHost> {
    let host = FakeHost::new();
    {
        let mut inner = host.inner.lock().unwrap();
        inner.unwritable = true;
        inner.conditions = vec![Condition::new("StateDirectoryRefused", reason)];
    }
    host
}

fn mend(host: &FakeHost) {
    let mut inner = host.inner.lock().unwrap();
    inner.unwritable = false;
    inner.conditions.clear();
}

#[test]
fn what_ended_while_nothing_could_be_kept_is_kept_once_it_can_be() {
    let host = unfit("it is full");
    host.inner.lock().unwrap().trial = true;
    let agent = started(&host);
    host.wait_for("settle");
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Completed"));
    assert_eq!(agent.install(file()).unwrap_err().to_string(), "it is full");
    mend(&host);
    // Whoever asks for anything has the agent look.
    assert_eq!(agent.activate().unwrap_err().kind(), ErrorKind::Reject);
    host.wait_for("report");
    assert_eq!(agent.install(file()).unwrap(), 2);
    host.wait_for("reboot");
    let history = host.inner.lock().unwrap().history.clone();
    assert_eq!(history.len(), 1, "{history:?}");
    assert_eq!(history[0].id, 1);
    assert!(agent.status().conditions.is_empty());
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_record_that_was_out_of_sight_is_gone_on_with() {
    let host = unfit("it is on slot A");
    let agent = started(&host);
    assert_eq!(agent.upgrade().phase, "Idle");
    mend(&host);
    // As on a data partition that is mounted now.
    host.inner.lock().unwrap().records.push(Record {
        last_id: 41,
        ..Record::default()
    });
    assert_eq!(agent.install(file()).unwrap(), 42);
    host.wait_for("reboot");
    assert!(agent.shutdown(SOON));
}
