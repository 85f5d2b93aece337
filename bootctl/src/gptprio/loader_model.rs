//! Two boot loaders that go by the attributes, written from their sources, on raw bytes: what they make of a disk in any
//! state, and what they change when they start a slot. Shares nothing with the code under test.
//!
//! - GRUB with the patches of CoreOS, as Flatcar and Bottlerocket ship it: `grub-core/lib/gpt.c` (functions
//!   `grub_gpt_read`, `grub_gpt_check_backup`, `grub_gpt_repair`, `grub_gpt_write`) and `commands/gptprio.c`
//!   (`grub_find_next`). It takes the backup only if its header says the same as the primary one, where the latter's
//!   checksum is right; takes a try off any partition that has one, a successful one, too; and writes only then.
//! - ChromeOS's firmware: `firmware/lib/cgptlib/cgptlib.c` and `cgptlib_internal.c` of vboot. It checks either array with
//!   either header, sets the priority to 0 when it starts the last try, and repairs whatever it found broken.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that can be read and written anywhere.
pub(crate) trait Medium {
    fn size(&self) -> u64;
    fn get(&self, at: u64, length: usize) -> Vec<u8>;
    fn put(&mut self, at: u64, bytes: &[u8]);
}

impl Medium for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn get(&self, at: u64, length: usize) -> Vec<u8> {
        self[usize::try_from(at).unwrap()..][..length].to_vec()
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self[usize::try_from(at).unwrap()..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// A plain file.
pub(crate) struct Image(File);

impl Image {
    pub(crate) fn open(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path);
        Self(file.unwrap())
    }
}

impl Medium for Image {
    fn size(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).unwrap();
    }
}

/// Which loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loader {
    Grub,
    Firmware,
}

/// A header's bytes, 92 of them.
#[derive(Clone, PartialEq, Eq)]
struct Header([u8; 92]);

impl Header {
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    fn set(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn crc(&self) -> u32 {
        let mut bytes = self.0;
        bytes[16..20].fill(0);
        crc32fast::hash(&bytes)
    }

    fn seal(&mut self, array: &[u8]) {
        self.0[88..92].copy_from_slice(&crc32fast::hash(array).to_le_bytes());
        let crc = self.crc();
        self.0[16..20].copy_from_slice(&crc.to_le_bytes());
    }

    /// Without the checksum of the header, its own place and the array's.
    fn common(&self) -> Vec<u8> {
        [&self.0[..16], &self.0[40..72], &self.0[80..]].concat()
    }
}

/// What a loader holds in memory.
struct Memory {
    primary: Header,
    backup: Header,
    array: Vec<u8>,
    /// Whether both copies on the disk are what stands here.
    whole: bool,
}

/// A disk as a loader looks at it.
pub(crate) struct Machine<'a, M> {
    pub(crate) medium: &'a mut M,
    pub(crate) sector: u64,
}

