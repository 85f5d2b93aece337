//! The fleet's controller in a process of its own. The lab starts itself for it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use slotd::controller::Connection;

use crate::cluster::Service;
use crate::lab::Lab;
use crate::process;

/// The command by which the lab's program becomes a controller.
pub const COMMAND: &str = "stand-in-controller";

/// The user that the manifests give the controller's rights to.
const USER: &str = "slotd-controller";

/// Which cluster to control.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The controller's kubeconfig
    kubeconfig: PathBuf,
}

/// Runs the controller until it is told to stop, as `slotd controller` does.
pub fn main(arguments: &Arguments) -> ExitCode {
    let run = || -> Result<()> {
        slotd::journal::start("info")?;
        slotd::controller::run(&Connection {
            kubeconfig: Some(arguments.kubeconfig.clone()),
            namespace: slotd_crds::names::DEFAULT_NAMESPACE.to_owned(),
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

    /// Kills it; nothing is written any more, and nobody is told.
    pub fn kill(&mut self) -> Result<()> {
        self.service.take().map_or(Ok(()), Service::kill)
    }
}
