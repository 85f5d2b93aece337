//! Running commands in a guest over a paravirtual console (an emulated UART loses and doubles characters under load).
//!
//! The guest's end is a plain shell without echo (`tests/guest/usr/lib/lab/shell`). A command's output goes to files first and
//! is then sent with its length, so nothing that is printed meanwhile can get into it.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::socket;

/// What a command in a guest did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit code, 128 and more for a signal.
    pub code: u32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// How each boot's shell begins the line that announces it.
const ANNOUNCEMENT: &str = "@@SHELL ";

/// How a command that may end in a reboot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this exit code.
    Exit(u32),
    /// The machine booted again.
    Reboot,
}

/// A connection to the guest's shell.
#[derive(Debug)]
pub struct Shell {
    stream: UnixStream,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Shell {
    /// Connects to the shell of the running machine in `folder` and waits until it is there.
    pub fn connect(folder: &Path, patience: Duration) -> Result<Self> {
        let deadline = Instant::now() + patience;
        let stream = loop {
            match socket::connect(folder, socket::SHELL) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream
            .set_read_timeout(Some(Duration::from_millis(100)))
            .context("setting the shell's timeout")?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
            sequence: 0,
        })
    }

    /// Waits until the guest's shell announces itself, and returns the boot's id. What came before is forgotten.
    pub fn wait_for_start(&mut self, deadline: Instant) -> Result<String> {
        let line = self.wait_for_line(ANNOUNCEMENT, deadline)?;
        Ok(line)
    }

    /// Runs a command of the guest's `sh` and returns its exit code and output. Its standard input is empty.
    pub fn run(&mut self, command: &str, patience: Duration) -> Result<Output> {
        self.sequence += 1;
        let number = self.sequence;
        let line = format!(
            "sh -c {} </dev/null >/run/lab.out 2>/run/lab.err; c=$?; printf '\\n@@DONE %s %s %s %s\\n' {number} $c $(wc -c </run/lab.out) $(wc -c </run/lab.err); cat /run/lab.out /run/lab.err\n",
            quote(command),
        );
        self.send(line.as_bytes())?;
        let deadline = Instant::now() + patience;
        let answer = self
            .wait_for_line(&format!("@@DONE {number} "), deadline)
            .with_context(|| format!("running {command:?}"))?;
        let mut numbers = answer.split(' ').map(str::parse::<u32>);
        let (Some(Ok(code)), Some(Ok(out)), Some(Ok(err))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            bail!("the guest's shell answered {answer:?} to {command:?}");
        };
        let stdout = self.take(out as usize, deadline)?;
        let stderr = self.take(err as usize, deadline)?;
        Ok(Output {
            code,
            stdout,
            stderr,
        })
    }

    /// Runs a command whose output goes straight to the port, as to a terminal, and hands each piece to `each`. Returns the exit
    /// code.
    pub fn stream(
        &mut self,
        command: &str,
        patience: Duration,
        each: impl FnMut(&[u8]),
    ) -> Result<u32> {
        match self.stream_until_reboot(command, patience, each)? {
            End::Exit(code) => Ok(code),
            End::Reboot => bail!("the guest rebooted while {command:?} ran"),
        }
    }

    /// Runs a command that may end in a reboot, with its output as for [`Shell::stream`], until it ends or another boot's shell
    /// announces itself.
    pub fn stream_until_reboot(
        &mut self,
        command: &str,
        patience: Duration,
        mut each: impl FnMut(&[u8]),
    ) -> Result<End> {
        self.sequence += 1;
        let done = format!("\n@@DONE {} ", self.sequence);
        let line = format!(
            "sh -c {} </dev/null; printf '\\n@@DONE %s %s\\n' {} $?\n",
            quote(command),
            self.sequence,
        );
        self.send(line.as_bytes())?;
        let deadline = Instant::now() + patience;
        loop {
            if let Some(start) = find(&self.buffer, format!("\n{ANNOUNCEMENT}").as_bytes()) {
                each(&self.buffer[..start]);
                // The announcement stays for whoever waits for the boot.
                self.buffer.drain(..start);
                return Ok(End::Reboot);
            }
            if let Some(start) = find(&self.buffer, done.as_bytes()) {
                let after = start + done.len();
                if let Some(length) = self.buffer[after..].iter().position(|byte| *byte == b'\n') {
                    each(&self.buffer[..start]);
                    let code = String::from_utf8_lossy(&self.buffer[after..after + length])
                        .trim()
                        .parse()
                        .with_context(|| format!("the exit code of {command:?}"))?;
                    self.buffer.drain(..=after + length);
                    return Ok(End::Exit(code));
                }
            } else {
                // What may be the beginning of a marker stays.
                let safe = self.buffer.len().saturating_sub(done.len());
                each(&self.buffer[..safe]);
                self.buffer.drain(..safe);
            }
            self.fill(deadline)
                .with_context(|| format!("running {command:?}"))?;
        }
    }

