//! The files under `/run/slotd` by which agent, gate and confirmation speak with each other, with no
//! bus in between. They end with the boot that they are about.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where they are on a host.
pub const RUN_DIRECTORY: &str = "/run/slotd";

/// What the agent found out about this boot: `/run/slotd/health.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub enum BootVerdict {
    /// This is no trial boot: nothing to be gated.
    NotOnTrial,
    /// A trial boot whose required checks passed.
    Healthy,
    /// A trial boot with a required check that failed, or that was late.
    Unhealthy {
        /// The check.
        check: String,
        /// What it printed.
        output: String,
    },
    /// A boot that is not healthy and is not left either, since there is nothing good to go back to: it is neither
    /// rebooted nor kept.
    Stays {
        /// Why.
        reason: String,
    },
}

/// The paths, under one directory.
#[derive(Clone, Debug)]
pub struct RunFiles {
    directory: PathBuf,
}

impl Default for RunFiles {
    fn default() -> Self {
        Self::at(RUN_DIRECTORY)
    }
}

impl RunFiles {
    /// The files in this directory.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The agent's verdict, [`BootVerdict`].
    #[must_use]
    pub fn verdict(&self) -> PathBuf {
        self.directory.join("health.json")
    }

    /// Created by `slotd confirm` once `boot-complete.target` is reached.
    #[must_use]
    pub fn boot_complete(&self) -> PathBuf {
        self.directory.join("boot-complete")
    }

    /// Created by the agent once the boot loader's own data call the running slot good.
    #[must_use]
    pub fn proven(&self) -> PathBuf {
        self.directory.join("proven")
    }

    /// Created by the agent when a boot that is not proven is not left either; see [`BootVerdict::Stays`].
    #[must_use]
    pub fn stays(&self) -> PathBuf {
        self.directory.join("stays")
    }

    /// Created once a boot was released from all guards of a trial: the last step, so that an agent that dies between
    /// the steps takes them again.
    #[must_use]
    pub fn settled(&self) -> PathBuf {
        self.directory.join("settled")
    }

    /// Held exclusively by whoever changes a slot or the loader's data.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    /// Held by the agent for as long as it lives.
    #[must_use]
    pub fn agent(&self) -> PathBuf {
        self.directory.join("agent")
    }

    /// Writes the verdict; whoever reads sees it whole or not at all.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write_verdict(&self, verdict: &BootVerdict) -> io::Result<()> {
        let bytes = serde_json::to_vec(verdict).map_err(io::Error::other)?;
        self.replace(&self.verdict(), &bytes)
    }

    /// The verdict, once there is one.
    ///
    /// # Errors
    /// When it cannot be read or is not one.
    pub fn read_verdict(&self) -> io::Result<Option<BootVerdict>> {
        match fs::read(self.verdict()) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Says that `boot-complete.target` is reached.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn announce_boot_complete(&self) -> io::Result<()> {
        self.replace(&self.boot_complete(), b"")
    }

    /// Says that this boot is proven.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn announce_proven(&self) -> io::Result<()> {
        self.replace(&self.proven(), b"")
    }

    /// Says that this boot is not left although it is not proven.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn announce_stays(&self) -> io::Result<()> {
        self.replace(&self.stays(), b"")
    }

    /// Says that this boot was released from the guards of a trial.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn announce_settled(&self) -> io::Result<()> {
        self.replace(&self.settled(), b"")
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let temporary = path.with_extension("new");
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        drop(file);
        // No fsync: /run is memory, and gone with the boot that this is about.
        fs::rename(&temporary, path)
    }
}

#[cfg(test)]
mod tests {
    use super::{BootVerdict, RunFiles};

    #[test]
    fn a_verdict_reads_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let files = RunFiles::at(directory.path().join("slotd"));
        assert_eq!(files.read_verdict().unwrap(), None);
        let verdict = BootVerdict::Unhealthy {
            check: "kubelet".to_owned(),
            output: "refused".to_owned(),
        };
        files.write_verdict(&verdict).unwrap();
        assert_eq!(files.read_verdict().unwrap(), Some(verdict));
        let text = std::fs::read_to_string(files.verdict()).unwrap();
        assert_eq!(
            text,
            r#"{"verdict":"unhealthy","check":"kubelet","output":"refused"}"#
        );
    }

    #[test]
    fn a_damaged_verdict_is_an_error_and_not_healthy() {
        let directory = tempfile::tempdir().unwrap();
        let files = RunFiles::at(directory.path());
        std::fs::write(files.verdict(), "{}").unwrap();
        assert!(files.read_verdict().is_err());
    }
}
