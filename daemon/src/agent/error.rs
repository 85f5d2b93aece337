//! What whoever asks the agent for something is told when it is not done.

use thiserror::Error;

use crate::error::ErrorKind;

/// A refused request, or an agent that could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct AgentError {
    kind: ErrorKind,
    message: String,
    running: Option<Running>,
}

/// What is running instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The upgrade's number.
    pub id: u64,
    /// Its phase, as in the status document.
    pub phase: String,
    /// How far the bytes are, while they move.
    pub percent: Option<u8>,
}

impl AgentError {
    /// An error of a kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            running: None,
        }
    }

    /// Another upgrade runs.
    #[must_use]
    pub fn busy(running: Running) -> Self {
        let percent = running
            .percent
            .map(|percent| format!(", {percent} %"))
            .unwrap_or_default();
        Self {
            kind: ErrorKind::Busy,
            message: format!(
                "upgrade {} is under way ({}{percent})",
                running.id, running.phase
            ),
            running: Some(running),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The upgrade that is in the way.
    #[must_use]
    pub fn running(&self) -> Option<&Running> {
        self.running.as_ref()
    }
}

/// The engine's kind as the daemon's.
#[must_use]
pub fn kind_of(kind: slotd_engine::ErrorKind) -> ErrorKind {
    match kind {
        slotd_engine::ErrorKind::Retry => ErrorKind::Retry,
        slotd_engine::ErrorKind::Reject => ErrorKind::Reject,
        slotd_engine::ErrorKind::Unsafe => ErrorKind::Unsafe,
        slotd_engine::ErrorKind::Configuration => ErrorKind::Configuration,
        slotd_engine::ErrorKind::Bug => ErrorKind::Bug,
    }
}
