//! What goes wrong between a node and its cluster.

use std::path::PathBuf;
use std::time::Duration;

use kube::runtime::watcher;
use thiserror::Error;

use crate::credential::CredentialError;
use crate::error::ErrorKind;
use crate::said;

/// How long an answer other than a watch may take.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

/// Before a first failure is tried again.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Between two tries at most.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why the cluster could not be asked or told.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The credential cannot be read.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The credential is no node's.
    #[error("the credential in {path} is no node's: {reason}", path = path.display())]
    NoNode {
        /// The kubeconfig.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// The API server refused or did not answer.
    #[error("cannot {action}: {answer}", answer = said::error(source))]
    Api {
        /// What was tried.
        action: &'static str,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("cannot {action}: the API server did not answer within {seconds} s", seconds = ANSWER.as_secs())]
    Silent {
        /// What was tried.
        action: &'static str,
    },
    /// The API server lists objects without saying from where on to watch them.
    #[error("cannot watch this node's progress objects: their list has no version")]
    Unwatchable,
}

impl ClusterError {
    /// A watch that broke off, or could not begin.
    pub(super) fn watch(error: watcher::Error) -> Self {
        let source = match error {
            watcher::Error::InitialListFailed(source)
            | watcher::Error::WatchStartFailed(source)
            | watcher::Error::WatchFailed(source) => Box::new(source),
            watcher::Error::WatchError(status) => Box::new(kube::Error::Api(status)),
            watcher::Error::NoResourceVersion => return Self::Unwatchable,
        };
        Self::Api {
            action: "watch this node's progress objects",
            source,
        }
    }

    /// An answer of the API server, or none.
    pub(super) fn api(action: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api {
            action,
            source: Box::new(source),
        }
    }

    /// What the API server answered.
    pub(super) fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    /// The HTTP status that it answered with.
    pub(super) fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Credential(_) | Self::Api { .. } | Self::Silent { .. } | Self::Unwatchable => {
                ErrorKind::Retry
            }

            Self::NoNode { .. } => ErrorKind::Configuration,
        }
    }
}

/// What the API server answers to a request, within the time that an answer may take.
///
/// # Errors
/// When it refuses, or answers nothing.
pub(super) async fn ask<T>(
    action: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, ClusterError> {
    match tokio::time::timeout(ANSWER, request).await {
        Ok(answer) => answer.map_err(ClusterError::api(action)),
        Err(_) => Err(ClusterError::Silent { action }),
    }
}
