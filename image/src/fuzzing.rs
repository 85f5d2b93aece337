//! What fuzzers run: each target reads its input as this crate does, and asserts what has to hold of any input beside that
//! nothing panics. True where the input was accepted. Not part of the product: only tests and fuzzers build this.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use std::collections::VecDeque;

use bytes::Bytes;
use url::Url;
use zstd::zstd_safe;

use crate::cancel::Cancel;
use crate::checksum::Checksum;
use crate::error::{Error, ErrorKind, Result};
use crate::format::decoder::Decoder;
use crate::format::{self, Filesystem, Format, FrameProbe};
use crate::settings::Expectation;
use crate::source::{ImageSource, Origin, Published, Trail, shown};
use crate::stream::ImageStream;

/// Reads an input, and judges what came of it; whether it was accepted.
pub type Target = fn(&[u8]) -> bool;

/// The targets by name. Inputs of each lie in `tests/fuzz/corpus/image`.
pub const TARGETS: &[(&str, Target)] = &[
    ("filesystem", filesystem),
    ("frame-header", frame_header),
    ("http-answer", crate::source::fuzzing::answer),
    ("redirects", redirects),
    ("source", words),
    ("stream", stream),
    ("zstd", zstd_frames),
];

/// Window that is allowed, in bytes.
const WINDOW: u64 = 8 << 20;
/// Bytes of the slot that images are for.
const CAPACITY: u64 = 8 << 20;

/// What people write: a source, an origin, a checksum.
fn words(input: &[u8]) -> bool {
    [source, origin, checksum]
        .map(|target| target(input))
        .contains(&true)
}

fn checksum(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    match text.parse::<Checksum>() {
        Ok(checksum) => {
            assert_eq!(
                checksum.to_string().parse::<Checksum>().ok(),
                Some(checksum)
            );
            assert!(
                text.to_ascii_lowercase().contains(&checksum.to_hex()),
                "{text:?}"
            );
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Reject);
            // What it repeats of the text is bounded, each character escaped at the most.
            assert!(error.to_string().len() < 2000, "{error}");
            false
        }
    }
}

fn filesystem(input: &[u8]) -> bool {
    let described = format::describe(input);
    assert!(
        !described.is_empty() && described.len() < 1000,
        "{described:?}"
    );
    let found = Filesystem::probe(input);
    assert!(found.is_none_or(|found| found.size != Some(0)));
    found.is_some()
}

fn frame_header(input: &[u8]) -> bool {
    let whole = FrameProbe::default().feed(input);
    for size in [1, 3, 8] {
        let mut probe = FrameProbe::default();
        let found = input.chunks(size).find_map(|chunk| probe.feed(chunk));
        assert_eq!(found, whole, "in pieces of {size}");
    }
    // The library reads the same, where the frame is the first.
    if let Some(header) = whole
        && input.starts_with(b"\x28\xb5\x2f\xfd")
        && let Ok(content) = zstd_safe::get_frame_content_size(input)
    {
        // Its word for none is the largest number, which a frame may name all the same.
        assert_eq!(header.content.filter(|size| *size != u64::MAX), content);
    }
    whole.is_some()
}

fn origin(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    match text.parse::<Origin>() {
        Ok(origin) => {
            assert_eq!(
                origin.to_string().parse::<Origin>().ok(),
                Some(origin.clone())
            );
            let url = Url::parse(text).expect("an origin is a URL");
            assert!(origin.covers(&url));
            let name = url.host_str().unwrap_or_default();
            let here = name == "localhost" || name.starts_with("127.") || name == "[::1]";
            assert!(url.scheme() == "https" || here, "{text:?}");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Configuration);
            false
        }
    }
}

/// The first line is the URL that is asked for, each other one a `Location`.
fn redirects(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let mut lines = text.lines();
    let Some(first) = lines.next().and_then(|line| Url::parse(line).ok()) else {
        return false;
    };
    if !matches!(first.scheme(), "http" | "https") {
        return false;
    }
    let origins = ["https://one.example".parse::<Origin>().expect("an origin")];
    let mut trail = Trail::new(&first, true, &origins).expect("a checksum binds it");
    let mut was_https = first.scheme() == "https";
    let mut withheld = trail.withholds().is_some();
    for (step, location) in lines.enumerate() {
        if let Err(error) = trail.follow(location) {
            assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
            return step > 0;
        }
        assert!(step < 10, "{} redirects", step + 1);
        let url = trail.url();
        assert!(matches!(url.scheme(), "http" | "https") && url.has_host());
        assert!(url.scheme() == "https" || !was_https, "{url} after https");
        was_https = url.scheme() == "https";
        // Credentials go to the one origin that they are for, and never come back.
        let sent = trail.withholds().is_none();
        assert!(
            !sent || (!withheld && url.origin() == first.origin()),
            "{url}"
        );
        withheld = !sent;
        let user = !url.username().is_empty() || url.password().is_some();
        assert!(!user || url.origin() == first.origin(), "{url}");
    }
    true
}

