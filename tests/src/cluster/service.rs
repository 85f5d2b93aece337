//! A program of the control plane while it runs.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::wait_until;

/// How long a program may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running program whose output goes to a log. Ended when it goes, and by the kernel when the thread that started it dies.
#[derive(Debug)]
pub(crate) struct Service {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Service {
    /// Starts a program; its log lies in `folder`, and goes on where an earlier start left it. It is out of reach of the terminal's Ctrl-C: who started it ends it, in
    /// the right order.
    pub(crate) fn start(
        name: &'static str,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        folder: &Path,
    ) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("opening {}", log.display()))?;
        let errors = output.try_clone().context("sharing a log")?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(arguments)
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {name} through setpriv"))?;
        Ok(Self { name, child, log })
    }

    /// The program's process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program ended well; an error when it ended otherwise.
    pub(crate) fn ended_well(&mut self) -> Result<bool> {
        let status = self.child.try_wait().context("waiting for a program")?;
        ensure!(
            status.is_none_or(|status| status.success()),
            "{} ended: {status:?}",
            self.name
        );
        Ok(status.is_some())
    }

    /// An error when the program has ended.
    pub(super) fn alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("waiting for a program")? {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(5)..].join("\n");
            bail!(
                "{} ended ({status}); the end of {}:\n{end}",
                self.name,
                self.log.display()
            );
        }
        Ok(())
    }

    /// Waits until a look succeeds; not any longer when the program has ended.
    pub(super) fn wait_until(
        &mut self,
        patience: Duration,
        mut look: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let what = format!("{} is ready", self.name);
        wait_until(&what, patience, || match self.alive() {
            Ok(()) => look().map(Ok),
            Err(ended) => Ok(Err(ended)),
        })?
    }

    /// Kills the program, and waits until it is gone.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill().context("killing a program")?;
        self.child.wait().context("waiting for a program")?;
        Ok(())
    }

    /// Asks the program to end, and kills one that does not.
    fn stop(&mut self) -> Result<()> {
        let process = Pid::from_raw(i32::try_from(self.child.id()).context("a process id")?);
        if self.child.try_wait()?.is_none() {
            kill(process, Signal::SIGTERM)?;
        }
        wait_until("the end of a program", PATIENCE, || {
            ensure!(self.child.try_wait()?.is_some(), "{} runs", self.name);
            Ok(())
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("lab: killing {}: {error:#}", self.name);
            // It may have ended by itself now; there is nothing else to do about it here.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::time::Duration;

    use anyhow::ensure;

    use super::{Service, wait_until};

    fn shell(folder: &Path, script: &'static str) -> Service {
        Service::start("script", Path::new("sh"), ["-c", script], folder).unwrap()
    }

    #[test]
    fn a_program_dies_with_the_thread_that_started_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mut service = std::thread::spawn(move || {
            let service = shell(&path, "echo started; exec sleep 600");
            // Only what runs already can hear of the thread's end.
            wait_until("the program", Duration::from_secs(60), || {
                let log = std::fs::read_to_string(&service.log)?;
                ensure!(log == "started\n", "the log has {log}");
                Ok(())
            })
            .unwrap();
            service
        })
        .join()
        .unwrap();
        let status = service.child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn waiting_for_a_program_that_ended_says_what_it_said_last() {
        let folder = tempfile::tempdir().unwrap();
        let mut service = shell(folder.path(), "echo first; echo the reason >&2; exit 3");
        let error = service
            .wait_until(Duration::from_secs(60), || anyhow::bail!("not ready"))
            .unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with("script ended (exit status: 3)"), "{text}");
        assert!(text.ends_with("first\nthe reason"), "{text}");
    }
}
