//! The driver with a host that is made up: what is kept before what is done, who is told what, and how
//! it stops.

mod fake;
mod kept;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slotd_engine::Slot;
use slotd_image::ImageSource;

use self::fake::FakeHost;
use super::{AgentHandle, Host, InstallRequest};
use crate::error::ErrorKind;
use crate::status::Condition;

const SOON: Duration = Duration::from_secs(20);

fn started(host: &Arc<FakeHost>) -> AgentHandle {
    let agent = AgentHandle::start(Arc::clone(host) as Arc<dyn Host>).unwrap();
    // Requests are taken once the agent has looked at the node.
    assert!(agent.wait_until_ready(SOON));
    agent
}

fn file() -> InstallRequest {
    InstallRequest::new(ImageSource::File("/srv/image.zst".into()))
}

fn pipe() -> InstallRequest {
    let fd = std::fs::File::open("/dev/null").unwrap().into();
    InstallRequest::new(ImageSource::Reader {
        label: "standard input".to_owned(),
        fd,
    })
}

#[test]
fn every_intent_is_kept_before_its_effect() {
    let host = FakeHost::new();
    let agent = started(&host);
    assert_eq!(agent.install(file()).unwrap(), 1);
    host.wait_for("reboot");
    let effects = host.effects();
    let position = |what: &str| effects.iter().position(|done| done == what).unwrap();
    for (intent, effect) in [
        ("kept Preflight", "preflight"),
        ("kept Invalidate", "invalidate"),
        ("kept Write", "write"),
        ("kept PrepareBoot", "prepare"),
        ("kept Arm", "arm"),
        ("kept Restart", "reboot"),
    ] {
        assert!(position(intent) < position(effect), "{effects:?}");
    }
    assert_eq!(agent.status().upgrade.phase, "Activating");
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_second_install_is_told_what_is_running() {
    let host = FakeHost::new();
    host.inner.lock().unwrap().endless = true;
    let agent = started(&host);
    agent.install(file()).unwrap();
    // Even before the driver took the first one.
    assert_eq!(agent.install(file()).unwrap_err().kind(), ErrorKind::Busy);
    host.wait_for("write");
    let error = agent.install(file()).unwrap_err();
    let running = error.running().unwrap();
    assert_eq!(
        (running.id, running.phase.as_str(), running.percent),
        (1, "Staging", Some(42))
    );
    assert!(error.to_string().contains("42 %"), "{error}");
    assert_eq!(agent.rollback().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(
        agent.mark(Slot::B, true).unwrap_err().kind(),
        ErrorKind::Busy
    );
    assert!(agent.shutdown(SOON));
}

#[test]
fn cancelling_a_write_stops_it_and_leaves_the_slot_empty() {
    let host = FakeHost::new();
    host.inner.lock().unwrap().endless = true;
    let agent = started(&host);
    let id = agent.install(file()).unwrap();
    host.wait_for("write");
    agent.cancel(id).unwrap();
    host.wait_for("discard");
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Idle"));
    host.wait_for("report");
    assert_eq!(agent.status().last_result.unwrap().result, "Cancelled");
    assert_eq!(agent.cancel(id).unwrap_err().kind(), ErrorKind::Reject);
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_staged_image_waits_until_it_is_activated_and_can_be_cancelled() {
    let host = FakeHost::new();
    let agent = started(&host);
    assert_eq!(agent.activate().unwrap_err().kind(), ErrorKind::Reject);
    let id = agent
        .install(InstallRequest {
            stage_only: true,
            ..file()
        })
        .unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Staged"));
    let upgrade = agent.status().upgrade;
    assert_eq!(upgrade.target_version.as_deref(), Some("2.0.0"));
    assert!(!host.effects().iter().any(|done| done == "arm"));
    assert_eq!(agent.activate().unwrap(), id);
    host.wait_for("reboot");
    agent.cancel(id).unwrap();
    host.wait_for("disarm");
    host.wait_for("discard");
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Idle"));
    assert!(agent.shutdown(SOON));
}

#[test]
fn stopping_breaks_a_write_off_and_the_next_start_stages_again() {
    let host = FakeHost::new();
    host.inner.lock().unwrap().endless = true;
    let agent = started(&host);
    agent.install(file()).unwrap();
    host.wait_for("write");
    let begun = Instant::now();
    assert!(agent.shutdown(SOON));
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    assert!(!agent.is_running());
    assert_eq!(agent.install(file()).unwrap_err().kind(), ErrorKind::Retry);
    host.inner.lock().unwrap().endless = false;
    let agent = started(&host);
    host.wait_for("preflight again");
    host.wait_for("reboot");
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_pipe_is_not_staged_again_after_a_restart() {
    let host = FakeHost::new();
    host.inner.lock().unwrap().endless = true;
    let agent = started(&host);
    agent.install(pipe()).unwrap();
    host.wait_for("write");
    assert!(agent.shutdown(SOON));
    let agent = started(&host);
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Failed"));
    let failure = agent.status().upgrade.failure.unwrap();
    assert!(
        failure.reason.contains("cannot be opened again"),
        "{}",
        failure.reason
    );
    assert!(host.effects().contains(&"discard".to_owned()));
    assert!(agent.shutdown(SOON));
}

#[test]
fn nothing_is_touched_when_the_record_cannot_be_kept() {
    let host = FakeHost::new();
    let agent = started(&host);
    host.inner.lock().unwrap().unwritable = true;
    agent.install(file()).unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Failed"));
    let status = agent.status();
    assert!(
        status
            .conditions
            .iter()
            .any(|condition| condition.kind == "RecordNotKept")
    );
    assert_eq!(status.upgrade.failure.unwrap().kind, "Configuration");
    let effects = host.effects();
    assert!(
        !effects
            .iter()
            .any(|done| done == "invalidate" || done == "discard"),
        "{effects:?}"
    );
    assert!(agent.shutdown(SOON));
}

#[test]
fn whoever_asks_for_what_cannot_be_recorded_is_told_and_nothing_is_begun() {
    let host = FakeHost::new();
    host.inner.lock().unwrap().state_b = Some(slotd_engine::SlotState::Good);
    let agent = started(&host);
    let unwritable = |set| host.inner.lock().unwrap().unwritable = set;
    let refused = |asked: Result<u64, super::AgentError>, phase: &str| {
        let error = asked.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(
            error.to_string().contains("read-only file system"),
            "{error}"
        );
        assert_eq!(agent.upgrade().phase, phase);
        assert_eq!(agent.upgrade().failure, None);
    };
    unwritable(true);
    refused(agent.rollback(), "Idle");
    unwritable(false);
    let id = agent.rollback().unwrap();
    host.wait_for("reboot");
    // Taking a rollback back selects a slot, which has to be recorded, too.
    unwritable(true);
    refused(agent.cancel(id).map(|()| id), "Activating");
    unwritable(false);
    agent.cancel(id).unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Idle"));
    let staged = InstallRequest {
        stage_only: true,
        ..file()
    };
    agent.install(staged).unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Staged"));
    unwritable(true);
    refused(agent.activate(), "Staged");
    assert!(!host.effects().contains(&"arm".to_owned()));
    unwritable(false);
    agent.activate().unwrap();
    host.wait_for("arm");
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_trial_boot_is_confirmed_even_when_the_record_cannot_be_kept() {
    let host = FakeHost::new();
    {
        let mut inner = host.inner.lock().unwrap();
        inner.unwritable = true;
        inner.trial = true;
        inner.conditions = vec![Condition::new("StateDirectoryRefused", "it is on slot A")];
    }
    let agent = started(&host);
    host.wait_for("mark good");
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Completed"));
    // The history cannot be written either, and that keeps no guard in its place.
    host.wait_for("settle");
    let refused = agent.install(file()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration);
    assert!(refused.to_string().contains("it is on slot A"));
    let conditions = agent.status().conditions;
    assert!(
        conditions
            .iter()
            .any(|condition| condition.kind == "StateDirectoryRefused")
    );
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_success_that_cannot_be_recorded_is_tried_again_and_is_no_ill_health() {
    let host = FakeHost::new();
    {
        let mut inner = host.inner.lock().unwrap();
        inner.trial = true;
        inner.sealed = true;
    }
    let agent = started(&host);
    host.wait_for("mark good in vain");
    let failing = |message: &str| message.contains("/boot is read-only");
    assert!(agent.wait_for(SOON, |upgrade| {
        upgrade.phase == "Confirming" && upgrade.message.as_deref().is_some_and(failing)
    }));
    let conditions = agent.status().conditions;
    let condition = conditions.first().unwrap();
    assert_eq!(condition.kind, "RecordingFailed");
    assert!(failing(&condition.message), "{}", condition.message);
    host.inner.lock().unwrap().sealed = false;
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Completed"));
    assert!(agent.status().conditions.is_empty());
    assert!(!host.effects().iter().any(|done| done.contains("reboot")));
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_driver_that_hangs_is_told_from_one_that_waits_or_writes() {
    let host = FakeHost::new();
    {
        let mut inner = host.inner.lock().unwrap();
        inner.trial = true;
        inner.hangs = true;
    }
    let agent = started(&host);
    host.wait_for("hang");
    assert!(agent.is_stuck(Duration::ZERO));
    assert!(!agent.is_stuck(SOON));
    host.inner.lock().unwrap().hangs = false;
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Completed"));
    host.inner.lock().unwrap().endless = true;
    agent.install(file()).unwrap();
    host.wait_for("write");
    assert!(!agent.is_stuck(Duration::ZERO));
    assert!(agent.shutdown(SOON));
}

#[test]
fn nobody_is_told_of_a_proven_boot_while_the_loader_cannot_be_read() {
    let host = FakeHost::new();
    {
        let mut inner = host.inner.lock().unwrap();
        inner.blind = true;
        inner.trial = true;
    }
    let agent = started(&host);
    assert_eq!(agent.upgrade().phase, "Idle");
    assert!(agent.shutdown(SOON));
    assert!(!host.effects().contains(&"no trial".to_owned()));
    // What it turns out to be.
    host.inner.lock().unwrap().blind = false;
    let agent = started(&host);
    host.wait_for("mark good");
    assert!(agent.shutdown(SOON));
}

#[test]
fn a_lock_held_by_another_program_refuses_the_install() {
    let host = FakeHost::new();
    let agent = started(&host);
    let held = host.lock().unwrap();
    agent.install(file()).unwrap();
    assert!(agent.wait_for(SOON, |upgrade| upgrade.phase == "Failed"));
    let failure = agent.status().upgrade.failure.unwrap();
    assert!(failure.reason.contains("is held"), "{}", failure.reason);
    drop(held);
    agent.install(file()).unwrap();
    host.wait_for("reboot");
    assert!(agent.shutdown(SOON));
}

#[test]
fn listeners_hear_of_every_phase() {
    let host = FakeHost::new();
    let agent = started(&host);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&heard);
    agent.subscribe(Box::new(move |upgrade| {
        let mut heard = ears.lock().unwrap();
        // What the first listening still hears of the rest before.
        if upgrade.phase != "Idle" && heard.last() != Some(&upgrade.phase) {
            heard.push(upgrade.phase.clone());
        }
    }));
    agent.install(file()).unwrap();
    host.wait_for("reboot");
    assert!(agent.shutdown(SOON));
    assert_eq!(*heard.lock().unwrap(), ["Staging", "Staged", "Activating"]);
}

#[test]
fn an_idle_agent_tells_the_gate_and_settles_a_proven_boot_once() {
    let host = FakeHost::new();
    let agent = started(&host);
    host.wait_for("no trial");
    host.wait_for("settle");
    agent.mark(Slot::A, true).unwrap();
    assert_eq!(
        agent.mark(Slot::A, false).unwrap_err().kind(),
        ErrorKind::Unsafe
    );
    assert!(agent.shutdown(SOON));
    let settled = host
        .effects()
        .iter()
        .filter(|done| *done == "settle")
        .count();
    assert_eq!(settled, 1);
}
