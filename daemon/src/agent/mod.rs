//! The agent: the node's own part. One thread drives the engine; everything that it sees and does is
//! behind [`Host`], and the rest of the daemon speaks with it through an [`AgentHandle`].

mod driver;
mod durable;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod handle;
mod history;
mod host;
mod life;
mod lock;
mod machine;
mod node;
mod pulse;
mod request;
mod run_files;
mod shared;
mod state;
mod state_directory;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use durable::replace_durably;
pub use error::{AgentError, Running, kind_of};
pub use handle::AgentHandle;
pub use history::{History, history_path, read_history};
pub use host::{Host, Loaded, Trouble};
pub use life::AgentLife;
pub use lock::{ChangeLock, LockError};
pub use machine::{Drainer, FAILED_BEFORE, Machine};
pub use node::{NodeHost, Plan, PlanRefusal, PlanStep};
pub use request::{InstallRequest, UpgradeId};
pub use run_files::{BootVerdict, RUN_DIRECTORY, RunFiles};
pub use shared::{Listener, Snapshot};
pub use state_directory::StateDirectoryError;
