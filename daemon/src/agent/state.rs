//! The state directory: the record in `state.json`, and when a finished upgrade goes into the history.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use slotd_engine::{DecodeError, Ended, ErrorKind, Failure, Record, decode, encode};

use super::durable::{replace_durably, sync_directory};
use super::history::{append, history_path, read_history};
use super::host::Loaded;
use crate::status::{Condition, HistoryEntry};

/// The files of one state directory.
#[derive(Debug)]
pub(super) struct StateStore {
    directory: PathBuf,
    /// Why nothing may be written there.
    refused: Option<Failure>,
}

impl StateStore {
    /// The store in a directory that was found fit, or that was refused for a reason: then it can
    /// still be read, and every write answers with the reason.
    #[must_use]
    pub(super) fn new(directory: impl Into<PathBuf>, refused: Option<Failure>) -> Self {
        Self {
            directory: directory.into(),
            refused,
        }
    }

    /// Why nothing may be written there.
    #[must_use]
    pub(super) fn refused(&self) -> Option<&Failure> {
        self.refused.as_ref()
    }

    fn record_path(&self) -> PathBuf {
        self.directory.join("state.json")
    }

    /// Reads the record. An empty or damaged file is moved aside, so that nothing is lost, and an empty
    /// record takes its place; one that cannot be read, cannot be moved, or needs a newer version stays where it
    /// is, and refuses all writes from then on.
    pub(super) fn load(&mut self) -> Loaded {
        let mut conditions = Vec::new();
        if let Some(refused) = &self.refused {
            conditions.push(Condition::new(
                "StateDirectoryRefused",
                refused.reason.clone(),
            ));
        }
        let path = self.record_path();
        let record = match fs::read(&path) {
            Ok(bytes) => decode(&bytes).map_err(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(None),
            Err(error) => {
                let reason = format!(
                    "cannot read {}: {error}; it is kept as it is",
                    path.display()
                );
                conditions.push(self.refuse("StateUnreadable", reason));
                Err(None)
            }
        };
        let record = match record {
            Ok(record) => record,
            Err(None) => self.fresh(),
            Err(Some(error @ DecodeError::Future { .. })) => {
                let reason = format!("{}: {error}; it is kept as it is", path.display());
                conditions.push(self.refuse("StateFromTheFuture", reason));
                self.fresh()
            }
            Err(Some(error)) => {
                conditions.push(self.set_aside(&path, &error));
                self.fresh()
            }
        };
        Loaded { record, conditions }
    }

    /// Refuses all writes from now on: what is there and could not be read is not to be replaced.
    fn refuse(&mut self, condition: &str, reason: String) -> Condition {
        let condition = Condition::new(condition, reason.clone());
        self.refused
            .get_or_insert(Failure::new(ErrorKind::Configuration, reason));
        condition
    }

    /// A record that goes on counting where the history ends.
    fn fresh(&self) -> Record {
        let history = read_history(&self.directory).unwrap_or_default();
        Record {
            last_id: history
                .entries
                .iter()
                .map(|entry| entry.id)
                .max()
                .unwrap_or(0),
            ..Record::default()
        }
    }

    fn set_aside(&mut self, path: &Path, error: &DecodeError) -> Condition {
        let free = (1_u32..=1000)
            .map(|number| self.directory.join(format!("state.json.broken-{number}")))
            .find(|candidate| !candidate.exists());
        let moved = match (&self.refused, free) {
            (Some(_), _) => Err(String::from("the state directory is refused")),
            (None, None) => Err(String::from("a thousand such files are there already")),
            (None, Some(target)) => fs::rename(path, &target)
                .and_then(|()| sync_directory(&self.directory))
                .map(|()| target)
                .map_err(|error| error.to_string()),
        };
        let place = path.display();
        match moved {
            Ok(target) => Condition::new(
                "StateBroken",
                format!("{place}: {error}; it was moved to {}", target.display()),
            ),
            Err(why) => self.refuse(
                "StateUnreadable",
                format!("{place}: {error}; it could not be moved aside: {why}"),
            ),
        }
    }

    /// Keeps the record: durable when this returns; a crash in the middle leaves the old one whole.
    ///
    /// # Errors
    /// When the directory is refused or cannot be written.
    pub(super) fn persist(&self, record: &Record) -> Result<(), Failure> {
        self.permitted()?;
        let path = self.record_path();
        let bytes = encode(record)
            .map_err(|error| Failure::new(ErrorKind::Bug, format!("state.json: {error}")))?;
        replace_durably(&path, &bytes).map_err(|error| unwritable(&path, &error))
    }

    /// Appends a finished upgrade, unless one of its number is there. Durable when this returns; a crash
    /// in the middle leaves a torn last line, which readers skip and the next append ends.
    ///
    /// # Errors
    /// When the directory is refused or cannot be written.
    pub(super) fn report(&self, ended: &Ended) -> Result<(), Failure> {
        self.permitted()?;
        let path = history_path(&self.directory);
        let known = read_history(&self.directory).map_err(|error| unwritable(&path, &error))?;
        if known.entries.iter().any(|entry| entry.id == ended.id) {
            return Ok(());
        }
        append(&self.directory, &HistoryEntry::from(ended))
            .map_err(|error| unwritable(&path, &error))
    }

    fn permitted(&self) -> Result<(), Failure> {
        match &self.refused {
            Some(refused) => Err(refused.clone()),
            None => Ok(()),
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(
        ErrorKind::Configuration,
        format!("cannot write {}: {error}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use slotd_engine::{Ended, ErrorKind, Failure, Kind, Record, Slot};

    use super::{StateStore, read_history};

    fn ended(id: u64) -> Ended {
        Ended {
            id,
            kind: Kind::Install,
            result: slotd_engine::Result::RolledBack,
            slot: Slot::B,
            version: Some("2.0.0".to_owned()),
            digest: None,
            source: None,
            failure: Some(Failure::new(ErrorKind::Reject, "health check web failed")),
            task: None,
            started_at: 1_700_000_000,
            ended_at: 1_700_000_060,
        }
    }

    #[test]
    fn a_record_reads_as_it_was_kept_and_is_for_root_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = StateStore::new(directory.path(), None);
        let record = Record {
            last_id: 7,
            ..Record::default()
        };
        store.persist(&record).unwrap();
        let loaded = store.load();
        assert_eq!(loaded.record, record);
        assert!(loaded.conditions.is_empty());
        let mode = directory
            .path()
            .join("state.json")
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn damaged_and_empty_files_are_kept_aside_and_counting_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = StateStore::new(directory.path(), None);
        store.report(&ended(41)).unwrap();
        for (number, bytes) in [(1, &b"{\"version\":"[..]), (2, b"")] {
            fs::write(directory.path().join("state.json"), bytes).unwrap();
            let loaded = store.load();
            assert_eq!(loaded.record.last_id, 41);
            assert_eq!(loaded.conditions[0].kind, "StateBroken");
            let kept = directory.path().join(format!("state.json.broken-{number}"));
            assert_eq!(fs::read(kept).unwrap(), bytes);
        }
        store.persist(&Record::default()).unwrap();
    }

    #[test]
    fn what_cannot_be_read_or_moved_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state.json");
        // Root reads whatever permissions say; a directory it does not.
        fs::create_dir(&state).unwrap();
        let unread = |says: &str| {
            let mut store = StateStore::new(directory.path(), None);
            let loaded = store.load();
            assert_eq!(loaded.conditions.len(), 1, "{:?}", loaded.conditions);
            assert_eq!(loaded.conditions[0].kind, "StateUnreadable");
            for refusal in [store.persist(&Record::default()), store.report(&ended(1))] {
                let refusal = refusal.unwrap_err();
                assert_eq!(refusal.kind, ErrorKind::Configuration);
                assert_eq!(refusal.reason, loaded.conditions[0].message);
                assert!(refusal.reason.contains("state.json") && refusal.reason.contains(says));
            }
        };
        unread("directory");
        assert!(state.is_dir());

        fs::remove_dir(&state).unwrap();
        fs::write(&state, "torn").unwrap();
        for number in 1..=1000 {
            fs::write(
                directory.path().join(format!("state.json.broken-{number}")),
                "",
            )
            .unwrap();
        }
        unread("a thousand");
        assert_eq!(fs::read(&state).unwrap(), b"torn");
        // A name that is free again is enough.
        fs::remove_file(directory.path().join("state.json.broken-7")).unwrap();
        let mut store = StateStore::new(directory.path(), None);
        assert_eq!(store.load().conditions[0].kind, "StateBroken");
        store.persist(&Record::default()).unwrap();
    }

    #[test]
    fn a_file_from_the_future_stays_and_refuses_writes() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = StateStore::new(directory.path(), None);
        let bytes = br#"{"version":9,"min_reader":9,"record":{"at":"flying"}}"#;
        fs::write(directory.path().join("state.json"), bytes).unwrap();
        let loaded = store.load();
        assert_eq!(loaded.conditions[0].kind, "StateFromTheFuture");
        let refusal = store.persist(&Record::default()).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::Configuration);
        assert_eq!(
            fs::read(directory.path().join("state.json")).unwrap(),
            bytes
        );
    }

    #[test]
    fn an_upgrade_is_in_the_history_once_and_a_torn_line_spoils_only_itself() {
        let directory = tempfile::tempdir().unwrap();
        let store = StateStore::new(directory.path(), None);
        store.report(&ended(1)).unwrap();
        store.report(&ended(1)).unwrap();
        let path = directory.path().join("history.jsonl");
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend_from_slice(b"{\"id\":2,\"ki");
        fs::write(&path, bytes).unwrap();
        store.report(&ended(3)).unwrap();
        let history = read_history(directory.path()).unwrap();
        assert_eq!(history.skipped, 1);
        let history = history.entries;
        assert_eq!(
            history.iter().map(|entry| entry.id).collect::<Vec<_>>(),
            [1, 3]
        );
        assert_eq!(
            history[0].failure.as_ref().unwrap().reason,
            "health check web failed"
        );
    }

    #[test]
    fn a_refused_directory_is_read_but_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let refusal = Failure::new(ErrorKind::Configuration, "on slot A");
        let mut store = StateStore::new(directory.path(), Some(refusal.clone()));
        assert_eq!(store.load().conditions[0].kind, "StateDirectoryRefused");
        assert_eq!(store.persist(&Record::default()), Err(refusal.clone()));
        assert_eq!(store.report(&ended(1)), Err(refusal));
        assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
    }
}
