//! Unified kernel images in `/EFI/Linux`, as far as the loader's order needs them: the os-release in
//! their `.osrel` section.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use super::esp;
use crate::entry::EntryName;
use crate::error::{Error, Result};
use crate::facts::parse_os_release;
use crate::model::ModelEntry;
use crate::pe::{self, Image};

/// Longest os-release that is read, in bytes.
const TEXT_LIMIT: u64 = 64 * 1024;

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
    let found = Image::read(image).ok()?;
    let text = pe::text(image, found.section(".osrel")?, TEXT_LIMIT).ok()?;
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::os_release;
    use crate::pe::tests::image;

    #[test]
    fn the_os_release_of_a_unified_image_is_found_in_its_section() {
        let text = "ID=debian\nVERSION_ID=12\n";
        let bytes = image(
            0x8664,
            &[(".linux", b"kernel"), (".osrel", text.as_bytes())],
        );
        assert_eq!(os_release(&mut Cursor::new(bytes)).as_deref(), Some(text));
    }

    #[test]
    fn a_truncated_image_has_none() {
        let whole = image(0x8664, &[(".osrel", b"ID=debian\n")]);
        for length in [0, 10, 64, 0x90, 0x100] {
            assert_eq!(
                os_release(&mut Cursor::new(&whole[..length])),
                None,
                "{length}"
            );
        }
    }
}
