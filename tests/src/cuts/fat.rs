//! FAT32 and FAT16 as firmware reads them (Microsoft's FAT specification of 2000, "fatgen103"): the first table, long names.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context, Result, bail, ensure};

/// Longest file that is read whole, in bytes: no text of a boot loader is longer.
const TEXT: u64 = 1 << 20;

/// Something that bytes are read of.
pub(crate) trait Bytes {
    /// Reads bytes from this offset on.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;
}

impl Bytes for super::View<'_> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.read_at(offset, bytes)
    }
}

impl Bytes for File {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.read_exact_at(bytes, offset)
            .with_context(|| format!("reading {} bytes at {offset}", bytes.len()))
    }
}

/// A file system.
#[derive(Debug)]
pub(crate) struct Fat<'a, B> {
    disk: &'a B,
    /// Bytes of a cluster.
    cluster: u64,
    /// Where the second cluster begins, the first that there is.
    data: u64,
    /// Clusters, the two included that there are not.
    count: u32,
    /// The first table.
    table: Vec<u32>,
    /// Where all tables lie.
    tables: Range<u64>,
    root: Folder,
}

#[derive(Debug, Clone)]
enum Folder {
    Chain(u32),
    /// FAT16's root.
    Fixed(Range<u64>),
}

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    /// The long one where there is one.
    pub(crate) name: String,
    pub(crate) folder: bool,
    first: u32,
    /// Bytes.
    pub(crate) size: u64,
}

impl<'a, B: Bytes> Fat<'a, B> {
    /// The file system that begins there.
    ///
    /// # Errors
    /// When it is no FAT32 or FAT16, or cannot be read.
    pub(crate) fn open(disk: &'a B, offset: u64) -> Result<Self> {
        let mut head = [0; 512];
        disk.read(offset, &mut head)?;
        ensure!(head[510..] == [0x55, 0xaa], "no FAT at {offset}");
        let short = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let long = |at: usize| u64::from(word(&head, at));
        let sector = short(11);
        let reserved = short(14);
        let tables = u64::from(head[16]);
        let roots = short(17);
        let (sectors, size) = match (short(19), short(22)) {
            (0, 0) => (long(32), long(36)),
            (0, size) => (long(32), size),
            (sectors, size) => (sectors, size),
        };
        let cluster = u64::from(head[13]) * sector;
        ensure!(
            sector >= 512 && sector.is_power_of_two() && cluster > 0 && tables > 0 && size > 0,
            "no FAT at {offset}: sectors of {sector} bytes, clusters of {cluster}"
        );
        let root_start = offset + (reserved + tables * size) * sector;
        let root_bytes = (roots * 32).next_multiple_of(sector);
        let data = root_start + root_bytes;
        let clusters = (offset + sectors * sector)
            .checked_sub(data)
            .context("its data begin behind its end")?
            / cluster;
        let count = u32::try_from(clusters + 2)?;
        let wide = count - 2 >= 65525;
        ensure!(count - 2 >= 4085, "FAT12 at {offset}");
        let table_start = offset + reserved * sector;
        let mut raw = vec![0; usize::try_from(size * sector)?];
        disk.read(table_start, &mut raw)?;
        let table: Vec<u32> = if wide {
            raw.chunks_exact(4)
                .map(|entry| word(entry, 0) & 0x0fff_ffff)
                .collect()
        } else {
            // Ends are told from clusters as in the wide one.
            raw.chunks_exact(2)
                .map(|entry| u32::from(u16::from_le_bytes([entry[0], entry[1]])))
                .map(|entry| if entry >= 0xfff8 { 0x0fff_fff8 } else { entry })
                .collect()
        };
        let root = match wide {
            true => Folder::Chain(word(&head, 44)),
            false => Folder::Fixed(root_start..data),
        };
        Ok(Self {
            disk,
            cluster,
            data,
            count,
            table,
            tables: table_start..root_start,
            root,
        })
    }

    /// Where all tables lie on the disk.
    pub(crate) fn tables(&self) -> Range<u64> {
        self.tables.clone()
    }

