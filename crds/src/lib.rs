//! API types of `monok8s.io`, version and catalog rules.
//!
//! Pure code that knows nothing of the other crates: [`api`] has the kinds as they are on the wire, [`catalog`] reads catalogs,
//! [`resolve`] says which image an upgrade means. The manifests in `crds/manifests` are generated from here; a test keeps
//! them in step.

#[allow(
    unreachable_pub,
    reason = "KubeSchema copies each public type into a function"
)]
pub mod api;
pub mod catalog;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[allow(
    unreachable_pub,
    reason = "KubeSchema copies each public type into a function"
)]
pub mod image;
pub mod names;
pub mod place;
pub mod resolve;
pub mod version;
