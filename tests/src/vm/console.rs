//! The first serial port: firmware, kernel and systemd write to it, the lab only reads.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often the log is looked at.
const POLL: Duration = Duration::from_millis(50);

/// A log file that QEMU appends to, read line by line.
#[derive(Debug)]
pub struct Console {
    path: PathBuf,
    position: u64,
    partial: Vec<u8>,
}

impl Console {
    /// Reads the log at `path` from its beginning; it need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            position: 0,
            partial: Vec::new(),
        }
    }

    /// The log's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lines that were completed since the last call.
    pub fn new_lines(&mut self) -> Result<Vec<String>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(error).with_context(|| format!("opening {}", self.path.display()));
            }
        };
        let context = || format!("reading {}", self.path.display());
        file.seek(SeekFrom::Start(self.position))
            .with_context(context)?;
        let count = file.read_to_end(&mut self.partial).with_context(context)?;
        self.position += count as u64;
        let mut lines = Vec::new();
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        Ok(lines)
    }

    /// Waits for the first new line for which `wanted` has an answer. Lines after it are read again by the next call.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        patience: Duration,
        mut alive: impl FnMut() -> Result<()>,
        mut wanted: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + patience;
        loop {
            let running = alive();
            let lines = self.new_lines()?;
            for (index, line) in lines.iter().enumerate() {
                if let Some(answer) = wanted(line) {
                    self.put_back(&lines[index + 1..]);
                    return Ok(answer);
                }
            }
            running.with_context(|| format!("waiting for {what}"))?;
            if Instant::now() > deadline {
                bail!(
                    "no {what} within {} s; the console ends with:\n{}",
                    patience.as_secs(),
                    self.tail(15)
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Whether a line that was not read yet is the wanted one. All stay unread.
    pub fn peek(&mut self, wanted: impl Fn(&str) -> bool) -> Result<bool> {
        let lines = self.new_lines()?;
        self.put_back(&lines);
        Ok(lines.iter().any(|line| wanted(line)))
    }

    fn put_back(&mut self, lines: &[String]) {
        let mut bytes = Vec::new();
        for line in lines {
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
        bytes.append(&mut self.partial);
        self.partial = bytes;
    }

    /// The last lines of the whole log, for error messages.
    pub fn tail(&self, count: usize) -> String {
        let text = std::fs::read(&self.path).unwrap_or_default();
        let text = printable(&String::from_utf8_lossy(&text));
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let tail: Vec<String> = lines[lines.len().saturating_sub(count)..]
            .iter()
            .map(|line| format!("  {line}"))
            .collect();
        tail.join("\n")
    }
}

/// The text without escape sequences and control characters, which firmware and systemd are fond of.
pub(crate) fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            if characters.next_if_eq(&'[').is_some() {
                for next in characters.by_ref() {
                    if next.is_ascii_alphabetic() {
                        break;
                    }
                }
            }
        } else if character == '\n' || character == '\t' || !character.is_control() {
            clean.push(character);
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::{Console, printable};

    #[test]
    fn escape_sequences_are_taken_out() {
        assert_eq!(
            printable("\u{1b}[2J\u{1b}[01;01Hboot\r\n\u{1b}[0;32mok\u{1b}[0m"),
            "boot\nok"
        );
    }

    #[test]
    fn a_wait_ends_at_the_first_line_that_answers_and_keeps_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = std::fs::File::create(&path).unwrap();
        log.write_all(b"one\ntwo 2\ntwo 3\npart").unwrap();
        let mut console = Console::new(&path);
        let wanted = |line: &str| line.strip_prefix("two ").map(str::to_owned);
        let patience = Duration::from_secs(5);
        assert_eq!(
            console
                .wait_for("two", patience, || Ok(()), wanted)
                .unwrap(),
            "2"
        );
        assert_eq!(
            console
                .wait_for("two", patience, || Ok(()), wanted)
                .unwrap(),
            "3"
        );
        log.write_all(b"ial\n").unwrap();
        assert_eq!(console.new_lines().unwrap(), ["partial"]);
    }

    #[test]
    fn a_wait_for_what_never_comes_ends_and_shows_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "Kernel panic\n").unwrap();
        let error = Console::new(&path)
            .wait_for(
                "prompt",
                Duration::from_millis(1),
                || Ok(()),
                |_| None::<()>,
            )
            .unwrap_err();
        assert!(format!("{error:#}").contains("Kernel panic"));
    }
}
