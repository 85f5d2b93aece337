//! API types of `monok8s.io`, version and catalog rules.
//!
//! Pure code that knows nothing of the other crates. The node's half needs the version rules; the API types and the
//! catalog join them with the Kubernetes half.

pub mod version;
