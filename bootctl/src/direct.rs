//! Reading what is on the medium, not what the page cache holds: a write that failed leaves its bytes there, clean, and
//! a later look would take them for written (`end_buffer_async_write` of `fs/buffer.c`).

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::libc;

/// Alignment of buffer, offset and length that every medium takes.
const ALIGNMENT: u64 = 4096;

/// Reads `length` bytes at `offset` past the page cache; where a file system knows no direct reads, after it was told
/// to forget the pages.
pub(crate) fn read(path: &Path, offset: u64, length: usize) -> Result<Vec<u8>> {
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .and_then(|file| aligned(&file, offset, length));
    match direct {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {}
        result => return result,
    }
    let file = File::open(path)?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn aligned(file: &File, offset: u64, length: usize) -> Result<Vec<u8>> {
    let alignment = usize::try_from(ALIGNMENT).unwrap_or(usize::MAX);
    let into = offset.checked_rem(ALIGNMENT).unwrap_or(0);
    let start = offset.saturating_sub(into);
    let into = usize::try_from(into).unwrap_or(0);
    let wanted = into.saturating_add(length);
    let room = wanted.next_multiple_of(alignment);
    let mut buffer = vec![0; room.saturating_add(alignment)];
    let shift = buffer.as_ptr().align_offset(alignment);
    let end = shift.saturating_add(room);
    let window = buffer.get_mut(shift..end).ok_or(ErrorKind::OutOfMemory)?;
    let mut done: usize = 0;
    while done < wanted {
        let rest = window.get_mut(done..).unwrap_or_default();
        let at = start.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
        match file.read_at(rest, at) {
            Ok(0) => return Err(Error::from(ErrorKind::UnexpectedEof)),
            Ok(read) => done = done.saturating_add(read),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(window.get(into..wanted).unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn any_part_of_a_file_is_read_also_at_its_odd_end() {
        let content: Vec<u8> = (0..=250).cycle().take(10_007).collect();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("uboot.env");
        std::fs::write(&file, &content).unwrap();
        for (offset, length) in [
            (0, 10_007),
            (0, 4096),
            (5, 4096),
            (4095, 2),
            (9999, 8),
            (10_007, 0),
        ] {
            let part = read(&file, offset, length).unwrap();
            let from = usize::try_from(offset).unwrap();
            assert_eq!(part, &content[from..from + length], "{offset} {length}");
        }
        assert!(read(&file, 10_000, 8).is_err());
    }
}
