//! What the tests of this crate share: images, a server with faults, a medium with faults.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::cast_possible_truncation, reason = "test images are small")]
#![allow(unreachable_pub, missing_docs, reason = "this is no library")]

pub mod fetching;
pub mod medium;
pub mod server;

use std::cell::RefCell;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use slotd_image::{
    Cancel, Checksum, Event, Expectation, FetchSettings, ImageSource, Result, WriteReport,
    WriteTarget, open, write,
};

pub const MIB: usize = 1 << 20;

/// Content that looks like ext4 of exactly `length` bytes: noise, compressible stretches, zeros.
pub fn image(length: usize) -> Vec<u8> {
    assert_eq!(length % 1024, 0);
    let mut content = vec![0u8; length];
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for (number, stretch) in content.chunks_mut(MIB / 4).enumerate() {
        match number % 16 {
            0..4 => stretch.chunks_mut(8).for_each(|bytes| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                bytes.copy_from_slice(&state.to_be_bytes()[..bytes.len()]);
            }),
            4..8 => stretch.fill(number as u8 | 1),
            _ => {}
        }
    }
    superblock(&mut content, length);
    content
}

/// Puts the start of an ext2 superblock of 1 KiB blocks that takes `length` bytes.
pub fn superblock(content: &mut [u8], length: usize) {
    content[1024..2048].fill(0);
    content[1028..1032].copy_from_slice(&((length / 1024) as u32).to_le_bytes());
    content[1080..1082].copy_from_slice(&[0x53, 0xEF]);
}

/// One zstd frame, with a checksum of its own or without.
pub fn frame(content: &[u8], checksum: bool) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(checksum).unwrap();
    std::io::Write::write_all(&mut encoder, content).unwrap();
    encoder.finish().unwrap()
}

pub fn sha256(content: &[u8]) -> Checksum {
    Checksum::from(<[u8; 32]>::from(Sha256::digest(content)))
}

pub fn expecting(content: &[u8]) -> Expectation {
    Expectation {
        checksum: Some(sha256(content)),
        ..Default::default()
    }
}

/// Impatient enough for tests.
pub fn quick() -> FetchSettings {
    FetchSettings {
        connect_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_millis(400),
        total_deadline: Duration::from_secs(30),
        retries: 3,
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(5),
        ..Default::default()
    }
}

/// A file of the given length, full of what an older slot would hold.
pub fn old_slot(length: usize) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0xAA; length]).unwrap();
    file
}

/// Opens a file as a target, with direct I/O where its filesystem has that.
pub fn target(path: &Path) -> WriteTarget {
    const O_DIRECT: i32 = 0o40_000;
    let open = |flags| {
        std::fs::File::options()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path)
    };
    let file = open(O_DIRECT).or_else(|_| open(0)).unwrap();
    WriteTarget::from_exclusive(file.into(), path.to_owned()).unwrap()
}

/// Both steps, as a caller does them; returns what happened beside the outcome.
pub fn flash(
    source: ImageSource,
    target: &mut WriteTarget,
    settings: &FetchSettings,
    expectation: &Expectation,
) -> (Result<WriteReport>, Vec<Event>) {
    let events = RefCell::new(Vec::new());
    let tell = |event| events.borrow_mut().push(event);
    let cancel = Cancel::new();
    let outcome = open(
        source,
        settings,
        expectation,
        target.capacity(),
        &cancel,
        &tell,
    )
    .and_then(|opened| write(opened, target, expectation, &cancel, &tell));
    (outcome, events.into_inner())
}

/// The same for content in a file.
pub fn flash_file(
    published: &[u8],
    target: &mut WriteTarget,
    expectation: &Expectation,
) -> Result<WriteReport> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), published).unwrap();
    let source = ImageSource::File(file.path().to_owned());
    flash(source, target, &FetchSettings::default(), expectation).0
}
