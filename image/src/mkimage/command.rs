//! Running the tools that do the work.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A tool to run, and how to get it when it is missing.
#[derive(Debug)]
pub(crate) struct Tool {
    name: &'static str,
    command: Command,
    input: Option<Vec<u8>>,
}

impl Tool {
    /// A tool of this name, looked for in PATH and in the folders of system tools, which an ordinary user's PATH lacks.
    pub(crate) fn new(name: &'static str) -> Self {
        let mut command = Command::new(name);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command.env("LC_ALL", "C.UTF-8");
        Self {
            name,
            command,
            input: None,
        }
    }

    /// Adds one argument.
    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub(crate) fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Feeds these bytes to standard input.
    pub(crate) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// Runs the tool and returns what it wrote to standard output. An error carries the tail of its standard error.
    pub(crate) fn output(self) -> Result<Vec<u8>> {
        self.finish().map(|(stdout, _)| stdout)
    }

    /// Runs the tool for its effect.
    pub(crate) fn run(self) -> Result<()> {
        self.finish().map(drop)
    }

    fn finish(mut self) -> Result<(Vec<u8>, Vec<u8>)> {
        self.command
            .stdin(if self.input.is_some() {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self
            .command
            .spawn()
            .with_context(|| format!("starting {} (is it installed?)", self.name))?;
        if let (Some(input), Some(mut stdin)) = (self.input.take(), child.stdin.take()) {
            stdin
                .write_all(&input)
                .with_context(|| format!("writing to {}", self.name))?;
        }
        let output = child
            .wait_with_output()
            .with_context(|| format!("waiting for {}", self.name))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = stderr.trim_end().lines().collect();
            let mut message = format!("{} failed ({})", self.name, output.status);
            for line in &lines[lines.len().saturating_sub(20)..] {
                let _ = write!(message, "\n  {line}");
            }
            bail!(message);
        }
        Ok((output.stdout, output.stderr))
    }
}
