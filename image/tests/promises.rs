//! What a target holds at every moment, and what a failing or lying device leads to.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing test may say so this way"
)]
#![allow(clippy::cast_possible_truncation, reason = "test images are small")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slotd_image::{
    Cancel, Error, ErrorKind, Expectation, FetchSettings, ImageSource, Matched, WriteTarget, open,
    write,
};
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
        let found = match &error {
            // The first MiB cannot be cleared on such a medium either.
            Error::NotTakenBack { source, .. } if at == 0 && !lost => source,
            other => other,
        };
        match found {
            Error::ReadBack { offset, .. } => assert_eq!(*offset, at),
            other => panic!("{other}"),
        }
        assert_eq!(error.kind(), ErrorKind::Retry);
    }
}

/// A step at or behind the last write, that of the first MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastStep {
    Write,
    Flush,
    ReadBack,
}

/// Writes an image to a medium on which `fault` decides about every call from the last write on, told which step it is
/// and how often that step came before.
fn at_the_end(
    cancel: &Cancel,
    fault: impl Fn(LastStep, usize) -> Fault + Send + Sync + 'static,
) -> (
    slotd_image::Result<slotd_image::WriteReport>,
    Arc<TestMedium>,
) {
    let content = image(4 * MIB);
    let heads = AtomicUsize::new(0);
    let flushes = AtomicUsize::new(0);
    let reads = AtomicUsize::new(0);
    let medium = TestMedium::new(16 * MIB, move |_, call| {
        let written = heads.load(Ordering::SeqCst);
        match call {
            Call::Write { offset: 0, .. } => {
                // The first one clears what was there.
                match heads.fetch_add(1, Ordering::SeqCst) {
                    0 => Fault::None,
                    before => fault(LastStep::Write, before - 1),
                }
            }
            Call::Flush if written > 1 => {
                fault(LastStep::Flush, flushes.fetch_add(1, Ordering::SeqCst))
            }
            Call::Read { offset: 0, .. } => {
                fault(LastStep::ReadBack, reads.fetch_add(1, Ordering::SeqCst))
            }
            _ => Fault::None,
        }
    });
    let published = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(published.path(), frame(&content, true)).unwrap();
    let mut target = WriteTarget::from_medium(Arc::clone(&medium));
    let expectation = expecting(&content);
    let opened = open(
        ImageSource::File(published.path().to_owned()),
        &FetchSettings::default(),
        &expectation,
        target.capacity(),
        cancel,
        &|_| (),
    )
    .unwrap();
    let outcome = write(opened, &mut target, &expectation, cancel, &|_| ());
    (outcome, medium)
}

fn first_mebibyte_is_zero(held: &[u8]) -> bool {
    held[..MIB].iter().all(|byte| *byte == 0)
}

#[test]
fn an_error_behind_the_last_write_clears_the_first_mebibyte_again() {
    use LastStep::{Flush, ReadBack, Write};
    let never = Cancel::new();
    for (step, says) in [
        (Write, "write at byte 0 failed"),
        (Flush, "flush at byte 0 failed"),
        (ReadBack, "read-back at byte 0 failed"),
    ] {
        let (outcome, medium) = at_the_end(&never, move |at, before| {
            if at == step && before == 0 {
                Fault::Fail(EIO)
            } else {
                Fault::None
            }
        });
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert!(
            first_mebibyte_is_zero(&medium.content()) && first_mebibyte_is_zero(&medium.durable()),
            "an image was left by: {error}"
        );
    }
    // What was not written as it should be is no image either.
    for fault in [|| Fault::FlipBit, || Fault::Ignore] {
        let (outcome, medium) = at_the_end(&never, move |at, before| {
            if at == Write && before == 0 {
                fault()
            } else {
                Fault::None
            }
        });
        assert!(matches!(outcome.unwrap_err(), Error::ReadBack { .. }));
        assert!(first_mebibyte_is_zero(&medium.durable()));
    }
}

#[test]
fn a_stop_behind_the_last_write_clears_the_first_mebibyte_again() {
    for step in [LastStep::Write, LastStep::Flush] {
        let cancel = Cancel::new();
        let stop = cancel.clone();
        let (outcome, medium) = at_the_end(&cancel, move |at, _| {
            if at == step {
                stop.cancel();
            }
            Fault::None
        });
        let error = outcome.unwrap_err();
        assert!(error.is_cancelled(), "{error}");
        assert!(first_mebibyte_is_zero(&medium.durable()), "{step:?}");
    }
}

#[test]
fn an_image_that_cannot_be_taken_back_is_told() {
    use LastStep::{Flush, ReadBack, Write};
    // The read-back of the image fails, and then this step of the clearing too.
    for (fails, says) in [
        (Write, "write at byte 0 failed"),
        (Flush, "flush at byte 0 failed"),
        (ReadBack, "read-back at byte 0 failed"),
    ] {
        let (outcome, _) = at_the_end(&Cancel::new(), move |at, before| {
            if (at == ReadBack && before == 0) || (at == fails && before == 1) {
                Fault::Fail(EIO)
            } else {
                Fault::None
            }
        });
        let error = outcome.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("/dev/test: read-back at byte 0"), "{text}");
        assert!(text.contains("may hold a complete image"), "{text}");
        assert!(
            text.ends_with(&format!("{says}: Input/output error (os error 5)")),
            "{text}"
        );
        assert_eq!(error.kind(), ErrorKind::Retry);
    }
    // A medium that says it cleared and did not; and a stop is no stop then, but a failure.
    let cancel = Cancel::new();
    let stop = cancel.clone();
    let (outcome, medium) = at_the_end(&cancel, move |at, before| {
        stop.cancel();
        if at == Write && before == 1 {
            Fault::Ignore
        } else {
            Fault::None
        }
    });
    let error = outcome.unwrap_err();
    assert!(
        error.to_string().contains("may hold a complete image"),
        "{error}"
    );
    assert!(!error.is_cancelled(), "{error}");
    assert!(!first_mebibyte_is_zero(&medium.content()));
}
