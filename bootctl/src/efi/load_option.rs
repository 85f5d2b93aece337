//! `EFI_LOAD_OPTION`, the content of a variable `Boot####`. Pure.
//!
//! Layout by the UEFI specification 2.10: sections 3.1.3 (load options), 10.2 (device paths), 10.3.5.1 (hard drive) and
//! 10.3.5.4 (file path). What is not slotd's is only looked at: nothing but the whole bytes of a foreign option is kept.

use uuid::Uuid;

/// The firmware may start this one by itself.
pub(crate) const ACTIVE: u32 = 1;
/// What kind of program it is; 0 is one that boots.
const CATEGORY: u32 = 0x1f00;

/// Type and subtype of the nodes that matter.
const HARD_DRIVE: (u8, u8) = (0x04, 0x01);
const FILE_PATH: (u8, u8) = (0x04, 0x04);
const END: u8 = 0x7f;
/// Bytes of a node's type, subtype and length.
const NODE_HEADER: usize = 4;
/// Bytes of a hard drive node.
const HARD_DRIVE_LENGTH: u16 = 42;
/// Partition format and kind of signature of a GPT partition.
const GPT: [u8; 2] = [2, 2];
/// End of the entire device path.
const END_NODE: [u8; 4] = [END, 0xff, 4, 0];

/// A partition as a hard drive node names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HardDrive {
    /// Number in the partition table, from 1.
    pub(crate) number: u32,
    /// First logical block.
    pub(crate) start: u64,
    /// Number of logical blocks.
    pub(crate) size: u64,
    /// The partition's UUID, by which the firmware finds it.
    pub(crate) signature: Uuid,
}

/// A load option, in its four parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadOption {
    /// [`ACTIVE`], category and others.
    pub(crate) attributes: u32,
    /// UTF-16 units without the NUL, as they stand there.
    description: Vec<u16>,
    /// Device paths, end nodes and all.
    paths: Vec<u8>,
    /// What the started program is given.
    data: Vec<u8>,
}

impl LoadOption {
    /// An active option that starts `file` (with backslashes) on a GPT partition, with `arguments` as UTF-16 and a NUL.
    pub(crate) fn new(
        description: &str,
        partition: &HardDrive,
        file: &str,
        arguments: &str,
    ) -> Self {
        let mut paths = hard_drive_node(partition);
        paths.extend(file_node(file));
        paths.extend(END_NODE);
        Self {
            attributes: ACTIVE,
            description: description.encode_utf16().collect(),
            paths,
            data: utf16(arguments),
        }
    }

