//! Where records of ours stand in an environment block: all in its first sector, so that one sector changes with them.
//! Pure.
//!
//! A sector is written whole or not at all, anything longer can tear. So slotd's records stand behind the head of the
//! block, in a piece that never changes its size (a line of `#` fills it up), and others' records move only where that
//! piece is laid out at first: each is copied behind the last record before its place is taken. Every block on the way
//! holds what the one before it held.

use std::fmt;

use super::environment::{Environment, PADDING, Piece, SIGNATURE, record};

/// Bytes that reach the medium together, on every disk.
pub(crate) const SECTOR: usize = 512;

/// The shortest line that can fill room: one `#` and a newline.
const SHORTEST_FILLER: usize = 2;

/// A record of ours: its name, and its value if it is to be there.
pub(crate) type Variable = (String, Option<Vec<u8>>);

/// Why records cannot be put into a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// Others' records take up too much of the first sector, and cannot be moved behind it.
    TooSmall {
        /// Bytes that ours need in the first sector, its head and what stays there included.
        needed: usize,
        /// Bytes that there are for them.
        limit: usize,
        /// Bytes of the file.
        size: usize,
        /// Bytes of all the records and comments that are there.
        used: usize,
    },
    /// A block on the way would not hold what it should.
    Inconsistent(String),
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall {
                needed,
                limit,
                size,
                used,
            } => write!(
                f,
                "environment block too small: with slotd's variables, {needed} bytes are needed in its first sector, \
                 which has room for {limit} (other variables take up {used} of the block's {size} bytes); remove \
                 some with `grub-editenv FILE unset NAME`"
            ),
            Self::Inconsistent(problem) => {
                write!(f, "the block would not hold what it should: {problem}")
            }
        }
    }
}

/// What stands where in a block.
struct Parts<'a> {
    /// Comments in front of the first record.
    head: Vec<&'a Piece>,
    /// Others' lines in the first sector, which may move within it.
    kept: Vec<&'a Piece>,
    /// The line across the first sector's end.
    across: Option<&'a Piece>,
    /// Lines behind the first sector.
    tail: Vec<&'a Piece>,
}

/// A first sector that has been worked out.
struct FirstSector<'a> {
    parts: Parts<'a>,
    /// Others' lines that leave the sector.
    evicted: Vec<&'a Piece>,
    /// Whether the line across its end became, or is, one of nothing but `#` up to there.
    open: bool,
    /// Whether there are lines behind it.
    closed: bool,
    /// Bytes that can be used of it.
    limit: usize,
}

/// The blocks to be written one after the other, each durable before the next, until `wanted` stands in the first sector.
/// Empty where nothing has to be changed. Every block but the last holds the same values as the one before; the last
/// differs from its forerunner in the first sector alone. `reserve` is the room in bytes that ours take up at most.
pub(crate) fn lay_out(
    environment: &Environment,
    raw: &[u8],
    wanted: &[Variable],
    reserve: usize,
) -> Result<Vec<Vec<u8>>, NoPlace> {
    let size = environment.bytes.len();
    let first = size.min(SECTOR);
    let own = |piece: &Piece| is_own(piece, wanted);
    let reserve = reserve.saturating_add(SHORTEST_FILLER);
    let sector = first_sector(environment, wanted, reserve)?;

    let mut block = environment.bytes.clone();
    let mut blocks = vec![raw.to_vec(), block.clone()];
    let copies = sector.copies();
    let at = environment.end.max(first);
    put(&mut block, at, &copies).ok_or_else(|| sector.too_small(environment, reserve))?;
    blocks.push(block.clone());

    let present: Vec<Variable> = wanted
        .iter()
        .map(|(name, _)| (name.clone(), environment.get(name)))
        .collect();
    let stale: Vec<&&Piece> = sector
        .parts
        .tail
        .iter()
        .filter(|piece| own(piece))
        .collect();
    // Values that are longer than ours ever are cannot stand in front; the new ones take effect with the removal then.
    let kept = fits(&present, reserve);
    if !stale.is_empty() {
        // What they hold stands in front, too, before they go.
        let text = sector.render(if kept { &present } else { wanted }, reserve, first);
        put(&mut block, 0, &text).ok_or_else(|| sector.too_small(environment, reserve))?;
        blocks.push(block.clone());
        for piece in stale {
            let blank = filler(piece.raw.len());
            put(&mut block, piece.at, &blank)
                .ok_or_else(|| sector.too_small(environment, reserve))?;
        }
        block = with_whole_padding(block);
        blocks.push(block.clone());
    }
    let text = sector.render(wanted, reserve, first);
    put(&mut block, 0, &text).ok_or_else(|| sector.too_small(environment, reserve))?;
    if block.len() <= first {
        block = with_whole_padding(block);
    }
    blocks.push(block);

    blocks.dedup();
    check(environment, &blocks, wanted, kept)?;
    Ok(blocks.split_off(1))
}

