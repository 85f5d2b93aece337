//! Expands a published file, and says where it is broken.

use zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd::zstd_safe::{self, DCtx, DParameter, InBuffer, OutBuffer};

use super::Format;
use crate::error::{Error, Result};

/// Expands the content step by step, with offsets kept for messages.
pub(crate) struct Decoder {
    location: String,
    packing: Packing,
    published: u64,
    expanded: u64,
}

enum Packing {
    Raw,
    Zstd(Frames),
}

struct Frames {
    context: DCtx<'static>,
    /// Where the current frame starts in the published file.
    start: u64,
    complete: u64,
    /// Whether the last frame is complete and nothing behind it was seen.
    at_boundary: bool,
}

impl Decoder {
    /// Allows frames with a window of up to `window_limit` bytes, rounded up to a power of two.
    pub(crate) fn new(location: &str, format: Format, window_limit: u64) -> Result<Self> {
        let packing = match format {
            Format::Raw => Packing::Raw,
            Format::Zstd => {
                let refused = |code| Error::Internal {
                    what: format!("zstd cannot be set up: {}", zstd_safe::get_error_name(code)),
                };
                let mut context = DCtx::try_create().ok_or_else(|| Error::Internal {
                    what: "no memory for the zstd decoder".to_owned(),
                })?;
                // The library's own bounds are 2^10 and 2^31.
                let log = window_limit
                    .clamp(1 << 10, 1 << 31)
                    .next_power_of_two()
                    .ilog2();
                context
                    .set_parameter(DParameter::WindowLogMax(log))
                    .map_err(refused)?;
                Packing::Zstd(Frames {
                    context,
                    start: 0,
                    complete: 0,
                    at_boundary: true,
                })
            }
        };
        Ok(Self {
            location: location.to_owned(),
            packing,
            published: 0,
            expanded: 0,
        })
    }

    /// Bytes of the expanded image that came out so far.
    pub(crate) fn expanded(&self) -> u64 {
        self.expanded
    }

    /// Expands from `input` into `output`; returns how much of each was used.
    ///
    /// Where the output was filled to its end, more may be held back: call again, with empty input
    /// if need be, before new input is fetched.
    pub(crate) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize)> {
        let (taken, made) = match &mut self.packing {
            Packing::Raw => {
                let count = input.len().min(output.len());
                if let (Some(from), Some(to)) = (input.get(..count), output.get_mut(..count)) {
                    to.copy_from_slice(from);
                }
                (count, count)
            }
            Packing::Zstd(frames) => {
                if input.is_empty() && frames.at_boundary {
                    return Ok((0, 0));
                }
                if frames.at_boundary {
                    frames.start = self.published;
                }
                let mut from = InBuffer::around(input);
                let mut to = OutBuffer::around(output);
                match frames.context.decompress_stream(&mut to, &mut from) {
                    Ok(wanted) => {
                        frames.at_boundary = wanted == 0;
                        frames.complete = frames.complete.saturating_add(u64::from(wanted == 0));
                    }
                    Err(code) => {
                        let problem = frames.problem(code);
                        return Err(Error::Corrupt {
                            location: self.location.clone(),
                            problem,
                            published: self.published.saturating_add(from.pos() as u64),
                            expanded: self.expanded.saturating_add(to.pos() as u64),
                        });
                    }
                }
                (from.pos(), to.pos())
            }
        };
        self.published = self.published.saturating_add(taken as u64);
        self.expanded = self.expanded.saturating_add(made as u64);
        Ok((taken, made))
    }

    /// The input is over: refuses what is not complete.
    pub(crate) fn finish(&self) -> Result<()> {
        let truncated = |problem: String| Error::Truncated {
            location: self.location.clone(),
            problem,
            published: self.published,
            expanded: self.expanded,
        };
        match &self.packing {
            Packing::Zstd(frames) if !frames.at_boundary => Err(truncated(format!(
                "the zstd frame that starts at byte {} is not complete",
                frames.start
            ))),
            Packing::Zstd(_) if self.expanded == 0 && self.published > 0 => Err(Error::Corrupt {
                location: self.location.clone(),
                problem: "it expands to nothing: all its zstd frames are empty".to_owned(),
                published: self.published,
                expanded: 0,
            }),
            _ if self.expanded == 0 => Err(truncated("it is empty".to_owned())),
            _ => Ok(()),
        }
    }
}

