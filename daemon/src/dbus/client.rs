//! The agent, called over the bus.

use std::os::fd::OwnedFd;
use std::time::Duration;

use zbus::fdo::DBusProxy;
use zbus::names::BusName;
use zbus::{Connection, DBusError, connection};

use super::NAME;
use super::wire::{InstallOptions, kind_of_name};
use crate::agent::{AgentLife, RunFiles};
use crate::error::ErrorKind;
use crate::status::StatusDocument;

/// How long the agent may take for an answer.
const ANSWER: Duration = Duration::from_secs(60);

/// How long an agent that lives may take to come onto the bus, on a machine that starts slowly, too.
const START: Duration = Duration::from_secs(30);

/// Between two looks for it.
const LOOK: Duration = Duration::from_millis(100);

/// The interface as zbus generates it from these signatures.
mod proxy {
    #![allow(
        missing_docs,
        reason = "generated; the methods are documented where they are served"
    )]

    use std::collections::HashMap;

    use zbus::{OwnedVariant, Variant};

    #[zbus::proxy(
        interface = "io.monok8s.Slotd1",
        default_service = "io.monok8s.Slotd1",
        default_path = "/io/monok8s/Slotd1"
    )]
    pub trait Slotd1 {
        fn install(&self, source: &str, options: HashMap<&str, Variant<'_>>) -> zbus::Result<u64>;
        fn install_fd(
            &self,
            image: zbus::Fd<'_>,
            options: HashMap<&str, Variant<'_>>,
        ) -> zbus::Result<u64>;
        fn cancel(&self, upgrade: u64) -> zbus::Result<()>;
        fn activate(&self) -> zbus::Result<()>;
        fn rollback(&self) -> zbus::Result<()>;
        fn mark(&self, slot: &str, state: &str) -> zbus::Result<()>;
        fn get_status(&self) -> zbus::Result<String>;

        #[zbus(signal)]
        fn progress(
            &self,
            upgrade: u64,
            details: HashMap<String, OwnedVariant>,
        ) -> zbus::Result<()>;
    }
}

pub use proxy::{ProgressStream, Slotd1Proxy};

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ClientError {
    kind: ErrorKind,
    message: String,
    source: Option<zbus::Error>,
}

impl ClientError {
    /// The kind, as the agent said it where it answered.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    fn new(kind: ErrorKind, message: impl Into<String>, source: zbus::Error) -> Self {
        Self {
            kind,
            message: message.into(),
            source: Some(source),
        }
    }
}

impl From<zbus::Error> for ClientError {
    fn from(error: zbus::Error) -> Self {
        let (name, said) = match &error {
            zbus::Error::MethodError(name, said, _) => (name.to_string(), said.clone()),
            zbus::Error::FDO(answer) => (
                answer.name().to_string(),
                answer.description().map(str::to_owned),
            ),
            _ => {
                let message = format!("the connection to the bus failed: {error}");
                return Self::new(ErrorKind::NotRunning, message, error);
            }
        };
        let said = said.unwrap_or_default();
        if let Some(kind) = kind_of_name(&name) {
            return Self::new(kind, said, error);
        }
        match name.strip_prefix("org.freedesktop.DBus.Error.") {
            Some("ServiceUnknown" | "NameHasNoOwner" | "NoReply" | "Disconnected") => Self::new(
                ErrorKind::NotRunning,
                "the daemon is not running (slotd.service)",
                error,
            ),
            Some("AccessDenied") => Self::new(
                ErrorKind::Reject,
                "only root may ask the daemon for that",
                error,
            ),
            _ => Self::new(ErrorKind::Bug, format!("{name}: {said}"), error),
        }
    }
}

/// A connection to the running agent.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    proxy: Slotd1Proxy<'static>,
}

impl Client {
    /// Connects to the system bus, where the agent may or may not be. One that lives and is not on the bus yet is
    /// waited for, [`START`] at most.
    ///
    /// # Errors
    /// [`ErrorKind::NotRunning`] when there is no bus.
    pub async fn connect() -> Result<Self, ClientError> {
        let connection = connection::Builder::system()
            .method_timeout(ANSWER)
            .build()
            .await
            .map_err(|error| {
                let message = format!("the daemon is not running, or cannot be reached: {error}");
                ClientError::new(ErrorKind::NotRunning, message, error)
            })?;
        let client = Self::over(connection).await?;
        let bus = DBusProxy::new(&client.connection).await?;
        let mark = RunFiles::default().agent();
        until_on_the_bus(
            async || match BusName::try_from(NAME) {
                Ok(name) => bus.name_has_owner(name).await.unwrap_or(true),
                Err(_) => true,
            },
            // Its mark is root's; whoever cannot read it does not wait.
            || AgentLife::is_there(&mark).unwrap_or(false),
            START,
        )
        .await;
        Ok(client)
    }

    /// The agent at the other end of this connection.
    ///
    /// # Errors
    /// When the connection is closed.
    pub async fn over(connection: Connection) -> Result<Self, ClientError> {
        let proxy = Slotd1Proxy::new(&connection).await?;
        Ok(Self { connection, proxy })
    }

    /// The agent's own methods and signals.
    pub fn proxy(&self) -> &Slotd1Proxy<'static> {
        &self.proxy
    }

    /// The connection, to see its end.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Asks for an image by URL or absolute path.
    ///
    /// # Errors
    /// What the agent answers.
    pub async fn install(
        &self,
        source: &str,
        options: &InstallOptions,
    ) -> Result<u64, ClientError> {
        Ok(self.proxy.install(source, options.to_dict()).await?)
    }

    /// Asks for an image that is read from a descriptor.
    ///
    /// # Errors
    /// What the agent answers.
    pub async fn install_fd(
        &self,
        image: OwnedFd,
        options: &InstallOptions,
    ) -> Result<u64, ClientError> {
        Ok(self
            .proxy
            .install_fd(image.into(), options.to_dict())
            .await?)
    }

    /// The agent's status.
    ///
    /// # Errors
    /// What the agent answers, or that it is a document that cannot be read.
    pub async fn status(&self) -> Result<StatusDocument, ClientError> {
        let text = self.proxy.get_status().await?;
        serde_json::from_str(&text).map_err(|error| ClientError {
            kind: ErrorKind::Bug,
            message: format!("the daemon's status cannot be read: {error}"),
            source: None,
        })
    }
}

/// Waits while an agent lives that is not on the bus, no longer than `limit`.
async fn until_on_the_bus(
    mut is_there: impl AsyncFnMut() -> bool,
    lives: impl Fn() -> bool,
    limit: Duration,
) {
    let patience = tokio::time::timeout(limit, async {
        while !is_there().await && lives() {
            tokio::time::sleep(LOOK).await;
        }
    });
    // An agent that takes longer answers for itself: it does not.
    let _ = patience.await;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::until_on_the_bus;

    #[test]
    fn only_an_agent_that_lives_is_waited_for_and_not_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let long = Duration::from_secs(60);
        for (lives, there_after, limit, looks_at_least, looks_at_most) in [
            (true, 3, long, 3, 3),
            (false, 3, long, 1, 1),
            (true, 1, long, 1, 1),
            (true, u32::MAX, Duration::from_millis(1), 1, 2),
        ] {
            let looks = Cell::new(0);
            let is_there = async || {
                looks.set(looks.get() + 1);
                looks.get() >= there_after
            };
            runtime.block_on(until_on_the_bus(is_there, || lives, limit));
            assert!((looks_at_least..=looks_at_most).contains(&looks.get()));
        }
    }
}
