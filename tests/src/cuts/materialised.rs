//! A state of a recorded disk as a file, for tools and machines.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::SECTOR;
use super::view::View;
use crate::process;

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

/// A file with the bytes of a part of the disk, or of all of it, which follows from state to state.
#[derive(Debug)]
pub(crate) struct Materialised {
    path: PathBuf,
    file: File,
    bytes: Range<u64>,
    /// Who wrote each sector that it has.
    writers: Vec<u32>,
}

impl Materialised {
    /// Makes the file at `path` of this part of the disk at `base`, as it was at first.
    pub(crate) fn new(base: &Path, bytes: Range<u64>, path: &Path) -> Result<Self> {
        process::run("dd", |command| {
            command
                .args(["status=none", "conv=sparse", "bs=64K"])
                .args(["iflag=skip_bytes,count_bytes"])
                .arg(format!("if={}", base.display()))
                .arg(format!("of={}", path.display()))
                .arg(format!("skip={}", bytes.start))
                .arg(format!("count={}", bytes.end - bytes.start))
        })?;
        let file = OpenOptions::new()
            .write(true)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))?;
        file.set_len(bytes.end - bytes.start)
            .with_context(|| format!("resizing {}", path.display()))?;
        let sectors = usize::try_from((bytes.end - bytes.start) / SECTOR)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
            writers: vec![0; sectors],
        })
    }

    /// Makes its bytes those of this state.
    pub(crate) fn follow(&mut self, view: &View<'_>) -> Result<()> {
        let all = self.bytes.clone();
        self.follow_parts(view, &[all])
    }

    /// The same for these parts of the disk, which it has.
    pub(crate) fn follow_parts(&mut self, view: &View<'_>, parts: &[Range<u64>]) -> Result<()> {
        for part in parts {
            let [first, end] = [part.start, part.end].map(|at| (at - self.bytes.start) / SECTOR);
            self.follow_sectors(view, usize::try_from(first)?..usize::try_from(end)?)?;
        }
        Ok(())
    }

    /// The same for sectors, counted from its first one.
    fn follow_sectors(&mut self, view: &View<'_>, sectors: Range<usize>) -> Result<()> {
        let first = usize::try_from(self.bytes.start / SECTOR)?;
        let wanted = &view.writers()[first..first + self.writers.len()];
        let mut at = sectors.start;
        while at < sectors.end {
            if wanted[at] == self.writers[at] {
                at += 1;
                continue;
            }
            let writer = wanted[at];
            let most = at + usize::try_from(PIECE / SECTOR)?;
            let mut end = at + 1;
            while end < sectors.end.min(most)
                && wanted[end] == writer
                && self.writers[end] != writer
            {
                end += 1;
            }
            let mut bytes = vec![0; (end - at) * usize::try_from(SECTOR)?];
            let offset = at as u64 * SECTOR;
            view.read_run(writer, self.bytes.start + offset, &mut bytes)?;
            self.file
                .write_all_at(&bytes, offset)
                .with_context(|| format!("writing {}", self.path.display()))?;
            at = end;
        }
        self.writers[sectors.clone()].copy_from_slice(&wanted[sectors]);
        Ok(())
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A copy of the file, which may be changed.
    pub(crate) fn copy_to(&self, path: &Path) -> Result<()> {
        process::run("cp", |command| {
            command
                .args(["--sparse=always", "--reflink=auto"])
                .arg(&self.path)
                .arg(path)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::Materialised;
    use crate::cuts::enumerate::{Budget, every_state};
    use crate::cuts::view::View;
    use crate::cuts::write_log::tests::record;

    #[test]
    fn a_file_follows_from_state_to_state_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let base_path = folder.path().join("base");
        fs::write(&base_path, vec![9; 16 * 512]).unwrap();
        let log = record(
            &folder.path().join("log"),
            &[
                (0, 4, [vec![1; 512], vec![2; 512]].concat()),
                (0, 5, vec![3; 512]),
                (1, 0, Vec::new()),
                (0, 4, vec![4; 1024]),
            ],
        );
        let base = File::open(&base_path).unwrap();
        let part = 4 * 512..8 * 512;
        let path = folder.path().join("part");
        let mut file = Materialised::new(&base_path, part.clone(), &path).unwrap();
        let mut view = View::new(&base, &log, &[]).unwrap();
        let budget = Budget {
            seed: 1,
            subsets: 2,
        };
        every_state(
            &mut view,
            budget,
            |_| true,
            |view, _| {
                file.follow(view)?;
                let mut expected = vec![0; 4 * 512];
                view.read_at(part.start, &mut expected)?;
                assert_eq!(fs::read(file.path())?, expected);
                Ok(())
            },
        )
        .unwrap();
        let fresh = View::new(&base, &log, &[]).unwrap();
        file.follow(&fresh).unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), vec![9; 4 * 512]);
    }
}
