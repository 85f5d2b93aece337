//! Which disks a cut can leave.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result};

use super::view::{Replaced, View};
use super::write_log::Kind;
use crate::random::Random;

/// Writes without a flush behind them, all of whose subsets are tried.
const ALL_SUBSETS_OF: usize = 8;
/// Writes without a flush behind them, of which a sampled subset loses some: the latest of them.
const SAMPLED_AMONG: usize = 64;
/// Sectors of a write that is torn at each of them.
const ALL_TEARS_OF: u64 = 8;

/// How much is tried where there is too much for all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Of the numbers that choose.
    pub(crate) seed: u64,
    /// Subsets of the outstanding writes that are tried after each write.
    pub(crate) subsets: u32,
}

/// A cut, and what it cost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Entries of the record that came before the cut.
    pub(crate) at: usize,
    /// Entries among them that are lost, in order.
    pub(crate) lost: Vec<usize>,
    /// Sectors that are there of the last one, where that is torn.
    pub(crate) torn: Option<u64>,
}

impl State {
    /// Whether all is there that came before the cut.
    pub(crate) const fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.torn.is_none()
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a cut after request {}", self.at)?;
        if !self.lost.is_empty() {
            write!(formatter, ", requests {:?} lost", self.lost)?;
        }
        if let Some(kept) = self.torn {
            write!(formatter, ", the last one torn after {kept} sectors")?;
        }
        Ok(())
    }
}

/// A write that no flush has followed.
#[derive(Debug)]
struct Outstanding {
    entry: usize,
    /// Durable all the same, once something came after it.
    durable: bool,
    replaced: Replaced,
}

/// Shows every disk that a cut can leave, from the fresh one of `view` on, in the order of the cuts; how many there were.
///
/// After each write: all that was written, that write torn, and every subset of what is outstanding lost, as long as that is no
/// more than eight writes; a sample beyond. Only cuts are shown before which so many requests came that `wanted` says yes.
///
/// # Errors
/// Those of `each`, with the state.
pub(crate) fn every_state(
    view: &mut View<'_>,
    budget: Budget,
    wanted: impl Fn(usize) -> bool,
    mut each: impl FnMut(&View<'_>, &State) -> Result<()>,
) -> Result<u64> {
    let mut count = 0;
    let mut show =
        |view: &mut View<'_>, outstanding: &[Outstanding], lost: &[usize], cut: State| {
            count += 1;
            let replaced = lose(view, outstanding, lost);
            let state = State {
                lost: entries_of(outstanding, lost),
                ..cut
            };
            each(view, &state).with_context(|| state.to_string())?;
            put_back(view, &replaced);
            anyhow::Ok(())
        };
    if wanted(0) {
        show(view, &[], &[], State::default())?;
    }
    let mut random = Random::new(budget.seed);
    let mut outstanding: Vec<Outstanding> = Vec::new();
    for entry in 0..view.log().entries().len() {
        let (kind, sectors) = {
            let entry = &view.log().entries()[entry];
            (entry.kind, entry.sectors.end - entry.sectors.start)
        };
        if kind == Kind::Flush {
            outstanding.clear();
            continue;
        }
        let whole = State {
            at: entry + 1,
            ..State::default()
        };
        let mut subsets_lost = Vec::new();
        if wanted(whole.at) {
            let losable: Vec<usize> = outstanding
                .iter()
                .enumerate()
                .filter(|(_, write)| !write.durable)
                .map(|(position, _)| position)
                .collect();
            subsets_lost = subsets(&losable, budget.subsets, &mut random);
            for kept in tears(sectors, &mut random) {
                let cut = State {
                    torn: Some(kept),
                    ..whole.clone()
                };
                let torn = view.apply(entry, cut.torn);
                let lost_too = usize::try_from(random.below(subsets_lost.len() as u64))?;
                show(view, &outstanding, &[], cut.clone())?;
                if lost_too > 0 {
                    show(view, &outstanding, &subsets_lost[lost_too], cut)?;
                }
                view.put_back(&torn);
            }
        }
        let replaced = view.apply(entry, None);
        outstanding.push(Outstanding {
            entry,
            durable: kind == Kind::DurableWrite,
            replaced,
        });
        for lost in &subsets_lost {
            show(view, &outstanding, lost, whole.clone())?;
        }
    }
    Ok(count)
}

