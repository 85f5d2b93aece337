//! The agent on the bus.

use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use slotd_image::ImageSource;
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::{debug, info, warn};
use zbus::object_server::SignalEmitter;
use zbus::{Connection, OwnedVariant, Variant, connection};

use super::wire::{CallError, InstallOptions, progress_to_dict};
use super::{NAME, PATH};
use crate::agent::{AgentError, AgentHandle};
use crate::error::ErrorKind;
use crate::status::UpgradeStatus;

/// The object at [`PATH`].
#[derive(Debug)]
pub struct Slotd1 {
    agent: AgentHandle,
}

impl Slotd1 {
    /// The object for this agent.
    pub fn new(agent: AgentHandle) -> Self {
        Self { agent }
    }

    /// Asks the agent once it has looked at the node, beside the bus, which goes on meanwhile: that look, devices and
    /// the record take their time.
    async fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&AgentHandle) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let agent = self.agent.clone();
        let work = move || {
            agent.await_start();
            what(&agent)
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| CallError::Bug(error.to_string()))
    }
}

#[zbus::interface(name = "io.monok8s.Slotd1", introspection_docs = false)]
impl Slotd1 {
    /// Installs an image from a URL or an absolute path; the upgrade's number.
    async fn install(
        &self,
        source: String,
        options: HashMap<String, OwnedVariant>,
    ) -> Result<u64, CallError> {
        if source == "-" {
            let message = "standard input is handed over by InstallFd";
            return Err(CallError::Reject(message.to_owned()));
        }
        let source =
            ImageSource::parse(&source).map_err(|error| CallError::Reject(error.to_string()))?;
        if let ImageSource::File(path) = &source
            && path.is_relative()
        {
            let message = format!("{}: the agent needs an absolute path", path.display());
            return Err(CallError::Reject(message));
        }
        let request = InstallOptions::from_dict(options)?.request(source)?;
        Ok(self.ask(|agent| agent.install(request)).await??)
    }

    /// Installs an image that is read from a descriptor; the upgrade's number.
    async fn install_fd(
        &self,
        image: zbus::OwnedFd,
        options: HashMap<String, OwnedVariant>,
    ) -> Result<u64, CallError> {
        let source = ImageSource::Reader {
            label: "standard input".to_owned(),
            fd: image.into(),
        };
        let request = InstallOptions::from_dict(options)?.request(source)?;
        Ok(self.ask(|agent| agent.install(request)).await??)
    }

    /// Stops the upgrade of this number.
    async fn cancel(&self, upgrade: u64) -> Result<(), CallError> {
        Ok(self.ask(move |agent| agent.cancel(upgrade)).await??)
    }

    /// Boots the staged slot on trial.
    async fn activate(&self) -> Result<(), CallError> {
        self.ask(AgentHandle::activate).await??;
        Ok(())
    }

    /// Goes back to the other slot.
    async fn rollback(&self) -> Result<(), CallError> {
        self.ask(AgentHandle::rollback).await??;
        Ok(())
    }

    /// Tells the boot loader that a slot is `good` or `bad`.
    async fn mark(&self, slot: String, state: String) -> Result<(), CallError> {
        let slot = match slot.as_str() {
            "A" | "a" => slotd_engine::Slot::A,
            "B" | "b" => slotd_engine::Slot::B,
            _ => return Err(CallError::Reject(format!("`{slot}` is no slot, A or B is"))),
        };
        let good = match state.as_str() {
            "good" => true,
            "bad" => false,
            _ => {
                return Err(CallError::Reject(format!(
                    "`{state}` is neither good nor bad"
                )));
            }
        };
        Ok(self.ask(move |agent| agent.mark(slot, good)).await??)
    }

    /// The status document, JSON.
    async fn get_status(&self) -> Result<String, CallError> {
        self.ask(|agent| serde_json::to_string(&agent.status()))
            .await?
            .map_err(|error| CallError::Bug(error.to_string()))
    }

    /// An upgrade went on.
    #[zbus(signal)]
    async fn progress(
        emitter: &SignalEmitter<'_>,
        upgrade: u64,
        details: HashMap<&str, Variant<'_>>,
    ) -> zbus::Result<()>;
}

/// How long to wait before the next try for a connection: soon after the start, where the bus is about to come up,
/// and rarely where there is none.
fn retry_pauses() -> impl Iterator<Item = Duration> {
    (0..20)
        .map(|_| Duration::from_millis(500))
        .chain((0..10).map(|_| Duration::from_secs(2)))
        .chain(std::iter::repeat(Duration::from_secs(60)))
}

