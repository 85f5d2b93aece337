//! The driver with a host that is made up: what is kept before what is done, who is told what, and how
//! it stops.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use slotd_engine::{
    Digest, Ended, ErrorKind as EngineKind, Failure, Image, ImageRequest, Limits, Record, Slot,
    SlotState, StagedSlot, Upgrade, Verdict,
};
use slotd_image::{Cancel, ImageSource};

use super::{AgentHandle, ChangeLock, Host, InstallRequest, Loaded, Trouble, World};
use crate::error::ErrorKind;
use crate::status::{Condition, NodeView, ProgressStatus, SlotLetter, SlotStatus};

const SOON: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Inner {
    /// What was done, in order.
    done: Vec<String>,
    records: Vec<Record>,
    history: Vec<Ended>,
    state_b: Option<SlotState>,
    marker: bool,
    settled: bool,
    unwritable: bool,
    /// Writes go on until they are told to stop.
    endless: bool,
    conditions: Vec<Condition>,
    /// The booted slot is on trial until it is marked good.
    trial: bool,
}

struct FakeHost {
    inner: Mutex<Inner>,
    changed: Condvar,
    lock: tempfile::TempDir,
}

fn image() -> Image {
    Image {
        digest: Digest::new(&"ab".repeat(32)).unwrap(),
        published: None,
        size: 1024,
        version: None,
    }
}

impl FakeHost {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            changed: Condvar::new(),
            lock: tempfile::tempdir().unwrap(),
        })
    }

    fn did(&self, what: &str) {
        self.inner.lock().unwrap().done.push(what.to_owned());
        self.changed.notify_all();
    }

    /// Waits until something was done.
    fn wait_for(&self, what: &str) {
        let deadline = Instant::now() + SOON;
        let mut inner = self.inner.lock().unwrap();
        while !inner.done.iter().any(|done| done == what) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} was never done: {:?}", inner.done);
            inner = self.changed.wait_timeout(inner, left).unwrap().0;
        }
    }

    fn effects(&self) -> Vec<String> {
        self.inner.lock().unwrap().done.clone()
    }
}

impl Host for FakeHost {
    fn load(&self) -> Loaded {
        let inner = self.inner.lock().unwrap();
        Loaded {
            record: inner.records.last().cloned().unwrap_or_default(),
            conditions: inner.conditions.clone(),
        }
    }

    fn persist(&self, record: &Record) -> Result<(), Failure> {
        let mut inner = self.inner.lock().unwrap();
        if inner.unwritable {
            return Err(Failure::new(
                EngineKind::Configuration,
                "read-only file system",
            ));
        }
        inner.done.push(format!("kept {:?}", record.at));
        inner.records.push(record.clone());
        drop(inner);
        self.changed.notify_all();
        Ok(())
    }

    fn report(&self, ended: &Ended) -> Result<(), Failure> {
        self.inner.lock().unwrap().history.push(ended.clone());
        self.did("report");
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn observe(&self) -> Result<World, Failure> {
        let inner = self.inner.lock().unwrap();
        Ok(World {
            booted: Some(Slot::A),
            loader: Some(if inner.trial {
                [SlotState::Trial { left: 2, done: 1 }, SlotState::Good]
            } else {
                [SlotState::Good, inner.state_b.unwrap_or(SlotState::Empty)]
            }),
            trouble: None,
            next_boot: Some(Slot::A),
            staged: inner.marker.then(|| (Slot::B, image().digest)),
            boot_id: "boot".to_owned(),
            uptime: 100,
            now: 1_700_000_000,
            settled: inner.settled,
        })
    }

    fn survey(&self) -> NodeView {
        let slot = |letter, booted| SlotStatus {
            slot: letter,
            device: "/dev/null".into(),
            label: String::new(),
            size: 1,
            version: Some("1.0.0".to_owned()),
            state: "good".to_owned(),
            tries_left: None,
            tries_done: None,
            booted,
            digest: None,
        };
        NodeView {
            booted: Some(SlotLetter::A),
            slots: vec![slot(SlotLetter::A, true), slot(SlotLetter::B, false)],
            ..NodeView::default()
        }
    }

    fn lock(&self) -> Result<ChangeLock, Failure> {
        ChangeLock::take(&self.lock.path().join("lock"))
            .map_err(|error| Failure::new(EngineKind::Retry, error.to_string()))
    }

    fn preflight(
        &self,
        _slot: Slot,
        _request: &ImageRequest,
        source: Option<ImageSource>,
        _cancel: &Cancel,
    ) -> Result<(), Trouble> {
        self.did(if source.is_some() {
            "preflight"
        } else {
            "preflight again"
        });
        Ok(())
    }

    fn invalidate(&self, _slot: Slot) -> Result<(), Failure> {
        self.inner.lock().unwrap().state_b = Some(SlotState::Empty);
        self.did("invalidate");
        Ok(())
    }

    fn write(
        &self,
        _slot: Slot,
        _request: &ImageRequest,
        cancel: &Cancel,
        progress: &(dyn Fn(ProgressStatus) + Send + Sync),
    ) -> Result<Image, Trouble> {
        progress(ProgressStatus {
            percent: Some(42),
            ..ProgressStatus::default()
        });
        self.did("write");
        let endless = self.inner.lock().unwrap().endless;
        while endless && !cancel.is_cancelled() {
            std::thread::yield_now();
        }
        if cancel.is_cancelled() {
            return Err(Trouble::Stopped);
        }
        Ok(image())
    }

    fn prepare_boot(&self, _slot: Slot, _upgrade: &Upgrade) -> Result<Option<String>, Failure> {
        self.inner.lock().unwrap().marker = true;
        self.did("prepare");
        Ok(Some("2.0.0".to_owned()))
    }

    fn discard(&self, _slot: Slot) -> Result<(), Failure> {
        self.inner.lock().unwrap().marker = false;
        self.did("discard");
        Ok(())
    }

    fn arm(&self, _slot: &StagedSlot) -> Result<(), Failure> {
        self.inner.lock().unwrap().state_b = Some(SlotState::Trial { left: 3, done: 0 });
        self.did("arm");
        Ok(())
    }

    fn disarm(&self, _slot: Slot) -> Result<(), Failure> {
        self.inner.lock().unwrap().state_b = Some(SlotState::Empty);
        self.did("disarm");
        Ok(())
    }

    fn select(&self, _slot: Slot) -> Result<(), Failure> {
        self.did("select");
        Ok(())
    }

    fn mark_good(&self, _slot: Slot) -> Result<(), Failure> {
        self.inner.lock().unwrap().trial = false;
        self.did("mark good");
        Ok(())
    }

    fn mark_bad(&self, _slot: Slot) -> Result<(), Failure> {
        Err(Failure::new(EngineKind::Unsafe, "slot A is booted"))
    }

    fn run_checks(&self, _deadline: u64, _cancel: &Cancel) -> Result<Verdict, Trouble> {
        self.did("checks");
        Ok(Verdict::Healthy)
    }

    fn await_boot_complete(&self, _deadline: u64, _cancel: &Cancel) -> Result<bool, Trouble> {
        Ok(true)
    }

    fn settle(&self) -> Result<(), Failure> {
        self.inner.lock().unwrap().settled = true;
        self.did("settle");
        Ok(())
    }

    fn announce_no_trial(&self) -> Result<(), Failure> {
        self.did("no trial");
        Ok(())
    }

    fn reboot(&self, forced: bool) -> Result<(), Failure> {
        self.did(if forced { "reboot forced" } else { "reboot" });
        Ok(())
    }
}

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
        if heard.last() != Some(&upgrade.phase) {
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