impl<M: Medium> Machine<'_, M> {
    /// The attributes of the entries with those numbers as the loader sees them; `None` where it finds no table.
    pub(crate) fn attributes(&self, loader: Loader, numbers: [u32; 2]) -> Option<[u64; 2]> {
        let memory = self.read(loader)?;
        Some(numbers.map(|number| attributes(&memory, number)))
    }

    /// Starts one of the partitions, as the loader does, and says which.
    pub(crate) fn start(&mut self, loader: Loader, numbers: [u32; 2]) -> Option<u32> {
        let mut memory = self.read(loader)?;
        let mut sorted = numbers;
        sorted.sort_unstable();
        let mut best: Option<(u32, u64)> = None;
        for number in sorted {
            let bits = attributes(&memory, number) >> 48;
            let (priority, tries, successful) = (bits & 15, bits >> 4 & 15, bits >> 8 & 1);
            if (tries > 0 || successful > 0) && priority > best.map_or(0, |(_, best)| best) {
                best = Some((number, priority));
            }
        }
        let (number, _) = best?;
        let mut bits = attributes(&memory, number);
        let (tries, successful) = (bits >> 52 & 15, bits >> 56 & 1);
        let write = match loader {
            Loader::Grub if tries > 0 => {
                bits -= 1 << 52;
                true
            }
            Loader::Grub => false,
            Loader::Firmware if successful == 1 => !memory.whole,
            Loader::Firmware if tries > 1 => {
                bits -= 1 << 52;
                true
            }
            Loader::Firmware => {
                bits &= !(0xff << 48);
                true
            }
        };
        if write {
            let at = offset(&memory, number);
            memory.array[at..at + 8].copy_from_slice(&bits.to_le_bytes());
            self.write(memory);
        }
        Some(number)
    }

    /// Whether the kernel, which looks at nothing else unless it is told to, finds a table.
    pub(crate) fn primary_is_whole(&self) -> bool {
        let Some(header) = self.header(1) else {
            return false;
        };
        self.array(&header).is_some()
    }

    fn last(&self) -> u64 {
        self.medium.size() / self.sector - 1
    }

    fn header(&self, lba: u64) -> Option<Header> {
        let header = Header(self.medium.get(lba * self.sector, 92).try_into().unwrap());
        let right = header.0.starts_with(b"EFI PART")
            && header.u32(8) == 0x10000
            && header.u32(16) == header.crc()
            && header.u64(24) == lba;
        right.then_some(header)
    }

    fn raw_array(&self, header: &Header) -> Vec<u8> {
        let length = header.u32(80) * header.u32(84);
        self.medium
            .get(header.u64(72) * self.sector, length as usize)
    }

    fn array(&self, header: &Header) -> Option<Vec<u8>> {
        let array = self.raw_array(header);
        (crc32fast::hash(&array) == header.u32(88)).then_some(array)
    }

    fn read(&self, loader: Loader) -> Option<Memory> {
        match loader {
            Loader::Grub => self.read_as_grub(),
            Loader::Firmware => self.read_as_firmware(),
        }
    }

    fn read_as_grub(&self) -> Option<Memory> {
        let mbr = self.medium.get(0, 512);
        let protective = (0..4).any(|record| mbr[446 + 16 * record + 4] == 0xee);
        if mbr[510..] != [0x55, 0xaa] || !protective {
            return None;
        }
        let primary = self.header(1);
        let primary_array = primary.as_ref().and_then(|header| self.array(header));
        let backup_at = primary
            .as_ref()
            .map_or(self.last(), |header| header.u64(32));
        let backup = (backup_at <= self.last())
            .then(|| self.header(backup_at))
            .flatten()
            // "backup GPT out of sync"
            .filter(|backup| {
                primary.as_ref().is_none_or(|primary| {
                    primary.common() == backup.common()
                        && primary.u64(24) == backup.u64(32)
                        && primary.u64(32) == backup.u64(24)
                })
            });
        let backup_array = backup
            .as_ref()
            .and_then(|header| self.array(header))
            .filter(|array| {
                primary_array
                    .as_ref()
                    .is_none_or(|primary| primary == array)
            });
        match (primary, primary_array, backup, backup_array) {
            (Some(primary), Some(array), backup, found) => {
                let whole = backup.is_some() && found.is_some();
                let backup = self.mirrored(&primary);
                Some(Memory {
                    primary,
                    backup,
                    array,
                    whole,
                })
            }
            (_, None, Some(backup), Some(array)) => {
                let primary = self.mirrored(&backup);
                Some(Memory {
                    primary,
                    backup,
                    array,
                    whole: false,
                })
            }
            _ => None,
        }
    }

    fn read_as_firmware(&self) -> Option<Memory> {
        let (primary, backup) = (self.header(1), self.header(self.last()));
        let arrays: Vec<Vec<u8>> = [&primary, &backup]
            .into_iter()
            .flatten()
            .map(|header| self.raw_array(header))
            .collect();
        // Each array with the good header; both being good and neither matching, with the second one.
        for header in [&primary, &backup].into_iter().flatten() {
            let found = arrays
                .iter()
                .find(|array| crc32fast::hash(array) == header.u32(88));
            if let Some(array) = found {
                let whole = primary.as_ref().map(Header::common)
                    == backup.as_ref().map(Header::common)
                    && arrays.len() == 2
                    && arrays.iter().all(|other| other == array);
                let mirror = self.mirrored(header);
                let (primary, backup) = if header.u64(24) == 1 {
                    (header.clone(), mirror)
                } else {
                    (mirror, header.clone())
                };
                let array = array.clone();
                return Some(Memory {
                    primary,
                    backup,
                    array,
                    whole,
                });
            }
        }
        None
    }

    /// The other copy's header as either loader makes it anew, in the usual places.
    fn mirrored(&self, header: &Header) -> Header {
        let mut mirror = header.clone();
        mirror.set(24, header.u64(32));
        mirror.set(32, header.u64(24));
        let bytes = u64::from(header.u32(80)) * u64::from(header.u32(84));
        let place = if header.u64(24) == 1 {
            header.u64(32) - bytes.div_ceil(self.sector)
        } else {
            2
        };
        mirror.set(72, place);
        mirror
    }

    fn write(&mut self, memory: Memory) {
        for mut header in [memory.backup, memory.primary] {
            header.seal(&memory.array);
            self.medium.put(header.u64(24) * self.sector, &header.0);
            self.medium.put(header.u64(72) * self.sector, &memory.array);
        }
    }
}

fn offset(memory: &Memory, number: u32) -> usize {
    (number as usize - 1) * memory.primary.u32(84) as usize + 48
}

fn attributes(memory: &Memory, number: u32) -> u64 {
    let at = offset(memory, number);
    u64::from_le_bytes(memory.array[at..at + 8].try_into().unwrap())
}
