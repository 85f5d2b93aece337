//! Sections of a PE image, which is what EFI programs are. Every offset is checked against the file's end.

use std::io::{self, ErrorKind as IoKind, Read, Seek, SeekFrom};

/// More sections than any image has.
const SECTION_LIMIT: u16 = 256;
/// Bytes of an entry of the section table.
const ENTRY: usize = 40;

/// Why an image has no sections that could be relied on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeError {
    /// It could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is none, or damaged.
    #[error("{0}")]
    Malformed(String),
}

/// A part of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    /// Its name, such as `.linux`.
    pub(crate) name: String,
    /// Its first byte in the file.
    pub(crate) offset: u64,
    /// Its bytes, without what only fills up the file's alignment.
    pub(crate) size: u64,
}

/// What the headers of an image say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// Machine that it runs on, by the PE specification's numbers.
    pub(crate) machine: u16,
    /// Its sections, in the order of the table.
    pub(crate) sections: Vec<Section>,
}

impl Image {
    /// Reads the headers.
    ///
    /// # Errors
    /// [`PeError::Malformed`] with the byte where a header or section leads out of the file.
    pub(crate) fn read(image: &mut (impl Read + Seek)) -> Result<Self, PeError> {
        let length = image.seek(SeekFrom::End(0))?;
        let dos: [u8; 64] = array(image, 0, length)?;
        if !dos.starts_with(b"MZ") {
            return Err(malformed("does not begin with MZ".to_owned()));
        }
        let pe = u64::from(u32_at(&dos, 60));
        // "PE\0\0", then the COFF header of 20 bytes.
        let coff: [u8; 24] = array(image, pe, length)?;
        if !coff.starts_with(b"PE\0\0") {
            return Err(malformed(format!("no PE header at byte {pe}")));
        }
        let count = u16_at(&coff, 6);
        if count > SECTION_LIMIT {
            return Err(malformed(format!("{count} sections")));
        }
        let optional = u64::from(u16_at(&coff, 20));
        let mut at = pe.saturating_add(24).saturating_add(optional);
        let mut sections = Vec::new();
        for _ in 0..count {
            let entry: [u8; ENTRY] = array(image, at, length)?;
            at = at.saturating_add(40);
            let name = entry.first_chunk::<8>().copied().unwrap_or_default();
            let name = String::from_utf8_lossy(&name)
                .trim_end_matches('\0')
                .to_owned();
            let (used, raw) = (u32_at(&entry, 8), u32_at(&entry, 16));
            let offset = u64::from(u32_at(&entry, 20));
            let end = offset.saturating_add(u64::from(raw));
            if raw > 0 && end > length {
                return Err(malformed(format!(
                    "section {name} ends at byte {end}, the file at byte {length}"
                )));
            }
            sections.push(Section {
                name,
                offset,
                size: u64::from(used.min(raw)),
            });
        }
        let machine = u16_at(&coff, 4);
        Ok(Self { machine, sections })
    }

    /// The first section of that name.
    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }
}

/// A section's text, of which at most `limit` bytes are read.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn text(
    image: &mut (impl Read + Seek),
    section: &Section,
    limit: u64,
) -> io::Result<String> {
    image.seek(SeekFrom::Start(section.offset))?;
    let mut bytes = Vec::new();
    image
        .take(section.size.min(limit))
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes)
        .trim_end_matches('\0')
        .to_owned())
}

fn malformed(problem: String) -> PeError {
    PeError::Malformed(problem)
}

