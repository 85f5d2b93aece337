//! A host that is made up: it remembers what was done and does nothing.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use slotd_engine::{
    Digest, Ended, ErrorKind as EngineKind, Failure, Image, ImageRequest, Limits, Record, Slot,
    SlotState, StagedSlot, Upgrade, Verdict, World,
};
use slotd_image::{Cancel, ImageSource};

use super::SOON;
use crate::agent::{ChangeLock, Host, Loaded, Trouble};
use crate::status::{Condition, NodeView, ProgressStatus, SlotLetter, SlotStatus};

#[derive(Default)]
pub(super) struct Inner {
    /// What was done, in order.
    pub(super) done: Vec<String>,
    pub(super) records: Vec<Record>,
    pub(super) history: Vec<Ended>,
    pub(super) state_b: Option<SlotState>,
    pub(super) marker: bool,
    pub(super) settled: bool,
    pub(super) unwritable: bool,
    /// Writes go on until they are told to stop.
    pub(super) endless: bool,
    /// A mark on the loader's data does not come back while this is set.
    pub(super) hangs: bool,
    pub(super) conditions: Vec<Condition>,
    /// The loader's data can be read, but not written.
    pub(super) sealed: bool,
    /// The loader's data cannot be read.
    pub(super) blind: bool,
    /// The booted slot is on trial until it is marked good.
    pub(super) trial: bool,
}

pub(super) struct FakeHost {
    pub(super) inner: Mutex<Inner>,
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
    pub(super) fn new() -> Arc<Self> {
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
    pub(super) fn wait_for(&self, what: &str) {
        let deadline = Instant::now() + SOON;
        let mut inner = self.inner.lock().unwrap();
        while !inner.done.iter().any(|done| done == what) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} was never done: {:?}", inner.done);
            inner = self.changed.wait_timeout(inner, left).unwrap().0;
        }
    }

    pub(super) fn effects(&self) -> Vec<String> {
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

    fn reload(&self) -> Option<Loaded> {
        let fit = self.inner.lock().unwrap().conditions.is_empty();
        fit.then(|| self.load())
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
        let mut inner = self.inner.lock().unwrap();
        if inner.unwritable {
            return Err(Failure::new(
                EngineKind::Configuration,
                "read-only file system",
            ));
        }
        inner.history.push(ended.clone());
        drop(inner);
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
            loader: (!inner.blind).then(|| {
                if inner.trial {
                    [SlotState::Trial { left: 2, done: 1 }, SlotState::Good]
                } else {
                    [SlotState::Good, inner.state_b.unwrap_or(SlotState::Empty)]
                }
            }),
            trouble: None,
            next_boot: Some(Slot::A),
            images: [None, inner.marker.then(|| image().digest)],
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

    fn drain(
        &self,
        _drain: slotd_engine::Drain,
        _cancel: &Cancel,
        _say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), Trouble> {
        self.did("drain");
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
        if self.inner.lock().unwrap().hangs {
            self.did("hang");
            while self.inner.lock().unwrap().hangs {
                std::thread::yield_now();
            }
        }
        if self.inner.lock().unwrap().sealed {
            self.did("mark good in vain");
            return Err(Failure::new(
                EngineKind::Configuration,
                "/boot is read-only",
            ));
        }
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

    fn stay(&self, reason: &str) -> Result<(), Failure> {
        self.inner.lock().unwrap().settled = true;
        self.did(&format!("stay: {reason}"));
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
