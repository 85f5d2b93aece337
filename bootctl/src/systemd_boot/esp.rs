//! The mounted EFI system partition: found, read into a snapshot, changed step by step.

use std::fs::{self, File};
use std::io::{ErrorKind as IoKind, Read};
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::changes::{BootSource, FileChange, Step};
use super::snapshot::{ENTRIES, FileContent, LOADER_CONF, Snapshot, normalized, slot_path};
use super::{extended, uki};
use crate::durable;
use crate::entry::{EntryName, EntryText};
use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::marker::FileRecord;
use crate::slot::SlotName;

/// Longest entry, marker or configuration that is read, in bytes.
const TEXT_LIMIT: u64 = 64 * 1024;

/// A mounted boot partition.
#[derive(Debug, Clone)]
pub(crate) struct Esp {
    /// Where the one is mounted that has the slots' entries and boot files.
    pub(crate) root: PathBuf,
    /// Where the one is mounted that the loader was started from: mostly the same.
    pub(crate) loader: PathBuf,
    /// The other one of two boot partitions, whose entries the loader lists, too.
    pub(crate) other: Option<PathBuf>,
    /// Kernel name of an extended boot loader partition that is not mounted.
    pub(crate) unseen: Option<String>,
    /// Whether it is FAT, as far as is known: two names may lead to one file's clusters there.
    pub(crate) fat: bool,
}

/// Opens a boot file of the written slot for reading.
pub(crate) type OpenSource<'a> = dyn Fn(BootSource) -> Result<Box<dyn Read + 'a>> + 'a;

impl Esp {
    /// Waits until no other program changes the loader's data.
    pub(crate) fn lock(&self) -> Result<Lock> {
        Lock::of(&self.root)
    }

    /// Reads everything that matters.
    pub(crate) fn read(&self) -> Result<Snapshot> {
        // An unmounted partition looks like one on which nothing is left to do.
        if !self.root.join("loader").is_dir() {
            return Err(Error::NoLoader {
                problem: format!("{} has no folder `loader` (any more)", self.root.display()),
            });
        }
        let mut snapshot = Snapshot {
            fat: self.fat,
            ..Snapshot::default()
        };
        // Its configuration is read from the partition of the loader only.
        if let Some(content) = read_optional(&self.loader.join(LOADER_CONF))? {
            snapshot.files.insert(LOADER_CONF.to_owned(), content);
        }
        snapshot.directories.insert("loader".to_owned());
        self.read_directory(&mut snapshot, ENTRIES, |_| true)?;
        for directory in ["slotd", "slotd/a", "slotd/b"] {
            self.read_directory(&mut snapshot, directory, |name| name == "image.json")?;
        }
        self.read_referenced(&mut snapshot)?;
        snapshot.others = uki::list(&self.root.join("EFI/Linux"))?;
        if let Some(other) = &self.other {
            snapshot.others.extend(uki::list(&other.join("EFI/Linux"))?);
            snapshot.others.extend(extended::entries(other)?);
            snapshot.elsewhere = Some(other.clone());
        }
        // Entries that cannot be seen must not look like none.
        if let Some(name) = &self.unseen
            && SlotName::BOTH
                .iter()
                .all(|slot| snapshot.slot_entries(*slot).is_empty())
        {
            return Err(Error::NoLoader {
                problem: format!(
                    "{} has no entry of a slot, and {name}, an extended boot loader partition, is not mounted: mount \
                     it at /boot",
                    self.root.display()
                ),
            });
        }
        Ok(snapshot)
    }

    fn read_directory(
        &self,
        snapshot: &mut Snapshot,
        directory: &str,
        with_content: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let place = self.root.join(directory);
        let Some(listing) = list(&place)? else {
            return Ok(());
        };
        snapshot.directories.insert(directory.to_owned());
        for (name, size) in listing {
            let bytes = if with_content(&name) {
                Some(read_text(&place.join(&name))?)
            } else {
                None
            };
            let path = format!("{directory}/{name}");
            snapshot.files.insert(path, FileContent { size, bytes });
        }
        Ok(())
    }