fn array<const N: usize>(
    image: &mut (impl Read + Seek),
    at: u64,
    length: u64,
) -> Result<[u8; N], PeError> {
    let mut bytes = [0_u8; N];
    image.seek(SeekFrom::Start(at))?;
    match image.read_exact(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == IoKind::UnexpectedEof => Err(malformed(format!(
            "a header at byte {at} leads beyond the file's end at byte {length}"
        ))),
        Err(error) => Err(error.into()),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
    field.map_or(0, |field| u16::from_le_bytes(*field))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
    field.map_or(0, |field| u32::from_le_bytes(*field))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Cursor;

    use proptest::prelude::{any, proptest};

    use super::{Image, PeError, text};

    /// An image with these sections, laid out by the PE specification: headers in the first 1024 bytes.
    pub(crate) fn image(machine: u16, sections: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0_u8; 0x400];
        bytes[..2].copy_from_slice(b"MZ");
        bytes[60] = 0x80;
        bytes[0x80..0x84].copy_from_slice(b"PE\0\0");
        bytes[0x84..0x86].copy_from_slice(&machine.to_le_bytes());
        bytes[0x86] = u8::try_from(sections.len()).unwrap();
        bytes[0x80 + 20] = 16;
        for (number, (name, content)) in sections.iter().enumerate() {
            let offset = u32::try_from(bytes.len()).unwrap();
            let used = u32::try_from(content.len()).unwrap();
            let raw = used.next_multiple_of(0x200);
            let entry = 0x80 + 24 + 16 + number * 40;
            bytes[entry..entry + name.len()].copy_from_slice(name.as_bytes());
            bytes[entry + 8..entry + 12].copy_from_slice(&used.to_le_bytes());
            bytes[entry + 16..entry + 20].copy_from_slice(&raw.to_le_bytes());
            bytes[entry + 20..entry + 24].copy_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(content);
            bytes.resize(usize::try_from(offset + raw).unwrap(), 0);
        }
        bytes
    }

    #[test]
    fn sections_are_found_with_their_bytes() {
        let bytes = image(0x8664, &[(".linux", b"kernel"), (".cmdline", b"quiet\0")]);
        let mut file = Cursor::new(bytes);
        let found = Image::read(&mut file).unwrap();
        assert_eq!(found.machine, 0x8664);
        let linux = found.section(".linux").unwrap();
        assert_eq!((linux.offset, linux.size), (0x400, 6));
        let cmdline = found.section(".cmdline").unwrap();
        assert_eq!((cmdline.offset, cmdline.size), (0x600, 6));
        assert_eq!(text(&mut file, cmdline, 100).unwrap(), "quiet");
        assert_eq!(text(&mut file, cmdline, 3).unwrap(), "qui");
        assert_eq!(found.section(".osrel"), None);
    }

    #[test]
    fn what_leads_out_of_the_file_is_named_with_its_byte() {
        let whole = image(0x8664, &[(".linux", b"kernel")]);
        let problem = |bytes: &[u8]| match Image::read(&mut Cursor::new(bytes)) {
            Err(PeError::Malformed(problem)) => problem,
            other => panic!("{other:?}"),
        };
        for length in [0, 10, 63, 64, 0x90, 0xb0] {
            let problem = problem(&whole[..length]);
            assert!(
                problem.contains(&format!("end at byte {length}")),
                "{problem}"
            );
        }
        assert!(problem(&whole[..0x500]).contains("section .linux ends at byte 1536"));
        assert!(problem(&[b'x'; 100]).contains("MZ"));
        let mut far = whole.clone();
        far[60..64].fill(0xff);
        assert!(problem(&far).contains("byte 4294967295"));
        let mut many = whole;
        many[0x86..0x88].fill(0xff);
        assert!(problem(&many).contains("65535 sections"));
    }

    proptest! {
        #[test]
        fn no_bytes_lead_astray(at in 0_usize..0x120, value in any::<u32>(), length in 0_usize..0x800) {
            let mut bytes = image(0x8664, &[(".linux", b"kernel"), (".osrel", b"ID=x\n")]);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes.truncate(length);
            let mut file = Cursor::new(&bytes);
            if let Ok(found) = Image::read(&mut file) {
                for section in &found.sections {
                    let end = section.offset.saturating_add(section.size);
                    assert!(section.size == 0 || end <= bytes.len() as u64);
                }
            }
        }
    }
}