impl Frames {
    fn problem(&self, code: zstd_safe::ErrorCode) -> String {
        let reason = zstd_safe::get_error_name(code);
        let unknown = ZSTD_ErrorCode::ZSTD_error_prefix_unknown;
        if self.complete > 0 && zstd_safe::is_error_kind(code, unknown) {
            let start = self.start;
            format!("what follows the last zstd frame at byte {start} is no zstd frame")
        } else {
            format!("damaged zstd data: {reason}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.include_checksum(true).unwrap();
        std::io::Write::write_all(&mut encoder, content).unwrap();
        encoder.finish().unwrap()
    }

    fn content() -> Vec<u8> {
        (0..300_000u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect()
    }

    /// Expands with small pieces on both sides, as the pipeline does with large ones.
    fn expand(input: &[u8], piece: usize) -> Result<Vec<u8>> {
        let mut decoder = Decoder::new("test", Format::of(input), 1 << 27)?;
        let mut expanded = Vec::new();
        let mut output = vec![0u8; piece];
        for mut chunk in input.chunks(piece.max(3)) {
            loop {
                let (taken, made) = decoder.step(chunk, &mut output)?;
                expanded.extend_from_slice(&output[..made]);
                chunk = &chunk[taken..];
                if chunk.is_empty() && made < output.len() {
                    break;
                }
            }
        }
        decoder.finish()?;
        assert_eq!(decoder.expanded(), expanded.len() as u64);
        Ok(expanded)
    }

    const SKIPPABLE: &[u8] = b"\x5e\x2a\x4d\x18\x05\x00\x00\x00hello";

    #[test]
    fn frames_and_skippable_frames_in_any_order_expand_to_all_their_content() {
        let content = content();
        let (first, second) = content.split_at(400_000);
        let input = [
            SKIPPABLE,
            &frame(first),
            SKIPPABLE,
            &frame(b""),
            &frame(second),
            SKIPPABLE,
        ]
        .concat();
        for piece in [1000, 65_536, 1 << 20] {
            assert!(
                expand(&input, piece).unwrap() == content,
                "pieces of {piece}"
            );
        }
    }

    #[test]
    fn raw_content_passes_unchanged() {
        let content = content();
        assert!(expand(&content, 1000).unwrap() == content);
    }

    #[test]
    fn a_truncated_frame_is_named_with_its_start() {
        let whole = frame(&content());
        let input = [&whole[..], &whole[..whole.len() - 1]].concat();
        let message = expand(&input, 4096).unwrap_err().to_string();
        assert!(
            message.contains(&format!("starts at byte {}", whole.len())),
            "{message}"
        );
        assert!(
            message.contains(&format!("published byte {}", input.len())),
            "{message}"
        );
    }

    #[test]
    fn garbage_and_padding_behind_the_last_frame_are_refused() {
        let whole = frame(&content());
        for tail in [&b"garbage"[..], &[0u8; 512], b"\0", b"<"] {
            let input = [&whole[..], tail].concat();
            let error = expand(&input, 4096).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
            let says = format!("at byte {} is no zstd frame", whole.len());
            assert!(error.to_string().contains(&says), "{error}");
        }
    }

    #[test]
    fn a_flipped_bit_is_found_by_the_frames_checksum() {
        let mut input = frame(&content());
        let middle = input.len() / 2;
        input[middle] ^= 0x10;
        assert!(matches!(expand(&input, 4096), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn nothing_at_all_is_refused() {
        for input in [SKIPPABLE, &frame(b"")] {
            let error = expand(input, 4096).unwrap_err();
            assert!(error.to_string().contains("expands to nothing"), "{error}");
        }
        assert!(matches!(expand(b"", 4096), Err(Error::Truncated { .. })));
    }

    #[test]
    fn a_window_above_the_limit_is_refused() {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(22).unwrap();
        std::io::Write::write_all(&mut encoder, &content()).unwrap();
        let input = encoder.finish().unwrap();
        let mut decoder = Decoder::new("test", Format::Zstd, 1 << 21).unwrap();
        let error = decoder.step(&input, &mut [0; 100]).unwrap_err();
        assert!(error.to_string().contains("too much memory"), "{error}");
    }
}
