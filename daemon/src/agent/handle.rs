//! How the rest of the daemon speaks with the agent: requests that are taken or refused at once, the
//! status, and a word whenever something changed.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slotd_engine::{Phase, Record, Refusal, Request, Slot, admit};
use slotd_image::{Cancel, ImageSource};

use super::driver;
use super::error::{AgentError, Running, kind_of};
use super::host::Host;
use super::pulse::Pulse;
use super::request::{InstallRequest, UpgradeId};
use crate::error::ErrorKind;
use crate::status::{
    Condition, HistoryEntry, ProgressStatus, STATUS_VERSION, StatusDocument, UpgradeStatus,
};

/// Called with the upgrade's status whenever it changed; must return soon.
pub type Listener = Box<dyn Fn(&UpgradeStatus) + Send + Sync>;

/// What the driver's thread and the handles share.
pub(super) struct Shared {
    pub(super) host: Arc<dyn Host>,
    state: Mutex<State>,
    changed: Condvar,
    listeners: Mutex<Vec<Listener>>,
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
    /// Waits for the driver.
    pub(super) request: Option<Request>,
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
    fn upgrade(&self) -> UpgradeStatus {
        let mut status = UpgradeStatus::of(&self.record, self.progress);
        status.message.clone_from(&self.message);
        status
    }

    fn running(&self, id: UpgradeId, phase: Phase) -> AgentError {
        let percent = self.progress.and_then(|progress| progress.percent);
        AgentError::busy(Running {
            id,
            phase: format!("{phase:?}"),
            percent,
        })
    }

    /// Whether anything can be asked now.
    fn listens(&self) -> Result<(), AgentError> {
        if self.stopping || self.ended {
            return Err(AgentError::new(ErrorKind::Retry, "the agent is stopping"));
        }
        if !self.ready {
            let message = "the agent is starting and has not looked at the slots yet";
            return Err(AgentError::new(ErrorKind::Retry, message));
        }
        Ok(())
    }

    /// Whether a request can be taken now.
    fn admit(&self, request: &Request) -> Result<(), AgentError> {
        self.listens()?;
        if self.request.is_some() || self.deciding {
            let id = match &self.record.upgrade {
                Some(upgrade) if !self.record.at.is_rest() => upgrade.id,
                _ => self.record.last_id.saturating_add(1),
            };
            return Err(self.running(id, self.record.phase()));
        }
        let refused = self.conditions.iter().find(|condition| {
            matches!(
                condition.kind.as_str(),
                "StateDirectoryRefused" | "StateFromTheFuture"
            )
        });
        if let Some(refused) = refused
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

/// The agent, for the rest of the daemon. Clones speak with the same agent.
#[derive(Clone)]
pub struct AgentHandle {
    shared: Arc<Shared>,
}

impl fmt::Debug for AgentHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentHandle").finish_non_exhaustive()
    }
}