fn text_of(variables: &[Variable]) -> Vec<u8> {
    variables
        .iter()
        .filter_map(|(name, value)| Some(record(name, value.as_deref()?)))
        .flatten()
        .collect()
}

/// Whether variables and a line of filler take up no more than is reserved.
fn fits(variables: &[Variable], reserve: usize) -> bool {
    let room = reserve.saturating_sub(SHORTEST_FILLER);
    text_of(variables).len() <= room
}

fn is_own(piece: &Piece, wanted: &[Variable]) -> bool {
    let name = piece.name.as_deref();
    name.is_some_and(|name| wanted.iter().any(|(own, _)| own.as_bytes() == name))
}

fn parts<'a>(environment: &'a Environment, wanted: &[Variable], first: usize) -> Parts<'a> {
    let mut parts = Parts {
        head: Vec::new(),
        kept: Vec::new(),
        across: None,
        tail: Vec::new(),
    };
    let mut in_front = true;
    for piece in &environment.pieces {
        in_front &= piece.name.is_none();
        if piece.at >= first {
            parts.tail.push(piece);
        } else if piece.end() > first {
            parts.across = Some(piece);
        } else if piece.is_filler() || is_own(piece, wanted) {
            // Set anew.
        } else if in_front {
            parts.head.push(piece);
        } else {
            parts.kept.push(piece);
        }
    }
    parts
}

fn length(pieces: &[&Piece]) -> usize {
    pieces.iter().map(|piece| piece.raw.len()).sum()
}

fn first_sector<'a>(
    environment: &'a Environment,
    wanted: &[Variable],
    reserve: usize,
) -> Result<FirstSector<'a>, NoPlace> {
    let first = environment.bytes.len().min(SECTOR);
    let parts = parts(environment, wanted, first);
    let closed = parts.across.is_some() || !parts.tail.is_empty();
    let mut sector = FirstSector {
        parts,
        evicted: Vec::new(),
        open: false,
        closed,
        limit: first,
    };
    if let Some(piece) = sector.parts.across {
        let inside = first.saturating_sub(piece.at);
        let blank =
            piece.name.is_none() && piece.raw.iter().take(inside).all(|byte| *byte == PADDING);
        if blank || is_own(piece, wanted) {
            sector.leave_open(first);
        } else {
            sector.limit = piece.at;
        }
    }
    while sector.used(reserve) > sector.limit {
        if let Some(piece) = sector.parts.kept.pop() {
            sector.evicted.insert(0, piece);
            sector.closed = true;
        } else if let Some(piece) = sector.parts.across {
            sector.evicted.push(piece);
            sector.leave_open(first);
        } else {
            return Err(sector.too_small(environment, reserve));
        }
    }
    Ok(sector)
}