    /// Looks for the files elsewhere that entries name.
    fn read_referenced(&self, snapshot: &mut Snapshot) -> Result<()> {
        let mut wanted = Vec::new();
        for (name, content) in snapshot.names_in(ENTRIES) {
            if EntryName::parse(name).is_some() {
                let text = content
                    .bytes
                    .as_deref()
                    .map(String::from_utf8_lossy)
                    .unwrap_or_default();
                let entry = EntryText::parse(&text);
                wanted.extend(entry.kernel);
                wanted.extend(entry.initrds);
            }
        }
        for path in wanted {
            if let Some(size) = size_below(&self.root, &path)? {
                snapshot.referenced.insert(normalized(&path), size);
            }
        }
        Ok(())
    }

    /// Applies one change. Durable when it returns. A crash in the middle leaves the old state, the new one, or
    /// on FAT both names of a rename; and perhaps a temporary file that the loader passes over. Boot files
    /// come back as they were read back.
    pub(crate) fn apply(
        &self,
        step: &Step,
        open: &OpenSource<'_>,
    ) -> Result<Option<(BootSource, FileRecord)>> {
        match &step.change {
            FileChange::MakeDirectory { path } => durable::make_directory(&self.root.join(path))?,
            FileChange::Write { path, bytes } => self.replace_bytes(path, bytes)?,
            FileChange::Exchange { path, bytes, aside } => {
                let (target, aside) = (self.root.join(path), self.root.join(aside));
                let size = Some(durable::length(bytes));
                let temporary = self.write_beside(path, size, &mut bytes.as_slice())?;
                durable::exchange(&temporary, &target)?;
                durable::rename(&temporary, &aside)?;
            }
            FileChange::WriteMarker { path, marker } => {
                self.replace_bytes(path, &marker.render())?;
            }
            FileChange::Copy { path, source, size } => {
                let mut content = Summed::new(open(*source)?);
                self.replace(path, *size, &mut content)?;
                let record = content.record();
                self.compare(path, record)?;
                return Ok(Some((*source, record)));
            }
            FileChange::Rename { from, to } => {
                durable::rename(&self.root.join(from), &self.root.join(to))?;
            }
            FileChange::Remove { path } => durable::remove(&self.root.join(path))?,
        }
        Ok(None)
    }

    fn replace_bytes(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.replace(path, Some(durable::length(bytes)), &mut &*bytes)
    }

    fn replace(&self, path: &str, size: Option<u64>, content: &mut dyn Read) -> Result<()> {
        let temporary = self.write_beside(path, size, content)?;
        durable::rename(&temporary, &self.root.join(path))
    }

    /// Writes a file under a temporary name.
    fn write_beside(
        &self,
        path: &str,
        size: Option<u64>,
        content: &mut dyn Read,
    ) -> Result<PathBuf> {
        let temporary = self.root.join(format!("{path}.tmp"));
        if let Err(error) = durable::write(&temporary, size, content) {
            // What cannot be finished gives its room back; the first error is the one to report.
            if let Err(left) = fs::remove_file(&temporary) {
                tracing::warn!(file = %temporary.display(), error = %left, "stays behind");
            }
            return Err(error);
        }
        Ok(temporary)
    }

    /// Whether a boot file on the medium is as recorded, past the page cache as far as the kernel
    /// lets go of it.
    pub(crate) fn compare(&self, path: &str, expected: FileRecord) -> Result<()> {
        let place = self.root.join(path);
        let file = File::open(&place).map_err(Error::io("open", &place))?;
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .map_err(Error::sys("drop cached pages of", &place))?;
        let mut content = Summed::new(Box::new(&file));
        std::io::copy(&mut content, &mut std::io::sink()).map_err(Error::io("read", &place))?;
        let found = content.record();
        if found == expected {
            return Ok(());
        }
        Err(Error::ReadBack {
            path: place,
            problem: format!(
                "{} bytes with CRC-32 {:08x}, expected {} bytes with {:08x}",
                found.size, found.crc32, expected.size, expected.crc32
            ),
        })
    }

