//! A disk as a cut left it, without a copy: for each sector, who wrote it last.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};

use super::{SECTOR, WriteLog};
use crate::random::mixed;

/// A part of the disk that is told apart, such as a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Region {
    /// First byte and the one behind the last.
    pub(crate) bytes: Range<u64>,
    /// Changes with who wrote what in it, and is the same where that is the same.
    fingerprint: u64,
}

/// A disk that was recorded, at some moment and without some writes.
#[derive(Debug)]
pub(crate) struct View<'a> {
    base: &'a File,
    log: &'a WriteLog,
    /// Of each sector: 0 where it is as it was at first, else one more than the entry's index.
    writers: Vec<u32>,
    regions: Vec<Region>,
}

/// What was replaced, to put it back.
#[derive(Debug)]
pub(crate) struct Replaced {
    first: u64,
    writers: Vec<u32>,
}

impl Replaced {
    /// Who had written a sector of it before.
    pub(super) fn before(&self, sector: u64) -> Option<u32> {
        let at = usize::try_from(sector.checked_sub(self.first)?).ok()?;
        self.writers.get(at).copied()
    }
}

impl<'a> View<'a> {
    /// The disk as it was before the first entry, in these parts.
    pub(crate) fn new(base: &'a File, log: &'a WriteLog, parts: &[Range<u64>]) -> Result<Self> {
        let size = base.metadata().context("the disk's size")?.len();
        let sectors = usize::try_from(size.div_ceil(SECTOR)).context("the disk is too large")?;
        for entry in log.entries() {
            ensure!(
                entry.sectors.end * SECTOR <= size,
                "{entry:?} lies behind the disk's end"
            );
        }
        Ok(Self {
            base,
            log,
            writers: vec![0; sectors],
            regions: parts
                .iter()
                .map(|bytes| Region {
                    bytes: bytes.clone(),
                    fingerprint: 0,
                })
                .collect(),
        })
    }

    pub(crate) const fn log(&self) -> &'a WriteLog {
        self.log
    }

    /// Who wrote each sector.
    pub(super) fn writers(&self) -> &[u32] {
        &self.writers
    }

    /// The fingerprint of the part of this index.
    pub(crate) fn fingerprint(&self, part: usize) -> u64 {
        self.regions[part].fingerprint
    }

    /// One fingerprint of several parts.
    pub(crate) fn fingerprint_of_parts(&self, parts: impl IntoIterator<Item = usize>) -> u64 {
        parts.into_iter().fold(0, |sum: u64, part| {
            sum.rotate_left(9) ^ self.fingerprint(part)
        })
    }

    /// The fingerprint of some bytes, which begin and end with a sector.
    pub(crate) fn fingerprint_of(&self, bytes: &Range<u64>) -> u64 {
        let sectors = bytes.start / SECTOR..bytes.end.div_ceil(SECTOR);
        sectors
            .filter_map(|sector| {
                let writer = *self.writers.get(usize::try_from(sector).ok()?)?;
                Some(trace(sector, writer))
            })
            .fold(0, |sum, trace| sum ^ trace)
    }

    /// Applies the first sectors of an entry, or all of them.
    pub(super) fn apply(&mut self, entry: usize, kept: Option<u64>) -> Replaced {
        let sectors = self.log.entries()[entry].sectors.clone();
        let end = kept.map_or(sectors.end, |kept| sectors.end.min(sectors.start + kept));
        let writer = u32::try_from(entry + 1).unwrap_or(u32::MAX);
        self.replace(sectors.start..end, |_, _| writer)
    }

    /// Sets who wrote these sectors, by who did so far.
    pub(super) fn replace(
        &mut self,
        sectors: Range<u64>,
        mut by: impl FnMut(u64, u32) -> u32,
    ) -> Replaced {
        let first = sectors.start;
        let mut before = Vec::new();
        let mut region = None;
        for sector in sectors {
            let Ok(at) = usize::try_from(sector) else {
                break;
            };
            let old = self.writers[at];
            let new = by(sector, old);
            before.push(old);
            if old == new {
                continue;
            }
            self.writers[at] = new;
            let inside = |region: &Region| region.bytes.contains(&sector.saturating_mul(SECTOR));
            if region.is_none_or(|index: usize| !inside(&self.regions[index])) {
                region = self.regions.iter().position(inside);
            }
            if let Some(index) = region {
                self.regions[index].fingerprint ^= trace(sector, old) ^ trace(sector, new);
            }
        }
        Replaced {
            first,
            writers: before,
        }
    }

    /// Puts back what was replaced last.
    pub(super) fn put_back(&mut self, replaced: &Replaced) {
        let end = replaced.first + replaced.writers.len() as u64;
        self.replace(replaced.first..end, |sector, old| {
            replaced.before(sector).unwrap_or(old)
        });
    }

    /// Reads bytes of the disk.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut position = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let sector = position / SECTOR;
            let writer = self.writer(sector)?;
            let mut end = sector + 1;
            let last = (position + rest.len() as u64).div_ceil(SECTOR);
            while end < last && self.writer(end)? == writer {
                end += 1;
            }
            let run = usize::try_from(end * SECTOR - position)
                .unwrap_or(usize::MAX)
                .min(rest.len());
            let (piece, behind) = rest.split_at_mut(run);
            self.read_run(writer, position, piece)?;
            position += piece.len() as u64;
            rest = behind;
        }
        Ok(())
    }

    fn writer(&self, sector: u64) -> Result<u32> {
        usize::try_from(sector)
            .ok()
            .and_then(|sector| self.writers.get(sector).copied())
            .with_context(|| format!("sector {sector} lies behind the disk's end"))
    }

    /// Reads bytes that have one writer.
    pub(super) fn read_run(&self, writer: u32, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let Some(entry) = writer.checked_sub(1) else {
            return self
                .base
                .read_exact_at(bytes, offset)
                .with_context(|| format!("reading the disk at {offset}"));
        };
        let entry = usize::try_from(entry)?;
        let within = usize::try_from(offset % SECTOR)?;
        let sector = offset / SECTOR;
        if within == 0 {
            return self.log.read_at(entry, sector, bytes);
        }
        let mut whole = vec![0; within + bytes.len()];
        self.log.read_at(entry, sector, &mut whole)?;
        bytes.copy_from_slice(&whole[within..]);
        Ok(())
    }
}

