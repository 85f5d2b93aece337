//! The slots' programs on the EFI system partition: `EFI/slotd/b/linux.efi` and `initrd`, copied from the slot.

use std::fs::{self, File};
use std::io::{self, ErrorKind as IoKind, Read};
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::load_option::LoadOption;
use super::{boot_manager, program};
use crate::backend::PlannedChange;
use crate::block::split_command_line;
use crate::durable;
use crate::error::{Error, Result};
use crate::inspect::SlotView;
use crate::marker::{BootRecord, FileRecord};
use crate::record::Copied;
use crate::slot::SlotName;

/// The folder of slotd's on the partition.
pub(crate) const FOLDER: &str = "EFI/slotd";
const KERNEL: &str = "linux.efi";
const INITRD: &str = "initrd";
/// Piece in which files are compared, in bytes.
const PIECE: usize = 256 * 1024;

/// The boot files of both slots.
#[derive(Debug, Clone)]
pub(crate) struct BootFiles {
    /// The mounted partition.
    root: PathBuf,
    /// The same as the node names it.
    shown: PathBuf,
}

impl BootFiles {
    pub(crate) fn at(root: &Path, shown: &Path) -> Self {
        Self {
            root: root.to_owned(),
            shown: shown.to_owned(),
        }
    }

    fn folder(&self, slot: SlotName) -> PathBuf {
        self.root.join(FOLDER).join(slot.lower())
    }

    /// Whether the slot has a kernel there.
    pub(crate) fn has_kernel(&self, slot: SlotName) -> bool {
        self.kernel(slot).is_file()
    }

    /// The slot's kernel there.
    pub(crate) fn kernel(&self, slot: SlotName) -> PathBuf {
        self.folder(slot).join(KERNEL)
    }

    /// Whether the slot has an initrd there.
    pub(crate) fn has_initrd(&self, slot: SlotName) -> bool {
        self.folder(slot).join(INITRD).is_file()
    }

    /// Which of the files that an option leads to are not there: the kernel, and what it names by `initrd=`.
    pub(crate) fn missing(&self, slot: SlotName, option: &LoadOption) -> Vec<String> {
        let mut missing = Vec::new();
        if !self.has_kernel(slot) {
            missing.push(boot_manager::program(slot));
        }
        let words = split_command_line(&option.arguments());
        let initrds = words.iter().filter_map(|word| word.strip_prefix("initrd="));
        missing.extend(
            initrds
                .filter(|path| !self.is_there(path))
                .map(str::to_owned),
        );
        missing
    }

    /// Whether a path as the firmware spells it is a file of the partition.
    fn is_there(&self, path: &str) -> bool {
        let path = path.replace('\\', "/");
        self.root.join(path.trim_start_matches('/')).is_file()
    }

    /// Bytes of a slot's boot files.
    pub(crate) fn bytes(&self, slot: SlotName) -> u64 {
        let size = |file: &str| fs::metadata(self.folder(slot).join(file)).map(|meta| meta.len());
        let sizes = [KERNEL, INITRD].map(|file| size(file).unwrap_or(0));
        sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
    }

    /// Copies kernel and initrd under temporary names, syncs, renames, and compares them past the page cache as far as
    /// the kernel lets go of it. Durable when it returns. A crash in the middle leaves files that no option leads to.
    ///
    /// # Errors
    /// [`Error::Image`] where the firmware could not start the kernel, before anything is written.
    pub(crate) fn install(&self, slot: SlotName, view: &SlotView) -> Result<Copied> {
        let folder = self.folder(slot);
        let kernel = folder.join(KERNEL);
        let why = program::problem(view.efi_program()?, view.facts.architecture)
            .map_err(Error::io("read the kernel for", &kernel))?;
        if let Some(problem) = why {
            let path = view.facts.kernel.as_ref().map(|file| file.path.clone());
            return Err(Error::Image {
                device: path.unwrap_or_default(),
                problem,
            });
        }
        for folder in ["EFI", FOLDER] {
            durable::make_directory(&self.root.join(folder))?;
        }
        durable::make_directory(&folder)?;
        let kernel = copy(&kernel, &|| view.efi_program())?;
        let initrd = folder.join(INITRD);
        // A unified image has its own in it.
        if view.facts.starts_unified() || view.initrd().is_none() {
            durable::remove(&initrd)?;
            return Ok(Copied {
                kernel,
                initrd: None,
            });
        }
        let initrd = copy(&initrd, &|| match view.initrd() {
            Some(content) => Ok(Box::new(content)),
            None => Ok(Box::new(std::io::empty())),
        })?;
        Ok(Copied {
            kernel,
            initrd: Some(initrd),
        })
    }

