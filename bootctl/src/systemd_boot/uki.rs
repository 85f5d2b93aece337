//! Unified kernel images in `/EFI/Linux`, as far as the loader's order needs them: the os-release in
//! their `.osrel` section.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::esp;
use crate::entry::EntryName;
use crate::error::{Error, Result};
use crate::facts::parse_os_release;
use crate::model::ModelEntry;

/// More sections than any image has.
const SECTION_LIMIT: u16 = 256;
/// Longest os-release that is read, in bytes.
const TEXT_LIMIT: u32 = 64 * 1024;

/// Reads a directory of unified images. One that cannot be understood is listed without a sort key.
pub(crate) fn list(directory: &Path) -> Result<Vec<ModelEntry>> {
    let mut entries = Vec::new();
    for (file, _) in esp::list(directory)?.unwrap_or_default() {
        let unified =
            EntryName::parse(&file).filter(|name| name.suffix.eq_ignore_ascii_case(".efi"));
        let Some(name) = unified.filter(|_| !file.starts_with('.') && !file.starts_with("auto-"))
        else {
            continue;
        };
        let path = directory.join(&file);
        let mut image = File::open(&path).map_err(Error::io("open", &path))?;
        let values = parse_os_release(&os_release(&mut image).unwrap_or_default());
        let first = |keys: &[&str]| keys.iter().find_map(|key| values.get(*key)).cloned();
        entries.push(ModelEntry {
            name,
            // The order of bootspec_pick_name_version_sort_key.
            sort_key: first(&["IMAGE_ID", "ID"]),
            machine_id: None,
            version: first(&["IMAGE_VERSION", "VERSION", "VERSION_ID", "BUILD_ID"]),
        });
    }
    Ok(entries)
}

/// The `.osrel` section of a PE image; `None` where there is none or the image is damaged.
fn os_release(image: &mut (impl Read + Seek)) -> Option<String> {
    let mut dos = [0_u8; 64];
    image.read_exact(&mut dos).ok()?;
    if !dos.starts_with(b"MZ") {
        return None;
    }
    let pe = u32::from_le_bytes(*dos.get(60..)?.first_chunk()?);
    image.seek(SeekFrom::Start(u64::from(pe))).ok()?;
    // "PE\0\0", then the COFF header of 20 bytes.
    let mut coff = [0_u8; 24];
    image.read_exact(&mut coff).ok()?;
    if !coff.starts_with(b"PE\0\0") {
        return None;
    }
    let sections = u16::from_le_bytes([coff[6], coff[7]]).min(SECTION_LIMIT);
    let optional = u16::from_le_bytes([coff[20], coff[21]]);
    image.seek(SeekFrom::Current(i64::from(optional))).ok()?;
    for _ in 0..sections {
        let mut section = [0_u8; 40];
        image.read_exact(&mut section).ok()?;
        if section.starts_with(b".osrel\0\0") {
            let word = |at: usize| Some(u32::from_le_bytes(*section.get(at..)?.first_chunk()?));
            let length = word(8)?.min(word(16)?).min(TEXT_LIMIT);
            image.seek(SeekFrom::Start(u64::from(word(20)?))).ok()?;
            let mut text = Vec::new();
            image.take(u64::from(length)).read_to_end(&mut text).ok()?;
            let text = String::from_utf8_lossy(&text)
                .trim_end_matches('\0')
                .to_owned();
            return (!text.is_empty()).then_some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::os_release;

    /// The smallest image with two sections, laid out by the PE specification.
    fn image(os: &str) -> Vec<u8> {
        let mut bytes = vec![0_u8; 0x400];
        bytes[..2].copy_from_slice(b"MZ");
        bytes[60] = 0x80;
        bytes[0x80..0x84].copy_from_slice(b"PE\0\0");
        bytes[0x86] = 2;
        bytes[0x80 + 20] = 16;
        let table = 0x80 + 24 + 16;
        bytes[table..table + 6].copy_from_slice(b".linux");
        let osrel = table + 40;
        bytes[osrel..osrel + 6].copy_from_slice(b".osrel");
        bytes[osrel + 8] = u8::try_from(os.len()).unwrap();
        bytes[osrel + 16..osrel + 18].copy_from_slice(&0x200_u16.to_le_bytes());
        bytes[osrel + 20..osrel + 22].copy_from_slice(&0x200_u16.to_le_bytes());
        bytes[0x200..0x200 + os.len()].copy_from_slice(os.as_bytes());
        bytes
    }

    #[test]
    fn the_os_release_of_a_unified_image_is_found_in_its_section() {
        let text = "ID=debian\nVERSION_ID=12\n";
        assert_eq!(
            os_release(&mut Cursor::new(image(text))).as_deref(),
            Some(text)
        );
    }

    #[test]
    fn a_truncated_image_has_none() {
        let whole = image("ID=debian\n");
        for length in [0, 10, 64, 0x90, 0x100] {
            assert_eq!(
                os_release(&mut Cursor::new(&whole[..length])),
                None,
                "{length}"
            );
        }
    }
}
