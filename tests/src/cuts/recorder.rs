//! A file whose writes and flushes are recorded, for a loop device of this machine.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::WriteLog;
use crate::cluster::wait_until;

/// QEMU's storage daemon, which shows a file through FUSE and records what is written to it.
#[derive(Debug)]
pub(crate) struct Recorder {
    child: Child,
    shown: PathBuf,
    log: PathBuf,
}

impl Recorder {
    /// Shows `disk` in its folder under another name, and records from then on.
    pub(crate) fn start(disk: &Path) -> Result<Self> {
        let disk = std::path::absolute(disk).context("finding the disk")?;
        let beside = |extension: &str| disk.with_extension(extension);
        let (shown, log) = (beside("recorded"), beside("writes"));
        for path in [&shown, &log] {
            File::create(path).with_context(|| format!("creating {}", path.display()))?;
        }
        let errors = File::create(beside("recorder.log")).context("creating a log")?;
        // setpriv: a lab that dies takes it along.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "qemu-storage-daemon", "--blockdev"])
            .arg(format!(
                "driver=file,node-name=disk,discard=unmap,filename={}",
                disk.display()
            ))
            .arg("--blockdev")
            .arg(format!(
                "driver=file,node-name=log,filename={}",
                log.display()
            ))
            .arg("--blockdev")
            .arg("driver=blklogwrites,node-name=recorded,file=disk,log=log,log-sector-size=512")
            .arg("--export")
            .arg(format!(
                "type=fuse,id=recorded,node-name=recorded,writable=on,mountpoint={}",
                shown.display()
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .context("starting qemu-storage-daemon through setpriv")?;
        let mut recorder = Self { child, shown, log };
        let size = std::fs::metadata(&disk).context("the disk's size")?.len();
        wait_until("the recorded file", Duration::from_secs(30), || {
            recorder.alive()?;
            let shown = std::fs::metadata(&recorder.shown)
                .context("its size")?
                .len();
            ensure!(shown == size, "it has {shown} bytes");
            Ok(())
        })?;
        Ok(recorder)
    }

    fn alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("waiting for it")? {
            bail!("qemu-storage-daemon ended ({status})");
        }
        Ok(())
    }

    /// The file that is written to.
    pub(crate) fn shown(&self) -> &Path {
        &self.shown
    }

    /// How many requests there were so far.
    pub(crate) fn requests(&self) -> Result<usize> {
        Ok(WriteLog::read(&self.log)?.entries().len())
    }

    /// Ends the record, of a file that nobody has open any more.
    pub(crate) fn stop(mut self) -> Result<WriteLog> {
        self.end();
        WriteLog::read(&self.log)
    }

    fn end(&mut self) {
        let id = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        // It may have ended by itself; what it left is read.
        let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}
