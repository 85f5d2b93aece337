//! Every power cut of what the programs do to a loop disk, made of what they wrote.

use std::cell::RefCell;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Kept, Node, TRIES, digest, lives};
use crate::cuts::{
    Budget, Digests, Judge, LoaderRules, Materialised, Recorder, Slots, Startable, View,
    every_state, held_by_raw_pair, order_of,
};
use crate::disk::partition_ranges;
use crate::lab::Lab;
use crate::loader::{Attributes, Held, held_by_grub};
use crate::loopdisk::{LoopDisk, Sector};
use crate::process;
use crate::runner::Test;
use crate::scenarios::discovery::rig::{DISK_SIZE, Rig};
use crate::scenarios::on_loop_disk;

/// Chooses what is tried where there is too much for all.
const BUDGET: Budget = Budget {
    seed: 0x51_07_d1,
    subsets: 6,
};

/// Parts of a view: what the loader goes by, the slots, and the two ends of the disk, which have the partition table.
const BOOT: usize = 0;
const SLOTS: [usize; 2] = [1, 2];
const TABLES: [usize; 2] = [3, 4];

/// A test on a loop disk that is recorded.
pub(super) const fn on_recorded_disk(name: &'static str, run: fn(&Lab) -> Result<()>) -> Test {
    Test {
        unavailable: || {
            let no_fuse = || {
                let missing = !Path::new("/dev/fuse").exists();
                missing.then_some("this kernel has no FUSE")
            };
            crate::loopdisk::unavailable().or_else(no_fuse)
        },
        ..on_loop_disk(name, run)
    }
}

pub(super) fn cut_off(lab: &Lab, kept: Kept) -> Result<()> {
    let file = lab.folder().join("recorded-disk");
    let sparse = |path: &Path| {
        File::create(path)
            .and_then(|file| file.set_len(DISK_SIZE))
            .with_context(|| format!("creating {}", path.display()))
    };
    sparse(&file)?;
    let recorder = Recorder::start(&file)?;
    let make = |folder, kind, sector, image: &Path| {
        let disk = LoopDisk::attach_one_by_one(recorder.shown(), DISK_SIZE, sector)?;
        Rig::on(disk, folder, kind, image)
    };
    let node = Node::new(lab, kept, make, Sector::B512)?;
    let prepared = recorder.requests()?;
    // sfdisk, which stands in for the firmware, is not what is tried here.
    let mut counted: Vec<Range<usize>> = Vec::new();
    lives(&node, &mut |left| {
        let before = recorder.requests()?;
        node.count(left)?;
        if kept == Kept::Attributes {
            counted.push(before + 1..recorder.requests()?);
        }
        Ok(())
    })?;
    let images = [("v1.0.0", &node.images[0]), ("v2.0.0", &node.images[1])];
    let size = std::fs::metadata(images[0].1)
        .context("an image's size")?
        .len();
    let digests = images
        .map(|(version, image)| Ok((version, format!("sha256:{}", digest(image)?))))
        .into_iter()
        .collect::<Result<Vec<(&str, String)>>>()?;
    drop(node);
    let log = recorder.stop()?;

    let disk = File::open(&file).with_context(|| format!("opening {}", file.display()))?;
    let base_path = lab.folder().join("empty-disk");
    sparse(&base_path)?;
    let base = File::open(&base_path).context("opening an empty disk")?;
    let rules = OnLoop::new(lab, kept, &disk, &base_path)?;
    let slots = Slots {
        parts: SLOTS.map(|part| {
            let start = rules.parts[part].start;
            (part, start..start + size)
        }),
    };
    let mut view = View::new(&base, &log, &rules.parts)?;
    let mut judge = Judge::new(rules, slots, TRIES);
    judge.know(
        digests
            .iter()
            .map(|(version, digest)| (*version, digest.as_str())),
    );
    let mut orders = Vec::new();
    let wanted = |at: usize| at >= prepared && !counted.iter().any(|range| range.contains(&at));
    let count = every_state(&mut view, BUDGET, wanted, |view, state| {
        judge.judge(view)?;
        let order = judge.order(view)?;
        if state.is_whole() && orders.last() != Some(&order) {
            orders.push(order);
        }
        Ok(())
    })?;
    // Fresh, armed, proven, back, given up, armed anew; what the boots took is seen at the latest when it is proven.
    anyhow::ensure!(orders.len() >= 7, "the loader's order was only {orders:?}");
    lab.note(format!(
        "{count} power cuts judged, by seed {:#x}; {} requests, {} orders of the loader one after the other",
        BUDGET.seed,
        log.entries().len() - prepared,
        orders.len()
    ));
    Ok(())
}

/// The loaders whose data a loop disk can hold, read by their own tools or, of U-Boot, by the lab.
#[derive(Debug)]
struct OnLoop {
    kept: Kept,
    parts: Vec<Range<u64>>,
    disk: RefCell<Materialised>,
}

impl OnLoop {
    fn new(lab: &Lab, kept: Kept, disk: &File, base: &Path) -> Result<Self> {
        let mut parts = partition_ranges(disk, 3)?;
        parts.push(0..1 << 20);
        parts.push(DISK_SIZE - (1 << 20)..DISK_SIZE);
        let file: PathBuf = lab.folder().join("judged-disk");
        Ok(Self {
            kept,
            parts,
            disk: RefCell::new(Materialised::new(base, 0..DISK_SIZE, &file)?),
        })
    }

    fn held(&self, view: &View<'_>) -> Result<Held> {
        let mut disk = self.disk.borrow_mut();
        match self.kept {
            Kept::Grub => {
                disk.follow_parts(
                    view,
                    &[self.parts[BOOT].clone(), self.parts[TABLES[0]].clone()],
                )?;
                // It reads ext4 as GRUB does, without its journal.
                let block = process::output("grub-fstest", |command| {
                    command
                        .arg(disk.path())
                        .args(["cat", "(loop0,gpt1)/grub/grubenv"])
                })?;
                held_by_grub(block.trim_end_matches('#'))
            }
            Kept::Uboot => held_by_raw_pair(view, self.parts[BOOT].start),
            Kept::Attributes => {
                disk.follow_parts(view, &TABLES.map(|part| self.parts[part].clone()))?;
                let attributes = |partition: &str| {
                    let words = process::output("sfdisk", |command| {
                        command.arg("--part-attrs").arg(disk.path()).arg(partition)
                    })?;
                    Ok::<_, anyhow::Error>(Attributes::read(&words))
                };
                Ok(Attributes::held([attributes("2")?, attributes("3")?]))
            }
        }
    }
}

impl LoaderRules for OnLoop {
    fn data(&self, view: &View<'_>) -> u64 {
        match self.kept {
            Kept::Grub | Kept::Uboot => view.fingerprint(BOOT),
            Kept::Attributes => view.fingerprint_of_parts(TABLES),
        }
    }

    fn order(&self, view: &View<'_>, _: &mut Digests) -> Result<Vec<Startable>> {
        Ok(order_of(&self.held(view)?))
    }
}