/// What a sector adds to a fingerprint: nothing where it is as it was at first.
const fn trace(sector: u64, writer: u32) -> u64 {
    if writer == 0 {
        return 0;
    }
    mixed(sector << 32 ^ writer as u64)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::View;
    use crate::cuts::write_log::tests::record;

    #[test]
    fn what_is_applied_is_read_and_what_is_put_back_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        std::fs::write(&base, vec![9; 16 * 512]).unwrap();
        let log = record(
            &folder.path().join("log"),
            &[
                (0, 2, [vec![1; 512], vec![2; 512]].concat()),
                (0, 3, vec![3; 512]),
                (4, 8, Vec::new()),
            ],
        );
        let base = File::open(&base).unwrap();
        let mut view = View::new(&base, &log, &[0..2048, 2048..8192]).unwrap();
        let read = |view: &View<'_>| {
            let mut bytes = vec![0; 12 * 512];
            view.read_at(0, &mut bytes).unwrap();
            bytes
                .chunks(512)
                .map(|sector| sector[0])
                .collect::<Vec<u8>>()
        };
        let fresh = [view.fingerprint(0), view.fingerprint(1)];
        let first = view.apply(0, None);
        let second = view.apply(1, None);
        assert_eq!(read(&view), [9, 9, 1, 3, 9, 9, 9, 9, 9, 9, 9, 9]);
        let both = view.fingerprint(0);
        assert_ne!(both, fresh[0]);
        assert_eq!(view.fingerprint(1), fresh[1]);
        let discarded = view.apply(2, None);
        assert_eq!(read(&view), [9, 9, 1, 3, 9, 9, 9, 9, 0, 0, 0, 0]);
        assert_ne!(view.fingerprint(1), fresh[1]);
        assert_eq!(view.fingerprint_of(&(0..2048)), both);
        view.put_back(&discarded);
        view.put_back(&second);
        assert_eq!(read(&view)[2..4], [1, 2]);
        view.put_back(&first);
        assert_eq!([view.fingerprint(0), view.fingerprint(1)], fresh);
        // Torn after its first sector.
        view.apply(0, Some(1));
        assert_eq!(read(&view)[2..4], [1, 9]);
        let mut middle = [0; 4];
        view.read_at(2 * 512 + 510, &mut middle).unwrap();
        assert_eq!(middle, [1, 1, 9, 9]);
    }
}
