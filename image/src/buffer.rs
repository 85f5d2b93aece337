//! A fixed set of buffers that direct I/O accepts, and that go back where they came from.

use std::ops::Deref;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::error::{Error, Result};

/// How images are cut: unit of writing, reading back, and of the digest that compares both.
pub(crate) const PIECE: usize = 1 << 20;

/// What every buffer is aligned to; covers the page size that direct I/O asks for at most.
pub(crate) const BUFFER_ALIGNMENT: usize = 4096;

/// Memory of [`PIECE`] bytes that starts at a multiple of [`BUFFER_ALIGNMENT`].
pub(crate) struct AlignedBuffer {
    storage: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    /// Zeroed memory.
    pub(crate) fn new() -> Self {
        let storage = vec![0u8; PIECE + BUFFER_ALIGNMENT];
        // The vector is never resized, so its memory does not move.
        let start = storage.as_ptr().align_offset(BUFFER_ALIGNMENT);
        Self { storage, start }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.storage
            .get(self.start..self.start + PIECE)
            .unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.storage
            .get_mut(self.start..self.start + PIECE)
            .unwrap_or_default()
    }
}

/// Where free buffers wait for the one thread that takes them.
pub(crate) struct Pool {
    free: Receiver<AlignedBuffer>,
    home: SyncSender<AlignedBuffer>,
}

impl Pool {
    pub(crate) fn new(buffers: usize) -> Self {
        let (home, free) = sync_channel(buffers);
        for _ in 0..buffers {
            // There is room for exactly as many as there are.
            let _ = home.try_send(AlignedBuffer::new());
        }
        Self { free, home }
    }

    /// Waits for a free buffer. Its content is whatever it was used for before.
    pub(crate) fn take(&self) -> Result<Lease> {
        let buffer = self.free.recv().map_err(|_| Error::Internal {
            what: "the buffer pool is gone".to_owned(),
        })?;
        Ok(Lease {
            buffer: Some(buffer),
            home: self.home.clone(),
        })
    }
}

/// A buffer in use; returns to its pool when dropped.
pub(crate) struct Lease {
    /// `None` only while it is being dropped.
    buffer: Option<AlignedBuffer>,
    home: SyncSender<AlignedBuffer>,
}

impl Lease {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer
            .as_mut()
            .map(AlignedBuffer::bytes_mut)
            .unwrap_or_default()
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer
            .as_ref()
            .map(AlignedBuffer::bytes)
            .unwrap_or_default()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // Fails only when the pool is gone, which frees the buffer as well.
            let _ = self.home.try_send(buffer);
        }
    }
}

/// Whether all of it is zero. Written so that the compiler uses the widest registers it may.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes
        .chunks(512)
        .all(|chunk| chunk.iter().fold(0u8, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_come_back() {
        let pool = Pool::new(2);
        let first = pool.take().unwrap();
        let second = pool.take().unwrap();
        assert_eq!(first.as_ptr().align_offset(BUFFER_ALIGNMENT), 0);
        assert_eq!((first.len(), second.len()), (PIECE, PIECE));
        assert!(pool.free.try_recv().is_err());
        drop(first);
        assert_eq!(pool.take().unwrap().len(), PIECE);
    }

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        let mut bytes = vec![0u8; 5000];
        assert!(is_zero(&bytes) && is_zero(&[]));
        for position in [0, 511, 512, 4999] {
            bytes[position] = 1;
            assert!(!is_zero(&bytes), "{position}");
            bytes[position] = 0;
        }
    }
}