fn source(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    if text == "-" {
        return false;
    }
    match ImageSource::parse(text) {
        Ok(ImageSource::Http(url)) => {
            let shown = shown(&url);
            let again = Url::parse(&shown).expect("a URL is shown");
            assert!(
                again.query().is_none() && again.username().is_empty(),
                "{shown}"
            );
            assert!(
                again.password().is_none() && again.fragment().is_none(),
                "{shown}"
            );
            assert_eq!(
                (again.host(), again.path()),
                (url.host(), url.path()),
                "{shown}"
            );
            true
        }
        Ok(ImageSource::File(path)) => {
            assert!(
                path.is_absolute() || text.starts_with('.'),
                "{}",
                path.display()
            );
            true
        }
        Ok(ImageSource::Reader { .. }) => panic!("{text:?} is not standard input"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
            false
        }
    }
}

/// A published file that comes in pieces.
struct Pieces(VecDeque<Bytes>, Option<u64>);

impl Pieces {
    /// The first byte says how long they are, and whether the length is known.
    fn of(input: &[u8]) -> Self {
        let (first, content) = input.split_first().unwrap_or((&0, &[]));
        let size = 1 + usize::from(first >> 1) * 16;
        let pieces = content.chunks(size).map(Bytes::copy_from_slice).collect();
        let total = (first & 1 != 0).then_some(content.len() as u64);
        Self(pieces, total)
    }
}

impl Published for Pieces {
    fn next(&mut self, _cancel: &Cancel) -> Result<Option<Bytes>> {
        Ok(self.0.pop_front())
    }

    fn total(&self) -> Option<u64> {
        self.1
    }

    fn may_end_early(&self) -> bool {
        self.1.is_none()
    }
}

/// From the first byte of a published file to its last, as it is when an image is written.
fn stream(input: &[u8]) -> bool {
    let length = input.len() as u64;
    let (cancel, expectation) = (Cancel::new(), Expectation::default());
    let body = Box::new(Pieces::of(input));
    let begun = ImageStream::begin(body, "input", &expectation, CAPACITY, WINDOW, &cancel);
    let ImageStream {
        mut intake,
        mut unpacker,
        head,
        info,
    } = match begun {
        Ok(stream) => stream,
        Err(error) => return blamed(&error, length),
    };
    assert!(info.filesystem.size.is_none_or(|size| size <= CAPACITY));
    assert!(info.format == Format::Zstd || info.published_total.is_none_or(|all| all <= CAPACITY));
    assert_eq!(Filesystem::probe(&head), Some(info.filesystem));
    let mut output = vec![0; 1 << 20];
    loop {
        let filled = unpacker.fill(&mut output, 0, || intake.next(&cancel));
        assert!(intake.received() <= length);
        match filled {
            Ok(filled) if filled.ended => return true,
            Ok(filled) => assert_eq!(filled.length, output.len()),
            Err(error) => return blamed(&error, length),
        }
        if unpacker.expanded() > CAPACITY {
            return false;
        }
    }
}

/// Whatever is wrong with content says where it is, in bytes that there are.
fn blamed(error: &Error, length: u64) -> bool {
    match error {
        Error::EndedEarly { source } => {
            assert!(!matches!(**source, Error::EndedEarly { .. }));
            blamed(source, length);
        }
        Error::Corrupt {
            published,
            location,
            ..
        }
        | Error::Truncated {
            published,
            location,
            ..
        } => {
            assert!(*published <= length && location == "input", "{error}");
        }
        Error::NotAnImage { .. } | Error::WindowTooLarge { .. } | Error::TooLarge { .. } => {}
        other => panic!("another error than that of an image: {other}"),
    }
    false
}

fn zstd_frames(input: &[u8]) -> bool {
    let large = expand(input, usize::MAX, 1 << 16);
    let small = expand(input, 7, 1000);
    // A frame that is there as a whole, for a buffer that takes all of it, needs no window, so one of both may be refused.
    if let (Some(large), Some(small)) = (large, small) {
        assert_eq!(large, small, "pieces make no difference");
    }
    large.is_some() || small.is_some()
}

/// Length and digest of what comes out; `None` where it is refused, or more than is waited for.
fn expand(input: &[u8], piece: usize, room: usize) -> Option<(u64, u64)> {
    const MOST: u64 = 2 << 20;
    let mut decoder = Decoder::new("input", Format::Zstd, WINDOW).expect("a decoder");
    let mut output = vec![0; room];
    let mut hash = twox_hash::XxHash3_128::new();
    let mut idle = 0;
    for mut chunk in input.chunks(piece.min(input.len().max(1))) {
        loop {
            let (taken, made) = match decoder.step(chunk, &mut output) {
                Ok(step) => step,
                Err(error) => {
                    blamed(&error, input.len() as u64);
                    return None;
                }
            };
            hash.write(&output[..made]);
            chunk = &chunk[taken..];
            if decoder.expanded() > MOST {
                return None;
            }
            if chunk.is_empty() && made < output.len() {
                break;
            }
            idle = if taken == 0 && made == 0 { idle + 1 } else { 0 };
            assert!(idle < 4, "neither input nor output moves");
        }
    }
    match decoder.finish() {
        Ok(()) => {
            let digest = hash.finish_128();
            let half = u64::try_from(digest & u128::from(u64::MAX)).expect("64 bits");
            Some((decoder.expanded(), half))
        }
        Err(error) => {
            blamed(&error, input.len() as u64);
            None
        }
    }
}

#[cfg(test)]
#[path = "../../tests/fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{TARGETS, corpus};

    #[test]
    fn inputs_that_are_checked_in_are_read_as_their_names_say() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/image");
        corpus::check(&folder, TARGETS);
    }
}
