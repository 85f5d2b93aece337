//! Both copies of a disk's table, which of them the loaders go by, and how both are changed.

use super::attributes::Boot;
use super::disk::Disk;
use super::mbr;
use super::table::{Entry, PRIMARY_LBA, TableCopy, Which, damaged};
use crate::error::{Error, Result};

/// What the copy is that the loaders do not go by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Other {
    /// Whole, and the same.
    Same(TableCopy),
    /// Different in nothing but the slots' attributes and checksums: what a change leaves that was cut off. The next
    /// change finishes it.
    Behind(TableCopy),
    /// Not usable, or another table. The text says why.
    Unusable(String),
}

/// A disk's table.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    /// The copy that the loaders go by: the primary one where it is whole.
    pub(super) used: TableCopy,
    pub(super) other: Other,
    /// What is odd and stops nothing.
    pub(super) oddities: Vec<String>,
    /// Why nothing is written, with what to do.
    pub(super) obstacles: Vec<String>,
    /// Why no update is begun, though what is there can be changed.
    pub(super) warnings: Vec<String>,
}

/// Sectors to write, then to flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage(pub(super) Vec<(u64, Vec<u8>)>);

/// How a table is brought whole again from the copy that is, as it is told to people.
const REPAIR: &str = "`sgdisk -e` on the disk repairs it";
/// What to do where no tool can know what is meant.
const LOOK: &str = "`sgdisk -v` on the disk shows it";

impl Tables {
    /// Reads and judges both copies. `slots` are the numbers of the slots' entries.
    ///
    /// # Errors
    /// Where neither copy is whole.
    pub(super) fn read(disk: &impl Disk, slots: &[u32]) -> Result<Self> {
        let primary = TableCopy::read(disk, Which::Primary, PRIMARY_LBA).and_then(checked(disk));
        let backup_at = backup_place(disk);
        let backup = TableCopy::read(disk, Which::Backup, backup_at).and_then(checked(disk));
        let (used, other) = match (primary, backup) {
            (Ok(primary), backup) => {
                let other = other(disk, slots, &primary, backup, Which::Backup, backup_at);
                (primary, other)
            }
            (Err(problem), Ok(backup)) => {
                let primary = Err(problem);
                let other = other(disk, slots, &backup, primary, Which::Primary, PRIMARY_LBA);
                (backup, other)
            }
            (Err(primary), Err(backup)) => {
                let problem = format!("{}; and {}", problem_of(&primary), problem_of(&backup));
                return Err(damaged(disk, PRIMARY_LBA, problem));
            }
        };
        let mut tables = Self {
            used,
            other,
            oddities: Vec::new(),
            obstacles: Vec::new(),
            warnings: Vec::new(),
        };
        tables.judge_copies();
        tables.judge_end(disk);
        tables.judge_entries();
        let mbr = mbr::kind(&disk.read(0, 1)?);
        tables.oddities.extend(mbr.oddity());
        tables.warnings.extend(mbr.warning());
        Ok(tables)
    }

