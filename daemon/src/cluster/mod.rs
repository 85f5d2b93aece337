//! The agent's cluster side: it watches the progress objects of its own node, hands them to the agent as wishes, drains,
//! and reports. It decides nothing about the node: [`slotd_engine::assign`] does, and the agent goes on without it.
//!
//! It speaks with the kubelet's own credential and writes nothing but the status of its objects and its own Node; one task
//! does all that, so two writes never meet.

mod drain;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod identity;
mod own_node;
mod report;
mod serve;
#[cfg(test)]
mod tests;
mod time;
mod told;
mod watch;
mod wish;

use std::path::{Path, PathBuf};

pub use drain::{Lender, PodDrainer};
pub use error::ClusterError;
pub use serve::serve;

/// Where kubeadm, and most that install a kubelet, put its kubeconfig.
pub(crate) const KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";

/// Where a node's cluster is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ClusterAccess {
    /// Where the kubelet's kubeconfig says, once there is one.
    #[default]
    Auto,
    /// The node stands alone.
    None,
    /// Where this kubeconfig says.
    Kubeconfig(PathBuf),
}

impl ClusterAccess {
    /// The kubeconfig that is to be read; none where the node stands alone.
    fn kubeconfig(&self) -> Option<&Path> {
        match self {
            Self::Auto => Some(Path::new(KUBELET_KUBECONFIG)),
            Self::None => None,
            Self::Kubeconfig(path) => Some(path),
        }
    }
}
