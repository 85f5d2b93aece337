//! The kinds of `monok8s.io/v1alpha1`, as they are on the wire.
//!
//! Their documentation is what `kubectl explain` prints. What the API server refuses is said in [`rules`]; what is read here
//! is read tolerantly, so that one object of a later release never hides all others from a watch.

mod limit;
#[allow(
    clippy::duplicated_attributes,
    reason = "two printed columns may have one type"
)]
mod progress;
mod rollout;
pub(crate) mod rules;
mod selector;
#[allow(
    clippy::duplicated_attributes,
    reason = "two printed columns may have one type"
)]
mod upgrade;
mod words;

pub use limit::{Limit, UnreadableLimit};
pub use progress::{
    Action, OSUpgradeProgress, OSUpgradeProgressSpec, OSUpgradeProgressStatus, Partition,
    ProgressPhase, SourceReference,
};
pub use rollout::{Drain, OnTimeout, Policy, Rollout, UnreadableDuration};
pub(crate) use selector::is_label_text;
pub use selector::{NodeSelector, UnreadableSelector};
pub use upgrade::{CatalogSource, OSUpgrade, OSUpgradeSpec, OSUpgradeStatus, Phase};
