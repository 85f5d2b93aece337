//! The attributes of a slot's partition in the GUID table, as ChromeOS has them, in the words of sfdisk.

use super::Held;

/// What ChromeOS keeps in a partition's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// 15 is the highest, 0 is never started.
    pub(crate) priority: u32,
    /// Boots left.
    pub(crate) tries: u32,
    /// Proven.
    pub(crate) successful: bool,
}

impl Attributes {
    /// Of the slot in front that is proven.
    pub(crate) const GOOD: Self = Self {
        priority: 15,
        tries: 1,
        successful: true,
    };

    /// Reads the words of sfdisk, in which there is a number for each bit that is set.
    pub(crate) fn read(text: &str) -> Self {
        let bits: Vec<u32> = text
            .trim()
            .split([',', ' '])
            .filter_map(|bit| bit.trim_start_matches("GUID:").parse().ok())
            .collect();
        let nibble = |first: u32| {
            (0..4)
                .filter(|bit| bits.contains(&(first + bit)))
                .map(|bit| 1 << bit)
                .sum()
        };
        Self {
            priority: nibble(48),
            tries: nibble(52),
            successful: bits.contains(&56),
        }
    }

    /// The words that sfdisk sets them by.
    pub(crate) fn words(self) -> String {
        let nibble = |value: u32, first: u32| {
            (0..4)
                .filter(move |bit| value & (1 << bit) != 0)
                .map(move |bit| first + bit)
        };
        let bits = nibble(self.priority, 48)
            .chain(nibble(self.tries, 52))
            .chain(self.successful.then_some(56));
        let words: Vec<String> = bits.map(|bit| bit.to_string()).collect();
        format!("GUID:{}", words.join(","))
    }

    /// What a loader holds whose slots A and B have these.
    pub(crate) fn held([a, b]: [Self; 2]) -> Held {
        Held {
            states: [a.state(), b.state()],
            first: if b.priority > a.priority { 'B' } else { 'A' },
            tries_left: [a, b].map(Self::tries_left),
        }
    }

    fn state(self) -> &'static str {
        match self {
            Self {
                successful: true, ..
            } => "good",
            Self { tries: 1.., .. } => "trial",
            Self { priority: 0, .. } => "empty",
            _ => "bad",
        }
    }

    fn tries_left(self) -> Option<u32> {
        (!self.successful).then_some(self.tries)
    }
}

#[cfg(test)]
mod tests {
    use super::Attributes;

    #[test]
    fn attributes_are_read_and_written_in_the_words_of_sfdisk() {
        let text = "GUID:48,49,50,51,52,56";
        assert_eq!(Attributes::read(text), Attributes::GOOD);
        assert_eq!(Attributes::GOOD.words(), text);
        let trial = Attributes::read("GUID:48,49,50,51,53\n");
        assert_eq!((trial.priority, trial.tries), (15, 2));
        assert_eq!((trial.state(), trial.tries_left()), ("trial", Some(2)));
        assert_eq!(Attributes::read("").state(), "empty");
        assert_eq!(Attributes::read("GUID:48").state(), "bad");
    }
}
