//! Images that are refused: before anything is written where it can be known then, otherwise
//! before the slot holds an image.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]
#![allow(clippy::cast_possible_truncation, reason = "test images are small")]

mod support;

use slotd_image::{Checksum, Error, ErrorKind, Expectation};
use support::{MIB, expecting, flash_file, frame, image, old_slot, sha256, superblock, target};

const SKIPPABLE: &[u8] = b"\x5e\x2a\x4d\x18\x05\x00\x00\x00hello";

/// What is left of the old slot.
#[derive(Debug, PartialEq, Eq)]
enum Slot {
    /// Not one byte was changed.
    Untouched,
    /// The first MiB is zero.
    Empty,
}

/// Refuses `published` for a slot of 8 MiB and says how, and what became of the slot.
fn refuse(published: &[u8], expectation: &Expectation) -> (Error, Slot) {
    let file = old_slot(8 * MIB);
    let error = flash_file(published, &mut target(file.path()), expectation).unwrap_err();
    let held = std::fs::read(file.path()).unwrap();
    let slot = if held.iter().all(|byte| *byte == 0xAA) {
        Slot::Untouched
    } else {
        assert!(
            held[..MIB].iter().all(|byte| *byte == 0),
            "an image was left by: {error}"
        );
        Slot::Empty
    };
    (error, slot)
}

#[track_caller]
fn assert_refused(published: &[u8], expectation: &Expectation, says: &str, leaves: Slot) {
    let (error, slot) = refuse(published, expectation);
    assert!(error.to_string().contains(says), "{error}");
    assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
    assert_eq!(slot, leaves, "{error}");
}

fn sized(size: usize) -> Expectation {
    Expectation {
        size: Some(size as u64),
        ..Default::default()
    }
}

const ANYTHING: Expectation = Expectation {
    checksum: None,
    expanded_checksum: None,
    size: None,
};

