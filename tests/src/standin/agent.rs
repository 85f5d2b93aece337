//! The agent's process of a stand-in: slotd's own service on a machine that is a folder. The lab starts itself for it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slotd::agent::{AgentLife, Machine};
use slotd::cluster::ClusterAccess;
use slotd::node::NodeSettings;
use slotd::service::{node_settings, run_on};
use slotd_bootctl::System;
use slotd_engine::{ErrorKind, Failure, Verdict};
use slotd_image::Cancel;

use super::hardware::run_files;
use super::health::{Health, HealthFile};
use crate::process;

/// Between two looks at checks that come to no end.
const LOOK: Duration = Duration::from_millis(50);

/// Where the kubelet's credential lies on a node, below the stand-in's root.
pub(super) const KUBECONFIG: &str = "etc/kubernetes/kubelet.conf";

/// The command by which the lab's program becomes the agent of a stand-in.
pub const COMMAND: &str = "stand-in-agent";

/// Whose agent to be.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The stand-in's folder
    root: PathBuf,
}

/// How an agent's process is started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Launch<'a> {
    /// The stand-in's folder.
    pub(super) root: &'a Path,
    /// The address of the bus, where nobody needs to listen.
    pub(super) bus: &'a str,
    /// The lab's program; without it, this very one.
    pub(super) program: Option<&'a Path>,
    /// Where its log goes, behind what is there.
    pub(super) log: &'a Path,
    /// The command under which it runs, if under any.
    pub(super) under: &'a [String],
}

impl Launch<'_> {
    /// Starts it, as the head of a process group. It is killed when the thread that does so ends.
    pub(super) fn start(&self) -> Result<Child> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log)
            .with_context(|| format!("opening {}", self.log.display()))?;
        let errors = log.try_clone().context("sharing a log")?;
        let mut command = Command::new("setpriv");
        command.args(DIES_WITH_ITS_PARENT);
        if !self.under.is_empty() {
            command
                .args(self.under)
                .arg("setpriv")
                .args(DIES_WITH_ITS_PARENT);
        }
        command
            .arg(
                self.program
                    .map_or_else(process::this_program, Path::to_owned),
            )
            .arg(COMMAND)
            .arg(self.root)
            .env("DBUS_SYSTEM_BUS_ADDRESS", self.bus)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("JOURNAL_STREAM")
            .current_dir(self.root)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .context("starting an agent through setpriv")
    }
}

/// `setpriv`'s options for that.
const DIES_WITH_ITS_PARENT: [&str; 2] = ["--pdeathsig", "KILL"];

/// Runs the agent until it is told to stop, as `slotd agent` does. All that it is to know stands in the configuration below the
/// folder, as it would below `/` on a machine. Without a kubelet's credential there it belongs to no cluster.
pub fn main(arguments: &Arguments) -> ExitCode {
    match run(&arguments.root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path) -> Result<()> {
    slotd::journal::start("info")?;
    let run = run_files(root);
    let _life = AgentLife::claim(&run.agent())?;
    let settings = slotd::config::load(root)?;
    let node = NodeSettings {
        system: System::at(root),
        run,
        ..node_settings(&settings)
    };
    let machine = StandInMachine {
        root: root.to_owned(),
    };
    let credential = root.join(KUBECONFIG);
    let cluster = if credential.exists() {
        ClusterAccess::Kubeconfig(credential)
    } else {
        ClusterAccess::None
    };
    run_on(node, Arc::new(machine), cluster)
}

/// How a reboot is asked for: a file, which says whether it is forced.
pub(super) fn reboot_file(root: &Path) -> PathBuf {
    root.join("run/reboot")
}

/// The machine around the agent.
#[derive(Debug)]
struct StandInMachine {
    root: PathBuf,
}

impl StandInMachine {
    fn health(&self) -> Result<Health> {
        let path = self.root.join("etc/os-release");
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let version = slotd_bootctl::parse_os_release(&text)
            .remove("IMAGE_VERSION")
            .context("the running system has no version")?;
        Ok(HealthFile::of(&self.root).of_version(&version)?)
    }
}

impl Machine for StandInMachine {
    fn run_checks(&self, deadline: Instant, cancel: &Cancel) -> Verdict {
        loop {
            match self.health() {
                Ok(Health::Healthy) => return Verdict::Healthy,
                Ok(Health::Failing { check, output }) => {
                    return Verdict::Unhealthy { check, output };
                }
                Ok(Health::Waiting | Health::Panicking)
                    if !cancel.is_cancelled() && Instant::now() < deadline =>
                {
                    std::thread::sleep(LOOK);
                }
                Ok(Health::Waiting | Health::Panicking) => {
                    return Verdict::Late {
                        check: Some("waiting".to_owned()),
                        output: "it came to no end".to_owned(),
                    };
                }
                Err(error) => {
                    return Verdict::Unhealthy {
                        check: "the stand-in's file".to_owned(),
                        output: format!("{error:#}"),
                    };
                }
            }
        }
    }

    fn reboot(&self, forced: bool) -> Result<(), Failure> {
        let path = reboot_file(&self.root);
        // Whole or not at all: the lab looks for it all the time.
        let new = path.with_extension("new");
        fs::write(&new, if forced { "forced" } else { "" })
            .and_then(|()| fs::rename(new, path))
            .map_err(|error| Failure::new(ErrorKind::Retry, error.to_string()))
    }

    fn reload_units(&self) -> Result<(), Failure> {
        // There is no PID 1 with units here.
        Ok(())
    }
}
