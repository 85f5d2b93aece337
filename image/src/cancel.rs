//! Stopping a transfer from outside, within a second wherever it waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::{Error, Result};

#[derive(Default)]
struct Flag {
    raised: AtomicBool,
    lock: Mutex<()>,
    sleepers: Condvar,
    tasks: Notify,
}

impl Flag {
    fn raise(&self) {
        // Under the lock, so that a sleeper between its check and its wait is not missed.
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.raised.store(true, Ordering::SeqCst);
        drop(guard);
        self.sleepers.notify_all();
        self.tasks.notify_waiters();
    }

    fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    async fn wait(&self) {
        let raised = self.tasks.notified();
        if !self.is_raised() {
            raised.await;
        }
    }
}

/// A flag that asks a running transfer to stop; clones share it, and it cannot be taken back.
///
/// Setting it takes a lock and is therefore nothing for a signal handler: set it from the thread
/// that was told of the signal.
#[derive(Clone, Default)]
pub struct Cancel {
    own: Arc<Flag>,
    /// A child also stops when the one it came from does.
    parent: Option<Arc<Flag>>,
}

impl Cancel {
    /// A flag that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the stop. Whatever waits wakes up at once.
    pub fn cancel(&self) {
        self.own.raise();
    }

    /// Whether the stop was asked for.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.own.is_raised()
            || self
                .parent
                .as_ref()
                .is_some_and(|parent| parent.is_raised())
    }

    /// [`Error::Cancelled`] once the stop was asked for.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// A flag for one part of the work: set with this one, and settable alone.
    pub(crate) fn child(&self) -> Self {
        Self {
            own: Arc::default(),
            parent: Some(Arc::clone(&self.own)),
        }
    }

    /// Sleeps, or returns [`Error::Cancelled`] as soon as the stop is asked for.
    ///
    /// Only the flag itself ends the sleep at once, so this is for flags that are nobody's child.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        let guard = self.own.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .own
            .sleepers
            .wait_timeout_while(guard, time, |()| !self.is_cancelled());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.check()
    }

    /// Resolves once the stop was asked for.
    pub(crate) async fn cancelled(&self) {
        match &self.parent {
            None => self.own.wait().await,
            Some(parent) => tokio::select! {
                () = self.own.wait() => (),
                () = parent.wait() => (),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_sleeper_wakes_up_when_the_stop_is_asked_for() {
        let cancel = Cancel::new();
        let other = cancel.clone();
        let started = Instant::now();
        let sleeper = std::thread::spawn(move || other.sleep(Duration::from_secs(60)));
        cancel.cancel();
        assert!(matches!(sleeper.join().unwrap(), Err(Error::Cancelled)));
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_child_stops_with_its_parent_and_alone() {
        let parent = Cancel::new();
        let (first, second) = (parent.child(), parent.child());
        first.cancel();
        assert!(first.is_cancelled() && !second.is_cancelled() && !parent.is_cancelled());
        parent.cancel();
        assert!(second.is_cancelled());
    }
}
