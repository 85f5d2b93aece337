//! The API server, which can be away for a while.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail, ensure};

use super::client::Client;
use super::control_plane::PATIENCE;
use super::knocks::Knocks;
use super::service::Service;

/// How it is started, again and again at the same port and on the same data, and whether it runs.
#[derive(Debug)]
pub(super) struct ApiServer {
    program: PathBuf,
    arguments: Vec<String>,
    port: u16,
    folder: PathBuf,
    admin: Client,
    service: Mutex<Option<Service>>,
}

impl ApiServer {
    /// Starts it, and waits until it is ready.
    pub(super) fn start(
        program: PathBuf,
        arguments: Vec<String>,
        port: u16,
        folder: PathBuf,
        admin: Client,
    ) -> Result<Self> {
        let server = Self {
            program,
            arguments,
            port,
            folder,
            admin,
            service: Mutex::default(),
        };
        server.ensure_started()?;
        Ok(server)
    }

    /// An error when it has ended by itself.
    pub(super) fn alive(&self) -> Result<()> {
        self.service().as_mut().map_or(Ok(()), Service::alive)
    }

    /// Kills it: asked to end, it would wait for those who watch. It is back when the outage is over.
    pub(super) fn kill(&self) -> Result<Outage<'_>> {
        let Some(service) = self.service().take() else {
            bail!("the API server is away already");
        };
        service.kill()?;
        Ok(Outage { server: self })
    }

    fn ensure_started(&self) -> Result<()> {
        let mut running = self.service();
        if running.is_some() {
            return Ok(());
        }
        let mut service = Service::start(
            "kube-apiserver",
            &self.program,
            &self.arguments,
            &self.folder,
        )?;
        service.wait_until(PATIENCE, || {
            let answer = self.admin.run(&["get", "--raw", "/readyz"])?;
            ensure!(answer == "ok", "/readyz says {answer}");
            Ok(())
        })?;
        *running = Some(service);
        Ok(())
    }

    fn service(&self) -> MutexGuard<'_, Option<Service>> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The API server is away. It comes back when this ends or goes, and then dies with the thread that brought it back.
#[derive(Debug)]
pub struct Outage<'a> {
    server: &'a ApiServer,
}

impl Outage<'_> {
    /// Counts from now on what these processes ask in vain; it has to go before the outage ends.
    pub fn knocks(&self, processes: &[u32]) -> Result<Knocks> {
        Knocks::listen(self.server.port, processes)
    }

    /// Starts the API server again, and waits until it is ready.
    pub fn end(self) -> Result<()> {
        self.server.ensure_started()
    }
}

impl Drop for Outage<'_> {
    fn drop(&mut self) {
        // After `end` nothing is left to do.
        if let Err(error) = self.server.ensure_started() {
            eprintln!("lab: the API server does not come back: {error:#}");
        }
    }
}
