//! The controller as a service.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use kube::Client;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::access::Connection;
use super::election::Candidate;
use super::original::Original;
use super::pass::{Next, Passes};
use super::session::Session;
use crate::backoff::{Backoff, jittered};
use crate::said;

/// What happens together is looked at together.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Looked again even if nothing seems to have changed.
const RESYNC: Duration = Duration::from_secs(600);
/// The most that a pass may take: one that hangs is begun anew.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two passes of which the first one failed, at most: a write that is refused for good is not tried more often.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Runs the controller until it is told to stop, or is to be started anew with another credential.
///
/// # Errors
/// When the cluster's address or the credential cannot be read. A cluster that does not answer is waited for.
pub fn run(connection: &Connection) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the controller's runtime")?
        .block_on(serve(connection))
}

async fn serve(connection: &Connection) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // What is renewed after this is noticed.
    let copy = connection.kubeconfig.as_deref();
    let original = connection.copy_of.as_deref().zip(copy);
    let original = original.map(|(path, copy)| Original::of(path, copy));
    let mut session = Session::open(copy).await?;
    let identity = identity();
    let namespace = connection.namespace.as_str();
    tell(&[NotifyState::Ready, NotifyState::Status("Started")]);
    let (lease_client, leads) = loop {
        let client = session.client();
        let lease_client = session.lease_client();
        info!(server = %session.server(), namespace, "the cluster");
        let (sender, leads) = watch::channel(false);
        let candidate = Candidate::new(lease_client.clone(), namespace, identity.clone());
        let mut election = tokio::spawn(candidate.run(sender));
        let end = tokio::select! {
            _ = terminate.recv() => End::Told,
            _ = interrupt.recv() => End::Told,
            _ = &mut election => End::Broken,
            () = ping() => End::Broken,
            () = work(&client, namespace, &identity, leads.clone()) => End::Broken,
            renewed = session.renewed() => End::Renewed(Box::new(renewed)),
            () = renewed(original.as_ref()) => End::Anew,
        };
        election.abort();
        match end {
            End::Told => break (lease_client, leads),
            End::Broken => {
                tell(&[NotifyState::Stopping]);
                bail!("a part of the controller ended by itself");
            }
            End::Anew => {
                info!("the credential was renewed; to be started anew with a copy of it");
                break (lease_client, leads);
            }
            // All begins anew, and with the Lease that is this one's still.
            End::Renewed(renewed) => session = *renewed,
        }
    };
    tell(&[NotifyState::Stopping]);
    info!("stopping");
    if *leads.borrow() {
        // Not for long: it runs out by itself.
        let release = Candidate::release(lease_client, namespace, &identity);
        let _ = tokio::time::timeout(Duration::from_secs(5), release).await;
    }
    Ok(())
}

/// Why the work with one credential ends.
enum End {
    /// By a signal.
    Told,
    /// By itself, which it never does.
    Broken,
    /// The credential was renewed.
    Renewed(Box<Session>),
    /// The credential was renewed, of which only systemd hands over a copy.
    Anew,
}

/// Waits until the file behind the credential is another one; for ever where there is none.
async fn renewed(original: Option<&Original>) {
    match original {
        Some(original) => original.renewed().await,
        None => std::future::pending().await,
    }
}

/// Passes, as long as this one leads. Never ends.
async fn work(client: &Client, namespace: &str, identity: &str, mut leads: watch::Receiver<bool>) {
    let changed = Arc::new(Notify::new());
    let mut passes = Passes::new(client, namespace, identity, &changed);
    let mut backoff = Backoff::new(Duration::from_millis(500), LONGEST_PAUSE);
    // When to look next; before that only where something changes, and not even then after a failure.
    let mut due = Instant::now();
    let mut failed = false;
    loop {
        if failed {
            sleep_until(due).await;
        } else {
            tokio::select! {
                () = changed.notified() => {}
                () = sleep_until(due) => {}
                // Its sender lives as long as this does.
                _ = leads.changed() => {}
            }
        }
        tokio::time::sleep(DEBOUNCE).await;
        failed = false;
        if !*leads.borrow() {
            passes.pause();
            due = Instant::now() + RESYNC;
            continue;
        }
        let pause = match tokio::time::timeout(PATIENCE, passes.pass()).await {
            Ok(Ok(next)) => {
                backoff.succeeded();
                match next {
                    Next::OnChange => jittered(RESYNC),
                    Next::Soon(time) => time,
                }
            }
            Ok(Err(error)) => {
                failed = true;
                let pause = backoff.failed();
                warn!(error = said::error(&error), again = ?pause, "not everything could be written");
                pause
            }
            Err(_) => {
                failed = true;
                let pause = backoff.failed();
                warn!(again = ?pause, "the API server does not answer in time");
                pause
            }
        };
        due = Instant::now() + pause;
    }
}

/// Tells systemd that the runtime turns. Never ends; a pass that hangs is cut off by its own time.
async fn ping() {
    // Where nobody asks, now and then.
    let pause = sd_notify::watchdog_enabled().map_or(RESYNC, |interval| interval / 2);
    loop {
        tokio::time::sleep(pause).await;
        tell(&[NotifyState::Watchdog]);
    }
}

/// A name that no other candidate has: the host's, and what no two processes share there.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    format!(
        "{}_{}_{:x}",
        host.trim(),
        std::process::id(),
        since.as_nanos()
    )
}

fn tell(states: &[NotifyState<'_>]) {
    // Without systemd nobody listens.
    let _ = sd_notify::notify(states);
}
