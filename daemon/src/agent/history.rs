//! Finished upgrades: `history.jsonl` in the state directory, one JSON object in a line for each.
//!
//! Two OS versions append to it and read each other's lines: fields are only ever added, and what a line holds beside
//! the known ones is passed over. A line that cannot be read is skipped, counted, and kept as it is.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::durable::{replace_durably, sync_directory};
use crate::status::HistoryEntry;

/// The history is cut to its younger half beyond this many bytes.
const LIMIT: u64 = 1 << 20;

/// What is kept of the upgrades that have ended on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Those that can be read, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// How many lines cannot be read: torn by a crash, or written by others.
    pub skipped: usize,
}

/// Where the history of a state directory is.
pub fn history_path(state_directory: &Path) -> PathBuf {
    state_directory.join("history.jsonl")
}

/// The history of a state directory; an empty one where none was begun.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn read_history(state_directory: &Path) -> io::Result<History> {
    let bytes = match fs::read(history_path(state_directory)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(History::default()),
        Err(error) => return Err(error),
    };
    Ok(parse(&bytes))
}

/// What the bytes of the file hold.
pub(super) fn parse(bytes: &[u8]) -> History {
    let mut history = History::default();
    for line in lines(bytes) {
        match serde_json::from_slice(line) {
            Ok(entry) => history.entries.push(entry),
            Err(_) => history.skipped = history.skipped.saturating_add(1),
        }
    }
    history
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.trim_ascii().is_empty())
}

/// Appends a finished upgrade. Durable when this returns; a crash in the middle leaves a torn last line, which the next
/// append ends, and what a full disk took of a line is taken back. A history that has grown too long is replaced whole by its younger half, line by line as it stands.
pub(super) fn append(state_directory: &Path, entry: &HistoryEntry) -> io::Result<()> {
    let path = history_path(state_directory);
    let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
    line.push(b'\n');
    if fs::metadata(&path).is_ok_and(|meta| meta.len() > LIMIT) {
        return replace_durably(&path, &cut(&fs::read(&path)?, &line));
    }
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(&path)?;
    let end = file.seek(SeekFrom::End(0))?;
    if end > 0 {
        let mut last = [0_u8];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            line.insert(0, b'\n');
        }
    }
    if let Err(error) = file.write_all(&line) {
        // What was wrong counts, not whether the file got its old length back: a torn line is passed over.
        let _ = file.set_len(end);
        return Err(error);
    }
    file.sync_all()?;
    sync_directory(state_directory)
}

/// The younger half of the lines, not read: they may hold more than this version knows. Then the new one.
pub(super) fn cut(bytes: &[u8], line: &[u8]) -> Vec<u8> {
    let half = lines(bytes).count().div_euclid(2);
    let mut kept = Vec::new();
    for old in lines(bytes).skip(half) {
        kept.extend_from_slice(old);
        kept.push(b'\n');
    }
    kept.extend_from_slice(line);
    kept
}

#[cfg(test)]
mod tests {
    use std::fs;

    use slotd_engine::{Digest, Ended, ErrorKind, Failure, Kind, Result, Slot};

    use super::{LIMIT, append, history_path, read_history};
    use crate::status::HistoryEntry;

    const GOLDEN: &str = include_str!("../../tests/golden/v1/history.jsonl");
    const NEWER: &str = include_str!("../../tests/golden/history-read-by-v1.jsonl");

    /// What the golden file holds: one upgrade of each kind and each result.
    fn ended() -> [Ended; 4] {
        let completed = Ended {
            id: 1,
            kind: Kind::Install,
            result: Result::Completed,
            slot: Slot::B,
            version: Some("v1.35.1".to_owned()),
            digest: Digest::new(&"ab".repeat(32)),
            source: Some("https://updates.example.com/rootfs.ext4.zst".to_owned()),
            failure: None,
            task: None,
            started_at: 1_796_000_000,
            ended_at: 1_796_000_300,
        };
        let rolled_back = Ended {
            id: 2,
            result: Result::RolledBack,
            slot: Slot::A,
            failure: Some(Failure {
                kind: ErrorKind::Reject,
                reason: "health check required.d/50-web failed".to_owned(),
                code: None,
                check: Some("required.d/50-web".to_owned()),
                output: Some("no answer\nexit status 1".to_owned()),
            }),
            started_at: 1_796_001_000,
            ended_at: 1_796_001_300,
            ..completed.clone()
        };
        let cancelled = Ended {
            id: 3,
            kind: Kind::Rollback,
            result: Result::Cancelled,
            slot: Slot::A,
            digest: None,
            source: None,
            ..completed.clone()
        };
        let failed = Ended {
            id: 4,
            kind: Kind::Adopted,
            result: Result::Failed,
            version: None,
            failure: Some(Failure::new(ErrorKind::Unsafe, "nothing good is left")),
            ..cancelled.clone()
        };
        [completed, rolled_back, cancelled, failed]
    }

    #[test]
    fn a_history_of_version_1_is_read_and_written_as_ever() {
        let directory = tempfile::tempdir().unwrap();
        let entries = ended().map(|ended| HistoryEntry::from(&ended));
        for entry in &entries {
            append(directory.path(), entry).unwrap();
        }
        let path = history_path(directory.path());
        assert_eq!(fs::read_to_string(&path).unwrap(), GOLDEN);
        let history = read_history(directory.path()).unwrap();
        assert_eq!((history.entries, history.skipped), (entries.to_vec(), 0));
    }

    #[test]
    fn a_newer_writers_lines_are_read_and_those_that_cannot_be_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(history_path(directory.path()), NEWER).unwrap();
        let history = read_history(directory.path()).unwrap();
        let ids: Vec<u64> = history.entries.iter().map(|entry| entry.id).collect();
        // Line 2 has a slot that this version does not know, line 3 is torn, line 4 is no JSON.
        assert_eq!((ids, history.skipped), (vec![1, 5], 3));
        let failure = history.entries[1].failure.as_ref().unwrap();
        assert_eq!(failure.reason, "health check required.d/50-web failed");
    }

    #[test]
    fn a_cut_keeps_the_younger_half_and_all_that_stands_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = history_path(directory.path());
        // With a field and a line that this version does not know.
        let newest = "{\"draining\":9}\n";
        let line = GOLDEN
            .lines()
            .next()
            .unwrap()
            .replace("{\"id\"", "{\"new\":7,\"id\"");
        let all = format!("{line}\n").repeat(1 + (1 << 20) / line.len()) + newest;
        assert!(all.len() as u64 > LIMIT);
        fs::write(&path, &all).unwrap();
        let before = all.lines().count();
        let [entry, ..] = ended().map(|ended| HistoryEntry::from(&ended));
        append(directory.path(), &entry).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let kept: Vec<&str> = text.lines().collect();
        assert_eq!(kept.len(), before - before / 2 + 1);
        assert_eq!(kept[0], line);
        let end = [newest.trim_end(), GOLDEN.lines().next().unwrap()];
        assert!(kept.ends_with(&end), "{end:?}");
    }
}
