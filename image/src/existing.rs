//! Reading a slot back that was written earlier, such as before a restart.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread;

use sha2::{Digest, Sha256};

use crate::buffer::{PIECE, Pool};
use crate::cancel::Cancel;
use crate::checksum::Checksum;
use crate::error::{Error, Result};
use crate::medium::{Medium, open_for_reading};

/// Enough for reading and digesting to overlap.
const BUFFERS: usize = 3;

/// The digest of the first `size` bytes that the medium holds, past the page cache. Writes nothing;
/// `fd` needs to be open for reading only, and `path` is for messages.
///
/// # Errors
///
/// [`Error::TooLarge`] where the target is shorter than `size`, [`Error::Target`] where it cannot
/// be read this way, [`Error::Device`] with the offset where reading fails, [`Error::Cancelled`].
pub fn verify_existing(fd: OwnedFd, path: &Path, size: u64, cancel: &Cancel) -> Result<Checksum> {
    let medium = open_for_reading(fd, path.to_owned())?;
    digest_of(&medium, size, cancel)
}

fn digest_of(medium: &dyn Medium, size: u64, cancel: &Cancel) -> Result<Checksum> {
    if size > medium.capacity() {
        return Err(Error::TooLarge {
            location: medium.path().display().to_string(),
            what: "image to be read back",
            size,
            capacity: medium.capacity(),
        });
    }
    let alignment = usize::try_from(medium.alignment()).unwrap_or(PIECE);
    thread::scope(|scope| {
        let (filled, to_digest) = sync_channel(BUFFERS);
        let digest = thread::Builder::new()
            .name("image-digest".to_owned())
            .spawn_scoped(scope, move || {
                let mut digest = Sha256::new();
                while let Ok((lease, length)) = to_digest.recv() {
                    let lease: crate::buffer::Lease = lease;
                    digest.update(lease.get(..length).unwrap_or_default());
                }
                Checksum::from(<[u8; 32]>::from(digest.finalize()))
            })
            .map_err(|error| Error::Internal {
                what: format!("no thread: {error}"),
            })?;
        let pool = Pool::new(BUFFERS);
        let panicked = || Error::Internal {
            what: "the digesting thread panicked".to_owned(),
        };
        let mut offset = 0;
        while offset < size {
            cancel.check()?;
            let length = usize::try_from(size - offset).unwrap_or(PIECE).min(PIECE);
            let mut lease = pool.take()?;
            let room = lease
                .bytes_mut()
                .get_mut(..length.next_multiple_of(alignment));
            medium
                .read_at(room.unwrap_or_default(), offset)
                .map_err(|source| Error::Device {
                    device: medium.path().to_owned(),
                    action: "read-back",
                    offset,
                    source,
                })?;
            filled.send((lease, length)).map_err(|_| panicked())?;
            offset = offset.saturating_add(length as u64);
        }
        drop(filled);
        digest.join().map_err(|_| panicked())
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn the_digest_covers_exactly_the_given_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut content = vec![0u8; (3 << 20) + 4096];
        content[..3].copy_from_slice(b"abc");
        std::fs::write(file.path(), &content).unwrap();
        let read = |size| {
            let fd = File::open(file.path()).unwrap().into();
            verify_existing(fd, file.path(), size, &Cancel::new())
        };
        // FIPS 180-4, appendix B.1: the digest of "abc".
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(read(3).unwrap().to_hex(), abc);
        let whole = Checksum::from(<[u8; 32]>::from(Sha256::digest(
            &content[..(3 << 20) + 100],
        )));
        assert_eq!(read((3 << 20) + 100).unwrap(), whole);
        assert!(matches!(read(5 << 20), Err(Error::TooLarge { .. })));
    }
}
