//! The fleet's controller in a process of its own. The lab starts itself for it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use slotd::config::ControllerSettings;
use slotd::controller::{Connection, ControllerAccess, Surroundings};

use crate::cluster::Service;
use crate::lab::Lab;
use crate::process;

/// The command by which the lab's program becomes a controller.
pub const COMMAND: &str = "stand-in-controller";

/// The user that the manifests give the controller's rights to.
pub const USER: &str = "slotd-controller";

/// Lays out what a pod has of its service account, in a mount namespace of its own, and goes on as the program.
const POD: &str = "mount -t tmpfs pod /run
account=/var/run/secrets/kubernetes.io/serviceaccount
mkdir -p $account
cp \"$2\"/* $account/
export KUBERNETES_SERVICE_HOST=$0 KUBERNETES_SERVICE_PORT=$1
shift 2
exec \"$@\"";

/// Lays out what systemd does for the unit, in a mount namespace of its own, and goes on as the program.
const UNIT: &str = "mount -t tmpfs etc /etc
mkdir /etc/slotd
mount --bind \"$0\" /etc/slotd
export CREDENTIALS_DIRECTORY=\"$1\"
shift
exec \"$@\"";

/// Which cluster to control.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The controller's kubeconfig; without it, what a pod or a unit finds
    kubeconfig: Option<PathBuf>,
}

/// Runs the controller until it is told to stop, as `slotd controller` does.
pub fn main(arguments: &Arguments) -> ExitCode {
    let run = || -> Result<()> {
        slotd::journal::start("info")?;
        let settings = ControllerSettings {
            access: ControllerAccess::default(),
            asked_for: false,
            namespace: slotd_crds::names::DEFAULT_NAMESPACE.to_owned(),
        };
        let found = Connection::configured(&settings, &Surroundings::here());
        slotd::controller::run(&match &arguments.kubeconfig {
            Some(path) => found.by(Some(path.clone())),
            None => found,
        })
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A running controller with the credential that the manifests are made for. Told to stop when it goes.
#[derive(Debug)]
pub struct Controller {
    service: Option<Service>,
}

impl Controller {
    /// Starts one; its log has this name.
    pub fn start(lab: &Lab, name: &'static str) -> Result<Self> {
        Self::start_with(lab, name, &process::this_program(), &[COMMAND])
    }

    /// Starts one as a host does: by the `slotd` program, with its own command line.
    pub fn start_program(lab: &Lab, name: &'static str, slotd: &Path) -> Result<Self> {
        Self::start_with(lab, name, slotd, &["controller", "--kubeconfig"])
    }

    /// Starts one with this kubeconfig.
    pub fn start_by(lab: &Lab, name: &'static str, kubeconfig: &Path) -> Result<Self> {
        let arguments = [COMMAND.as_ref(), kubeconfig.as_os_str()];
        let service = Service::start(name, &process::this_program(), arguments, lab.folder())?;
        Ok(Self {
            service: Some(service),
        })
    }

    /// Starts one with what a pod finds: a token of its service account, and where the API server is.
    pub fn start_in_pod(lab: &Lab, name: &'static str, token: &str) -> Result<Self> {
        let plane = lab.control_plane()?;
        let folder = lab.folder().join("service-account");
        fs::create_dir_all(&folder).context("making a folder")?;
        fs::write(folder.join("token"), token).context("writing a token")?;
        fs::write(folder.join("namespace"), "kube-system").context("writing a namespace")?;
        fs::copy(plane.folder().join("ca.crt"), folder.join("ca.crt"))
            .context("copying a certificate")?;
        let address = plane.url().trim_start_matches("https://");
        let (host, port) = address.rsplit_once(':').context("an address")?;
        let program = process::this_program();
        let arguments: [OsString; 9] = [
            "--mount".into(),
            "sh".into(),
            "-euc".into(),
            POD.into(),
            host.into(),
            port.into(),
            folder.into(),
            program.into(),
            COMMAND.into(),
        ];
        let service = Service::start(name, Path::new("unshare"), arguments, lab.folder())?;
        Ok(Self {
            service: Some(service),
        })
    }

    /// Starts one as its unit does: `etc` is its `/etc/slotd`, and it is handed over a copy of the kubeconfig there.
    pub fn start_as_unit(lab: &Lab, name: &'static str, etc: &Path) -> Result<Self> {
        let credentials = lab.folder().join(format!("{name}-credentials"));
        fs::create_dir_all(&credentials).context("making a folder")?;
        let kubeconfig = etc.join("controller.kubeconfig");
        fs::copy(kubeconfig, credentials.join("kubeconfig")).context("copying a kubeconfig")?;
        let arguments: [OsString; 8] = [
            "--mount".into(),
            "sh".into(),
            "-euc".into(),
            UNIT.into(),
            etc.into(),
            credentials.into(),
            process::this_program().into(),
            COMMAND.into(),
        ];
        let service = Service::start(name, Path::new("unshare"), arguments, lab.folder())?;
        Ok(Self {
            service: Some(service),
        })
    }

    fn start_with(lab: &Lab, name: &'static str, program: &Path, before: &[&str]) -> Result<Self> {
        let user = lab.control_plane()?.user(USER, None)?;
        let mut arguments: Vec<OsString> = before.iter().map(OsString::from).collect();
        arguments.push(user.kubeconfig().into());
        let service = Service::start(name, program, arguments, lab.folder())?;
        Ok(Self {
            service: Some(service),
        })
    }

    /// Its process, until it is killed.
    pub fn process(&self) -> Option<u32> {
        self.service.as_ref().map(Service::id)
    }

    /// Whether it ended well by itself; an error when it ended otherwise.
    pub fn ended_well(&mut self) -> Result<bool> {
        let service = self.service.as_mut().context("it was killed")?;
        service.ended_well()
    }

    /// Kills it; nothing is written any more, and nobody is told.
    pub fn kill(&mut self) -> Result<()> {
        self.service.take().map_or(Ok(()), Service::kill)
    }
}
