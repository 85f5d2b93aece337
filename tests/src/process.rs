//! Running programs of this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// This very program, for a child to run, also when its file was replaced by a newer build meanwhile: a whole run of the tests
/// links it anew.
pub fn this_program() -> PathBuf {
    Path::new("/proc")
        .join(std::process::id().to_string())
        .join("exe")
}

/// Runs a program for its effect; an error carries what it said.
pub fn run(name: &str, build: impl FnOnce(&mut Command) -> &mut Command) -> Result<()> {
    output(name, build).map(drop)
}

/// Runs a program and returns its standard output; an error carries what it said.
pub fn output(name: &str, build: impl FnOnce(&mut Command) -> &mut Command) -> Result<String> {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("LC_ALL", "C.UTF-8");
    let command = build(&mut command).stdin(Stdio::null());
    let output = command
        .output()
        .with_context(|| format!("starting {name} (is it installed?)"))?;
    if !output.status.success() {
        bail!(
            "{name} failed ({}): {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program that shares this one's output and errors.
pub fn inherit(
    program: &std::path::Path,
    build: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<()> {
    let mut command = Command::new(program);
    let status = build(&mut command)
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    if !status.success() {
        bail!("{} failed ({status})", program.display());
    }
    Ok(())
}

/// Runs a program and returns its standard output; its errors are shown as they come.
pub fn output_with_errors(
    program: &std::path::Path,
    build: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<String> {
    let mut command = Command::new(program);
    let output = build(&mut command)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    if !output.status.success() {
        bail!("{} failed ({})", program.display(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
