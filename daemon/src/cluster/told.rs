//! What is wrong with the cluster, told on the node.

use tracing::{info, warn};

use crate::agent::AgentHandle;

/// A trouble with the cluster: said once in the log, and in the node's status for as long as it lasts.
pub(super) struct Told<'a> {
    agent: &'a AgentHandle,
    /// The condition's type.
    kind: &'static str,
    said: Option<String>,
}

impl<'a> Told<'a> {
    pub(super) fn new(agent: &'a AgentHandle, kind: &'static str) -> Self {
        Self {
            agent,
            kind,
            said: None,
        }
    }

    /// Whether there is one.
    pub(super) fn lasts(&self) -> bool {
        self.said.is_some()
    }

    pub(super) fn warn(&mut self, trouble: &str) {
        if self.said.as_deref() != Some(trouble) {
            warn!(trouble, condition = self.kind, "the cluster");
            self.agent.announce(self.kind, Some(trouble.to_owned()));
            self.said = Some(trouble.to_owned());
        }
    }

    /// It is over. Whether there was one.
    pub(super) fn over(&mut self) -> bool {
        let was = self.said.take().is_some();
        if was {
            info!(condition = self.kind, "the cluster: over");
            self.agent.announce(self.kind, None);
        }
        was
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.over();
    }
}