impl AgentHandle {
    /// Starts the agent on a thread of its own and returns at once. It reconciles its record with the
    /// world first; a trial boot goes on to be confirmed or rolled back by itself.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(host: Arc<dyn Host>) -> Result<Self, AgentError> {
        let shared = Arc::new(Shared::new(host));
        driver::spawn(Arc::clone(&shared)).map_err(|error| {
            AgentError::new(
                ErrorKind::Retry,
                format!("cannot start the agent's thread: {error}"),
            )
        })?;
        Ok(Self { shared })
    }

    fn ask(&self, request: Request, source: Option<ImageSource>) -> Result<UpgradeId, AgentError> {
        let mut state = self.shared.state();
        state.admit(&request)?;
        let id = match &request {
            Request::Install(_) | Request::Rollback { .. } => {
                state.record.last_id.saturating_add(1)
            }
            _ => state
                .record
                .upgrade
                .as_ref()
                .map_or(0, |upgrade| upgrade.id),
        };
        if source.is_some() {
            state.source = source;
        }
        if matches!(request, Request::Cancel(_)) {
            // Under the lock: later this flag could be the next upgrade's.
            state.cancel.cancel();
        }
        state.request = Some(request);
        drop(state);
        self.shared.notify();
        Ok(id)
    }

    /// Asks for an image. The upgrade's number is returned as soon as the request is taken; what
    /// becomes of it is told by [`AgentHandle::status`] and [`AgentHandle::subscribe`].
    ///
    /// # Errors
    /// Busy, with what is running, while another upgrade is under way.
    pub fn install(&self, request: InstallRequest) -> Result<UpgradeId, AgentError> {
        let image = request.to_engine();
        self.ask(Request::Install(image), Some(request.source))
    }

    /// Stops the upgrade of this number: what was staged is discarded, an armed trial is taken back.
    ///
    /// # Errors
    /// When no such upgrade is under way, or its trial boot runs.
    pub fn cancel(&self, id: UpgradeId) -> Result<(), AgentError> {
        {
            let mut state = self.shared.state();
            // A request that the driver did not take yet.
            let next = state.record.last_id.saturating_add(1);
            let pending = matches!(
                state.request,
                Some(Request::Install(_) | Request::Rollback { .. })
            );
            if pending && id == next {
                state.request = None;
                state.source = None;
                return Ok(());
            }
        }
        self.ask(Request::Cancel(id), None).map(|_| ())
    }

    /// Activates the staged image: the next boot tries it, and the machine reboots.
    ///
    /// # Errors
    /// When no image is staged, or something else is under way.
    pub fn activate(&self) -> Result<UpgradeId, AgentError> {
        self.ask(Request::Activate, None)
    }

    /// Goes back to the other slot deliberately; it has to be good.
    ///
    /// # Errors
    /// When another upgrade is under way.
    pub fn rollback(&self) -> Result<UpgradeId, AgentError> {
        let view = self.shared.host.survey();
        let other = view.slots.iter().find(|slot| !slot.booted);
        if view.booted.is_none() {
            let message = "this system runs from neither slot: there is nothing to go back from";
            return Err(AgentError::new(ErrorKind::Unsafe, message));
        }
        if let Some(other) = other.filter(|other| other.state != "good") {
            let message = format!(
                "slot {} is {}, not good: there is nothing to go back to",
                other.slot, other.state
            );
            return Err(AgentError::new(ErrorKind::Unsafe, message));
        }
        let version = other.and_then(|other| other.version.clone());
        self.ask(Request::Rollback { version }, None)
    }

    /// Tells the boot loader what the operator holds of a slot. Durable when it returns.
    ///
    /// # Errors
    /// Busy while an upgrade is under way; otherwise what the boot loader's backend refuses.
    pub fn mark(&self, slot: Slot, good: bool) -> Result<(), AgentError> {
        {
            let state = self.shared.state();
            // Before the first look at the world, a trial boot may not be known as one.
            state.listens()?;
            if let Some(upgrade) = state
                .record
                .upgrade
                .as_ref()
                .filter(|_| !state.record.at.is_rest())
            {
                return Err(state.running(upgrade.id, state.record.phase()));
            }
        }
        let host = &self.shared.host;
        let marked = host.lock().and_then(|lock| {
            let marked = if good {
                host.mark_good(slot)
            } else {
                host.mark_bad(slot)
            };
            drop(lock);
            marked
        });
        marked.map_err(|failure| AgentError::new(kind_of(failure.kind), failure.reason))
    }

    /// The node's status, slots and loader read now.
    #[must_use]
    pub fn status(&self) -> StatusDocument {
        // Before the lock: it reads devices.
        let view = self.shared.host.survey();
        let state = self.shared.state();
        let conditions = state
            .conditions
            .iter()
            .chain(&state.unrecorded)
            .chain(&state.recording)
            .chain(&view.conditions)
            .cloned()
            .collect();
        StatusDocument {
            version: STATUS_VERSION,
            daemon: env!("CARGO_PKG_VERSION").to_owned(),
            booted: view.booted,
            slots: view.slots,
            loader: view.loader,
            upgrade: state.upgrade(),
            last_result: state.record.last.as_ref().map(HistoryEntry::from),
            conditions,
        }
    }

    /// The upgrade's status alone, without a look at slots and loader.
    #[must_use]
    pub fn upgrade(&self) -> UpgradeStatus {
        self.shared.state().upgrade()
    }

    /// Has `listener` called whenever the upgrade's status changed, a few times a second at most while
    /// bytes move.
    pub fn subscribe(&self, listener: Listener) {
        let mut listeners = self
            .shared
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.push(listener);
    }

    /// Whether the agent's thread runs. When it does not and nobody asked it to stop, the service
    /// should end and be started anew.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.shared.state().ended
    }

    /// Whether the agent's thread has hung for this long in something that should take moments. Downloads, writes,
    /// health checks and waiting take as long as they take.
    #[must_use]
    pub fn is_stuck(&self, patience: Duration) -> bool {
        self.shared.pulse.hangs(patience)
    }

    /// Stops the agent: a write is broken off, a download let go, checks are left to the next start.
    /// Returns when its thread has ended, `false` if that took longer than `patience`.
    #[must_use]
    pub fn shutdown(&self, patience: Duration) -> bool {
        {
            let mut state = self.shared.state();
            state.stopping = true;
            state.cancel.cancel();
        }
        self.shared.notify();
        self.shared.wait(Some(patience), |state| state.ended)
    }

    /// Waits until the agent has looked at the node and takes requests, or the time is over.
    #[must_use]
    pub fn wait_until_ready(&self, patience: Duration) -> bool {
        self.shared.wait(Some(patience), |state| state.ready)
    }

    /// Waits until `until` holds for the upgrade's status, or the time is over.
    #[must_use]
    pub fn wait_for(&self, patience: Duration, until: impl Fn(&UpgradeStatus) -> bool) -> bool {
        self.shared
            .wait(Some(patience), |state| until(&state.upgrade()))
    }
}
