//! What the driver's thread and the handles share: the state under one lock, and who waits for a change of it.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slotd_engine::{Failure, Phase, Record, Refusal, Request, admit};
use slotd_image::{Cancel, ImageSource};

use super::error::{AgentError, Running};
use super::host::Host;
use super::pulse::Pulse;
use super::request::UpgradeId;
use crate::error::ErrorKind;
use crate::status::{Condition, ProgressStatus, UpgradeStatus};

/// Called with the upgrade's status whenever it changed; must return soon.
pub type Listener = Box<dyn Fn(&UpgradeStatus) + Send + Sync>;

/// Takes one word: that a request is kept in the record, or why it cannot be.
pub(super) type Answer = SyncSender<Result<(), Failure>>;

/// Whether a request stops what runs now.
pub(super) fn stops(request: &Request) -> bool {
    matches!(
        request,
        Request::Cancel(_) | Request::Retarget(_) | Request::Hold | Request::Renew(_)
    )
}

/// What the agent remembers and does at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The record.
    pub record: Record,
    /// How far the bytes are, while they move.
    pub progress: Option<ProgressStatus>,
    /// What is waited for, in a sentence.
    pub message: Option<String>,
}

/// What the driver's thread and the handles share.
pub(super) struct Shared {
    pub(super) host: Arc<dyn Host>,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) listeners: Mutex<Vec<Listener>>,
    /// What the driver does now that should be over soon.
    pub(super) pulse: Pulse,
}

/// The driver's state as the handles see it.
#[derive(Default)]
pub(super) struct State {
    /// Whether the record was loaded and reconciled with the world.
    pub(super) ready: bool,
    pub(super) record: Record,
    pub(super) progress: Option<ProgressStatus>,
    pub(super) message: Option<String>,
    /// Found at the start.
    pub(super) conditions: Vec<Condition>,
    /// Why the record cannot be kept now.
    pub(super) unrecorded: Option<Condition>,
    /// Why a healthy boot cannot be recorded as good now.
    pub(super) recording: Option<Condition>,
    /// What those who speak for the agent elsewhere want known.
    pub(super) outside: Vec<Condition>,
    /// Somebody asks although nothing can be kept: the driver is to look whether that is over.
    pub(super) look_again: bool,
    /// Waits for the driver.
    pub(super) request: Option<Request>,
    /// Where whoever asked waits to hear whether the request was begun; goes with the request.
    pub(super) answer: Option<Answer>,
    /// The driver took a request and has not said yet what comes of it.
    pub(super) deciding: bool,
    /// Belongs to the request, or to the upgrade that was begun by it.
    pub(super) source: Option<ImageSource>,
    /// Stops the command that runs now.
    pub(super) cancel: Cancel,
    pub(super) stopping: bool,
    pub(super) ended: bool,
}

impl Shared {
    pub(super) fn new(host: Arc<dyn Host>) -> Self {
        Self {
            host,
            state: Mutex::default(),
            changed: Condvar::new(),
            listeners: Mutex::default(),
            pulse: Pulse::new(),
        }
    }

    /// Every change under the lock is a plain assignment, so a poisoned one holds nothing half done.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits: the driver for requests, a handle for the end.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until `until` holds or the time is over. Without a time limit there is no wake-up but
    /// [`Shared::notify`].
    pub(super) fn wait(&self, limit: Option<Duration>, until: impl Fn(&State) -> bool) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state();
        while !until(&state) {
            state = match deadline {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    /// Tells the listeners how the upgrade stands.
    pub(super) fn tell(&self) {
        let status = self.state().upgrade();
        let listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for listener in listeners.iter() {
            listener(&status);
        }
    }
}

impl State {
    pub(super) fn upgrade(&self) -> UpgradeStatus {
        let mut status = UpgradeStatus::of(&self.record, self.progress);
        status.message.clone_from(&self.message);
        status
    }

    pub(super) fn running(&self, id: UpgradeId, phase: Phase) -> AgentError {
        let percent = self.progress.and_then(|progress| progress.percent);
        AgentError::busy(Running {
            id,
            phase: format!("{phase:?}"),
            percent,
        })
    }

    /// Whether anything can be asked now.
    pub(super) fn listens(&self) -> Result<(), AgentError> {
        if self.stopping || self.ended {
            return Err(AgentError::new(ErrorKind::Retry, "the agent is stopping"));
        }
        if !self.ready {
            let message = "the agent is starting and has not looked at the slots yet";
            return Err(AgentError::new(ErrorKind::Retry, message));
        }
        Ok(())
    }

    /// Why nothing can be kept, as far as it was found out when the record was loaded.
    pub(super) fn keeps_nothing(&self) -> Option<&Condition> {
        self.conditions.iter().find(|condition| {
            matches!(
                condition.kind.as_str(),
                "StateDirectoryRefused" | "StateUnreadable" | "StateFromTheFuture"
            )
        })
    }

    /// Whether a request can be taken now.
    pub(super) fn admit(&self, request: &Request) -> Result<(), AgentError> {
        self.listens()?;
        if self.request.is_some() || self.deciding {
            let id = match &self.record.upgrade {
                Some(upgrade) if !self.record.at.is_rest() => upgrade.id,
                _ => self.record.last_id.saturating_add(1),
            };
            return Err(self.running(id, self.record.phase()));
        }
        if let Some(refused) = self.keeps_nothing()
            && !matches!(request, Request::Cancel(_))
        {
            return Err(AgentError::new(
                ErrorKind::Configuration,
                refused.message.clone(),
            ));
        }
        admit(&self.record, request).map_err(|refusal| match refusal {
            Refusal::Busy { id, phase, .. } => self.running(id, phase),
            Refusal::TrialRunning { .. } => AgentError::new(ErrorKind::Busy, refusal.to_string()),
            Refusal::NothingStaged
            | Refusal::NoSuchUpgrade { .. }
            | Refusal::FailedBefore { .. } => {
                AgentError::new(ErrorKind::Reject, refusal.to_string())
            }
        })
    }
}