    /// The used entries of the copy that the loaders go by.
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.used.entries().collect()
    }

    fn judge_copies(&mut self) {
        let (used, other) = match self.used.which {
            Which::Primary => (Which::Primary, Which::Backup),
            Which::Backup => (Which::Backup, Which::Primary),
        };
        match &self.other {
            Other::Same(_) => {}
            Other::Behind(_) => self.oddities.push(format!(
                "a change of the partition attributes was cut off: the loader goes by the {} table, the {} one is behind \
                 and is brought up with the next change",
                used.name(),
                other.name()
            )),
            Other::Unusable(problem) => self.obstacles.push(format!(
                "only the {} table is whole, and it is never written while there is no other one: {problem}; {REPAIR}",
                used.name()
            )),
        }
    }

    /// A disk that was cloned to a larger one has its backup where the old disk ended.
    fn judge_end(&mut self, disk: &impl Disk) {
        let backup_at = match self.used.which {
            Which::Primary => self.used.geometry.alternate,
            Which::Backup => self.used.lba,
        };
        let last = disk.count().saturating_sub(1);
        if backup_at == last {
            return;
        }
        self.oddities.push(format!(
            "the backup table is at sector {backup_at}, the disk ends at {last} (cloned to a larger disk?); `sgdisk -e` or \
             `sfdisk --relocate gpt-bak-std` moves it"
        ));
        if TableCopy::read(disk, Which::Backup, last).is_ok() {
            self.obstacles.push(format!(
                "another backup table lies at the end of the disk, sector {last}, where a loader would look first if the \
                 primary one were damaged; {REPAIR}"
            ));
        }
    }

    fn judge_entries(&mut self) {
        let mut entries = self.entries();
        let (low, high) = (
            self.used.geometry.first_usable,
            self.used.geometry.last_usable,
        );
        for entry in &entries {
            if entry.first > entry.last || entry.first < low || entry.last > high {
                self.obstacles.push(format!(
                    "partition {} spans sectors {} to {}, usable are {low} to {high}; {LOOK}",
                    entry.number, entry.first, entry.last
                ));
            }
        }
        entries.sort_by_key(|entry| (entry.first, entry.number));
        for pair in entries.windows(2) {
            if let [one, other] = pair
                && other.first <= one.last
            {
                self.obstacles.push(format!(
                    "partitions {} and {} overlap; {LOOK}",
                    one.number, other.number
                ));
            }
        }
    }

    /// What has to be written so that both copies hold these attributes: stages, each flushed before the next one. Empty
    /// where both do.
    ///
    /// The loaders go by the primary copy where it is whole, else by the backup; and the GRUB of Flatcar and Bottlerocket
    /// by the backup only where its header says the same as the primary header, if the latter's checksum is right. So:
    ///
    /// 1. The backup, while the primary is whole and old.
    /// 2. The primary header. From here the primary array does not match it, and the backup, whose header now says the
    ///    same, is what all go by: new.
    /// 3. The primary array. Any part of it changes nothing about that; with the last sector the primary is whole.
    ///
    /// Where the primary is behind a whole backup, it is first brought up to it in the order of 2 and 3.
    ///
    /// # Errors
    /// [`Error::Refused`] with every obstacle.
    pub(super) fn change(&self, boots: &[(u32, Boot)]) -> Result<Vec<Stage>> {
        if !self.obstacles.is_empty() {
            return Err(Error::Refused {
                reason: self.obstacles.join("; "),
            });
        }
        let other = match &self.other {
            Other::Same(other) | Other::Behind(other) => other,
            Other::Unusable(problem) => {
                return Err(Error::Refused {
                    reason: problem.clone(),
                });
            }
        };
        let whole = other.with_entries_of(&self.used);
        let (mut stages, primary, backup) = match self.used.which {
            Which::Primary => (Vec::new(), &self.used, other),
            Which::Backup => (
                primary_stages(self.used_sector(), other, &whole),
                &whole,
                &self.used,
            ),
        };
        let sector = self.used_sector();
        let new_primary = primary.with(boots);
        let new_backup = backup.with_entries_of(&new_primary);
        let mut first = array_writes(sector, backup, &new_backup);
        first.extend(header_write(backup, &new_backup));
        stages.push(Stage(first));
        stages.extend(primary_stages(sector, primary, &new_primary));
        stages.retain(|stage| !stage.0.is_empty());
        Ok(stages)
    }

    /// Bytes of a sector: a header is read as one.
    fn used_sector(&self) -> usize {
        self.used.header.len().max(1)
    }
}

/// Writes what differs in the primary copy: header first.
fn primary_stages(sector: usize, old: &TableCopy, new: &TableCopy) -> Vec<Stage> {
    vec![
        Stage(header_write(old, new).into_iter().collect()),
        Stage(array_writes(sector, old, new)),
    ]
}

fn header_write(old: &TableCopy, new: &TableCopy) -> Option<(u64, Vec<u8>)> {
    (old.header != new.header).then(|| (new.lba, new.header.clone()))
}

/// The sectors of the array that differ, one by one.
fn array_writes(sector: usize, old: &TableCopy, new: &TableCopy) -> Vec<(u64, Vec<u8>)> {
    let sectors = old.array.chunks(sector).zip(new.array.chunks(sector));
    (new.geometry.array_lba..)
        .zip(sectors)
        .filter(|(_, (old, new))| old != new)
        .map(|(lba, (_, new))| (lba, new.to_vec()))
        .collect()
}

fn checked<'a, D: Disk>(disk: &'a D) -> impl Fn(TableCopy) -> Result<TableCopy> + 'a {
    |copy| match copy.fault() {
        None => Ok(copy),
        Some(problem) => Err(damaged(disk, copy.lba, problem)),
    }
}

/// Where the primary header, if its checksum is right, says that the backup is; else the end of the disk.
fn backup_place(disk: &impl Disk) -> u64 {
    let last = disk.count().saturating_sub(1);
    match TableCopy::read(disk, Which::Primary, PRIMARY_LBA) {
        Ok(primary) if primary.header_is_whole() => primary.geometry.alternate,
        _ => last,
    }
}

/// Judges the copy that is not gone by.
fn other(
    disk: &impl Disk,
    slots: &[u32],
    used: &TableCopy,
    read: Result<TableCopy>,
    which: Which,
    lba: u64,
) -> Other {
    let problem = match read {
        Ok(copy) if copy.with_entries_of(used) == copy && copy.mirrors(used, &[]) => {
            return Other::Same(copy);
        }
        Ok(copy) if copy.mirrors(used, slots) => return Other::Behind(copy),
        Ok(copy) => damaged(
            disk,
            copy.lba,
            format!(
                "the {} table is whole but describes something else",
                which.name()
            ),
        ),
        Err(problem) => match TableCopy::read(disk, which, lba) {
            Ok(copy) if copy.mirrors(used, slots) => return Other::Behind(copy),
            _ => problem,
        },
    };
    Other::Unusable(problem_of(&problem))
}

fn problem_of(error: &Error) -> String {
    match error {
        Error::PartitionTable {
            offset, problem, ..
        } => format!("byte {offset}: {problem}"),
        other => other.chain(),
    }
}
