//! Catalog entries: what a fleet has to know of an image.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::ext4;
use crate::sparse;

/// One entry of a catalog's `images` list. Displays as YAML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// IMAGE_VERSION of the image, where it could be read.
    pub(crate) version: Option<String>,
    /// Where the file is published.
    pub(crate) url: String,
    /// SHA-256 of the file as published, in hex.
    pub(crate) checksum: String,
    /// SHA-256 of the expanded image, in hex.
    pub(crate) expanded_checksum: String,
    /// Size of the expanded image in bytes.
    pub(crate) size: u64,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // serde_json's strings are valid YAML.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match &self.version {
            Some(version) => writeln!(f, "- version: {}", quoted(version))?,
            None => writeln!(f, "- version: # the image does not say")?,
        }
        writeln!(f, "  url: {}", quoted(&self.url))?;
        writeln!(f, "  checksum: sha256:{}", self.checksum)?;
        writeln!(f, "  size: {}", self.size)?;
        writeln!(f, "  expandedChecksum: sha256:{}", self.expanded_checksum)
    }
}

/// Reads an image, raw or zstd, and describes it. Its URL is the file's name.
pub(crate) fn describe(image: &Path) -> Result<Entry> {
    let published = {
        let mut file = File::open(image).with_context(|| format!("opening {}", image.display()))?;
        let mut hasher = Sha256::new();
        consume(&mut file, image, |block| {
            hasher.update(block);
            Ok(())
        })?;
        hasher.finalize()
    };
    let mut expanded = sparse::open_image(image)?;
    let mut hasher = Sha256::new();
    let copy = tempfile::NamedTempFile::new().context("making a temporary file")?;
    let mut size: u64 = 0;
    consume(&mut expanded, image, |block| {
        hasher.update(block);
        // A sparse copy, for a look inside.
        if block.iter().any(|byte| *byte != 0) {
            std::os::unix::fs::FileExt::write_all_at(copy.as_file(), block, size)?;
        }
        size += block.len() as u64;
        Ok(())
    })?;
    copy.as_file()
        .set_len(size)
        .context("setting the size of a temporary file")?;
    let name = image.file_name().unwrap_or(image.as_os_str());
    Ok(Entry {
        version: version(copy.path()),
        url: name.to_string_lossy().into_owned(),
        checksum: hex(&published),
        expanded_checksum: hex(&hasher.finalize()),
        size,
    })
}

fn consume(
    source: &mut impl Read,
    image: &Path,
    mut each: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => each(&buffer[..count]).context("writing a temporary file")?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(error).with_context(|| format!("reading {}", image.display()));
            }
        }
    }
}

/// IMAGE_VERSION in the os-release of an ext4 image; none where it is no such image or does not say.
fn version(image: &Path) -> Option<String> {
    let text = ext4::read(image, "/usr/lib/os-release").ok()?;
    os_release_value(&String::from_utf8_lossy(&text), "IMAGE_VERSION")
}

/// A value of an os-release file, without its quotes.
pub(crate) fn os_release_value(text: &str, key: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().split_once('='))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value.trim_matches(['"', '\'']).to_owned())
}

/// Bytes in lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{describe, os_release_value};

    #[test]
    fn an_entry_holds_the_digest_of_the_file_and_the_size_of_what_it_expands_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.zst");
        let raw = vec![0u8; 1 << 20];
        let compressed = zstd::encode_all(raw.as_slice(), 3).unwrap();
        std::fs::write(&path, &compressed).unwrap();
        let entry = describe(&path).unwrap();
        assert_eq!(entry.size, 1 << 20);
        // `head -c 1048576 /dev/zero | sha256sum`
        assert_eq!(
            entry.expanded_checksum,
            "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58"
        );
        assert_ne!(entry.checksum, entry.expanded_checksum);
        assert_eq!(entry.url, "x.zst");
        assert_eq!(entry.version, None);
    }

    #[test]
    fn a_value_of_os_release_is_read_without_quotes() {
        let text = "NAME=\"Debian\"\nIMAGE_VERSION='v1.2'\n";
        assert_eq!(
            os_release_value(text, "IMAGE_VERSION").as_deref(),
            Some("v1.2")
        );
        assert_eq!(os_release_value(text, "MISSING"), None);
    }
}
