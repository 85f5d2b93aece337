//! `slotd agent`: the agent as a service of systemd.
//!
//! Ready at once; the agent's thread looks at the node by itself. This thread serves the bus, tells systemd how things
//! stand and that the agent's thread lives, and waits for the end. While nothing happens, the watchdog's pings are all
//! that wakes it.

mod machine;
mod node;
mod notify;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::agent::{AgentHandle, Machine, NodeHost};
use crate::cluster::{ClusterAccess, Lender, PodDrainer};
use crate::config::Settings;
use crate::node::NodeSettings;

pub use machine::HostMachine;
pub use node::node_settings;

/// How long the agent's thread may take to come to a stop: a write in flight has to be over. Less than the unit's
/// `TimeoutStopSec=`.
const STOP: Duration = Duration::from_secs(50);

/// How long the bus may take to send what was told before the service ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Runs the agent until it is told to stop.
///
/// # Errors
/// When it cannot be started, or its thread ended by itself; systemd starts it anew then.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    for warning in settings.warnings() {
        warn!("{warning}");
    }
    run_on(
        node_settings(settings),
        Arc::new(HostMachine::new(settings)),
        settings.cluster.clone(),
    )
}

/// The same on another node than this machine, such as one that stands in for a machine in tests.
///
/// # Errors
/// As [`run`].
pub fn run_on(
    node: NodeSettings,
    machine: Arc<dyn Machine>,
    cluster: ClusterAccess,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the service's runtime")?;
    let (drainer, lender) = PodDrainer::new(runtime.handle().clone());
    let host = NodeHost::new(node, machine).drained_by(Arc::new(drainer));
    let agent = AgentHandle::start(Arc::new(host))?;
    runtime.block_on(serve(agent, cluster, lender))
}

async fn serve(agent: AgentHandle, cluster: ClusterAccess, lender: Lender) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, updates) = unbounded_channel();
    let words = notify::StatusLine::default();
    agent.subscribe(Box::new(move |status| {
        words.tell(status);
        // Nobody listens once the service is about to end.
        let _ = sender.send(status.clone());
    }));
    notify::ready(&agent.upgrade());
    let (sender, gone) = oneshot::channel();
    notify::watchdog(agent.clone(), sender)?;
    let (end, told) = oneshot::channel();
    let until = async { told.await.unwrap_or(()) };
    let mut bus = tokio::spawn(crate::dbus::server::serve(agent.clone(), updates, until));
    let mut cluster = tokio::spawn(crate::cluster::serve(cluster, agent.clone(), lender));
    let ended = tokio::select! {
        _ = terminate.recv() => Ended::Told,
        _ = interrupt.recv() => Ended::Told,
        _ = gone => Ended::ByItself,
        () = broken(&mut cluster) => Ended::Deaf,
    };
    notify::stopping();
    drop(end);
    if tokio::time::timeout(LAST_WORDS, &mut bus).await.is_err() {
        bus.abort();
    }
    match ended {
        Ended::ByItself => bail!("the agent's thread ended by itself"),
        Ended::Told => {
            info!("stopping");
            let stopped = tokio::task::spawn_blocking(move || agent.shutdown(STOP)).await?;
            cluster.abort();
            if !stopped {
                warn!(seconds = STOP.as_secs(), "the agent did not stop in time");
            }
            Ok(())
        }
        // A trial boot is judged by the next one as well: nothing is lost.
        Ended::Deaf => bail!("what speaks with the cluster ended by itself"),
    }
}

/// Waits for a task that ends otherwise than in good order.
async fn broken(task: &mut JoinHandle<()>) {
    if task.await.is_ok() {
        std::future::pending().await
    }
}

/// Why the service ends.
enum Ended {
    /// By a signal.
    Told,
    /// The agent's thread is gone.
    ByItself,
    /// The cluster would not be heard any more.
    Deaf,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::broken;

    #[tokio::test]
    async fn a_task_that_breaks_is_noticed_and_one_that_is_over_is_not() {
        let soon = Duration::from_millis(200);
        let mut over = tokio::spawn(async {});
        assert!(timeout(soon, broken(&mut over)).await.is_err());
        let mut broke = tokio::spawn(async { panic!("a fault of a library's") });
        assert!(timeout(soon, broken(&mut broke)).await.is_ok());
    }
}
