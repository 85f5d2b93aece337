//! Block devices and regular files.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::fs::{self, Advice, AtFlags, FallocateFlags, OFlags, StatxFlags};

use super::Medium;
use crate::buffer::{AlignedBuffer, BUFFER_ALIGNMENT, PIECE};
use crate::error::{Error, Result};
use crate::ioctl;

/// Where a device does not say, this is what almost every one accepts.
const USUAL_ALIGNMENT: u64 = 4096;

/// An open block device or regular file.
pub(super) struct DirectMedium {
    file: File,
    path: PathBuf,
    block_device: bool,
    capacity: u64,
    alignment: u64,
}

impl DirectMedium {
    pub(super) fn new(fd: OwnedFd, path: PathBuf, writable: bool) -> Result<Self> {
        let mut file = File::from(fd);
        let refuse = |problem: &str, source: Option<io::Error>| Error::Target {
            path: path.clone(),
            problem: problem.to_owned(),
            source,
        };
        let unknown = |source: io::Error| refuse("it cannot be examined", Some(source));

        let kind = file.metadata().map_err(unknown)?.file_type();
        let block_device = kind.is_block_device();
        if !block_device && !kind.is_file() {
            return Err(refuse(
                "it is neither a block device nor a regular file",
                None,
            ));
        }
        let flags = fs::fcntl_getfl(&file).map_err(|error| unknown(error.into()))?;
        if writable && flags & OFlags::ACCMODE != OFlags::RDWR {
            return Err(refuse("it is not open for reading and writing", None));
        }
        if writable && block_device && ioctl::is_read_only(&file).map_err(unknown)? {
            return Err(refuse("the device is read-only", None));
        }
        let mut direct = flags.contains(OFlags::DIRECT);
        if block_device && !direct {
            fs::fcntl_setfl(&file, flags | OFlags::DIRECT)
                .map_err(|error| refuse("it takes no direct I/O", Some(error.into())))?;
            direct = true;
        }
        let length = file.seek(io::SeekFrom::End(0)).map_err(unknown)?;
        let alignment = if direct {
            alignment(&file, block_device).map_err(unknown)?
        } else {
            512
        };
        // Offsets are multiples of a piece and addresses of the buffers' own alignment.
        if !alignment.is_power_of_two() || alignment > BUFFER_ALIGNMENT as u64 {
            let problem = format!("direct I/O needs an alignment of {alignment} bytes");
            return Err(refuse(&problem, None));
        }
        let capacity = length - length % alignment;
        if capacity == 0 {
            return Err(refuse("it has no room at all", None));
        }
        Ok(Self {
            file,
            path,
            block_device,
            capacity,
            alignment,
        })
    }
}

/// What direct I/O needs of offsets, lengths and addresses; the larger of what is asked for.
fn alignment(file: &File, block_device: bool) -> io::Result<u64> {
    // Linux 6.1 for files, 6.11 for block devices; older ones leave the bit out.
    let stat = fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    if let Ok(stat) = stat
        && stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
        && stat.stx_dio_offset_align > 0
    {
        return Ok(u64::from(
            stat.stx_dio_offset_align.max(stat.stx_dio_mem_align),
        ));
    }
    if block_device {
        return Ok(u64::from(fs::ioctl_blksszget(file)?));
    }
    Ok(USUAL_ALIGNMENT)
}

impl Medium for DirectMedium {
    fn path(&self) -> &Path {
        &self.path
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn alignment(&self) -> u64 {
        self.alignment
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let quick = if self.block_device {
            ioctl::zero_out(&self.file, offset, length)
        } else {
            let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            fs::fallocate(&self.file, mode, offset, length).map_err(io::Error::from)
        };
        match quick {
            Err(error) if lacks_support(&error) => self.write_zeros(offset, length),
            other => other,
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()?;
        if !self.block_device {
            // For a file without direct I/O, so that it is read from the medium and not the cache.
            fs::fadvise(&self.file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }
}

impl DirectMedium {
    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()> {
        let zeros = AlignedBuffer::new();
        let end = offset.saturating_add(length);
        let mut at = offset;
        while at < end {
            let step = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            self.write_at(zeros.bytes().get(..step).unwrap_or_default(), at)?;
            at = at.saturating_add(step as u64);
        }
        Ok(())
    }
}

fn lacks_support(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::OPNOTSUPP, Errno::NOTTY, Errno::NOSYS]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(length: u64) -> (File, PathBuf) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(length).unwrap();
        (file.reopen().unwrap(), file.path().to_owned())
    }

    #[test]
    fn ranges_are_zeroed_and_nothing_beside_them() {
        let (file, path) = file(3 << 20);
        file.write_all_at(&vec![7u8; 3 << 20], 0).unwrap();
        let medium = DirectMedium::new(file.into(), path, true).unwrap();
        medium.zero(4096, 8192).unwrap();
        medium.write_zeros(1 << 20, (1 << 20) + 512).unwrap();
        medium.flush().unwrap();
        let mut held = vec![1u8; 3 << 20];
        medium.read_at(&mut held, 0).unwrap();
        let zeros: Vec<usize> = (0..held.len()).filter(|at| held[*at] == 0).collect();
        let expected: Vec<usize> = (4096..12_288).chain(1 << 20..(2 << 20) + 512).collect();
        assert!(zeros == expected);
    }

    #[test]
    fn an_empty_file_a_read_only_file_and_a_pipe_are_refused() {
        let refused = |fd: OwnedFd| match DirectMedium::new(fd, "/slot".into(), true) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("accepted"),
        };
        assert!(refused(file(0).0.into()).contains("no room"));
        let (_, path) = file(4096);
        std::fs::write(&path, [0u8; 4096]).unwrap();
        assert!(refused(File::open(&path).unwrap().into()).contains("not open for reading and"));
        std::fs::remove_file(&path).unwrap();
        assert!(refused(std::io::pipe().unwrap().1.into()).contains("neither a block device"));
    }
}
