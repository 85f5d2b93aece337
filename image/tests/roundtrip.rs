//! Whatever the image, its packing and the slot: what arrives is the image, byte by byte.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]
#![allow(clippy::cast_possible_truncation, reason = "test images are small")]

mod support;

use std::io::Write;
use std::os::fd::OwnedFd;

use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::test_runner::Config;
use slotd_image::{
    Cancel, Event, Expectation, FetchSettings, Format, ImageSource, Matched, WriteTarget,
    verify_existing,
};
use support::medium::{Fault, TestMedium};
use support::{MIB, expecting, flash, flash_file, frame, image, old_slot, sha256, target};

/// Stretches of an image: how long, and filled with what.
fn stretches() -> impl Strategy<Value = Vec<(usize, Option<u8>)>> {
    let length = prop_oneof![
        1usize..5000,
        Just(4096usize),
        Just(MIB),
        MIB - 2..MIB + 3,
        1usize..3 * MIB,
    ];
    let fill = prop_oneof![Just(Some(0u8)), any::<u8>().prop_map(Some), Just(None)];
    proptest::collection::vec((length, fill), 1..6)
}

fn content(stretches: &[(usize, Option<u8>)]) -> Vec<u8> {
    let mut content = vec![0u8; 2048];
    let mut state = 1u32;
    for (length, fill) in stretches {
        content.extend((0..*length).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            fill.unwrap_or((state >> 24) as u8)
        }));
    }
    support::superblock(&mut content, 0);
    content
}

/// Cut into frames of the given length with skippable ones between, or raw.
fn pack(content: &[u8], frame_length: Option<usize>) -> Vec<u8> {
    let Some(length) = frame_length else {
        return content.to_vec();
    };
    let mut packed = Vec::new();
    for part in content.chunks(length) {
        packed.extend_from_slice(b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc");
        packed.extend(frame(part, part.len() % 2 == 0));
    }
    packed
}

proptest! {
    #![proptest_config(Config { cases: 48, failure_persistence: None, ..Config::default() })]

    #[test]
    fn every_image_arrives_byte_by_byte(
        stretches in stretches(),
        frame_length in prop_oneof![Just(None), (1000usize..3 * MIB).prop_map(Some)],
        spare in 0usize..3,
        by_published in any::<bool>(),
    ) {
        let content = content(&stretches);
        let published = pack(&content, frame_length);
        let capacity = content.len().next_multiple_of(4096) + spare * 4096;
        let expectation = Expectation {
            size: Some(content.len() as u64),
            ..expecting(if by_published { &published } else { &content })
        };
        let medium = TestMedium::new(capacity.max(MIB), |_, _| Fault::None);
        let mut target = WriteTarget::from_medium(std::sync::Arc::clone(&medium));
        let report = flash_file(&published, &mut target, &expectation).unwrap();

        let held = medium.content();
        assert!(held[..content.len()] == content[..]);
        let block = content.len().next_multiple_of(512);
        assert!(held[content.len()..block].iter().all(|byte| *byte == 0));
        // The first MiB is cleared as a whole.
        assert!(held[block.max(MIB)..].iter().all(|byte| *byte == 0xAA));
        assert_eq!(report.expanded, sha256(&content));
        assert_eq!(report.published, sha256(&published));
        assert_eq!(report.expanded_size, content.len() as u64);
        assert_eq!(report.published_size, published.len() as u64);
        assert_eq!(report.written + report.zeroed, block as u64);
        let raw_or_published = by_published || frame_length.is_none();
        let matched = if raw_or_published { Matched::PublishedFile } else { Matched::ExpandedImage };
        assert_eq!(report.matched, matched);
    }
}

#[test]
fn a_regular_file_takes_an_image_and_keeps_what_lies_beyond_it() {
    let content = image(5 * MIB);
    let file = old_slot(8 * MIB);
    let mut target = target(file.path());
    flash_file(&frame(&content, true), &mut target, &expecting(&content)).unwrap();
    let held = std::fs::read(file.path()).unwrap();
    assert!(held[..content.len()] == content);
    assert!(held[content.len()..].iter().all(|byte| *byte == 0xAA));

    let fd: OwnedFd = std::fs::File::open(file.path()).unwrap().into();
    let size = content.len() as u64;
    let digest = verify_existing(fd, file.path(), size, &Cancel::new()).unwrap();
    assert_eq!(digest, sha256(&content));
}

#[test]
fn a_pipe_is_read_to_its_end_once() {
    let content = image(5 * MIB);
    let published = frame(&content, true);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let feeding = {
        let published = published.clone();
        std::thread::spawn(move || {
            for part in published.chunks(7919) {
                writer.write_all(part).unwrap();
            }
        })
    };
    let source = ImageSource::Reader {
        label: "standard input".to_owned(),
        fd: reader.into(),
    };
    let file = old_slot(8 * MIB);
    let (outcome, _) = flash(
        source,
        &mut target(file.path()),
        &FetchSettings::default(),
        &expecting(&published),
    );
    feeding.join().unwrap();
    assert_eq!(outcome.unwrap().matched, Matched::PublishedFile);
    assert!(std::fs::read(file.path()).unwrap()[..content.len()] == content);
}

#[test]
fn a_pipe_that_breaks_off_is_not_tried_again() {
    let published = frame(&image(5 * MIB), true);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let feeding = std::thread::spawn(move || writer.write_all(&published[..MIB]).unwrap());
    let source = ImageSource::Reader {
        label: "standard input".to_owned(),
        fd: reader.into(),
    };
    let file = old_slot(8 * MIB);
    let (outcome, events) = flash(
        source,
        &mut target(file.path()),
        &support::quick(),
        &Expectation::default(),
    );
    feeding.join().unwrap();
    let error = outcome.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("standard input: ends too early"),
        "{error}"
    );
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, slotd_image::Event::Retrying { .. }))
    );
}

