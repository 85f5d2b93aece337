//! What the health checks of each version say on a stand-in: a file of its folder, written by the lab and read by the agent.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// How a version of the system behaves on a stand-in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Health {
    /// Its checks pass.
    #[default]
    Healthy,
    /// A check fails.
    Failing {
        /// The check.
        check: String,
        /// What it printed.
        output: String,
    },
    /// Its checks come to no end until something else is said, or their time is over.
    Waiting,
    /// It panics before any agent runs.
    Panicking,
}

/// The file.
#[derive(Debug, Clone)]
pub(super) struct HealthFile {
    path: PathBuf,
}

impl HealthFile {
    /// The file of the stand-in in this folder.
    pub(super) fn of(root: &Path) -> Self {
        Self {
            path: root.join("health.json"),
        }
    }

    /// What was said of a version.
    pub(super) fn of_version(&self, version: &str) -> io::Result<Health> {
        Ok(self.read()?.remove(version).unwrap_or_default())
    }

    /// Says how a version behaves from now on.
    pub(super) fn set(&self, version: &str, health: Health) -> io::Result<()> {
        let mut all = self.read()?;
        all.insert(version.to_owned(), health);
        // The agent reads while this is written.
        let new = self.path.with_extension("new");
        fs::write(&new, serde_json::to_vec(&all)?)?;
        fs::rename(new, &self.path)
    }

    fn read(&self) -> io::Result<BTreeMap<String, Health>> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Health, HealthFile};

    #[test]
    fn a_version_is_healthy_unless_something_else_was_said_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = HealthFile::of(folder.path());
        assert_eq!(file.of_version("v2").unwrap(), Health::Healthy);
        let failing = Health::Failing {
            check: "kubelet".to_owned(),
            output: "refused".to_owned(),
        };
        file.set("v2", failing.clone()).unwrap();
        file.set("v3", Health::Waiting).unwrap();
        assert_eq!(file.of_version("v2").unwrap(), failing);
        file.set("v2", Health::Healthy).unwrap();
        assert_eq!(file.of_version("v2").unwrap(), Health::Healthy);
        assert_eq!(file.of_version("v3").unwrap(), Health::Waiting);
    }
}
