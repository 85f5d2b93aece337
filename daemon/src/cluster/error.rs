//! What goes wrong between a node and its cluster.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::error::ErrorKind;

/// Why the cluster could not be asked or told.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The kubeconfig cannot be read.
    #[error("cannot read the kubeconfig {path}: {source}", path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// A file that the kubeconfig names cannot be read.
    #[error("cannot read {path}, which the kubeconfig names: {source}", path = path.display())]
    Credential {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The credential is no node's.
    #[error("the credential in {path} is no node's: {reason}", path = path.display())]
    NoNode {
        /// The kubeconfig.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// The API server refused or did not answer.
    #[error("cannot {action}: {source}")]
    Api {
        /// What was tried.
        action: &'static str,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
}

impl ClusterError {
    /// An answer of the API server, or none.
    pub(super) fn api(action: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api {
            action,
            source: Box::new(source),
        }
    }

    /// The HTTP status that the API server answered with.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Api { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Kubeconfig { .. } | Self::Credential { .. } | Self::Api { .. } => {
                ErrorKind::Retry
            }
            Self::NoNode { .. } => ErrorKind::Configuration,
        }
    }
}
