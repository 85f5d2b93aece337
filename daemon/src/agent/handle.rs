//! How the rest of the daemon speaks with the agent: requests that are taken or refused at once, the
//! status, and a word whenever something changed.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use slotd_engine::{Point, Request, Slot};
use slotd_image::ImageSource;

use super::driver;
use super::error::{AgentError, kind_of};
use super::host::Host;
use super::request::{InstallRequest, UpgradeId};
use super::shared::{Answer, Listener, Shared, Snapshot, stops};
use crate::error::ErrorKind;
use crate::status::{
    Condition, HistoryEntry, NodeView, STATUS_VERSION, StatusDocument, UpgradeStatus,
};

/// How long whoever asks waits for the driver's word: with [`START`] and [`LOOK`] less than the 25 s that callers on the bus wait for an
/// answer where they set nothing else.
const ANSWER: Duration = Duration::from_secs(10);

/// How long a request waits for an agent that has just started and has not looked at the node yet.
const START: Duration = Duration::from_secs(10);

/// How long a request waits for a look whether the record can be kept again.
const LOOK: Duration = Duration::from_secs(4);

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

    /// Takes a request. With somebody who waits for it, `answer` hears whether it was kept in the record.
    fn ask(
        &self,
        request: Request,
        source: Option<ImageSource>,
        answer: Option<Answer>,
    ) -> Result<UpgradeId, AgentError> {
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
        if stops(&request) {
            // Under the lock: later this flag could be the next upgrade's.
            state.cancel.cancel();
        }
        state.request = Some(request);
        state.answer = answer;
        drop(state);
        self.shared.notify();
        Ok(id)
    }

    /// Where nothing can be kept, has the driver look whether that is over, which takes moments while nothing is under way.
    fn look_again(&self) {
        {
            let mut state = self.shared.state();
            if state.keeps_nothing().is_none() || !state.ready || !state.record.at.is_rest() {
                return;
            }
            state.look_again = true;
        }
        self.shared.notify();
        self.shared.wait(Some(LOOK), |state| {
            !state.look_again || state.ended || state.stopping
        });
    }

    /// Takes a request and waits until the driver has kept it or cannot. A driver that is busy with something long
    /// answers later, which nobody waits for: the request stands, and the status tells what becomes of it.
    fn ask_and_hear(&self, request: Request) -> Result<UpgradeId, AgentError> {
        self.look_again();
        let (answer, word) = sync_channel(1);
        let id = self.ask(request, None, Some(answer))?;
        match word.recv_timeout(ANSWER) {
            Ok(Ok(())) | Err(RecvTimeoutError::Timeout) => Ok(id),
            Ok(Err(failure)) => Err(AgentError::new(
                kind_of(failure.kind),
                format!("not begun, since it cannot be recorded: {}", failure.reason),
            )),
            Err(RecvTimeoutError::Disconnected) => Err(AgentError::new(
                ErrorKind::Retry,
                "not begun: it was taken back, or the agent stops",
            )),
        }
    }

    /// Asks for an image. The upgrade's number is returned as soon as the request is taken; what
    /// becomes of it is told by [`AgentHandle::status`] and [`AgentHandle::subscribe`].
    ///
    /// # Errors
    /// Busy, with what is running, while another upgrade is under way.
    pub fn install(&self, request: InstallRequest) -> Result<UpgradeId, AgentError> {
        self.look_again();
        let image = request.to_engine();
        self.ask(Request::Install(image), Some(request.source), None)
    }

    /// Stops the upgrade of this number: what was staged is discarded, an armed trial is taken back.
    ///
    /// # Errors
    /// When no such upgrade is under way, its trial boot runs, or that it stops cannot be recorded where it must be.
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
                state.answer = None;
                state.source = None;
                return Ok(());
            }
        }
        self.ask_and_hear(Request::Cancel(id)).map(|_| ())
    }

    /// Activates the staged image: the next boot tries it, and the machine reboots.
    ///
    /// # Errors
    /// When no image is staged, something else is under way, or the activation cannot be recorded: then it is not begun.
    pub fn activate(&self) -> Result<UpgradeId, AgentError> {
        self.ask_and_hear(Request::Activate { drain: None })
    }

    /// Hands over what the cluster asks for next (see [`slotd_engine::assign`]). It asks again as long as it wants it, so
    /// nobody waits for an answer.
    ///
    /// # Errors
    /// What is in the way now.
    pub fn order(&self, request: Request) -> Result<UpgradeId, AgentError> {
        self.ask(request, None, None)
    }

    /// What the agent remembers and does now; `None` before it has looked at the node.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        let state = self.shared.state();
        state.ready.then(|| Snapshot {
            record: state.record.clone(),
            progress: state.progress,
            message: state.message.clone(),
        })
    }

    /// Whether the upgrade stands there still, and nothing that was asked meanwhile leads on.
    #[must_use]
    pub fn stands(&self, at: Point) -> bool {
        let state = self.shared.state();
        state.record.at == at && state.request.is_none() && !state.deciding
    }

    /// Has the status say this from now on in place of what it said under that type; `None` says nothing of it.
    pub fn announce(&self, kind: &str, message: Option<String>) {
        let mut state = self.shared.state();
        state.outside.retain(|known| known.kind != kind);
        state
            .outside
            .extend(message.map(|message| Condition::new(kind, message)));
    }

    /// Slots and loader, read now.
    #[must_use]
    pub fn survey(&self) -> NodeView {
        self.shared.host.survey()
    }

    /// Goes back to the other slot deliberately; it has to be good.
    ///
    /// # Errors
    /// When another upgrade is under way, or the rollback cannot be recorded: then it is not begun.
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
        self.ask_and_hear(Request::Rollback { version })
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
            .chain(&state.outside)
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

    /// The same for somebody who asks: bounded, and no longer than until it is known that the node cannot be looked at.
    /// What is asked then answers for itself.
    pub fn await_start(&self) {
        self.shared.wait(Some(START), |state| {
            state.ready || state.ended || state.stopping || state.message.is_some()
        });
    }

    /// Waits until `until` holds for the upgrade's status, or the time is over.
    #[must_use]
    pub fn wait_for(&self, patience: Duration, until: impl Fn(&UpgradeStatus) -> bool) -> bool {
        self.shared
            .wait(Some(patience), |state| until(&state.upgrade()))
    }
}