#[test]
fn events_tell_what_was_opened_how_far_it_is_and_the_result() {
    let content = image(5 * MIB);
    let published = frame(&content, true);
    let packed = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(packed.path(), &published).unwrap();
    let file = old_slot(8 * MIB);
    let (outcome, events) = flash(
        ImageSource::File(packed.path().to_owned()),
        &mut target(file.path()),
        &FetchSettings::default(),
        &expecting(&published),
    );
    let report = outcome.unwrap();
    let size = content.len() as u64;
    match &events[0] {
        Event::Opened(opened) => {
            assert_eq!(opened.format, Format::Zstd);
            assert_eq!(opened.published_total, Some(published.len() as u64));
            assert_eq!(opened.expanded_total, Some(size));
        }
        other => panic!("{other:?}"),
    }
    let [.., Event::Progress(last), Event::Verified(told)] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(
        (last.written, last.verified, last.fraction()),
        (size, size, Some(1.0))
    );
    assert_eq!(last.published, published.len() as u64);
    assert_eq!(*told, report);
    // At most four a second and one at the end.
    let told = events
        .iter()
        .filter(|event| matches!(event, Event::Progress(_)))
        .count();
    let most = report.elapsed.as_millis() / 250 + 1;
    assert!(told as u128 <= most, "{told} in {:?}", report.elapsed);
}

/// Writes `published`, which expands to `content`, and returns what the medium holds.
fn held_after(published: &[u8], content: &[u8]) -> Vec<u8> {
    let medium = TestMedium::new(16 * MIB, |_, _| Fault::None);
    let mut target = WriteTarget::from_medium(std::sync::Arc::clone(&medium));
    flash_file(published, &mut target, &expecting(content)).unwrap();
    medium.content()
}

#[test]
fn a_last_block_that_spans_two_buffers_arrives() {
    // Blocks are of 128 KiB: a short frame in front moves them off the buffers' bounds. Without a
    // checksum at the end, the decoder can have all input before all its output found room.
    let content = content(&[(MIB - 1000, Some(0x55))]);
    let published = [
        frame(&content[..5000], false),
        frame(&content[5000..], false),
    ]
    .concat();
    assert!(held_after(&published, &content)[..content.len()] == content);
}

#[test]
fn the_last_block_is_filled_up_with_zeros_and_not_with_what_a_buffer_held_before() {
    let content = content(&[(12 * MIB - 2048 + 700, Some(0x55))]);
    let held = held_after(&frame(&content, true), &content);
    assert!(held[..content.len()] == content);
    assert!(
        held[content.len()..12 * MIB + 1024]
            .iter()
            .all(|byte| *byte == 0)
    );
    assert_eq!(held[12 * MIB + 1024], 0xAA);
}