impl FirstSector<'_> {
    /// The line across the end is begun anew as a comment: what lies behind the end is the rest of it.
    fn leave_open(&mut self, first: usize) {
        self.parts.across = None;
        self.open = true;
        self.limit = first.saturating_sub(1);
    }

    fn used(&self, reserve: usize) -> usize {
        [
            SIGNATURE.len(),
            length(&self.parts.head),
            reserve,
            length(&self.parts.kept),
        ]
        .iter()
        .sum()
    }

    fn too_small(&self, environment: &Environment, reserve: usize) -> NoPlace {
        NoPlace::TooSmall {
            needed: self.used(reserve),
            limit: self.limit,
            size: environment.bytes.len(),
            used: environment.end,
        }
    }

    /// What has to stand behind the last record before lines leave the sector.
    fn copies(&self) -> Vec<u8> {
        let mut copies = Vec::new();
        for (index, piece) in self.evicted.iter().enumerate() {
            // Where a later record has the same name, that one counts.
            let later = self.evicted.iter().skip(index.saturating_add(1));
            let mut later = later.chain(&self.parts.across).chain(&self.parts.tail);
            if piece.name.is_none() || !later.any(|other| other.name == piece.name) {
                copies.extend_from_slice(&piece.raw);
            }
        }
        copies
    }

    /// The sector with `variables` in it, which have to fit.
    fn render(&self, variables: &[Variable], reserve: usize, first: usize) -> Vec<u8> {
        let own = text_of(variables);
        let mut room = reserve.saturating_sub(own.len());
        if self.closed && !self.open {
            let spare = self.limit.saturating_sub(self.used(reserve));
            room = room.saturating_add(spare);
        }
        let mut text = SIGNATURE.to_vec();
        for piece in &self.parts.head {
            text.extend_from_slice(&piece.raw);
        }
        text.extend(own);
        text.extend(filler(room));
        for piece in &self.parts.kept {
            text.extend_from_slice(&piece.raw);
        }
        if let Some(piece) = self.parts.across {
            text.extend(piece.raw.iter().take(first.saturating_sub(piece.at)));
        }
        if text.len() < first {
            text.resize(first, PADDING);
        }
        text
    }
}

/// A line of `#` of that length, its newline included.
fn filler(length: usize) -> Vec<u8> {
    let mut line = vec![PADDING; length];
    if let Some(last) = line.last_mut() {
        *last = b'\n';
    }
    line
}

/// A filler that a full block ends with has to be padding: its newline would leave GRUB nothing that it can change.
fn with_whole_padding(block: Vec<u8>) -> Vec<u8> {
    match Environment::parse(&block) {
        Ok(read) => read.bytes,
        // What is wrong with it is for the check to say.
        Err(_) => block,
    }
}

/// Lays `text` over `block`; `None` where it is too long.
fn put(block: &mut [u8], at: usize, text: &[u8]) -> Option<()> {
    let end = at.checked_add(text.len())?;
    block.get_mut(at..end)?.copy_from_slice(text);
    Some(())
}

/// Reads every block as GRUB would. Whatever oddity the first one holds, nothing of it may get lost or come to light.
fn check(
    before: &Environment,
    blocks: &[Vec<u8>],
    wanted: &[Variable],
    kept: bool,
) -> Result<(), NoPlace> {
    let others = |environment: &Environment| {
        let mut values = environment.values();
        values.retain(|(name, _)| !wanted.iter().any(|(own, _)| own.as_bytes() == name));
        values.sort();
        values
    };
    let inconsistent = |problem: &str| NoPlace::Inconsistent(problem.to_owned());
    let last = blocks.len().saturating_sub(1);
    for (index, block) in blocks.iter().enumerate().skip(1) {
        let now = Environment::parse(block).map_err(|fault| inconsistent(&fault.to_string()))?;
        if now.is_damaged() {
            return Err(inconsistent("GRUB could not change it any more"));
        }
        if others(&now) != others(before) {
            return Err(inconsistent("another variable would change"));
        }
        for (name, value) in wanted {
            let held = now.get(name);
            let right = (index == last || !kept) && held == *value;
            if !right && (index == last || held != before.get(name)) {
                return Err(inconsistent(&format!("{name} would be another value")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
