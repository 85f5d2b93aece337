//! Somebody changes the loader's files, or the slot itself, while an image is being written into it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use slotd_bootctl::SlotName;

use super::super::lone::Images;
use super::{PATIENCE, Rig};
use crate::lab::Lab;
use crate::server::{Body, Fault};

/// What somebody does meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    /// The running slot's entry becomes one that was given up.
    GivenUp,
    /// The running slot's entry goes.
    Removed,
    /// Bytes of the image that were written already become others.
    Overwritten,
}

impl Edit {
    const ALL: [Self; 3] = [Self::GivenUp, Self::Removed, Self::Overwritten];

    /// What is said of it in the end.
    fn says(self) -> &'static str {
        match self {
            Self::GivenUp | Self::Removed => "does not call the running slot A good any more",
            Self::Overwritten => "read back",
        }
    }

    fn make(self, rig: &Rig<'_>) -> Result<()> {
        let entry = entry(rig);
        match self {
            Self::GivenUp => fs::rename(&entry, entry.with_file_name("slotd-a+0-1.conf")),
            Self::Removed => fs::rename(&entry, aside(rig)),
            Self::Overwritten => {
                let device = rig.node.device(SlotName::B);
                let file = OpenOptions::new().write(true).open(device);
                file.and_then(|file| {
                    file.write_all_at(&[0xa5; 4096], (1 << 20) + 4096)?;
                    file.sync_all()
                })
            }
        }
        .with_context(|| format!("{self:?}"))
    }

    fn take_back(self, rig: &Rig<'_>) -> Result<()> {
        let entry = entry(rig);
        match self {
            Self::GivenUp => fs::rename(entry.with_file_name("slotd-a+0-1.conf"), &entry),
            Self::Removed => fs::rename(aside(rig), &entry),
            Self::Overwritten => Ok(()),
        }
        .with_context(|| format!("taking {self:?} back"))
    }
}

/// The running slot's entry.
fn entry(rig: &Rig<'_>) -> PathBuf {
    rig.node.root().join("efi/loader/entries/slotd-a.conf")
}

fn aside(rig: &Rig<'_>) -> PathBuf {
    rig.node.root().join("slotd-a.conf")
}

pub(super) fn edited(lab: &Lab) -> Result<()> {
    let images = Images::make(lab.folder())?;
    for edit in Edit::ALL {
        let name = format!("{edit:?}").to_lowercase();
        let mut rig = Rig::new(lab, &images, &name)?;
        ends(&mut rig, edit).with_context(|| format!("{edit:?}"))?;
    }
    Ok(())
}

/// The upgrade ends for what was done, before its slot can be started, and touches nothing of it; undone, the next one goes through.
fn ends(rig: &mut Rig<'_>, edit: Edit) -> Result<()> {
    let Images { next, server, .. } = rig.images;
    // Not compressed, so that it reaches the slot as it comes, and with some seconds for all of it.
    let slow = Fault::Slow(next.image.size / 8);
    server.serve("/slow", Body::File(next.expanded.clone()), slow);
    let bus = rig.node.bus();
    bus.install(&server.url("/slow"), &next.image.expanded_checksum)?;
    rig.node.wait("bytes in the slot", PATIENCE, |node, _| {
        let written = node.bus().status()?["upgrade"]["progress"]["bytesWritten"].as_u64();
        Ok(written.is_some_and(|written| written > 1 << 20))
    })?;
    edit.make(rig)?;
    let edited = fs::exists(entry(rig)).context("looking for an entry")?;
    rig.node.wait("the end", PATIENCE, |node, _| {
        Ok(!node.history()?.is_empty())
    })?;
    let history = rig.node.history()?;
    let reason = history
        .first()
        .and_then(|ended| Some(ended.failure.as_ref()?.reason.as_str()))
        .unwrap_or_default();
    ensure!(
        history[0].result == "Failed" && reason.contains(edit.says()),
        "not ended for {:?}: {history:?}",
        edit.says()
    );
    ensure!(
        fs::exists(entry(rig)).context("looking for an entry")? == edited,
        "the running slot's entry was touched"
    );
    edit.take_back(rig)?;
    let next = rig.judge.sound()?;
    ensure!(
        next.slot == 'a' && next.left.is_none(),
        "{next:?} is started"
    );
    rig.stage()?;
    rig.judge.sound().map(drop)
}
