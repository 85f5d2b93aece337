//! The record of writes and flushes, read.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::SECTOR;

/// First bytes of a record (drivers/md/dm-log-writes.c).
const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// What is known of a disk's writes; their bytes stay in the file.
#[derive(Debug)]
pub(crate) struct WriteLog {
    file: File,
    path: PathBuf,
    entries: Vec<Entry>,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// What was written, in sectors; empty for a flush.
    pub(crate) sectors: Range<u64>,
    /// Where its bytes begin in the file.
    data: u64,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A write.
    Write,
    /// A write that is durable when it is answered.
    DurableWrite,
    /// Zeroes are read after it.
    Discard,
    /// All that was answered before is durable.
    Flush,
}

impl WriteLog {
    /// Reads the record of a disk that is not written any more.
    ///
    /// # Errors
    /// When it is none, or ends within an entry.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let entries = entries(&file).with_context(|| format!("{}", path.display()))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            entries,
        })
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Reads what an entry wrote to these sectors, which are among its own.
    pub(crate) fn read_at(&self, entry: usize, sector: u64, bytes: &mut [u8]) -> Result<()> {
        let entry = &self.entries[entry];
        if entry.kind == Kind::Discard {
            bytes.fill(0);
            return Ok(());
        }
        let offset = entry.data + (sector - entry.sectors.start) * SECTOR;
        self.file
            .read_exact_at(bytes, offset)
            .with_context(|| format!("reading {} at {offset}", self.path.display()))
    }
}

fn entries(file: &File) -> Result<Vec<Entry>> {
    let length = file.metadata().context("its size")?.len();
    let mut head = [0; 28];
    file.read_exact_at(&mut head, 0).context("its head")?;
    let [magic, version, count] = [0, 8, 16].map(|at| number(&head, at));
    ensure!(
        magic == MAGIC && version == VERSION,
        "this is no record of writes"
    );
    let size = u32::from_le_bytes([head[24], head[25], head[26], head[27]]);
    ensure!(
        u64::from(size) == SECTOR,
        "its sectors have {size} bytes, not {SECTOR}"
    );
    let mut entries = Vec::new();
    let mut at = SECTOR;
    let mut seen = 0;
    while at + 32 <= length {
        let mut raw = [0; 32];
        file.read_exact_at(&mut raw, at)
            .with_context(|| format!("the entry at {at}"))?;
        let [sector, sectors, flags, extra] = [0, 8, 16, 24].map(|at| number(&raw, at));
        if sectors == 0 && flags == 0 {
            break;
        }
        ensure!(
            flags & !(FLUSH | FUA | DISCARD | MARK) == 0 && flags & MARK == 0 && extra == 0,
            "the entry at {at} has flags {flags:#x}"
        );
        let data = at + SECTOR;
        let range = sector
            ..sector
                .checked_add(sectors)
                .context("an entry without end")?;
        if flags & FLUSH != 0 {
            entries.push(Entry {
                kind: Kind::Flush,
                sectors: 0..0,
                data,
            });
        }
        let kind = match flags {
            flags if flags & DISCARD != 0 => Kind::Discard,
            flags if flags & FUA != 0 => Kind::DurableWrite,
            _ => Kind::Write,
        };
        at = data;
        if sectors > 0 {
            if kind != Kind::Discard {
                at += sectors * SECTOR;
            }
            entries.push(Entry {
                kind,
                sectors: range,
                data,
            });
        }
        seen += 1;
    }
    // What stood there when the head was written last.
    if seen < count {
        bail!("it has {seen} entries, and its head knows of {count}");
    }
    if at > length {
        // The last one was being written when QEMU was killed.
        entries.pop();
    }
    Ok(entries)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::{Kind, MAGIC, WriteLog};

    /// A record of these requests: flags, first sector, and the bytes, whole sectors of them.
    pub(in crate::cuts) fn record(path: &Path, requests: &[(u64, u64, Vec<u8>)]) -> WriteLog {
        let mut file = std::fs::File::create(path).unwrap();
        let mut head = Vec::new();
        for number in [MAGIC, 1, requests.len() as u64] {
            head.extend(number.to_le_bytes());
        }
        head.extend(512_u32.to_le_bytes());
        head.resize(512, 0);
        file.write_all(&head).unwrap();
        for (flags, sector, bytes) in requests {
            let count = if flags & 4 != 0 {
                8
            } else {
                bytes.len() as u64 / 512
            };
            let mut raw = Vec::new();
            for number in [*sector, count, *flags, 0] {
                raw.extend(number.to_le_bytes());
            }
            raw.resize(512, 0);
            raw.extend(bytes);
            file.write_all(&raw).unwrap();
        }
        WriteLog::read(path).unwrap()
    }

    #[test]
    fn requests_are_read_in_order_and_their_bytes_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = record(
            &path,
            &[
                (0, 7, [vec![1; 512], vec![2; 512]].concat()),
                (1, 0, Vec::new()),
                (2, 9, vec![3; 512]),
                (4, 16, Vec::new()),
                // A write that flushes before.
                (1, 5, vec![4; 512]),
            ],
        );
        let kinds: Vec<(Kind, u64, u64)> = log
            .entries()
            .iter()
            .map(|entry| (entry.kind, entry.sectors.start, entry.sectors.end))
            .collect();
        assert_eq!(
            kinds,
            [
                (Kind::Write, 7, 9),
                (Kind::Flush, 0, 0),
                (Kind::DurableWrite, 9, 10),
                (Kind::Discard, 16, 24),
                (Kind::Flush, 0, 0),
                (Kind::Write, 5, 6)
            ]
        );
        let mut bytes = [0; 512];
        log.read_at(0, 8, &mut bytes).unwrap();
        assert_eq!(bytes, [2; 512]);
        log.read_at(5, 5, &mut bytes).unwrap();
        assert_eq!(bytes, [4; 512]);
        log.read_at(3, 17, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 512]);
    }

    #[test]
    fn what_is_no_record_or_has_lost_entries_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        record(&path, &[(0, 7, vec![1; 512]), (0, 8, vec![1; 512])]);
        let whole = std::fs::read(&path).unwrap();
        // The second one is not there at all, though the head counts it.
        std::fs::write(&path, &whole[..512 * 3]).unwrap();
        let error = WriteLog::read(&path).unwrap_err();
        assert!(format!("{error:#}").contains("1 entries"), "{error:#}");
        std::fs::write(&path, vec![7; 2048]).unwrap();
        assert!(WriteLog::read(&path).is_err());
    }
}
