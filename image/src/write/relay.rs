//! How the threads of one attempt stop each other.

use std::io;
use std::sync::{Mutex, PoisonError};

use crate::cancel::Cancel;
use crate::error::Error;

/// Why a thread ended before its work was done.
pub(super) enum Halt {
    /// It failed itself.
    Failed(Error),
    /// The thread at the other end of a channel is gone, and knows why.
    Peer,
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Keeps the first error and stops everybody else. Later ones are consequences and are dropped.
pub(super) struct FirstError {
    stop: Cancel,
    error: Mutex<Option<Error>>,
}

impl FirstError {
    pub(super) fn new(stop: Cancel) -> Self {
        Self {
            stop,
            error: Mutex::new(None),
        }
    }

    /// Passes a result on; an error is noted first. Called before the thread's ends of channels
    /// are dropped, so that whoever notices that comes second.
    pub(super) fn note<T>(&self, outcome: Result<T, Halt>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(Halt::Peer) => None,
            Err(Halt::Failed(error)) => {
                let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(first) = &*first {
                    tracing::debug!(%first, %error, "a later error");
                } else {
                    *first = Some(error);
                }
                drop(first);
                self.stop.cancel();
                None
            }
        }
    }

    /// What stopped the attempt.
    pub(super) fn into_error(self) -> Error {
        self.error
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .unwrap_or_else(|| Error::Internal {
                what: "a thread ended without saying why".to_owned(),
            })
    }
}

/// The error for a thread that cannot be started.
pub(super) fn no_thread(error: io::Error) -> Error {
    Error::Internal {
        what: format!("no thread can be started: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_wins_and_stops_the_others() {
        let stop = Cancel::new();
        let first = FirstError::new(stop.clone());
        assert!(first.note::<()>(Err(Halt::Peer)).is_none() && !stop.is_cancelled());
        first.note::<()>(Err(Error::Internal {
            what: "one".to_owned(),
        }
        .into()));
        assert!(stop.is_cancelled());
        first.note::<()>(Err(Error::Cancelled.into()));
        assert_eq!(first.into_error().to_string(), "internal error: one");
    }
}
