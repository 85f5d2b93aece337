//! Every power cut of whole upgrades, made of what a machine wrote to its disk: of each it is judged what the loader would start,
//! a sample is looked at with other people's tools, and some are switched on.

mod booted;
mod looked_at;

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::{in_machine, proved_in_machine};
use crate::artifacts::Image;
use crate::cuts::{
    Budget, Judge, Kind, LoaderRules, Reference, Startable, State, View, WriteLog, every_state,
    reach,
};
use crate::images::{V1, V2, V3};
use crate::lab::{CONFIGURATION, Lab, NodeOptions};
use crate::loader::Loader;
use crate::node::Node;
use crate::random::Random;
use crate::runner::Test;

/// Chooses what is tried where there is too much for all.
const BUDGET: Budget = Budget {
    seed: 0x51_07_d0,
    subsets: 6,
};

/// Bytes that a slow disk takes and gives in a second: those of an old memory card.
const SLOW: u64 = 8 << 20;

/// The boots that a trial is given by the lab's configuration.
const TRIES: u32 = 2;

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_machine(
            "vm/any-power-cut-of-an-upgrade-leaves-systemd-boot-a-whole-slot",
            |lab| cut_off(lab, Loader::SystemdBoot, None),
        ),
        proved_in_machine(
            "vm/any-power-cut-of-an-upgrade-on-a-slow-disk-leaves-a-whole-slot",
            |lab| cut_off(lab, Loader::SystemdBoot, Some(SLOW)),
        ),
        proved_in_machine(
            "vm/any-power-cut-of-an-upgrade-leaves-grub-a-whole-slot",
            |lab| cut_off(lab, Loader::Grub, None),
        ),
        proved_in_machine(
            "vm/any-power-cut-of-an-upgrade-leaves-uboot-a-whole-slot",
            |lab| cut_off(lab, Loader::Uboot, None),
        ),
    ]
}

/// What a machine wrote while it upgraded itself.
#[derive(Debug)]
struct Recorded {
    loader: Loader,
    /// The disk as it was at first.
    disk: PathBuf,
    base: File,
    log: WriteLog,
    /// The images that were installed one after the other, the first one into slot B.
    images: Vec<Image>,
    /// The one that slot A held at first.
    first: Image,
}

impl Recorded {
    /// A view of the disk as it was at first.
    fn view(&self, judge: &Judge<Reference>) -> Result<View<'_>> {
        View::new(&self.base, &self.log, judge.rules().parts())
    }

    /// A view of this state.
    fn at(&self, judge: &Judge<Reference>, state: &State) -> Result<View<'_>> {
        let mut view = self.view(judge)?;
        reach(&mut view, state);
        Ok(view)
    }
}

/// Records an upgrade, on a disk that is not slow or is so slow, and judges what a cut of it leaves.
fn cut_off(lab: &Lab, loader: Loader, disk_rate: Option<u64>) -> Result<()> {
    let (node, recorded) = record(lab, loader, disk_rate)?;
    let rules = Reference::new(loader, &recorded.base)?;
    let slots = rules.slots();
    let mut judge = Judge::new(rules, slots, TRIES);
    let images: Vec<(&str, &str)> = [&recorded.first]
        .into_iter()
        .chain(&recorded.images)
        .map(|image| (image.version.as_str(), image.expanded_checksum.as_str()))
        .collect();

    judge.trust(&recorded.view(&judge)?, &images)?;
    let last = State {
        at: recorded.log.entries().len(),
        ..State::default()
    };
    judge.trust(&recorded.at(&judge, &last)?, &images)?;

    let turns = every_cut(lab, &recorded, &mut judge)?;
    let (looked_at, booted) = match disk_rate {
        None if lab.proves() => (100, 12),
        _ => (20, 0),
    };
    let states = chosen(&turns, last.at, looked_at);
    looked_at::look(lab, &recorded, &mut judge, &states)?;
    if booted > 0 {
        let states = chosen(&turns, last.at, booted);
        booted::boot(lab, &recorded, &judge, &states, node.server)?;
    }
    Ok(())
}

/// Upgrades a machine to slot B and, where all is proven, back to slot A, over an old good slot.
fn record(lab: &Lab, loader: Loader, disk_rate: Option<u64>) -> Result<(Node, Recorded)> {
    let options = NodeOptions {
        loader,
        recorded: true,
        disk_rate,
        ..NodeOptions::new(&V1)
    };
    let artifacts = lab.artifacts_of(loader.architecture())?;
    let mut images = vec![artifacts.image(&V2)?];
    if lab.proves() && disk_rate.is_none() {
        images.push(artifacts.image(&V3)?);
    }
    let mut node = Node::start_with(lab, &options)?;
    for (image, slot) in images.iter().zip(['B', 'A']) {
        node.upgrade(slot, image)?;
    }
    node.machine.run("sync")?;
    node.machine.power_cut();
    let disk = artifacts.disk(&V1, CONFIGURATION, loader)?.path;
    let recorded = Recorded {
        loader,
        base: File::open(&disk).with_context(|| format!("opening {}", disk.display()))?,
        disk,
        log: WriteLog::read(&node.machine.record())?,
        images,
        first: artifacts.image(&V1)?,
    };
    Ok((node, recorded))
}

/// States in which the loader's order is another one than before, and those right before them.
type Turns = Vec<State>;

/// Judges every disk that a cut can leave.
fn every_cut(lab: &Lab, recorded: &Recorded, judge: &mut Judge<Reference>) -> Result<Turns> {
    let mut view = recorded.view(judge)?;
    let parts = judge.rules().parts().len();
    let mut disks = HashSet::new();
    let mut data = HashSet::new();
    let mut turns: Turns = Vec::new();
    let mut before: Option<(State, Vec<Startable>)> = None;
    let count = every_state(
        &mut view,
        BUDGET,
        |_| true,
        |view, state| {
            judge.judge(view)?;
            data.insert(judge.rules().data(view));
            disks.insert(view.fingerprint_of_parts(0..parts));
            if !state.is_whole() {
                return Ok(());
            }
            let order = judge.order(view)?;
            if let Some((earlier, old)) = &before
                && *old != order
            {
                turns.extend([earlier.clone(), state.clone()]);
            }
            before = Some((state.clone(), order));
            Ok(())
        },
    )?;
    ensure!(
        turns.len() >= 4 * recorded.images.len(),
        "an upgrade changes the loader's order more often than this: {turns:?}"
    );
    let flushes = recorded
        .log
        .entries()
        .iter()
        .filter(|entry| entry.kind == Kind::Flush)
        .count();
    lab.note(format!(
        "{count} power cuts judged, by seed {:#x}: {} different disks, of which the loader sees {} different ones; {} requests, {flushes} of them flushes",
        BUDGET.seed,
        disks.len(),
        data.len(),
        recorded.log.entries().len(),
    ));
    Ok(turns)
}

/// So many states in order: where the loader's order turns, spread over all turns, as three of four; the others anywhere.
fn chosen(turns: &[State], requests: usize, count: usize) -> Vec<State> {
    let mut random = Random::new(BUDGET.seed);
    let of_turns = turns.len().min(count - count / 4);
    let mut states: Vec<State> = (0..of_turns)
        .map(|index| turns[index * turns.len() / of_turns].clone())
        .collect();
    while states.len() < count {
        let at = random.below(requests as u64 + 1);
        states.push(State {
            at: usize::try_from(at).unwrap_or(requests),
            ..State::default()
        });
    }
    states.sort_by_key(|state| state.at);
    states
}