    /// Names in a folder of this path; none where it is not there.
    ///
    /// # Errors
    /// When a folder on the way cannot be read.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<Name>> {
        match self.folder(path)? {
            Some(folder) => self.names(&folder).with_context(|| path.to_owned()),
            None => Ok(Vec::new()),
        }
    }

    fn folder(&self, path: &str) -> Result<Option<Folder>> {
        let mut folder = self.root.clone();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let names = self.names(&folder)?;
            match names
                .into_iter()
                .find(|name| name.folder && name.name.eq_ignore_ascii_case(part))
            {
                Some(name) => folder = Folder::Chain(name.first),
                None => return Ok(None),
            }
        }
        Ok(Some(folder))
    }

    /// A file of this path.
    pub(crate) fn find(&self, path: &str) -> Result<Option<Name>> {
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        Ok(self
            .list(folder)?
            .into_iter()
            .find(|name| !name.folder && name.name.eq_ignore_ascii_case(file)))
    }

    /// Where a file's bytes lie on the disk; the last piece ends with its cluster.
    ///
    /// # Errors
    /// When its chain is shorter than its size, or broken.
    pub(crate) fn extents(&self, file: &Name) -> Result<Vec<Range<u64>>> {
        let needed = file.size.div_ceil(self.cluster);
        let chain = self
            .chain(file.first, Some(needed))
            .with_context(|| file.name.clone())?;
        Ok(self.places(&chain))
    }

    /// The first file of these folders that leads to clusters of which the table says that they are free: Linux cannot
    /// remove it, and sets the file system read-only instead (`fat_free_clusters`).
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub(crate) fn dangling(&self, folders: &[&str]) -> Result<Option<String>> {
        for folder in folders {
            for file in self.list(folder)? {
                // A file that nothing was written to has none.
                let has_clusters = !file.folder && file.first != 0;
                if has_clusters && self.chain(file.first, None).is_err() {
                    return Ok(Some(format!("{folder}/{}", file.name)));
                }
            }
        }
        Ok(None)
    }

    /// Where a folder's names lie on the disk; nowhere where it is not there.
    ///
    /// # Errors
    /// When its chain is broken.
    pub(crate) fn folder_extents(&self, path: &str) -> Result<Vec<Range<u64>>> {
        match self.folder(path)? {
            Some(folder) => self.places_of(&folder),
            None => Ok(Vec::new()),
        }
    }

    fn places_of(&self, folder: &Folder) -> Result<Vec<Range<u64>>> {
        match folder {
            Folder::Fixed(range) => Ok(vec![range.clone()]),
            Folder::Chain(first) => Ok(self.places(&self.chain(*first, None)?)),
        }
    }

    fn places(&self, chain: &[u32]) -> Vec<Range<u64>> {
        let mut extents: Vec<Range<u64>> = Vec::new();
        for cluster in chain {
            let start = self.data + u64::from(cluster - 2) * self.cluster;
            match extents.last_mut() {
                Some(last) if last.end == start => last.end += self.cluster,
                _ => extents.push(start..start + self.cluster),
            }
        }
        extents
    }

    /// A short file's bytes.
    pub(crate) fn read(&self, file: &Name) -> Result<Vec<u8>> {
        ensure!(file.size <= TEXT, "{} is too long", file.name);
        let mut bytes = Vec::new();
        for extent in self.extents(file)? {
            let at = bytes.len();
            bytes.resize(at + usize::try_from(extent.end - extent.start)?, 0);
            self.disk.read(extent.start, &mut bytes[at..])?;
        }
        bytes.truncate(usize::try_from(file.size)?);
        Ok(bytes)
    }

    /// Clusters from this one on: all, or so many.
    fn chain(&self, first: u32, needed: Option<u64>) -> Result<Vec<u32>> {
        let mut chain = Vec::new();
        let mut next = first;
        while needed.is_none_or(|needed| (chain.len() as u64) < needed) {
            if next >= 0x0fff_fff8 && needed.is_none() && !chain.is_empty() {
                break;
            }
            let inside = next >= 2 && next < self.count;
            let follows = self.table.get(usize::try_from(next)?).filter(|_| inside);
            let Some(follows) = follows else {
                bail!("cluster {next:#x} comes after {} others", chain.len());
            };
            ensure!(
                chain.len() < self.table.len(),
                "the chain of clusters from {first:#x} on is a circle"
            );
            chain.push(next);
            next = *follows;
        }
        Ok(chain)
    }

    fn names(&self, folder: &Folder) -> Result<Vec<Name>> {
        let mut raw = Vec::new();
        for place in self.places_of(folder)? {
            let at = raw.len();
            raw.resize(at + usize::try_from(place.end - place.start)?, 0);
            self.disk.read(place.start, &mut raw[at..])?;
        }
        Ok(names(&raw))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads a folder's entries of 32 bytes. A long name counts where it is whole and belongs to the short one behind it.
fn names(raw: &[u8]) -> Vec<Name> {
    let mut names = Vec::new();
    let mut long: Vec<&[u8]> = Vec::new();
    for entry in raw.chunks_exact(32) {
        match (entry[0], entry[11] & 0x3f) {
            (0, _) => break,
            (0xe5, _) => long.clear(),
            (order, 0x0f) => {
                if order & 0x40 != 0 {
                    long.clear();
                }
                long.push(entry);
            }
            (_, attributes) if attributes & 0x08 != 0 => long.clear(),
            _ => {
                let short = short_name(entry);
                if short != "." && short != ".." {
                    let high = u32::from(u16::from_le_bytes([entry[20], entry[21]]));
                    let low = u32::from(u16::from_le_bytes([entry[26], entry[27]]));
                    names.push(Name {
                        name: long_name(&long, entry).unwrap_or(short),
                        folder: entry[11] & 0x10 != 0,
                        first: high << 16 | low,
                        size: u64::from(word(entry, 28)),
                    });
                }
                long.clear();
            }
        }
    }
    names
}

fn short_name(entry: &[u8]) -> String {
    // Windows NT's bits for a name, and an extension, in lower case; Linux and mtools go by them, too.
    let text = |bytes: &[u8], lower: u8| {
        let text = String::from_utf8_lossy(bytes).trim_end().to_owned();
        match entry[12] & lower {
            0 => text,
            _ => text.to_lowercase(),
        }
    };
    let (name, extension) = (text(&entry[..8], 0x08), text(&entry[8..11], 0x10));
    match extension.is_empty() {
        true => name,
        false => format!("{name}.{extension}"),
    }
}

/// The long name in these entries, the last part first, if they are those of that short one.
fn long_name(long: &[&[u8]], short: &[u8]) -> Option<String> {
    let sum = short[..11]
        .iter()
        .fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let count = long.len();
    let mut units = Vec::new();
    for (index, entry) in long.iter().rev().enumerate() {
        let last = if index + 1 == count { 0x40 } else { 0 };
        if usize::from(entry[0] & !0x40) != index + 1 || entry[0] & 0x40 != last || entry[13] != sum
        {
            return None;
        }
        for range in [1..11, 14..26, 28..32] {
            units.extend(
                entry[range]
                    .chunks_exact(2)
                    .map(|pair| u16::from_le_bytes([pair[0], pair[1]])),
            );
        }
    }
    let end = units.iter().position(|unit| *unit == 0);
    units.truncate(end.unwrap_or(units.len()));
    (count > 0).then(|| String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use super::Fat;

    fn mtool(image: &std::path::Path, arguments: &[&str]) {
        let status = Command::new(arguments[0])
            .arg("-i")
            .arg(image)
            .args(&arguments[1..])
            .status()
            .unwrap();
        assert!(status.success(), "{arguments:?}");
    }

    /// A file system that mtools made: in sectors, and the options of mformat.
    fn made(sectors: u64, options: &[&str]) -> (tempfile::TempDir, File) {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let size = sectors * 512;
        File::create(&image).unwrap().set_len(size).unwrap();
        let count = sectors.to_string();
        mtool(
            &image,
            &[&["mformat"], options, &["-T", &count, "::"]].concat(),
        );
        mtool(&image, &["mmd", "::/loader", "::/loader/entries"]);
        let file = folder.path().join("file");
        let text: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(&file, &text).unwrap();
        for number in 0..30 {
            // More names than a cluster holds.
            let target = format!("::/loader/entries/slotd-b+{number}-1.conf");
            mtool(&image, &["mcopy", file.to_str().unwrap(), &target]);
        }
        mtool(&image, &["mdel", "::/loader/entries/slotd-b+7-1.conf"]);
        mtool(&image, &["mcopy", file.to_str().unwrap(), "::/SHORT.TXT"]);
        mtool(&image, &["mcopy", file.to_str().unwrap(), "::/linux"]);
        let image = File::open(&image).unwrap();
        (folder, image)
    }

    #[test]
    fn names_and_bytes_are_those_that_mtools_wrote() {
        for (sectors, options) in [
            // As the reference disk's.
            (524_288, ["-F", "-c", "4"].as_slice()),
            (65_536, ["-c", "4"].as_slice()),
        ] {
            let (_folder, image) = made(sectors, options);
            let fat = Fat::open(&image, 0).unwrap();
            let names = fat.list("/loader/entries").unwrap();
            assert_eq!(names.len(), 29, "{names:?}");
            let expected: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
            for path in ["/loader/entries/slotd-b+29-1.conf", "/short.txt"] {
                let file = fat.find(path).unwrap().unwrap();
                assert_eq!(fat.read(&file).unwrap(), expected, "{path}");
            }
            assert_eq!(fat.find("/loader/entries/slotd-b+7-1.conf").unwrap(), None);
            assert_eq!(fat.list("/nowhere").unwrap(), []);
            let names: Vec<String> = fat
                .list("/")
                .unwrap()
                .into_iter()
                .map(|name| name.name)
                .collect();
            assert_eq!(names, ["loader", "SHORT.TXT", "linux"]);
        }
    }

    #[test]
    fn a_file_whose_clusters_are_free_is_found() {
        let (_folder, image) = made(65_536, &["-c", "4"]);
        let folders = ["/", "/loader/entries", "/nowhere"];
        let mut fat = Fat::open(&image, 0).unwrap();
        assert_eq!(fat.dangling(&folders).unwrap(), None);
        let file = fat.find("/loader/entries/slotd-b+29-1.conf").unwrap();
        let first = file.unwrap().first as usize;
        let second = fat.table[first] as usize;
        for lost in [first, second] {
            let kept = std::mem::take(&mut fat.table[lost]);
            let found = fat.dangling(&folders).unwrap();
            assert_eq!(
                found.as_deref(),
                Some("/loader/entries/slotd-b+29-1.conf"),
                "{lost}"
            );
            fat.table[lost] = kept;
        }
    }
}
