//! What speaks with the API server all the time: a thread with a runtime of its own.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::oneshot;

/// A task on a thread of its own; it ends when this goes.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts `work` with a client of this kubeconfig.
    pub(crate) fn start<Work>(
        name: &str,
        kubeconfig: &Path,
        work: impl FnOnce(Client) -> Work + Send + 'static,
    ) -> Result<Self>
    where
        Work: Future<Output = ()>,
    {
        let (stop, stopped) = oneshot::channel();
        let (started, start) = std::sync::mpsc::channel();
        let kubeconfig = kubeconfig.to_owned();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("starting a runtime");
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error))),
            };
            runtime.block_on(async {
                match connect(kubeconfig).await {
                    Ok(client) => {
                        // Who started it waits for this word.
                        let _ = started.send(Ok(()));
                        tokio::select! {
                            () = work(client) => {}
                            // Also when the sender is gone.
                            _ = stopped => {}
                        }
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .with_context(|| format!("starting the thread {name}"))?;
        match start.recv() {
            Ok(result) => result?,
            Err(_) => bail!("the thread {name} died at its start"),
        }
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("lab: a thread that speaks with the API server had panicked");
        }
    }
}

/// A client of this kubeconfig.
pub(crate) async fn connect(kubeconfig: PathBuf) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(&kubeconfig)
        .with_context(|| format!("reading {}", kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("a kubeconfig of the lab")?;
    Client::try_from(config).context("making a client")
}