/// Serves the agent on the system bus until `end`: waits for the bus where there is none yet, and connects anew when it
/// went away. The agent does not depend on it. The updates that came before the end are sent then.
pub async fn serve(
    agent: AgentHandle,
    mut updates: UnboundedReceiver<UpgradeStatus>,
    end: impl Future<Output = ()>,
) {
    let mut end = pin!(end);
    let mut pauses = retry_pauses();
    let mut last_trouble = String::new();
    loop {
        let connected = tokio::select! {
            connected = while_updates_are_dropped(connect(&agent), &mut updates) => connected,
            () = &mut end => return,
        };
        match connected {
            Ok(connection) => {
                info!(name = NAME, "on the bus");
                last_trouble.clear();
                pauses = retry_pauses();
                if tell(&connection, &mut updates, end.as_mut()).await == Told::All {
                    return;
                }
                warn!("the bus went away");
            }
            Err(error) => {
                let trouble = error.to_string();
                if trouble == last_trouble {
                    debug!(%error, "no bus");
                } else {
                    info!(%error, "no bus yet; the agent works without");
                    last_trouble = trouble;
                }
            }
        }
        let pause = pauses.next().unwrap_or(Duration::from_secs(60));
        tokio::select! {
            () = while_updates_are_dropped(tokio::time::sleep(pause), &mut updates) => {}
            () = &mut end => return,
        }
    }
}

async fn connect(agent: &AgentHandle) -> zbus::Result<Connection> {
    connection::Builder::system()
        .serve_at(PATH, Slotd1::new(agent.clone()))
        .name(NAME)
        .build()
        .await
}

/// Waits for something else; updates that come meanwhile have nobody to go to.
async fn while_updates_are_dropped<T>(
    other: impl Future<Output = T>,
    updates: &mut UnboundedReceiver<UpgradeStatus>,
) -> T {
    tokio::pin!(other);
    loop {
        tokio::select! {
            done = &mut other => return done,
            Some(_) = updates.recv() => {}
        }
    }
}

/// Why updates are not told any more.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// The end came, and with it what had to be told before.
    All,
    /// The connection is closed.
    UntilClosed,
}

/// Sends updates until the connection is closed or the end comes.
async fn tell(
    connection: &Connection,
    updates: &mut UnboundedReceiver<UpgradeStatus>,
    mut end: Pin<&mut impl Future<Output = ()>>,
) -> Told {
    loop {
        tokio::select! {
            () = connection.closed() => return Told::UntilClosed,
            Some(status) = updates.recv() => tell_one(connection, &status).await,
            () = &mut end => {
                // Whoever waits for the reboot takes an end without this word for a crash.
                while let Ok(status) = updates.try_recv() {
                    tell_one(connection, &status).await;
                }
                return Told::All;
            }
        }
    }
}

async fn tell_one(connection: &Connection, status: &UpgradeStatus) {
    if let Err(error) = emit(connection, status).await {
        debug!(%error, "a signal was not sent");
    }
}

/// Sends the `Progress` signal.
///
/// # Errors
/// When the connection does not take it.
pub async fn emit(connection: &Connection, status: &UpgradeStatus) -> zbus::Result<()> {
    let emitter = SignalEmitter::new(connection, PATH)?;
    Slotd1::progress(&emitter, status.id.unwrap_or(0), progress_to_dict(status)).await
}

impl From<CallError> for AgentError {
    fn from(error: CallError) -> Self {
        let (kind, message) = match error {
            CallError::Retry(message) => (ErrorKind::Retry, message),
            CallError::Reject(message) => (ErrorKind::Reject, message),
            CallError::Unsafe(message) => (ErrorKind::Unsafe, message),
            CallError::Configuration(message) => (ErrorKind::Configuration, message),
            CallError::Busy(message) => (ErrorKind::Busy, message),
            CallError::NotRunning(message) => (ErrorKind::NotRunning, message),
            CallError::Bug(message) => (ErrorKind::Bug, message),
        };
        Self::new(kind, message)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::StreamExt;
    use tokio::sync::mpsc::unbounded_channel;
    use zbus::MessageStream;

    use super::{Told, tell};
    use crate::dbus::pair::connected;
    use crate::status::UpgradeStatus;

    #[tokio::test]
    async fn what_came_before_the_end_is_told() {
        // Which of several things that are there is taken first is left to chance.
        for _ in 0..16 {
            let (server, client) = connected(|server| server).await;
            let mut heard = MessageStream::from(client);
            let (sender, mut updates) = unbounded_channel();
            for step in ["arm", "reboot"] {
                let status = UpgradeStatus {
                    step: step.to_owned(),
                    ..UpgradeStatus::default()
                };
                sender.send(status).unwrap();
            }
            let end = pin!(async {});
            assert_eq!(tell(&server, &mut updates, end).await, Told::All);
            server.close().await.unwrap();
            let words = async {
                let mut words = String::new();
                while let Some(Ok(message)) = heard.next().await {
                    words.push_str(&format!("{:?}\n", message.body()));
                }
                words
            };
            let words = tokio::time::timeout(Duration::from_secs(60), words)
                .await
                .unwrap();
            assert_eq!(words.lines().count(), 2, "{words}");
        }
    }
}
