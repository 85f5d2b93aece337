//! An agent that is killed by SIGKILL: a real process on real block devices, at every call by which it changes anything that outlives
//! it, one after the other, over whole upgrades.
//!
//! A kill at the entry of a call leaves what all calls before it did. Every state that a kill can leave is there at the entry of
//! some call that changes something, or at the end: so the entries of these calls are all that has to be gone through.

mod calls;
mod life;

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use self::calls::{Call, spread};
use self::life::{After, Course, End};
use super::lone::Images;
use super::{on_loop_disk, proved_on_loop_disk};
use crate::lab::Lab;
use crate::runner::Test;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_loop_disk(
            "loop/an-agent-that-is-killed-at-a-change-ends-its-upgrade",
            |lab| killed(lab, Some(SAMPLE)),
        ),
        proved_on_loop_disk(
            "loop/an-agent-that-is-killed-at-every-change-ends-its-upgrade",
            |lab| killed(lab, None),
        ),
    ]
}

/// Kills of each course of an upgrade that CI has the time for.
const SAMPLE: usize = 20;

/// Goes through both courses; with a sample of so many kills each, or with all of them, twice: the agent starts again, or all
/// of the machine does.
fn killed(lab: &Lab, sample: Option<usize>) -> Result<()> {
    let images = Images::make(lab.folder())?;
    let seed = seed()?;
    for end in [End::Completed, End::RolledBack] {
        let course = Course::new(lab.folder(), &images, end);
        let calls = course
            .record()
            .with_context(|| format!("{end:?}, undisturbed"))?;
        let all: usize = calls.iter().map(Vec::len).sum();
        let mut count = 0;
        let mut missed = 0;
        let mut places = BTreeSet::new();
        let targets: Vec<(usize, &Call)> = calls
            .iter()
            .enumerate()
            .flat_map(|(process, calls)| calls.iter().map(move |call| (process, call)))
            .collect();
        for (index, (process, call)) in spread(&targets, sample, seed).into_iter().enumerate() {
            let ways: &[After] = match sample {
                Some(_) if index % 2 == 0 => &[After::AgentStarts],
                Some(_) => &[After::MachineStarts],
                None => &[After::AgentStarts, After::MachineStarts],
            };
            for after in ways {
                let hit = course.kill(*process, call, *after).with_context(|| {
                    format!("{end:?}, process {process} killed at {call}, then {after:?}")
                })?;
                match hit {
                    Some(place) => {
                        count += 1;
                        places.insert((*process, place));
                    }
                    None => missed += 1,
                }
            }
        }
        lab.note(format!(
            "{end:?}: {all} calls change something, {count} kills at {} different ones, {missed} came to none ({SEED}={seed})",
            places.len()
        ));
        ensure!(count > missed, "most kills came to nothing");
    }
    Ok(())
}

/// What chooses the sample: this moment, or what a run before has printed.
fn seed() -> Result<u64> {
    match std::env::var(SEED) {
        Ok(text) => text.parse().with_context(|| format!("{SEED}={text}")),
        Err(_) => Ok(u64::from(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)?
                .subsec_micros(),
        )),
    }
}

/// The variable by which a run is repeated.
const SEED: &str = "SLOTD_LAB_SEED";
