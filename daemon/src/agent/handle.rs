//! How the rest of the daemon speaks with the agent: requests that are taken or refused at once, the
//! status, and a word whenever something changed.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use slotd_engine::{Request, Slot};
use slotd_image::ImageSource;

use super::driver;
use super::error::{AgentError, kind_of};
use super::host::Host;
use super::request::{InstallRequest, UpgradeId};
use super::shared::{Listener, Shared};
use crate::error::ErrorKind;
use crate::status::{HistoryEntry, STATUS_VERSION, StatusDocument, UpgradeStatus};

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
