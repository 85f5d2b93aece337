//! What a target holds at every moment, and what a failing or lying device leads to.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]
#![allow(clippy::cast_possible_truncation, reason = "test images are small")]

mod support;

use std::sync::Arc;

use slotd_image::{Error, ErrorKind, Expectation, Matched, WriteTarget};
use support::medium::{Call, Fault, TestMedium};
use support::{MIB, expecting, flash_file, frame, image, sha256};

const EIO: i32 = 5;

/// Writes `content` to a medium with a script of faults.
fn write_to(
    medium: &Arc<TestMedium>,
    content: &[u8],
    expectation: &Expectation,
) -> slotd_image::Result<slotd_image::WriteReport> {
    let mut target = WriteTarget::from_medium(Arc::clone(medium));
    flash_file(&frame(content, true), &mut target, expectation)
}

#[test]
fn the_first_mebibyte_is_cleared_first_and_written_last_behind_the_check_of_all_else() {
    let content = image(9 * MIB);
    let medium = TestMedium::new(16 * MIB, |_, _| Fault::None);
    let report = write_to(&medium, &content, &expecting(&content)).unwrap();
    assert_eq!(report.matched, Matched::ExpandedImage);
    assert_eq!(report.expanded, sha256(&content));
    assert_eq!(report.expanded_size, content.len() as u64);
    assert_eq!(report.written + report.zeroed, content.len() as u64);
    assert!(report.zeroed > 0);
    assert!(medium.content()[..content.len()] == content);
    assert!(
        medium.content()[content.len()..]
            .iter()
            .all(|byte| *byte == 0xAA)
    );

    let calls = medium.calls();
    let mib = MIB as u64;
    let head = Call::Write {
        offset: 0,
        length: mib,
    };
    assert_eq!(calls[..2], [head, Call::Flush]);
    assert_eq!(
        calls[calls.len() - 3..],
        [
            head,
            Call::Flush,
            Call::Read {
                offset: 0,
                length: mib
            }
        ]
    );
    // Every byte behind the first MiB was read after the flush that followed its write.
    let middle = &calls[2..calls.len() - 3];
    for offset in (mib..content.len() as u64).step_by(MIB) {
        let covers = |call: &Call, kind: fn(&Call) -> Option<(u64, u64)>| {
            kind(call).is_some_and(|(start, length)| start <= offset && offset < start + length)
        };
        let changed = middle
            .iter()
            .rposition(|call| {
                covers(call, |call| match *call {
                    Call::Write { offset, length } | Call::Zero { offset, length } => {
                        Some((offset, length))
                    }
                    _ => None,
                })
            })
            .unwrap();
        let read = middle
            .iter()
            .position(|call| {
                covers(call, |call| match *call {
                    Call::Read { offset, length } => Some((offset, length)),
                    _ => None,
                })
            })
            .unwrap();
        let flushed = middle[changed..read].contains(&Call::Flush);
        assert!(
            flushed,
            "offset {offset}: changed in call {changed}, read in {read}"
        );
    }
}

#[test]
fn a_cut_at_any_moment_leaves_no_image_until_the_last_write() {
    let content = image(9 * MIB);
    let medium = TestMedium::new(16 * MIB, |_, _| Fault::None);
    write_to(&medium, &content, &Expectation::default()).unwrap();
    // The old image until the first flush (two calls, the second of which clears it), the new one
    // in the last three.
    assert_eq!(medium.cuts_with_an_image(), 1 + 3);
}

#[test]
fn a_wrong_checksum_leaves_no_image() {
    let content = image(4 * MIB);
    for expectation in [
        expecting(b"something else"),
        Expectation {
            expanded_checksum: Some(sha256(b"else")),
            ..Default::default()
        },
    ] {
        let medium = TestMedium::new(16 * MIB, |_, _| Fault::None);
        let error = write_to(&medium, &content, &expectation).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reject);
        assert!(
            error.to_string().contains(&sha256(&content).to_string()),
            "{error}"
        );
        assert!(!medium.holds_an_image());
    }
}

/// What a device error on the first matching call leads to.
fn failing(fails: impl Fn(Call) -> bool + Send + Sync + 'static) -> (Error, Arc<TestMedium>) {
    let medium = TestMedium::new(16 * MIB, move |number, call| {
        if number >= 2 && fails(call) {
            Fault::Fail(EIO)
        } else {
            Fault::None
        }
    });
    let error = write_to(&medium, &image(9 * MIB), &Expectation::default()).unwrap_err();
    assert!(!medium.holds_an_image(), "{error}");
    (error, medium)
}

#[test]
fn a_device_error_in_the_middle_is_final_and_named_with_its_offset() {
    let at = 5 * MIB as u64;
    let (error, medium) =
        failing(move |call| matches!(call, Call::Write { offset, .. } if offset == at));
    let says = format!("/dev/test: write at byte {at} failed");
    assert!(error.to_string().contains(&says), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retry);
    let later = medium.calls().iter().filter(|call| {
        matches!(call, Call::Write { offset, .. } | Call::Zero { offset, .. } if *offset > at || *offset == 0)
    }).count();
    assert_eq!(
        later,
        1,
        "only the clearing of the first MiB: {:?}",
        medium.calls()
    );
}

#[test]
fn errors_of_zeroing_flushing_and_reading_back_are_named() {
    let (error, _) = failing(|call| matches!(call, Call::Zero { .. }));
    assert!(error.to_string().contains("zeroing at byte"), "{error}");
    let (error, _) = failing(|call| matches!(call, Call::Flush));
    assert!(
        error.to_string().contains("flush at byte 1048576"),
        "{error}"
    );
    let at = 4 * MIB as u64;
    let (error, _) = failing(move |call| matches!(call, Call::Read { offset, .. } if offset == at));
    assert!(
        error
            .to_string()
            .contains(&format!("read-back at byte {at}")),
        "{error}"
    );
}

#[test]
fn a_flush_is_not_asked_for_again_once_it_failed() {
    let (_, medium) = failing(|call| matches!(call, Call::Flush));
    let flushes = medium
        .calls()
        .iter()
        .filter(|call| **call == Call::Flush)
        .count();
    assert_eq!(
        flushes, 2,
        "the one behind the clearing, and the one that failed"
    );
}

#[test]
fn a_device_that_cannot_even_be_cleared_gets_nothing_else() {
    let medium = TestMedium::new(16 * MIB, |_, call| match call {
        Call::Flush => Fault::Fail(EIO),
        _ => Fault::None,
    });
    write_to(&medium, &image(4 * MIB), &Expectation::default()).unwrap_err();
    assert_eq!(medium.calls().len(), 2);
}

#[test]
fn a_medium_that_lies_is_found_out_by_reading_back() {
    let content = image(9 * MIB);
    // A data piece, one in a zero run, and the first one.
    for (at, lost) in [(4, true), (4, false), (2, true), (0, true), (0, false)] {
        let at = at * MIB as u64;
        let medium = TestMedium::new(16 * MIB, move |number, call| match call {
            Call::Write { offset, .. } if offset == at && number >= 2 => {
                if lost {
                    Fault::Ignore
                } else {
                    Fault::FlipBit
                }
            }
            Call::Zero { offset, length } if (offset..offset + length).contains(&at) => {
                Fault::Ignore
            }
            _ => Fault::None,
        });
        let error = write_to(&medium, &content, &Expectation::default()).unwrap_err();
        match &error {
            Error::ReadBack { offset, .. } => assert_eq!(*offset, at),
            other => panic!("{other}"),
        }
        assert_eq!(error.kind(), ErrorKind::Retry);
    }
}