    /// Whether the partition can be written: makes, syncs, renames and removes a file where the
    /// entries are. Leaves nothing behind.
    pub(crate) fn test_write(&self) -> Result<()> {
        let directory = [ENTRIES, "loader", "."]
            .into_iter()
            .map(|place| self.root.join(place))
            .find(|place| place.is_dir())
            .unwrap_or_else(|| self.root.clone());
        let first = directory.join(".slotd-write-test.tmp");
        let second = directory.join(".slotd-write-test-renamed.tmp");
        // Empty, so that its two names share no clusters should a cut tear the rename.
        durable::write_bytes(&first, &[])
            .and_then(|()| durable::rename(&first, &second))
            .and_then(|()| durable::remove(&second))
            .inspect_err(|_| {
                for leftover in [&first, &second] {
                    if let Err(error) = fs::remove_file(leftover)
                        && error.kind() != IoKind::NotFound
                    {
                        tracing::debug!(file = %leftover.display(), %error, "stays behind");
                    }
                }
            })
    }

    /// Free bytes.
    pub(crate) fn free(&self) -> Result<u64> {
        let stat = nix::sys::statvfs::statvfs(&self.root)
            .map_err(Error::sys("ask the free space of", &self.root))?;
        let (blocks, size) = (stat.blocks_available(), stat.fragment_size());
        #[expect(clippy::useless_conversion, reason = "narrower on 32-bit machines")]
        Ok(u64::from(blocks).saturating_mul(u64::from(size)))
    }

    /// Bytes of the kernel and initrd that a slot's entry names.
    pub(crate) fn boot_bytes(&self, snapshot: &Snapshot, slot: SlotName) -> Result<u64> {
        let mut total = 0_u64;
        for entry in snapshot.slot_entries(slot).into_iter().take(1) {
            for path in entry.text.kernel.iter().chain(&entry.text.initrds) {
                let size = size_below(&self.root, path)?.unwrap_or(0);
                total = total.saturating_add(size);
            }
        }
        if total == 0 {
            for file in ["linux", "initrd"] {
                let content = snapshot.files.get(&slot_path(slot, file));
                total = total.saturating_add(content.map_or(0, |content| content.size));
            }
        }
        Ok(total)
    }
}

/// Counts and sums what is read through it.
struct Summed<'a> {
    inner: Box<dyn Read + 'a>,
    hasher: crc32fast::Hasher,
    size: u64,
}

impl<'a> Summed<'a> {
    fn new(inner: Box<dyn Read + 'a>) -> Self {
        Self {
            inner,
            hasher: crc32fast::Hasher::new(),
            size: 0,
        }
    }

    fn record(self) -> FileRecord {
        FileRecord {
            size: self.size,
            crc32: self.hasher.finalize(),
        }
    }
}

impl Read for Summed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(buffer.get(..read).unwrap_or_default());
        self.size = self
            .size
            .saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        Ok(read)
    }
}

/// Regular files of a directory with their sizes, sorted; `None` where there is none.
pub(crate) fn list(directory: &Path) -> Result<Option<Vec<(String, u64)>>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), IoKind::NotFound | IoKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(Error::io("list", directory)(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("list", directory))?;
        let meta = entry.metadata().map_err(Error::io("stat", entry.path()))?;
        if let (true, Ok(name)) = (meta.is_file(), entry.file_name().into_string()) {
            files.push((name, meta.len()));
        }
    }
    files.sort();
    Ok(Some(files))
}

/// A file's text, where there is one.
fn read_optional(path: &Path) -> Result<Option<FileContent>> {
    if !path.is_file() {
        return Ok(None);
    }
    Ok(Some(FileContent::of_bytes(read_text(path)?)))
}

pub(crate) fn read_text(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let mut bytes = Vec::new();
    file.take(TEXT_LIMIT)
        .read_to_end(&mut bytes)
        .map_err(Error::io("read", path))?;
    Ok(bytes)
}

/// Size of a file that an entry names, found without regard to case as the loader does.
pub(crate) fn size_below(root: &Path, path: &str) -> Result<Option<u64>> {
    let mut place = root.to_owned();
    for part in normalized(path).split('/').filter(|part| !part.is_empty()) {
        if part == ".." {
            return Ok(None);
        }
        let Ok(entries) = fs::read_dir(&place) else {
            return Ok(None);
        };
        let mut found = None;
        for entry in entries {
            let entry = entry.map_err(Error::io("list", &place))?;
            if entry.file_name().to_string_lossy().to_lowercase() == part {
                found = Some(entry.path());
            }
        }
        match found {
            Some(next) => place = next,
            None => return Ok(None),
        }
    }
    let meta = fs::metadata(&place).map_err(Error::io("stat", &place))?;
    Ok(meta.is_file().then_some(meta.len()))
}
