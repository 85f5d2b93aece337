//! Which of two copies counts, and what marks the next one as newer. Pure.
//!
//! Source: `env_check_redund` in U-Boot's `env/common.c`, `env/flash.c`, and `fw_env_open` in `tools/env/fw_env.c`.

/// The byte of flags in a copy of a redundant pair; 0 in a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u8);

/// Active in the boolean scheme; erased flash counts as active too.
const ACTIVE: u8 = 1;
const OBSOLETE: u8 = 0;
const ERASED: u8 = 0xff;

/// What the flags mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlagScheme {
    /// A number that counts up with each write: on block devices and in files.
    Incremental,
    /// 1 for the active copy, whose bit is cleared when the other one is written: on NOR flash.
    Boolean,
}

impl FlagScheme {
    /// Which of two good copies counts: 0 or 1.
    pub(crate) fn newer(self, first: Flags, second: Flags) -> usize {
        let (first, second) = (first.0, second.0);
        let second_counts = match self {
            Self::Incremental => match (first, second) {
                (ERASED, 0) => true,
                (0, ERASED) => false,
                (first, second) => second > first,
            },
            Self::Boolean => match (first, second) {
                (ACTIVE, OBSOLETE) => false,
                (OBSOLETE, ACTIVE) => true,
                (first, second) => first != second && first != ERASED && second == ERASED,
            },
        };
        usize::from(second_counts)
    }

    /// Flags of the copy that is written after one with `current`.
    pub(crate) fn next(self, current: Flags) -> Flags {
        match self {
            Self::Incremental => Flags(current.0.wrapping_add(1)),
            Self::Boolean => Flags(ACTIVE),
        }
    }

    /// What the old copy's flags become once the new one is whole, where they do.
    pub(crate) fn retired(self) -> Option<Flags> {
        match self {
            Self::Incremental => None,
            Self::Boolean => Some(Flags(OBSOLETE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FlagScheme, Flags};

    fn newer(scheme: FlagScheme, pairs: &[(u8, u8, usize)]) {
        for (first, second, wanted) in pairs {
            let chosen = scheme.newer(Flags(*first), Flags(*second));
            assert_eq!(chosen, *wanted, "{scheme:?} {first} {second}");
        }
    }

    #[test]
    fn the_larger_number_counts_but_zero_follows_255() {
        // As `env_check_redund` compares them.
        newer(
            FlagScheme::Incremental,
            &[
                (0, 0, 0),
                (1, 0, 0),
                (0, 1, 1),
                (7, 7, 0),
                (254, 255, 1),
                (255, 0, 1),
                (0, 255, 0),
                (255, 1, 0),
            ],
        );
    }

    #[test]
    fn the_active_copy_counts_and_an_erased_byte_is_active() {
        // As `fw_env_open` compares them.
        newer(
            FlagScheme::Boolean,
            &[
                (1, 0, 0),
                (0, 1, 1),
                (1, 1, 0),
                (0, 0, 0),
                (255, 0, 0),
                (0, 255, 1),
                (255, 255, 0),
                (255, 1, 0),
                (1, 255, 1),
                (3, 9, 0),
            ],
        );
    }

    #[test]
    fn what_is_written_next_is_newer_than_what_was_there() {
        for old in 0..=255 {
            let next = FlagScheme::Incremental.next(Flags(old));
            assert_eq!(FlagScheme::Incremental.newer(Flags(old), next), 1);
            assert_eq!(FlagScheme::Incremental.newer(next, Flags(old)), 0);
        }
        let (new, old) = (
            FlagScheme::Boolean.next(Flags(1)),
            FlagScheme::Boolean.retired().unwrap(),
        );
        assert_eq!(FlagScheme::Boolean.newer(old, new), 1);
        assert_eq!(FlagScheme::Boolean.newer(new, old), 0);
    }
}
