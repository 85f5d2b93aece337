//! Writing large files without their zeroes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Granularity at which zeroes are left out.
const BLOCK: usize = 64 << 10;

/// What `open_image` recognises zstd by.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Opens an image for reading, expanded when it is zstd (told by content).
pub(crate) fn open_image(path: &Path) -> Result<Box<dyn Read>> {
    let context = || format!("reading {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    let mut magic = Vec::new();
    (&mut file)
        .take(4)
        .read_to_end(&mut magic)
        .with_context(context)?;
    file.seek(SeekFrom::Start(0)).with_context(context)?;
    if magic == ZSTD_MAGIC {
        Ok(Box::new(
            zstd::stream::read::Decoder::new(file).with_context(context)?,
        ))
    } else {
        Ok(Box::new(file))
    }
}

/// Copies `source` to `offset` of the file at `path`, at most `capacity` bytes, and returns how many there were. Zeroes are not
/// written: the place must read as zeroes already.
pub(crate) fn copy_into(
    path: &Path,
    offset: u64,
    mut source: impl Read,
    capacity: u64,
) -> Result<u64> {
    let mut file = OpenOptions::new()
        .write(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))?;
    let mut buffer = vec![0; BLOCK];
    let mut copied: u64 = 0;
    loop {
        let count = fill(&mut source, &mut buffer)?;
        if count == 0 {
            return Ok(copied);
        }
        let block = &buffer[..count];
        let position = offset + copied;
        copied += count as u64;
        if copied > capacity {
            bail!(
                "what is to be copied to offset {offset} of {} is larger than the {capacity} bytes there",
                path.display()
            );
        }
        if block.iter().any(|byte| *byte != 0) {
            file.seek(SeekFrom::Start(position))
                .and_then(|_| file.write_all(block))
                .with_context(|| format!("writing {} at {position}", path.display()))?;
        }
    }
}

/// Reads until the buffer is full or the source ends.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("reading the source"),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::copy_into;

    #[test]
    fn zeroes_are_left_out_and_the_rest_lands_at_its_offset() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(8 << 20)
            .unwrap();
        let mut source = vec![0u8; 2 << 20];
        source[1 << 20] = 7;
        assert_eq!(
            copy_into(&path, 4 << 20, source.as_slice(), 2 << 20).unwrap(),
            2 << 20
        );
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.iter().position(|byte| *byte == 7), Some(5 << 20));
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn more_than_the_place_holds_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, [0u8; 100]).unwrap();
        assert!(copy_into(&path, 0, [1u8; 65].as_slice(), 64).is_err());
    }
}
