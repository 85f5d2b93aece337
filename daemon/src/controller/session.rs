//! The controller's way to the API server, and its credential, which may be renewed while the controller runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tracing::{info, warn};

use super::election::LONGEST_PAUSE;
use crate::backoff::jittered;
use crate::credential::Material;
use crate::error::causes;
use crate::pace;

/// Between two looks at whether the credential was renewed.
const LOOK: Duration = Duration::from_secs(5);
/// How long it may take until a connection stands.
const CONNECTING: Duration = Duration::from_secs(10);

/// The clients, and what they were made of.
pub(super) struct Session {
    client: Client,
    lease_client: Client,
    server: String,
    /// The kubeconfig and what it held; none for a service account, whose token is read anew by the client itself.
    origin: Option<(PathBuf, Material)>,
}

impl Session {
    /// By a kubeconfig, or by the service account of the pod that this runs in.
    ///
    /// # Errors
    /// When the cluster's address or the credential cannot be read.
    pub(super) async fn open(kubeconfig: Option<&Path>) -> anyhow::Result<Self> {
        let (mut config, origin) = match kubeconfig {
            Some(path) => {
                let material = Material::read(path)?;
                (from_file(path).await?, Some((path.to_owned(), material)))
            }
            None => {
                let config =
                    Config::incluster().context("cannot use the service account of a pod")?;
                (config, None)
            }
        };
        config.connect_timeout = Some(CONNECTING);
        let server = config.cluster_url.to_string();
        let unusable = "cannot use the credential";
        let lease_client = pace::client_within(config.clone(), LONGEST_PAUSE).context(unusable)?;
        let client = pace::client(config).context(unusable)?;
        Ok(Self {
            client,
            lease_client,
            server,
            origin,
        })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The client for the Lease: what the passes are told to wait for is not to cost the lead.
    pub(super) fn lease_client(&self) -> Client {
        self.lease_client.clone()
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Waits until there is another credential that can be used; one that cannot is being written, or a mistake, and the one in
    /// use goes on.
    pub(super) async fn renewed(&self) -> Self {
        self.renewed_at(LOOK).await
    }

    /// The same with another time between two looks.
    async fn renewed_at(&self, look: Duration) -> Self {
        let Some((path, used)) = &self.origin else {
            return std::future::pending().await;
        };
        let mut unusable = None;
        loop {
            tokio::time::sleep(jittered(look)).await;
            let Ok(material) = Material::read(path) else {
                continue;
            };
            if material == *used || unusable.as_ref() == Some(&material) {
                continue;
            }
            match Self::open(Some(path)).await {
                Ok(session) => {
                    info!("the credential was renewed");
                    return session;
                }
                Err(error) => {
                    let error = causes(error.as_ref());
                    warn!(error, "there is another credential, which cannot be used");
                    unusable = Some(material);
                }
            }
        }
    }
}

async fn from_file(path: &Path) -> anyhow::Result<Config> {
    let kubeconfig =
        Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("cannot use {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::Path;
    use std::time::Duration;

    use http::Request;
    use kube::Client;

    use super::Session;

    fn kubeconfig(server: &str) -> String {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{{"name": "c", "cluster": {{"server": "{server}"}}}}],
            "users": [{{"name": "u", "user": {{"username": "u", "password": "p"}}}}],
            "contexts": [{{"name": "c", "context": {{"cluster": "c", "user": "u"}}}}]}}"#
        )
    }

    const LOOK: Duration = Duration::from_millis(10);

    /// Whether another credential was found after so many looks, and where it leads.
    async fn renewed(session: &Session, looks: u32) -> Option<String> {
        let renewed = tokio::time::timeout(LOOK * looks, session.renewed_at(LOOK));
        renewed
            .await
            .ok()
            .map(|session| session.server().to_owned())
    }

    #[tokio::test]
    async fn another_credential_is_used_as_soon_as_it_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("controller.kubeconfig");
        let write = |path: &Path, text: &str| fs::write(path, text).unwrap();
        write(&path, &kubeconfig("https://one.example"));
        let session = Session::open(Some(&path)).await.unwrap();
        assert_eq!(session.server(), "https://one.example/");
        assert_eq!(renewed(&session, 10).await, None);
        // Being written, gone, or a mistake: the one in use goes on.
        write(&path, &kubeconfig("https://two.example")[..100]);
        assert_eq!(renewed(&session, 10).await, None);
        write(&path, "{}");
        assert_eq!(renewed(&session, 10).await, None);
        fs::remove_file(&path).unwrap();
        assert_eq!(renewed(&session, 10).await, None);
        write(&path, &kubeconfig("https://two.example"));
        let server = renewed(&session, 3000).await;
        assert_eq!(server.as_deref(), Some("https://two.example/"));
    }

    /// A server that is always overloaded.
    fn busy_server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let _ = connection.read(&mut [0; 8192]).unwrap();
                let head = "429 Too Many Requests\r\nretry-after: 60";
                write!(
                    connection,
                    "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
                )
                .unwrap();
            }
        });
        server
    }

    async fn ask(client: &Client) {
        let request = Request::get("/x").body(Vec::new()).unwrap();
        client.request_text(request).await.unwrap_err();
    }

    #[tokio::test]
    async fn the_lease_waits_neither_for_the_pause_of_the_passes_nor_for_a_long_one_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("controller.kubeconfig");
        fs::write(&path, kubeconfig(&busy_server())).unwrap();
        let session = Session::open(Some(&path)).await.unwrap();
        ask(&session.client()).await;
        let lease = session.lease_client();
        let twice = async {
            ask(&lease).await;
            ask(&lease).await;
        };
        let in_time = tokio::time::timeout(Duration::from_secs(9), twice).await;
        assert!(in_time.is_ok());
    }
}