    /// Sends a command and does not wait for it: for commands that end the machine.
    pub fn start(&mut self, command: &str) -> Result<()> {
        self.send(format!("sh -c {} </dev/null >/dev/null 2>&1\n", quote(command)).as_bytes())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .write_all(bytes)
            .context("writing to the guest's shell")
    }

    /// Waits for a line with this prefix and returns the rest of it. Another boot's shell will not answer: its announcement is an
    /// error, and stays for whoever waits for it.
    fn wait_for_line(&mut self, prefix: &str, deadline: Instant) -> Result<String> {
        let marker = format!("\n{prefix}");
        loop {
            if let Some(line) = self.take_line(marker.as_bytes()) {
                return Ok(line);
            }
            if prefix != ANNOUNCEMENT
                && find(&self.buffer, format!("\n{ANNOUNCEMENT}").as_bytes()).is_some()
            {
                bail!("the guest rebooted");
            }
            self.fill(deadline)?;
        }
    }

    /// The rest of the first whole line behind a marker, if it is there; all up to its end is forgotten.
    fn take_line(&mut self, marker: &[u8]) -> Option<String> {
        let after = find(&self.buffer, marker)? + marker.len();
        let length = self.buffer[after..]
            .iter()
            .position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&self.buffer[after..after + length])
            .trim()
            .to_owned();
        self.buffer.drain(..=after + length);
        Some(line)
    }

    fn take(&mut self, count: usize, deadline: Instant) -> Result<String> {
        while self.buffer.len() < count {
            self.fill(deadline)?;
        }
        let bytes: Vec<u8> = self.buffer.drain(..count).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn fill(&mut self, deadline: Instant) -> Result<()> {
        if Instant::now() > deadline {
            let tail =
                String::from_utf8_lossy(&self.buffer[self.buffer.len().saturating_sub(300)..]);
            bail!("the guest's shell did not answer in time; it last said {tail:?}");
        }
        let mut chunk = [0; 16 << 10];
        match self.stream.read(&mut chunk) {
            Ok(0) => bail!("the machine is gone"),
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(error).context("reading from the guest's shell"),
        }
    }
}

/// A text as one word of `sh`.
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{Shell, quote, socket};

    /// A shell on this machine behind a socket, as the guest's is.
    fn local_shell(folder: &std::path::Path) -> Shell {
        let path = folder.join(socket::SHELL);
        let listener = UnixListener::bind(&path).unwrap();
        let place = folder.display().to_string();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut answers = stream.try_clone().unwrap();
            for line in BufReader::new(stream).lines() {
                let line = line.unwrap().replace("/run/lab", &format!("{place}/lab"));
                let output = Command::new("sh")
                    .arg("-c")
                    .arg(line)
                    .stderr(Stdio::inherit())
                    .output()
                    .unwrap();
                // What a kernel would print in between.
                answers.write_all(b"[  1.0] noise\n").unwrap();
                answers.write_all(&output.stdout).unwrap();
            }
        });
        Shell::connect(folder, Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn a_command_returns_its_code_and_both_outputs() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = local_shell(folder.path());
        let output = shell
            .run(
                "printf 'it'\"'\"'s\\n@@DONE 1 0\\n'; echo bad >&2; exit 7",
                Duration::from_secs(10),
            )
            .unwrap();
        assert_eq!(output.code, 7);
        assert_eq!(output.stdout, "it's\n@@DONE 1 0\n");
        assert_eq!(output.stderr, "bad\n");
        assert_eq!(
            shell.run("true", Duration::from_secs(10)).unwrap().stdout,
            ""
        );
    }

    #[test]
    fn streamed_output_arrives_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = local_shell(folder.path());
        let mut seen = Vec::new();
        let code = shell
            .stream("seq 1 3; exit 3", Duration::from_secs(10), |piece| {
                seen.extend_from_slice(piece)
            })
            .unwrap();
        assert_eq!(code, 3);
        assert!(String::from_utf8(seen).unwrap().ends_with("1\n2\n3\n"));
    }

    #[test]
    fn quotes_in_a_command_stay_what_they_are() {
        assert_eq!(quote("a'b"), r"'a'\''b'");
    }
}
