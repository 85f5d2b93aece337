//! Starting and ending a control plane.

use std::fs::{self, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::api_server::{ApiServer, Outage};
use super::audit::AuditLog;
use super::certificates::{Authority, generate_key};
use super::client::{Client, Identities};
use super::pause::Paused;
use super::programs::{Program, Programs};
use super::service::Service;
use crate::artifacts::repository;

/// How long each program may take to be ready; many times what it takes on an idle machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// Requests at the least detail: who did what to which object, once each.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";

const AUDIT_POLICY_FILE: &str = "audit-policy.yaml";

const AUDIT_LOG: &str = "audit.log";

/// How a control plane is set up.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Whether the API server writes what was asked of it to `audit.log`.
    pub audit: bool,
}

/// A running control plane. Ends when it goes, and with the thread that started it; its logs stay.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order. An API server whose etcd is gone does not end.
    scheduler: Service,
    controller_manager: Service,
    api_server: ApiServer,
    etcd: Service,
    _data: TempDir,
    pub(super) identities: Identities,
    admin: Client,
    elapsed: Duration,
}

impl ControlPlane {
    /// Starts a control plane with its own ports on loopback and waits until it is ready: the API server answers, and the
    /// controller manager has made the first service account. What it keeps, its kubeconfigs and logs lie in `folder`.
    pub fn start(folder: &Path, programs: &Programs, options: Options) -> Result<Self> {
        let began = Instant::now();
        let folder = std::path::absolute(folder).context("finding the control plane's folder")?;
        // Keys lie there.
        fs::create_dir_all(&folder)
            .and_then(|()| fs::set_permissions(&folder, Permissions::from_mode(0o700)))
            .with_context(|| format!("creating {}", folder.display()))?;
        let data = TempDir::with_prefix_in("data-", &folder).context("making a data folder")?;
        let [etcd_clients, etcd_peers, port] = free_ports()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let identities = Identities {
            authority: Authority::new()?,
            url: format!("https://{address}"),
            kubectl: programs.path(Program::Kubectl)?.to_owned(),
            folder,
        };
        let folder = &identities.folder;
        write_keys(folder, &identities.authority)?;
        let admin = identities.client("admin", Some("system:masters"))?;
        let manager = identities.client("system:kube-controller-manager", None)?;
        let scheduler = identities.client("system:kube-scheduler", None)?;

        let mut etcd = Service::start(
            "etcd",
            programs.path(Program::Etcd)?,
            etcd_arguments(data.path(), etcd_clients, etcd_peers),
            folder,
        )?;
        etcd.wait_until(PATIENCE, || etcd_healthy(etcd_clients))?;
        let api_server = ApiServer::start(
            programs.path(Program::ApiServer)?.to_owned(),
            api_server_arguments(etcd_clients, port, options),
            port,
            folder.clone(),
            admin.clone(),
        )?;
        let scheduler = Service::start(
            "kube-scheduler",
            programs.path(Program::Scheduler)?,
            scheduler_arguments(scheduler.kubeconfig()),
            folder,
        )?;
        let mut controller_manager = Service::start(
            "kube-controller-manager",
            programs.path(Program::ControllerManager)?,
            controller_manager_arguments(manager.kubeconfig()),
            folder,
        )?;
        controller_manager.wait_until(PATIENCE, || {
            admin
                .run(&["get", "serviceaccount", "default", "--namespace", "default"])
                .map(drop)
        })?;
        Ok(Self {
            scheduler,
            controller_manager,
            api_server,
            etcd,
            _data: data,
            identities,
            admin,
            elapsed: began.elapsed(),
        })
    }

    /// Where the logs are, and the kubeconfigs.
    pub fn folder(&self) -> &Path {
        &self.identities.folder
    }

    /// What it is reached by from this machine.
    pub fn url(&self) -> &str {
        &self.identities.url
    }

    /// Time from start to ready.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// A member of `system:masters`, who may do everything.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// What the kubelet of this node may do. No Node object is made.
    pub fn node(&self, name: &str) -> Result<Client> {
        self.user(&format!("system:node:{name}"), Some("system:nodes"))
    }

    /// A user with a client certificate, in one group beside `system:authenticated`.
    pub fn user(&self, name: &str, group: Option<&str>) -> Result<Client> {
        self.identities.client(name, group)
    }

    /// What the kubelet of a node in a virtual machine reads, which reaches this machine's loopback by another address.
    pub fn guest_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<String> {
        self.identities.guest_kubeconfig(user, group)
    }

    /// The certificate of the authority that signs for everybody here, PEM.
    pub fn authority(&self) -> String {
        self.identities.authority.certificate()
    }

    /// Applies slotd's manifests, which may be there already, and waits until its kinds are served.
    pub fn install(&self) -> Result<()> {
        const KINDS: [&str; 2] = [
            "crd/osupgrades.monok8s.io",
            "crd/osupgradeprogresses.monok8s.io",
        ];
        self.admin
            .apply_folder(&repository().join("crds/manifests"))?;
        let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
        self.admin.run(&[&wait[..], &KINDS].concat()).map(drop)
    }

    /// An error when one of the programs has ended.
    pub fn alive(&mut self) -> Result<()> {
        self.etcd.alive()?;
        self.api_server.alive()?;
        self.controller_manager.alive()?;
        self.scheduler.alive()
    }

