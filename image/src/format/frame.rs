//! Reads the header of the first real zstd frame before the decoder sees it, so that a window that
//! is too large is named early and with its size. RFC 8878, section 3.1.

pub(crate) const MAGIC: u32 = 0xFD2F_B528;

/// The longest frame header with its magic number: 4 + 1 + 1 + 4 + 8.
const LONGEST: usize = 18;

pub(crate) fn is_skippable(magic: u32) -> bool {
    magic & 0xFFFF_FFF0 == 0x184D_2A50
}

/// What a frame says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Memory that decoding needs, in bytes.
    pub(crate) window: u64,
    /// Length of this frame's content, where it says so.
    pub(crate) content: Option<u64>,
}

/// Watches the start of a stream go by until the first frame that is not skippable.
#[derive(Debug, Default)]
pub(crate) struct FrameProbe {
    collected: Vec<u8>,
    skip: u64,
    found: Option<FrameHeader>,
}

impl FrameProbe {
    /// Looks at the next bytes of the stream; the header, once it is complete.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Option<FrameHeader> {
        while self.found.is_none() && !bytes.is_empty() {
            if self.skip > 0 {
                let step = usize::try_from(self.skip)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                self.skip = self.skip.saturating_sub(step as u64);
                bytes = bytes.get(step..).unwrap_or_default();
                continue;
            }
            let step = LONGEST
                .saturating_sub(self.collected.len())
                .min(bytes.len());
            let (taken, rest) = bytes.split_at(step);
            self.collected.extend_from_slice(taken);
            bytes = rest;
            if let Some(length) = skippable_length(&self.collected) {
                // What was collected beyond the eight bytes belongs to the skipped content or,
                // where that is shorter, to what follows it.
                let surplus = self.collected.split_off(8);
                self.collected.clear();
                self.skip = length;
                // At most ten bytes deep, and each level consumes at least eight.
                self.feed(&surplus);
                continue;
            }
            self.found = parse(&self.collected);
            if self.found.is_none() && step == 0 {
                break;
            }
        }
        self.found
    }
}

fn skippable_length(head: &[u8]) -> Option<u64> {
    let (magic, rest) = head.split_first_chunk::<4>()?;
    let length = rest.first_chunk::<4>()?;
    is_skippable(u32::from_le_bytes(*magic)).then(|| u64::from(u32::from_le_bytes(*length)))
}

/// The header at the start of `head`, once enough of it is there.
fn parse(head: &[u8]) -> Option<FrameHeader> {
    let (magic, rest) = head.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*magic) != MAGIC {
        return None;
    }
    let (descriptor, rest) = rest.split_first()?;
    let single_segment = descriptor & 0x20 != 0;
    let (window, rest) = if single_segment {
        (None, rest)
    } else {
        let (window, rest) = rest.split_first()?;
        let base = 1u64 << (10 + (window >> 3));
        (Some(base + base / 8 * u64::from(window & 7)), rest)
    };
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let rest = rest.get(dictionary..)?;
    let content = match (descriptor >> 6, single_segment) {
        (0, false) => None,
        (0, true) => Some(u64::from(*rest.first()?)),
        (1, _) => Some(u64::from(u16::from_le_bytes(*rest.first_chunk()?)) + 256),
        (2, _) => Some(u64::from(u32::from_le_bytes(*rest.first_chunk()?))),
        _ => Some(u64::from_le_bytes(*rest.first_chunk()?)),
    };
    Some(FrameHeader {
        window: window.or(content)?,
        content,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // The reference values come from the zstd library itself: it writes the header, we read it.
    fn compressed(content: usize, window_log: u32, pledged: bool) -> Vec<u8> {
        use zstd::stream::raw::CParameter;
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder
            .set_parameter(CParameter::WindowLog(window_log))
            .unwrap();
        if pledged {
            encoder.set_pledged_src_size(Some(content as u64)).unwrap();
        }
        std::io::Write::write_all(&mut encoder, &vec![7u8; content]).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_window_and_the_content_length_are_read() {
        let header = FrameProbe::default()
            .feed(&compressed(100_000, 20, false))
            .unwrap();
        assert_eq!(
            header,
            FrameHeader {
                window: 1 << 20,
                content: None
            }
        );
        for content in [10usize, 200, 300, 70_000, 5_000_000] {
            let header = FrameProbe::default()
                .feed(&compressed(content, 17, true))
                .unwrap();
            assert_eq!(header.content, Some(content as u64));
            assert!(header.window <= 1 << 17);
        }
    }

    #[test]
    fn a_window_of_two_gibibytes_is_read_from_its_byte() {
        // Descriptor 0: no single segment, no dictionary, no content length. Exponent 21.
        let header = FrameProbe::default()
            .feed(b"\x28\xb5\x2f\xfd\x00\xa8rest of it all")
            .unwrap();
        assert_eq!(header.window, 1 << 31);
    }

    #[test]
    fn skippable_frames_of_any_length_are_passed_over_in_any_chunking() {
        let mut stream =
            b"\x50\x2a\x4d\x18\x00\x00\x00\x00\x51\x2a\x4d\x18\x05\x00\x00\x00hello".to_vec();
        stream.extend(b"\x5f\x2a\x4d\x18\x20\x00\x00\x00");
        stream.extend([0x28; 32]);
        stream.extend(compressed(1000, 12, true));
        for size in [1, 2, 3, 7, 19, stream.len()] {
            let mut probe = FrameProbe::default();
            let found = stream
                .chunks(size)
                .filter_map(|chunk| probe.feed(chunk))
                .next();
            assert_eq!(found.unwrap().content, Some(1000), "chunks of {size}");
        }
    }

    #[test]
    fn other_content_has_no_header() {
        assert_eq!(FrameProbe::default().feed(&[0u8; 64]), None);
        assert_eq!(FrameProbe::default().feed(b"\x28\xb5\x2f\xfd"), None);
    }
}