/// Makes a fresh view one of this state.
pub(crate) fn reach(view: &mut View<'_>, state: &State) {
    let mut outstanding: Vec<Outstanding> = Vec::new();
    for entry in 0..state.at {
        let kind = view.log().entries()[entry].kind;
        if kind == Kind::Flush {
            outstanding.clear();
            continue;
        }
        let kept = state.torn.filter(|_| entry + 1 == state.at);
        let replaced = view.apply(entry, kept);
        outstanding.push(Outstanding {
            entry,
            durable: false,
            replaced,
        });
    }
    let lost: Vec<usize> = outstanding
        .iter()
        .enumerate()
        .filter(|(_, write)| state.lost.contains(&write.entry))
        .map(|(position, _)| position)
        .collect();
    lose(view, &outstanding, &lost);
}

/// After how many sectors a write of so many is torn.
fn tears(sectors: u64, random: &mut Random) -> Vec<u64> {
    if sectors <= ALL_TEARS_OF {
        return (1..sectors).collect();
    }
    let mut tears = vec![1, sectors - 1];
    tears.extend([1, 2].map(|_| 1 + random.below(sectors - 1)));
    tears.sort_unstable();
    tears.dedup();
    tears
}

/// Which of the outstanding writes are lost: none, first of all, and then each subset of them or so many others.
fn subsets(losable: &[usize], sampled: u32, random: &mut Random) -> Vec<Vec<usize>> {
    // The write that was issued last is there: without it the cut came before it.
    if losable.len() < ALL_SUBSETS_OF {
        return (0..1_u32 << losable.len())
            .map(|mask| {
                losable
                    .iter()
                    .enumerate()
                    .filter(|(bit, _)| mask & (1 << bit) != 0)
                    .map(|(_, position)| *position)
                    .collect()
            })
            .collect();
    }
    let mut all = vec![Vec::new()];
    for turn in 0..sampled {
        // One alone, some of the latest, or about half of many.
        let among = match turn % 3 {
            0 => {
                let one = random.below(losable.len() as u64);
                all.push(vec![losable[usize::try_from(one).unwrap_or(0)]]);
                continue;
            }
            1 => ALL_SUBSETS_OF,
            _ => SAMPLED_AMONG,
        };
        let latest = &losable[losable.len().saturating_sub(among)..];
        let some = latest.iter().copied().filter(|_| random.below(2) == 0);
        all.push(some.collect());
    }
    all
}

fn entries_of(outstanding: &[Outstanding], positions: &[usize]) -> Vec<usize> {
    positions
        .iter()
        .map(|position| outstanding[*position].entry)
        .collect()
}

/// Takes these writes away, in whose place stands what was there before, as far as that is not lost, too.
fn lose(view: &mut View<'_>, outstanding: &[Outstanding], lost: &[usize]) -> Vec<Replaced> {
    let writer = |entry: usize| u32::try_from(entry + 1).unwrap_or(u32::MAX);
    let positions: BTreeMap<u32, usize> = lost
        .iter()
        .map(|position| (writer(outstanding[*position].entry), *position))
        .collect();
    lost.iter()
        .map(|position| {
            let entry = outstanding[*position].entry;
            let sectors = view.log().entries()[entry].sectors.clone();
            view.replace(sectors, |sector, found| {
                let mut found = found;
                while let Some(earlier) = positions
                    .get(&found)
                    .and_then(|position| outstanding[*position].replaced.before(sector))
                {
                    found = earlier;
                }
                found
            })
        })
        .collect()
}