    /// Reads one; the problem as text, with the byte that it is at.
    ///
    /// # Errors
    /// When a length leads out of the bytes. The nodes of the device path may be anything.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let short = |what: &str| format!("{what} reaches beyond its {} bytes", bytes.len());
        let attributes = bytes.first_chunk().map(|raw| u32::from_le_bytes(*raw));
        let attributes = attributes.ok_or_else(|| short("the attributes (byte 0)"))?;
        let length = bytes.get(4..).and_then(<[u8]>::first_chunk);
        let length = length.map(|raw| usize::from(u16::from_le_bytes(*raw)));
        let length = length.ok_or_else(|| short("the length of the device path (byte 4)"))?;
        let text = bytes.get(6..).unwrap_or_default();
        let mut description = Vec::new();
        let mut units = units(text);
        loop {
            match units.next() {
                Some(0) => break,
                Some(unit) => description.push(unit),
                None => return Err(short("the description (byte 6), which has no NUL,")),
            }
        }
        // Two bytes each, and the NUL.
        let used = description.len().saturating_add(1).saturating_mul(2);
        let rest = text.get(used..).unwrap_or_default();
        let (Some(paths), Some(data)) = (rest.get(..length), rest.get(length..)) else {
            let at = used.saturating_add(6);
            return Err(short(&format!(
                "the device path of {length} bytes (byte {at})"
            )));
        };
        Ok(Self {
            attributes,
            description,
            paths: paths.to_vec(),
            data: data.to_vec(),
        })
    }

    /// The bytes, the same that it was read from.
    pub(crate) fn render(&self) -> Vec<u8> {
        // What was read has a length that fits, and slotd's own paths are short.
        let length = u16::try_from(self.paths.len()).unwrap_or(u16::MAX);
        let mut bytes = self.attributes.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(self.description.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend([0, 0]);
        bytes.extend(&self.paths);
        bytes.extend(&self.data);
        bytes
    }

    /// The name in the firmware's menu.
    pub(crate) fn description(&self) -> String {
        String::from_utf16_lossy(&self.description)
    }

    pub(crate) fn with_description(mut self, description: &str) -> Self {
        self.description = description.encode_utf16().collect();
        self
    }

    pub(crate) fn with_arguments(mut self, arguments: &str) -> Self {
        self.data = utf16(arguments);
        self
    }

    pub(crate) fn with_active(mut self, active: bool) -> Self {
        self.attributes = if active {
            self.attributes | ACTIVE
        } else {
            self.attributes & !ACTIVE
        };
        self
    }

    pub(crate) fn is_active(&self) -> bool {
        self.attributes & ACTIVE != 0
    }

    /// Whether the firmware starts it by itself when its turn comes: it is active, and a program that boots (3.1.3).
    pub(crate) fn starts_by_itself(&self) -> bool {
        self.is_active() && self.attributes & CATEGORY == 0
    }

    /// The optional data as text, up to a NUL.
    pub(crate) fn arguments(&self) -> String {
        let units: Vec<u16> = units(&self.data).take_while(|unit| *unit != 0).collect();
        String::from_utf16_lossy(&units)
    }

    /// The partition of the first device path, if it is one of a GPT.
    pub(crate) fn hard_drive(&self) -> Option<HardDrive> {
        let (_, body) = self.nodes().find(|(kind, _)| *kind == HARD_DRIVE)?;
        if body.get(36..38)? != GPT {
            return None;
        }
        Some(HardDrive {
            number: u32::from_le_bytes(*body.first_chunk()?),
            start: u64::from_le_bytes(*body.get(4..)?.first_chunk()?),
            size: u64::from_le_bytes(*body.get(12..)?.first_chunk()?),
            signature: Uuid::from_bytes_le(*body.get(20..)?.first_chunk()?),
        })
    }

    /// The file of the first device path. It may be spread over several nodes, which are joined as directories are.
    pub(crate) fn file(&self) -> Option<String> {
        let mut file: Option<String> = None;
        for (_, body) in self.nodes().filter(|(kind, _)| *kind == FILE_PATH) {
            let part: Vec<u16> = units(body).take_while(|unit| *unit != 0).collect();
            let part = String::from_utf16_lossy(&part);
            file = Some(match file {
                None => part,
                Some(before) => {
                    let (before, part) = (before.trim_end_matches('\\'), part);
                    format!("{before}\\{}", part.trim_start_matches('\\'))
                }
            });
        }
        file
    }

    /// Nodes of the first device path, type and body, up to its end or to where it makes no sense.
    fn nodes(&self) -> impl Iterator<Item = ((u8, u8), &[u8])> {
        let mut rest = self.paths.as_slice();
        std::iter::from_fn(move || {
            let [kind, subtype, low, high] = *rest.first_chunk::<NODE_HEADER>()?;
            let length = usize::from(u16::from_le_bytes([low, high]));
            if kind == END || length < NODE_HEADER {
                return None;
            }
            let body = rest.get(NODE_HEADER..length)?;
            rest = rest.get(length..)?;
            Some(((kind, subtype), body))
        })
    }
}

fn hard_drive_node(partition: &HardDrive) -> Vec<u8> {
    let mut node = vec![HARD_DRIVE.0, HARD_DRIVE.1];
    node.extend(HARD_DRIVE_LENGTH.to_le_bytes());
    node.extend(partition.number.to_le_bytes());
    node.extend(partition.start.to_le_bytes());
    node.extend(partition.size.to_le_bytes());
    node.extend(partition.signature.to_bytes_le());
    node.extend(GPT);
    node
}

fn file_node(file: &str) -> Vec<u8> {
    let text = utf16(file);
    let length = text.len().saturating_add(NODE_HEADER);
    let mut node = vec![FILE_PATH.0, FILE_PATH.1];
    node.extend(u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes());
    node.extend(text);
    node
}

/// UTF-16 with a NUL.
fn utf16(text: &str) -> Vec<u8> {
    let units = text.encode_utf16().chain([0]);
    units.flat_map(u16::to_le_bytes).collect()
}

fn units(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes
        .chunks_exact(2)
        .filter_map(|pair| Some(u16::from_le_bytes(*pair.first_chunk()?)))
}

#[cfg(test)]
pub(crate) mod tests;
