//! Requests to a machine's disk that fail while it runs, as those to a worn medium do.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::qemu::{BELOW_DISK, DISK};
use super::socket;

/// The node that lets requests fail (QEMU's `docs/devel/blkdebug.rst`).
const FAULTS: &str = "faults";

/// Its number on Linux, where QEMU runs.
const EIO: i32 = nix::libc::EIO;

/// Requests that fail with EIO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskFault {
    /// Writes to any of these sectors of 512 bytes.
    Writes(Vec<u64>),
    /// Each flush.
    Flushes,
}

impl DiskFault {
    /// The rules of a `blkdebug`.
    fn rules(&self) -> Vec<Value> {
        match self {
            Self::Writes(sectors) => sectors
                .iter()
                .map(|sector| json!({"event": "none", "iotype": "write", "sector": sector, "errno": EIO}))
                .collect(),
            Self::Flushes => vec![json!({"event": "none", "iotype": "flush", "errno": EIO})],
        }
    }
}

/// QEMU's monitor, which speaks JSON (QEMU's `docs/interop/qmp-spec.txt`).
#[derive(Debug)]
pub(super) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to the monitor of the machine in this folder.
    pub(super) fn connect(folder: &Path) -> Result<Self> {
        let stream = socket::connect(folder, socket::MONITOR)?;
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .context("setting a timeout")?;
        let mut monitor = Self {
            stream: BufReader::new(stream),
        };
        // It greets, and takes nothing else at first.
        monitor.line()?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.stream
            .read_line(&mut line)
            .context("reading from QEMU's monitor")?;
        serde_json::from_str(&line).with_context(|| format!("QEMU's monitor says {line:?}"))
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let line = json!({"execute": command, "arguments": arguments});
        writeln!(self.stream.get_mut(), "{line}").context("writing to QEMU's monitor")?;
        loop {
            let answer = self.line()?;
            if answer.get("event").is_some() {
                continue;
            }
            if answer.get("return").is_none() {
                bail!("{command}: QEMU's monitor says {answer}");
            }
            return Ok(());
        }
    }

    /// From now on, these requests fail.
    pub(super) fn fail(&mut self, fault: &DiskFault) -> Result<()> {
        self.execute(
            "blockdev-add",
            &json!({
                "driver": "blkdebug",
                "node-name": FAULTS,
                "image": BELOW_DISK,
                "discard": "unmap",
                "inject-error": fault.rules(),
            }),
        )?;
        self.put_disk_on(FAULTS)
    }

    /// From now on, none fail.
    pub(super) fn mend(&mut self) -> Result<()> {
        self.put_disk_on(BELOW_DISK)?;
        self.execute("blockdev-del", &json!({"node-name": FAULTS}))
    }

    fn put_disk_on(&mut self, node: &str) -> Result<()> {
        self.execute(
            "blockdev-reopen",
            &json!({"options": [
                {"driver": "raw", "node-name": DISK, "file": node, "discard": "unmap"}
            ]}),
        )
    }
}
