//! States that other people's tools look at: the loader's own, mtools, fsck, and Linux's ext4.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Recorded;
use crate::cuts::{Judge, Materialised, Reference, Startable, State, View};
use crate::lab::Lab;
use crate::loader::Loader;
use crate::{esp, process};

/// Where the agent's record has a trial that the loader may start.
const ARMED: [&str; 7] = [
    "arm",
    "restart",
    "check",
    "awaitBootComplete",
    "bless",
    "giveUp",
    "return",
];

/// Looks at these states, in order.
pub(super) fn look(
    lab: &Lab,
    recorded: &Recorded,
    judge: &mut Judge<Reference>,
    states: &[State],
) -> Result<()> {
    let size = recorded.base.metadata().context("the disk's size")?.len();
    let whole = lab.folder().join("looked-at.img");
    let mut disk = Materialised::new(&recorded.disk, 0..size, &whole)?;
    let partition = lab.folder().join("looked-at.boot");
    let mut boot = Materialised::new(&recorded.disk, judge.rules().boot(), &partition)?;
    let mut data = Data::new(lab, recorded, judge.rules())?;
    let mut untidy = 0;
    for state in states {
        let view = recorded.at(judge, state)?;
        let mut one = || -> Result<()> {
            ensure!(
                view.fingerprint_of(&(0..judge.rules().boot().start)) == 0,
                "the partition table was written to"
            );
            disk.follow(&view)?;
            boot.follow(&view)?;
            same_by_tools(recorded.loader, judge.rules(), &view, disk.path())?;
            untidy += u32::from(!is_tidy(boot.path())?);
            let record = data.record(&view)?;
            told(record.as_ref(), &judge.order(&view)?)
        };
        one().with_context(|| format!("looked at {state}"))?;
    }
    lab.note(format!(
        "{} of them looked at with the loader's tools, mtools, fsck.fat and ext4: {untidy} boot partitions with something to repair",
        states.len()
    ));
    Ok(())
}

/// The judge's reading is that of the loader's own tool or, of entries, mtools'.
fn same_by_tools(loader: Loader, rules: &Reference, view: &View<'_>, disk: &Path) -> Result<()> {
    if let Some(held) = loader.held(disk)? {
        let ours = rules.held(view)?;
        ensure!(held == ours, "its tool reads {held:?}, the judge {ours:?}");
        return Ok(());
    }
    for folder in ["/loader/entries", "/slotd/a", "/slotd/b"] {
        let ours = rules.names(view, folder)?;
        // mdir fails of a folder that is not there.
        let theirs = match ours.is_empty() {
            true => Vec::new(),
            false => esp::list(disk, folder)?,
        };
        ensure!(
            theirs == ours,
            "{folder}: mtools reads {theirs:?}, the judge {ours:?}"
        );
    }
    Ok(())
}

/// Whether fsck.fat has nothing to say; an error where it cannot repair what it found.
fn is_tidy(partition: &Path) -> Result<bool> {
    let output = std::process::Command::new("fsck.fat")
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .arg("-n")
        .arg(partition)
        .output()
        .context("starting fsck.fat")?;
    match output.status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => anyhow::bail!(
            "fsck.fat ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stdout)
        ),
    }
}

/// What the agent has kept goes with what the loader would do.
fn told(record: Option<&Value>, order: &[Startable]) -> Result<()> {
    let at = record.and_then(|record| record["at"].as_str());
    let trial = order.iter().find(|startable| !startable.proven);
    if let Some(trial) = trial {
        ensure!(
            at.is_some_and(|at| ARMED.contains(&at)),
            "the loader tries {trial:?}, and the agent's record is at {at:?}"
        );
        let target = record.and_then(|record| record["upgrade"]["target"].as_str());
        ensure!(
            target == Some(trial.slot.to_string().as_str()),
            "the loader tries {trial:?}, and the agent's record says {target:?}"
        );
    }
    Ok(())
}

/// The data partition, mounted as the machine would, which replays the journal.
#[derive(Debug)]
pub(super) struct Data {
    partition: Materialised,
    copy: PathBuf,
    folder: PathBuf,
}

impl Data {
    pub(super) fn new(lab: &Lab, recorded: &Recorded, rules: &Reference) -> Result<Self> {
        let path = lab.folder().join("looked-at.data");
        let folder = lab.folder().join("looked-at.mounted");
        std::fs::create_dir_all(&folder).context("making a folder")?;
        Ok(Self {
            partition: Materialised::new(&recorded.disk, rules.data_partition(), &path)?,
            copy: lab.folder().join("looked-at.data-copy"),
            folder,
        })
    }

    /// The agent's record there, which is whole or was never written.
    pub(super) fn record(&mut self, view: &View<'_>) -> Result<Option<Value>> {
        self.partition.follow(view)?;
        self.partition.copy_to(&self.copy)?;
        process::run("mount", |command| {
            command
                .args(["-o", "loop,noatime"])
                .arg(&self.copy)
                .arg(&self.folder)
        })?;
        let path = self.folder.join("var-lib-slotd/state.json");
        let read = std::fs::read(&path);
        process::run("umount", |command| command.arg(&self.folder))?;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context("reading the agent's record"),
        };
        let document: Value = serde_json::from_slice(&bytes).with_context(|| {
            format!("the agent's record: {:?}", String::from_utf8_lossy(&bytes))
        })?;
        ensure!(document["version"] == 1, "the agent's record: {document}");
        Ok(Some(document["record"].clone()))
    }
}
