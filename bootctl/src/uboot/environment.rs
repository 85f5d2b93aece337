//! The bytes of one copy of a U-Boot environment: a CRC-32 over the data, in a redundant pair a byte of flags, then
//! `name=value` strings, each ended by a zero byte, and one more zero byte. What follows is padding. Pure.
//!
//! Source: `include/env_internal.h` and `env/common.c` of U-Boot, `tools/env/fw_env.c`.

use crate::uboot::choice::Flags;

/// Bytes of the CRC in front, little-endian.
const CRC: usize = 4;

/// Bytes that are shown of something that is no environment.
const SHOWN: usize = 16;

/// Sizes that are tried when a copy does not fit its CRC are multiples of this.
const SIZE_STEP: usize = 16;

/// How a copy is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The only copy: CRC and data.
    Single,
    /// One of two: CRC, a byte of flags, data.
    Redundant,
}

impl Layout {
    /// Bytes before the data.
    pub(crate) fn header(self) -> usize {
        match self {
            Self::Single => CRC,
            Self::Redundant => CRC + 1,
        }
    }
}

/// Why bytes are not a copy of an environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// Not even room for a header and an end.
    #[error("{size} bytes cannot hold an environment")]
    TooSmall {
        /// The size.
        size: usize,
    },
    /// The CRC is not that of the data.
    #[error("its CRC is {stored:08x}, that of its data is {computed:08x}; it begins with {first}")]
    Crc {
        /// As it stands in front.
        stored: u32,
        /// Of the data, to the end of the area.
        computed: u32,
        /// The first bytes, for people.
        first: String,
    },
    /// The CRC is right, but the strings do not end.
    #[error("its CRC is right, but the string at byte {offset} has no end")]
    Unterminated {
        /// From the start of the copy.
        offset: usize,
    },
}

/// A variable does not fit, or cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    /// More than the area holds.
    #[error("the variables need {need} bytes, the environment holds {room}")]
    Room {
        /// Bytes with all ends.
        need: usize,
        /// Bytes of the data area.
        room: usize,
    },
    /// A name or value that the format cannot hold.
    #[error("{0:?} cannot be a variable of a U-Boot environment")]
    Form(String),
}

/// The variables of a copy. What is not changed stays byte for byte: order, strings that are no variables, padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    strings: Vec<Vec<u8>>,
    /// The data area as it was found.
    found: Vec<u8>,
    /// Where its padding begins.
    end: usize,
}

impl Environment {
    /// Reads a copy: its flags, where it has them, and its variables.
    pub(crate) fn decode(copy: &[u8], layout: Layout) -> Result<(Flags, Self), Fault> {
        let small = Fault::TooSmall { size: copy.len() };
        let (stored, rest) = copy.split_first_chunk::<CRC>().ok_or(small.clone())?;
        let (flags, data) = match layout {
            Layout::Single => (0, rest),
            Layout::Redundant => match rest.split_first() {
                Some((flags, data)) => (*flags, data),
                None => return Err(small),
            },
        };
        if data.is_empty() {
            return Err(small);
        }
        let stored = u32::from_le_bytes(*stored);
        let computed = crc32fast::hash(data);
        if stored != computed {
            let first = shown(copy);
            return Err(Fault::Crc {
                stored,
                computed,
                first,
            });
        }
        let (strings, end) = strings(data).map_err(|offset| Fault::Unterminated {
            offset: offset.saturating_add(layout.header()),
        })?;
        let found = data.to_vec();
        Ok((
            Flags(flags),
            Self {
                strings,
                found,
                end,
            },
        ))
    }