fn put_back(view: &mut View<'_>, replaced: &[Replaced]) {
    for replaced in replaced.iter().rev() {
        view.put_back(replaced);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::File;

    use super::{Budget, State, every_state, reach};
    use crate::cuts::view::View;
    use crate::cuts::write_log::WriteLog;
    use crate::cuts::write_log::tests::record;

    const BUDGET: Budget = Budget {
        seed: 7,
        subsets: 9,
    };

    /// Each disk of eight sectors that a cut can leave, by the first byte of each, and how many states there were.
    fn disks(requests: &[(u64, u64, Vec<u8>)]) -> (BTreeSet<Vec<u8>>, Vec<State>) {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        std::fs::write(&base, vec![0; 8 * 512]).unwrap();
        let base = File::open(&base).unwrap();
        let log = record(&folder.path().join("log"), requests);
        let mut seen = BTreeSet::new();
        let mut states = Vec::new();
        let mut view = View::new(&base, &log, &[0..2048, 2048..4096]).unwrap();
        every_state(
            &mut view,
            BUDGET,
            |_| true,
            |view, state| {
                seen.insert(read(view));
                assert_eq!(read(view), reached(&base, &log, state), "{state}");
                states.push(state.clone());
                Ok(())
            },
        )
        .unwrap();
        (seen, states)
    }

    fn read(view: &View<'_>) -> Vec<u8> {
        let mut bytes = vec![0; 8 * 512];
        view.read_at(0, &mut bytes).unwrap();
        bytes.chunks(512).map(|sector| sector[0]).collect()
    }

    /// The same state, made anew.
    fn reached(base: &File, log: &WriteLog, state: &State) -> Vec<u8> {
        let mut view = View::new(base, log, &[0..2048, 2048..4096]).unwrap();
        reach(&mut view, state);
        read(&view)
    }

    fn disk(bytes: [u8; 4]) -> Vec<u8> {
        [bytes, [0; 4]].concat()
    }

    #[test]
    fn of_writes_without_a_flush_every_subset_is_there_and_of_those_before_one_none_is_lost() {
        let (seen, _) = disks(&[
            (0, 0, vec![1; 512]),
            (1, 0, Vec::new()),
            (0, 1, vec![2; 512]),
            (0, 2, vec![3; 512]),
        ]);
        // By hand: nothing; the first; then any of the other two, and the first for certain.
        let expected = [
            [0, 0, 0, 0],
            [1, 0, 0, 0],
            [1, 2, 0, 0],
            [1, 0, 3, 0],
            [1, 2, 3, 0],
        ];
        assert_eq!(seen, expected.map(disk).into_iter().collect());
    }

    #[test]
    fn a_lost_write_leaves_what_the_one_before_it_left() {
        let (seen, _) = disks(&[
            (0, 0, vec![1; 1024]),
            (0, 1, vec![2; 1024]),
            (0, 1, vec![3; 512]),
        ]);
        for bytes in [
            [1, 1, 0, 0],
            [0, 2, 2, 0],
            [1, 3, 2, 0],
            [1, 3, 0, 0],
            [0, 3, 0, 0],
        ] {
            assert!(seen.contains(&disk(bytes)), "{bytes:?} of {seen:?}");
        }
        // Torn: its first sector alone.
        assert!(seen.contains(&disk([1, 0, 0, 0])), "{seen:?}");
        // The second one is whole where something came after it, or torn itself.
        assert!(!seen.contains(&disk([1, 3, 3, 0])), "{seen:?}");
    }

    #[test]
    fn a_durable_write_is_lost_only_as_the_last_one() {
        let (seen, _) = disks(&[(2, 0, vec![1; 512]), (0, 1, vec![2; 512])]);
        let expected = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 2, 0, 0]];
        assert_eq!(seen, expected.map(disk).into_iter().collect());
    }

    #[test]
    fn of_many_writes_a_sample_is_lost_that_is_the_same_each_time() {
        let requests: Vec<_> = (0..20_u8)
            .map(|number| (0, u64::from(number % 8), vec![number + 1; 512]))
            .collect();
        let (seen, states) = disks(&requests);
        let (again, states_again) = disks(&requests);
        assert_eq!((&seen, &states), (&again, &states_again));
        // All subsets of what is outstanding up to the eighth write, then the whole and nine others each.
        let count = 1 + (0..8).map(|earlier| 1 << earlier).sum::<usize>() + 12 * 10;
        assert_eq!(states.len(), count);
    }
}