    /// Whether the files are what [`BootFiles::install`] copied, as far as that was recorded: a boot that is cut off
    /// later, or somebody, may have changed them.
    ///
    /// # Errors
    /// [`Error::ReadBack`] where one differs.
    pub(crate) fn check(&self, slot: SlotName, boot: &BootRecord) -> Result<()> {
        // The builder of a disk records none.
        if boot.kernel == FileRecord::default() {
            return Ok(());
        }
        let folder = self.folder(slot);
        let kernel = (KERNEL, boot.kernel);
        let initrd = boot.initrd.map(|initrd| (INITRD, initrd));
        for (file, expected) in [kernel].into_iter().chain(initrd) {
            compare_with_record(&folder.join(file), expected)?;
        }
        Ok(())
    }

    /// Removes all of a slot's boot files. Durable when it returns.
    pub(crate) fn remove(&self, slot: SlotName) -> Result<()> {
        let folder = self.folder(slot);
        for file in [KERNEL, INITRD] {
            durable::remove(&folder.join(format!("{file}.tmp")))?;
            durable::remove(&folder.join(file))?;
        }
        Ok(())
    }

    /// What both would change, in words.
    pub(crate) fn planned(&self, slot: SlotName, remove: bool) -> Vec<PlannedChange> {
        let there = |file: &&str| !remove || self.folder(slot).join(file).is_file();
        [KERNEL, INITRD]
            .into_iter()
            .filter(there)
            .map(|file| {
                let target = self.shown.join(FOLDER).join(slot.lower()).join(file);
                let what = if file == KERNEL {
                    "kernel"
                } else {
                    "initrd, if it has one"
                };
                let (change, why) = if remove {
                    (
                        "remove".to_owned(),
                        "make room for the new boot files".to_owned(),
                    )
                } else {
                    let why = format!("what the firmware starts for slot {slot}");
                    (format!("copy the image's {what}"), why)
                };
                PlannedChange {
                    target: target.display().to_string(),
                    change,
                    content: None,
                    why,
                }
            })
            .collect()
    }

    /// Free bytes on the partition.
    pub(crate) fn free(&self) -> Result<u64> {
        let stat = nix::sys::statvfs::statvfs(&self.root)
            .map_err(Error::sys("ask the free space of", &self.root))?;
        let (blocks, size) = (stat.blocks_available(), stat.fragment_size());
        #[expect(clippy::useless_conversion, reason = "narrower on 32-bit machines")]
        Ok(u64::from(blocks).saturating_mul(u64::from(size)))
    }
}

type Content<'a> = dyn Fn() -> Result<Box<dyn Read + 'a>> + 'a;

fn copy(target: &Path, content: &Content<'_>) -> Result<FileRecord> {
    let mut temporary = target.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let size = io::copy(&mut content()?, &mut io::sink())
        .map_err(Error::io("read the content of", target))?;
    if let Err(error) = durable::write(&temporary, Some(size), &mut content()?) {
        // What cannot be finished gives its room back; the first error is the one to report.
        if let Err(left) = fs::remove_file(&temporary)
            && left.kind() != IoKind::NotFound
        {
            tracing::warn!(file = %temporary.display(), error = %left, "stays behind");
        }
        return Err(error);
    }
    durable::rename(&temporary, target)?;
    compare(target, &mut content()?)
}

/// Opens a file so that it is read from the medium as far as the kernel lets go of it.
fn open_uncached(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
        .map_err(Error::sys("drop cached pages of", path))?;
    Ok(file)
}

fn compare(path: &Path, expected: &mut dyn Read) -> Result<FileRecord> {
    let mut file = open_uncached(path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut offset = 0_usize;
    loop {
        let (mut wanted, mut found) = (Vec::new(), Vec::new());
        let limit = u64::try_from(PIECE).unwrap_or(u64::MAX);
        expected
            .take(limit)
            .read_to_end(&mut wanted)
            .map_err(Error::io("read the content of", path))?;
        (&mut file)
            .take(limit)
            .read_to_end(&mut found)
            .map_err(Error::io("read", path))?;
        if wanted != found {
            return Err(Error::ReadBack {
                path: path.to_owned(),
                problem: format!("it differs from the image's file after byte {offset}"),
            });
        }
        if wanted.is_empty() {
            return Ok(FileRecord {
                size: u64::try_from(offset).unwrap_or(u64::MAX),
                crc32: hasher.finalize(),
            });
        }
        hasher.update(&found);
        offset = offset.saturating_add(wanted.len());
    }
}

fn compare_with_record(path: &Path, expected: FileRecord) -> Result<()> {
    let mut file = open_uncached(path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut size = 0_u64;
    let mut piece = vec![0; PIECE];
    loop {
        let read = match file.read(&mut piece) {
            Err(error) if error.kind() == IoKind::Interrupted => continue,
            read => read.map_err(Error::io("read", path))?,
        };
        if read == 0 {
            break;
        }
        hasher.update(piece.get(..read).unwrap_or_default());
        size = size.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
    }
    let found = FileRecord {
        size,
        crc32: hasher.finalize(),
    };
    if found == expected {
        return Ok(());
    }
    Err(Error::ReadBack {
        path: path.to_owned(),
        problem: format!(
            "{} bytes with CRC-32 {:08x}, expected {} bytes with {:08x}",
            found.size, found.crc32, expected.size, expected.crc32
        ),
    })
}
