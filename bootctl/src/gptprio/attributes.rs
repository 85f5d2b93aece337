//! The attribute bits that the loader goes by, in the 64 bits of a partition's entry.
//!
//! 48-51: priority, 15 is the highest, 0 is never started. 52-55: tries left. 56: successful. They are those of ChromeOS
//! (`firmware/lib/cgptlib/include/gpt.h` of vboot); Flatcar's and Bottlerocket's GRUB read the same ones. All other bits
//! are kept: those of the specification (0-2), of the Discoverable Partitions (59, 60, 63), and Bottlerocket's bit 57 ("a
//! boot has succeeded once"), which stands in the entry of its private partition, not in a slot's.

use std::fmt;

/// Highest priority.
pub(super) const PRIORITY_MAX: u8 = 15;
/// Most tries that the bits can hold.
pub(super) const TRIES_MAX: u8 = 15;

const PRIORITY_SHIFT: u32 = 48;
const TRIES_SHIFT: u32 = 52;
const NIBBLE: u64 = 0xf;
const SUCCESSFUL: u64 = 1 << 56;
/// All bits that are the loader's.
const MASK: u64 = NIBBLE << PRIORITY_SHIFT | NIBBLE << TRIES_SHIFT | SUCCESSFUL;

/// What the loader goes by in one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Boot {
    /// 0 to 15.
    pub(super) priority: u8,
    /// 0 to 15.
    pub(super) tries: u8,
    pub(super) successful: bool,
}

impl Boot {
    /// Reads them out of an entry's attributes.
    pub(super) fn of(attributes: u64) -> Self {
        let nibble = |shift: u32| u8::try_from(attributes >> shift & NIBBLE).unwrap_or(0);
        Self {
            priority: nibble(PRIORITY_SHIFT),
            tries: nibble(TRIES_SHIFT),
            successful: attributes & SUCCESSFUL != 0,
        }
    }

    /// An entry's attributes with these, all others as they were.
    pub(super) fn in_attributes(self, attributes: u64) -> u64 {
        let nibble = |value: u8, shift: u32| (u64::from(value) & NIBBLE) << shift;
        let successful = if self.successful { SUCCESSFUL } else { 0 };
        attributes & !MASK
            | nibble(self.priority, PRIORITY_SHIFT)
            | nibble(self.tries, TRIES_SHIFT)
            | successful
    }

    /// Whether two entries' attributes differ in no other bits.
    pub(super) fn is_all_that_differs(one: u64, other: u64) -> bool {
        (one ^ other) & !MASK == 0
    }

    /// Whether the loader may start the partition at all.
    pub(super) fn can_start(self) -> bool {
        self.priority > 0 && (self.successful || self.tries > 0)
    }
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "priority {}, tries {}, successful {}",
            self.priority,
            self.tries,
            u8::from(self.successful)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Boot;

    #[test]
    fn the_bits_are_where_chromeos_has_them_and_the_others_are_kept() {
        // Worked out by hand: 0xa in 48-51, 0x5 in 52-55, bit 56.
        let boot = Boot {
            priority: 10,
            tries: 5,
            successful: true,
        };
        assert_eq!(boot.in_attributes(0), 0x015a_0000_0000_0000);
        assert_eq!(Boot::of(0xff5a_ffff_ffff_ffff), boot);
        assert_eq!(
            Boot::default().in_attributes(u64::MAX),
            0xfe00_ffff_ffff_ffff
        );
        assert_eq!(boot.in_attributes(1 << 57 | 1 << 60), 0x135a_0000_0000_0000);
        assert!(Boot::is_all_that_differs(0x01ff_0000_0000_0001, 1));
        assert!(!Boot::is_all_that_differs(1 << 57, 0));
    }
}