    /// The bytes of a copy with these variables.
    pub(crate) fn encode(&self, layout: Layout, flags: Flags) -> Result<Vec<u8>, Unfit> {
        let mut data = Vec::with_capacity(self.found.len());
        for string in &self.strings {
            data.extend_from_slice(string);
            data.push(0);
        }
        data.push(0);
        let room = self.found.len();
        if data.len() > room {
            return Err(Unfit::Room {
                need: data.len(),
                room,
            });
        }
        if data.len() < self.end {
            // What the strings no longer take up becomes padding, of the kind that is there.
            let padding = match self.found.last() {
                Some(0xff) => 0xff,
                _ => 0,
            };
            data.resize(self.end, padding);
        }
        data.extend_from_slice(self.found.get(data.len()..).unwrap_or_default());
        let crc = crc32fast::hash(&data).to_le_bytes();
        let head: &[u8] = match layout {
            Layout::Single => &[],
            Layout::Redundant => &[flags.0],
        };
        Ok([crc.as_slice(), head, &data].concat())
    }

    /// Value of a variable. Of several with that name it is the last one's, as U-Boot's own import has it.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        let mut values = self.strings.iter().rev();
        values.find_map(|string| value_of(string, name))
    }

    /// Value of a variable as text; `None` where it is not set or no UTF-8.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Sets a variable in its place, or behind all others; an empty value removes it, as in U-Boot.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), Unfit> {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(Unfit::Form(format!("{name}={value}")));
        }
        let fresh = (!value.is_empty()).then(|| format!("{name}={value}").into_bytes());
        let is_it = |string: &Vec<u8>| value_of(string, name).is_some();
        let last = self.strings.iter().rposition(is_it);
        let mut kept = Vec::with_capacity(self.strings.len().saturating_add(1));
        for (at, string) in self.strings.drain(..).enumerate() {
            if !is_it(&string) {
                kept.push(string);
            } else if Some(at) == last {
                kept.extend(fresh.clone());
            }
            // Earlier ones of that name go: tools differ in which of two they read.
        }
        if last.is_none() {
            kept.extend(fresh);
        }
        self.strings = kept;
        Ok(())
    }

    /// Names and values in order, for messages and tests.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.strings.iter().map(|string| {
            let text = String::from_utf8_lossy(string);
            let (name, value) = text.split_once('=').unwrap_or((&text, ""));
            (name.to_owned(), value.to_owned())
        })
    }
}

/// Every size up to the length of `bytes` with which they would begin with an environment, and its layout.
pub(crate) fn fitting_sizes(bytes: &[u8]) -> Vec<(usize, Layout)> {
    let mut found = Vec::new();
    for layout in [Layout::Single, Layout::Redundant] {
        let Some((stored, _)) = bytes.split_first_chunk::<CRC>() else {
            continue;
        };
        let stored = u32::from_le_bytes(*stored);
        let mut hasher = crc32fast::Hasher::new();
        let mut from = layout.header();
        let mut size = SIZE_STEP;
        while let Some(piece) = bytes.get(from..size) {
            hasher.update(piece);
            if hasher.clone().finalize() == stored
                && strings(bytes.get(layout.header()..size).unwrap_or_default()).is_ok()
            {
                found.push((size, layout));
            }
            from = size;
            size = size.saturating_add(SIZE_STEP);
        }
    }
    found
}

fn shown(bytes: &[u8]) -> String {
    let first = bytes.get(..SHOWN).unwrap_or(bytes);
    let hex: Vec<String> = first.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.join(" ")
}

fn value_of<'string>(string: &'string [u8], name: &str) -> Option<&'string [u8]> {
    string.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// The strings of a data area and where its padding begins, or where the string begins that has no end.
fn strings(data: &[u8]) -> Result<(Vec<Vec<u8>>, usize), usize> {
    let mut found = Vec::new();
    let mut at: usize = 0;
    loop {
        let rest = data.get(at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == 0).ok_or(at)?;
        let next = at.saturating_add(length).saturating_add(1);
        if length == 0 {
            return Ok((found, next));
        }
        found.push(rest.get(..length).unwrap_or_default().to_vec());
        at = next;
    }
}

#[cfg(test)]
mod tests;