#[test]
fn a_malformed_checksum_is_refused_before_there_is_any_source() {
    let error = "sha256:99af82a2".parse::<Checksum>().unwrap_err();
    assert!(
        error.to_string().contains("8 digits instead of 64"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Reject);
}

#[test]
fn a_wrong_checksum_leaves_the_slot_empty_and_shows_both_digests() {
    let content = image(4 * MIB);
    let published = frame(&content, true);
    let (error, slot) = refuse(&published, &expecting(b"another image"));
    for digest in [
        sha256(b"another image"),
        sha256(&published),
        sha256(&content),
    ] {
        assert!(error.to_string().contains(&digest.to_string()), "{error}");
    }
    assert_eq!(slot, Slot::Empty);
}

#[test]
fn an_error_page_is_no_image_whether_compressed_or_not() {
    let page = b"<!DOCTYPE html>\n<html><body>Please log in</body></html>";
    for published in [page.to_vec(), frame(page, true), page.repeat(10_000)] {
        assert_refused(
            &published,
            &ANYTHING,
            "not an image: it starts with the text \"<!DOCTYPE",
            Slot::Untouched,
        );
    }
}

#[test]
fn other_packings_and_whole_disks_are_named() {
    let mut disk = vec![0u8; MIB];
    disk[512..520].copy_from_slice(b"EFI PART");
    assert_refused(
        &frame(&disk, true),
        &ANYTHING,
        "whole disk",
        Slot::Untouched,
    );
    assert_refused(
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
        &ANYTHING,
        "gzip",
        Slot::Untouched,
    );
    let twice = frame(&frame(&image(4 * MIB), true), true);
    assert_refused(&twice, &ANYTHING, "compressed twice", Slot::Untouched);
}

#[test]
fn an_empty_file_is_named() {
    assert_refused(b"", &ANYTHING, "it is empty", Slot::Untouched);
    assert_refused(SKIPPABLE, &ANYTHING, "expands to nothing", Slot::Untouched);
}

#[test]
fn a_truncated_zstd_image_is_named_with_both_offsets() {
    let mut published = frame(&image(4 * MIB), true);
    published.truncate(published.len() - 10);
    let says = format!("is not complete (at published byte {}", published.len());
    assert_refused(&published, &ANYTHING, &says, Slot::Empty);
}

#[test]
fn a_truncated_raw_image_is_found_by_the_length_of_its_filesystem() {
    let content = image(4 * MIB);
    let says = "its ext2/3/4 filesystem takes 4194304 bytes";
    assert_refused(&content[..3 * MIB], &ANYTHING, says, Slot::Empty);
}

#[test]
fn a_truncated_raw_image_is_found_before_writing_where_its_length_was_declared() {
    let content = image(4 * MIB);
    assert_refused(
        &content[..3 * MIB],
        &sized(4 * MIB),
        "instead of the expected 4194304",
        Slot::Untouched,
    );
}

#[test]
fn a_flipped_bit_in_the_middle_is_found_by_frame_checksum_or_by_digest() {
    let content = image(4 * MIB);
    let flipped = |mut published: Vec<u8>| {
        let middle = published.len() / 2;
        published[middle] ^= 1;
        published
    };
    // Whichever way the noise of this frame breaks, it is named with offsets.
    let (error, slot) = refuse(&flipped(frame(&content, true)), &ANYTHING);
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert_eq!(slot, Slot::Empty);

    let published = frame(&content, false);
    let (error, slot) = refuse(&flipped(published.clone()), &expecting(&published));
    assert!(
        matches!(
            error,
            Error::ChecksumMismatch { .. } | Error::Corrupt { .. }
        ),
        "{error}"
    );
    assert_eq!(slot, Slot::Empty);
    let (error, _) = refuse(&flipped(content.clone()), &expecting(&content));
    assert!(matches!(error, Error::ChecksumMismatch { .. }), "{error}");
}

#[test]
fn garbage_behind_the_last_frame_is_named() {
    let mut published = frame(&image(4 * MIB), true);
    let says = format!("at byte {} is no zstd frame", published.len());
    published.extend_from_slice(&[0; 100]);
    assert_refused(&published, &ANYTHING, &says, Slot::Empty);
}

#[test]
fn a_declared_size_beyond_the_slot_is_refused_before_anything_is_fetched() {
    let says = "declared size of 9437184 bytes is more than the 8388608 bytes of the slot";
    assert_refused(
        &frame(&image(4 * MIB), true),
        &sized(9 * MIB),
        says,
        Slot::Untouched,
    );
}

#[test]
fn a_real_size_beyond_the_slot_is_refused_before_writing_where_a_header_tells() {
    let content = image(9 * MIB);
    assert_refused(
        &content,
        &ANYTHING,
        "published raw image of 9437184 bytes",
        Slot::Untouched,
    );
    assert_refused(
        &frame(&content, true),
        &ANYTHING,
        "filesystem in it of 9437184 bytes",
        Slot::Untouched,
    );
    let pledged = zstd::bulk::compress(&content, 1).unwrap();
    assert_refused(
        &pledged,
        &ANYTHING,
        "first zstd frame of 9437184 bytes",
        Slot::Untouched,
    );
}

#[test]
fn a_real_size_beyond_the_slot_that_no_header_tells_is_never_written_past_the_end() {
    // Two frames of which each fits, and a filesystem that says that it is smaller.
    let mut content = image(9 * MIB);
    superblock(&mut content, MIB);
    let published = [
        frame(&content[..4 * MIB], true),
        frame(&content[4 * MIB..], true),
    ]
    .concat();
    assert_refused(
        &published,
        &ANYTHING,
        "is more than the 8388608 bytes of the slot",
        Slot::Empty,
    );
}

#[test]
fn another_length_than_the_declared_one_is_refused() {
    let published = frame(&image(4 * MIB), true);
    assert_refused(
        &published,
        &sized(3 * MIB),
        "instead of the expected 3145728",
        Slot::Untouched,
    );
    let says = "expanded image of 4194304 bytes instead of the expected 5242880";
    assert_refused(&published, &sized(5 * MIB), says, Slot::Empty);
}

#[test]
fn a_window_above_the_limit_is_refused_early_with_its_size() {
    // A frame header that asks for 2 GiB, as `zstd --ultra --long=31` writes it.
    let published = [SKIPPABLE, b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00"].concat();
    let says = "needs a window of 2147483648 bytes, more than the allowed 134217728";
    assert_refused(&published, &ANYTHING, says, Slot::Untouched);
}

#[test]
fn a_missing_file_and_a_directory_are_named() {
    let file = old_slot(MIB);
    for path in ["/nowhere/rootfs.ext4.zst", "/etc"] {
        let source = slotd_image::ImageSource::parse(path).unwrap();
        let (outcome, _) = support::flash(
            source,
            &mut target(file.path()),
            &support::quick(),
            &ANYTHING,
        );
        let error = outcome.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("{path}: cannot be opened")),
            "{error}"
        );
        assert_eq!(error.kind(), ErrorKind::Reject);
    }
}
