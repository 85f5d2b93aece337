//! Other programs, run with a time limit and without waiting for ever on what they leave open.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What is read of a program's output at most; the rest is thrown away.
const READ_LIMIT: u64 = 1 << 20;

/// How a program ended.
#[derive(Debug)]
pub(super) enum End {
    /// By itself.
    Exited {
        /// How.
        status: ExitStatus,
        /// What it printed, both streams.
        output: String,
    },
    /// It was killed: out of time, or no longer wanted.
    Killed,
}

/// Runs a program until it ends, `timeout` is over, or `unwanted` says so.
///
/// # Errors
/// When it cannot be started or watched.
pub(super) fn run(
    command: &mut Command,
    timeout: Duration,
    unwanted: &dyn Fn() -> bool,
) -> io::Result<End> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let readers = [
        child
            .stdout
            .take()
            .map(|stream| thread::spawn(|| read(stream))),
        child
            .stderr
            .take()
            .map(|stream| thread::spawn(|| read(stream))),
    ];
    let Some(status) = wait(&mut child, timeout, unwanted)? else {
        child.kill()?;
        child.wait()?;
        // The readers end with the pipes; whoever inherited those may keep them open, so nobody waits.
        return Ok(End::Killed);
    };
    let mut output = String::new();
    for reader in readers.into_iter().flatten() {
        if let Ok(bytes) = reader.join() {
            output.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    Ok(End::Exited { status, output })
}

fn wait(
    child: &mut Child,
    timeout: Duration,
    unwanted: &dyn Fn() -> bool,
) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end || unwanted() {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = pause.saturating_mul(2).min(Duration::from_millis(100));
    }
}

fn read(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What cannot be read is not shown; how the program ended is what counts.
    let _ = stream.by_ref().take(READ_LIMIT).read_to_end(&mut bytes);
    let _ = io::copy(&mut stream, &mut io::sink());
    bytes
}
