//! What every crash leaves: each prefix of the stages, and each subset of the sectors that were written since the last
//! flush.

use std::path::Path;
use std::sync::Mutex;

use super::disk::{Disk, DiskNode};
use super::loader_model::{Loader, Machine};
use super::states::Bits;
use super::store::{Gptprio, SlotEntry};
use super::tables::{Other, Tables};
use crate::backend::SlotState::{Bad, Empty, Good, Trial};
use crate::error::Result;
use crate::fixture::{FixturePartition, gpt_image};
use crate::record::Record;
use crate::slot::SlotName::{self, A, B};
use crate::table::Booted;

/// A sector and what was written to it.
type Write = (u64, Vec<u8>);

/// A disk in memory that remembers in which order it was written and flushed.
pub(super) struct Recorded {
    sector: usize,
    bytes: Mutex<Vec<u8>>,
    /// Writes between two flushes.
    log: Mutex<Vec<Vec<Write>>>,
}

impl Recorded {
    pub(super) fn new(bytes: &[u8], sector: usize) -> Self {
        Self {
            sector,
            bytes: Mutex::new(bytes.to_vec()),
            log: Mutex::new(vec![Vec::new()]),
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

impl Disk for Recorded {
    fn path(&self) -> &Path {
        Path::new("disk")
    }

    fn sector(&self) -> u64 {
        self.sector as u64
    }

    fn count(&self) -> u64 {
        (self.bytes.lock().unwrap().len() / self.sector) as u64
    }

    fn read(&self, lba: u64, count: u64) -> Result<Vec<u8>> {
        let at = usize::try_from(lba).unwrap() * self.sector;
        Ok(
            self.bytes.lock().unwrap()[at..][..usize::try_from(count).unwrap() * self.sector]
                .to_vec(),
        )
    }

    fn write(&self, lba: u64, bytes: &[u8]) -> Result<()> {
        assert_eq!(bytes.len(), self.sector, "one sector at a time");
        put(&mut self.bytes.lock().unwrap(), self.sector, lba, bytes);
        let mut log = self.log.lock().unwrap();
        log.last_mut().unwrap().push((lba, bytes.to_vec()));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.log.lock().unwrap().push(Vec::new());
        Ok(())
    }
}

fn put(disk: &mut [u8], sector: usize, lba: u64, bytes: &[u8]) {
    disk[usize::try_from(lba).unwrap() * sector..][..bytes.len()].copy_from_slice(bytes);
}

/// Every state that the medium can be in while `log` is written, with the number of flushes before it.
fn every_crash(start: &[u8], sector: usize, log: &[Vec<Write>]) -> Vec<(usize, Vec<u8>)> {
    let mut states = Vec::new();
    let mut durable = start.to_vec();
    for (flushes, writes) in log.iter().enumerate() {
        for subset in 0..1_u32 << writes.len() {
            let mut state = durable.clone();
            for (number, (lba, bytes)) in writes.iter().enumerate() {
                if subset >> number & 1 == 1 {
                    put(&mut state, sector, *lba, bytes);
                }
            }
            states.push((flushes, state));
        }
        for (lba, bytes) in writes {
            put(&mut durable, sector, *lba, bytes);
        }
    }
    states
}

/// A disk with two slots of those numbers and a partition before and behind them.
pub(super) fn disk(sector: usize, numbers: [u32; 2]) -> (Vec<u8>, Gptprio) {
    let (size, unit) = (256 * sector as u64, sector as u64);
    let taken = |number: &u32| !numbers.contains(number);
    let others: Vec<u32> = (1..).filter(taken).take(2).collect();
    let order = [others[0], numbers[0], numbers[1], others[1]];
    let partitions: Vec<FixturePartition> = order
        .into_iter()
        .zip(0..)
        .map(|(index, place)| FixturePartition {
            index,
            label: format!("p{index}"),
            type_uuid: uuid::Uuid::from_u128(0x5dfb_f5f4),
            uuid: uuid::Uuid::from_u128(0xb000 + u128::from(index)),
            start: (40 + 20 * place) * unit,
            size: 20 * unit,
        })
        .collect();
    let entries = [1, 2].map(|place: usize| SlotEntry {
        number: partitions[place].index,
        start: partitions[place].start,
        size: partitions[place].size,
        uuid: Some(partitions[place].uuid),
    });
    let mut image = gpt_image(size, u32::try_from(sector).unwrap(), &partitions);
    // Recognisable bytes in the partitions and in the first sector.
    image[..440].fill(0xb7);
    image[40 * sector..120 * sector].fill(0xda);
    let node = DiskNode {
        path: "disk".into(),
        sector: u32::try_from(sector).unwrap(),
        size,
        fixture: true,
    };
    (image, Gptprio::at(node, entries))
}

fn record(a: crate::backend::SlotState, b: crate::backend::SlotState, first: SlotName) -> Record {
    Record { a, b, first }
}

/// What is there, what is wanted, what runs.
fn changes() -> Vec<(Record, Record, Booted)> {
    let trial = |left, done| Trial { left, done };
    let (on_a, on_b) = (Booted::Slot(A), Booted::Slot(B));
    vec![
        (record(Good, Empty, A), record(Good, trial(3, 0), B), on_a),
        (record(Good, trial(3, 0), B), record(Good, Empty, A), on_a),
        (record(Good, trial(2, 1), B), record(Good, Good, B), on_b),
        (record(Good, trial(0, 3), B), record(Good, Good, B), on_b),
        (record(Good, trial(1, 2), B), record(Good, Bad, A), on_b),
        (record(Good, trial(0, 3), B), record(Good, Bad, A), on_b),
        (record(Good, Good, B), record(Empty, Good, B), on_b),
        (record(Good, Good, A), record(Good, Good, B), on_a),
        (record(Empty, Good, B), record(trial(12, 0), Good, A), on_b),
    ]
}

fn seen(
    disk: &mut Vec<u8>,
    sector: usize,
    loader: Loader,
    numbers: [u32; 2],
    booted: Booted,
) -> Record {
    let machine = Machine {
        medium: disk,
        sector: sector as u64,
    };
    let attributes = machine.attributes(loader, numbers);
    let [a, b] = attributes
        .unwrap_or_else(|| panic!("{loader:?} finds no table"))
        .map(super::attributes::Boot::of);
    let lower = if numbers[0] < numbers[1] { A } else { B };
    Bits { a, b, lower }.record(booted)
}

const GEOMETRIES: [(usize, [u32; 2]); 6] = [
    (512, [2, 3]),
    (512, [4, 5]),
    (512, [128, 1]),
    (4096, [2, 3]),
    (4096, [32, 33]),
    (4096, [100, 7]),
];

#[test]
fn every_crash_leaves_the_old_record_or_the_new_one_to_every_loader_and_is_finished_by_doing_it_again()
 {
    let (mut states, mut unfinished) = (0, 0);
    for (sector, numbers) in GEOMETRIES {
        for (before, wanted, booted) in changes() {
            let (empty, store) = disk(sector, numbers);
            let setup = Recorded::new(&empty, sector);
            store.write(&setup, booted, &before).unwrap();
            let start = setup.bytes();
            let whole = Recorded::new(&start, sector);
            store.write(&whole, booted, &wanted).unwrap();
            let end = whole.bytes();
            let log = whole.log.lock().unwrap().clone();
            assert_eq!(log.len(), 4, "three stages and what follows the last flush");
            for (flushes, state) in every_crash(&start, sector, &log) {
                let what = format!("{sector} {numbers:?} {before:?} {wanted:?} after {flushes}");
                for loader in [Loader::Grub, Loader::Firmware] {
                    let found = seen(&mut state.clone(), sector, loader, numbers, booted);
                    // The sector that decides is the primary header's.
                    let expected = if state[sector..2 * sector] == start[sector..2 * sector] {
                        before
                    } else {
                        wanted
                    };
                    assert_eq!(found, expected, "{loader:?} {what}");
                }
                heals_before_the_kernel(&state, sector, numbers, &what);
                let again = Recorded::new(&state, sector);
                store.write(&again, booted, &wanted).unwrap();
                assert!(again.bytes() == end, "{what}");
                // The finishing, cut off as well.
                let log = again.log.lock().unwrap().clone();
                for (_, state) in every_crash(&state, sector, &log) {
                    for loader in [Loader::Grub, Loader::Firmware] {
                        let found = seen(&mut state.clone(), sector, loader, numbers, booted);
                        assert!(
                            [before, wanted].contains(&found),
                            "{loader:?} {what}: {found:?}"
                        );
                    }
                    unfinished += 1;
                }
                states += 1;
            }
        }
    }
    eprintln!("{states} states, {unfinished} of an interrupted finish");
    assert!(states > 500);
}

/// The kernel looks at no table but the primary one: whatever is started, the loader has made that whole.
fn heals_before_the_kernel(state: &[u8], sector: usize, numbers: [u32; 2], what: &str) {
    for loader in [Loader::Grub, Loader::Firmware] {
        let mut disk = state.to_vec();
        let mut machine = Machine {
            medium: &mut disk,
            sector: sector as u64,
        };
        assert!(
            machine.start(loader, numbers).is_some(),
            "{loader:?} {what}"
        );
        assert!(machine.primary_is_whole(), "{loader:?} {what}");
    }
}

#[test]
fn nothing_but_the_slots_attributes_and_checksums_differs() {
    for (sector, numbers) in GEOMETRIES {
        for (before, wanted, booted) in changes() {
            let (empty, store) = disk(sector, numbers);
            let disk = Recorded::new(&empty, sector);
            store.write(&disk, booted, &before).unwrap();
            store.write(&disk, booted, &wanted).unwrap();
            let last = empty.len() - sector;
            let array = 128 * 128;
            let mut allowed = vec![false; empty.len()];
            for (header, entries) in [(sector, 2 * sector), (last, last - array)] {
                allowed[header + 16..header + 20].fill(true);
                allowed[header + 88..header + 92].fill(true);
                for number in numbers {
                    // Bits 48 to 56: the last two bytes of the attributes.
                    let at = entries + (number as usize - 1) * 128 + 48 + 6;
                    allowed[at..at + 2].fill(true);
                }
            }
            for (at, (old, new)) in empty.iter().zip(disk.bytes()).enumerate() {
                assert!(
                    *old == new || allowed[at],
                    "byte {at} of {sector} {numbers:?}"
                );
            }
        }
    }
}

#[test]
fn what_the_table_says_already_is_not_written() {
    let (empty, store) = disk(512, [2, 3]);
    for (before, _, booted) in changes() {
        let disk = Recorded::new(&empty, 512);
        store.write(&disk, booted, &before).unwrap();
        let writes = disk.log.lock().unwrap().len();
        store.write(&disk, booted, &before).unwrap();
        assert_eq!(disk.log.lock().unwrap().len(), writes);
    }
}

#[test]
fn each_record_reads_back_as_it_was_written_whatever_was_there() {
    let all = || {
        changes()
            .into_iter()
            .flat_map(|(before, wanted, booted)| [(before, booted), (wanted, booted)])
    };
    for (first, booted) in all() {
        for (second, second_booted) in all() {
            let (image, store) = disk(512, [2, 3]);
            let disk = Recorded::new(&image, 512);
            store.write(&disk, booted, &first).unwrap();
            store.write(&disk, second_booted, &second).unwrap();
            let tables = Tables::read(&disk, &[2, 3]).unwrap();
            assert!(matches!(tables.other, Other::Same(_)));
            for loader in [Loader::Grub, Loader::Firmware] {
                let found = seen(&mut disk.bytes(), 512, loader, [2, 3], second_booted);
                assert!(found.agrees_with(&second), "{first:?} {second:?} {found:?}");
            }
        }
    }
}