    /// Kills the API server: what was asked of it and not answered breaks off, and nobody listens. It comes back, at the same port
    /// and with the same data, when the outage ends or goes.
    pub fn stop_api_server(&self) -> Result<Outage<'_>> {
        self.api_server.kill()
    }

    /// Stops etcd in the midst of what it does: the API server answers that it has no answer, until this goes.
    pub fn pause_etcd(&self) -> Result<Paused> {
        Paused::process(self.etcd.id())
    }

    /// What is asked of the API server from now on, where [`Options::audit`] was chosen.
    pub fn audit_log(&self) -> Result<AuditLog> {
        AuditLog::from_now(self.folder().join(AUDIT_LOG))
    }
}

const CA: &str = "ca.crt";
/// The authorities whose clients the API server knows. It notices when they change.
pub(super) const CLIENTS_CA: &str = "clients-ca.crt";
const SERVER_CERTIFICATE: &str = "server.crt";
const SERVER_KEY: &str = "server.key";
const TOKENS_KEY: &str = "service-accounts.key";
const TOKENS_PUBLIC_KEY: &str = "service-accounts.pub";

/// Writes what the programs read: the authority's certificate, the server's own, the keys of service accounts.
fn write_keys(folder: &Path, authority: &Authority) -> Result<()> {
    let server = authority.server()?;
    let tokens = generate_key()?;
    let files = [
        (CA, authority.certificate()),
        (CLIENTS_CA, authority.certificate()),
        (SERVER_CERTIFICATE, server.certificate),
        (SERVER_KEY, server.key),
        (TOKENS_KEY, tokens.serialize_pem()),
        (TOKENS_PUBLIC_KEY, tokens.public_key_pem()),
        (AUDIT_POLICY_FILE, AUDIT_POLICY.to_owned()),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn etcd_arguments(data: &Path, clients: u16, peers: u16) -> Vec<String> {
    let clients = format!("http://{}:{clients}", Ipv4Addr::LOCALHOST);
    let peers = format!("http://{}:{peers}", Ipv4Addr::LOCALHOST);
    vec![
        format!("--data-dir={}", data.display()),
        // What it keeps ends with it.
        "--unsafe-no-fsync".to_owned(),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
    ]
}

/// File names are relative to the folder that it is started in.
fn api_server_arguments(etcd: u16, port: u16, options: Options) -> Vec<String> {
    let mut arguments = vec![
        format!("--etcd-servers=http://{}:{etcd}", Ipv4Addr::LOCALHOST),
        format!("--bind-address={}", Ipv4Addr::LOCALHOST),
        format!("--advertise-address={}", Ipv4Addr::LOCALHOST),
        format!("--secure-port={port}"),
        // Without this it refuses to advertise loopback.
        "--endpoint-reconciler-type=none".to_owned(),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        format!("--tls-cert-file={SERVER_CERTIFICATE}"),
        format!("--tls-private-key-file={SERVER_KEY}"),
        format!("--client-ca-file={CLIENTS_CA}"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={TOKENS_PUBLIC_KEY}"),
        format!("--service-account-signing-key-file={TOKENS_KEY}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
    ];
    if options.audit {
        arguments.push(format!("--audit-policy-file={AUDIT_POLICY_FILE}"));
        arguments.push(format!("--audit-log-path={AUDIT_LOG}"));
        // Never turned over: whoever reads goes on where they were.
        arguments.push("--audit-log-maxsize=100000".to_owned());
    }
    arguments
}

fn controller_manager_arguments(kubeconfig: &Path) -> Vec<String> {
    let kubeconfig = kubeconfig.display();
    vec![
        format!("--kubeconfig={kubeconfig}"),
        // Its own port serves metrics, which nobody asks for here.
        "--secure-port=0".to_owned(),
        "--leader-elect=false".to_owned(),
        "--use-service-account-credentials=true".to_owned(),
        // Its controllers' credentials are made one by one at the start, which its own limit of 20 requests a second draws out.
        "--kube-api-qps=200".to_owned(),
        "--kube-api-burst=400".to_owned(),
        format!("--service-account-private-key-file={TOKENS_KEY}"),
        format!("--root-ca-file={CA}"),
        // A node that died shows it after 20 s instead of 50.
        "--node-monitor-period=2s".to_owned(),
        "--node-monitor-grace-period=20s".to_owned(),
    ]
}

fn scheduler_arguments(kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        // As for the controller manager.
        "--secure-port=0".to_owned(),
        "--leader-elect=false".to_owned(),
    ]
}

/// Asks etcd by its plain HTTP port.
fn etcd_healthy(port: u16) -> Result<()> {
    let timeout = Some(Duration::from_secs(2));
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting")?;
    stream.set_read_timeout(timeout)?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer.contains(r#""health":"true""#),
        "/health says {answer}"
    );
    Ok(())
}

/// Ports that nobody listens on. They lie below the range that the kernel takes ports of outgoing connections from, so that
/// none is lost to one before it is listened on.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    const FIRST: u16 = 20_000;
    const LAST: u16 = 31_999;
    let start = RandomState::new().hash_one(N) % u64::from(LAST - FIRST);
    let mut held = Vec::new();
    for port in (FIRST..=LAST)
        .cycle()
        .skip(usize::try_from(start)?)
        .take(1000)
    {
        if held.len() == N {
            break;
        }
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    }
    let ports = held
        .iter()
        .map(|listener| listener.local_addr().map(|address| address.port()))
        .collect::<std::io::Result<Vec<u16>>>()
        .context("finding free ports")?;
    ports
        .try_into()
        .map_err(|_| anyhow::anyhow!("no free ports on loopback"))
}
