//! Kinds of failure, one vocabulary for the daemon, its D-Bus errors and the exit codes.

use std::fmt;

use serde::Serialize;

/// What a failure means for whoever asked, independent of the part that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum ErrorKind {
    /// Temporary: the same request may succeed later.
    Retry,
    /// The input or the request is refused; asking again the same way gives the same answer.
    Reject,
    /// Refused to protect the node.
    Unsafe,
    /// The configuration has to change first.
    Configuration,
    /// Something runs already; it has to end first.
    Busy,
    /// The daemon does not answer.
    NotRunning,
    /// A fault of slotd itself.
    Bug,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Retry,
        Self::Reject,
        Self::Unsafe,
        Self::Configuration,
        Self::Busy,
        Self::NotRunning,
        Self::Bug,
    ];

    /// The kind's name as it stands in D-Bus error names and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "Retry",
            Self::Reject => "Reject",
            Self::Unsafe => "Unsafe",
            Self::Configuration => "Configuration",
            Self::Busy => "Busy",
            Self::NotRunning => "NotRunning",
            Self::Bug => "Bug",
        }
    }

    /// The kind with that name, see [`ErrorKind::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The process exit code that stands for this kind, the same in all programs of the project.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Bug => 1,
            Self::Configuration => 3,
            Self::Reject => 4,
            Self::Unsafe => 5,
            Self::Retry => 6,
            Self::Busy => 7,
            Self::NotRunning => 8,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error and its sources in one line, without what one says of the next already.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let text = source.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        next = source.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::ErrorKind;

    #[test]
    fn every_name_leads_back_to_its_kind() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(ErrorKind::from_name("Nonsense"), None);
    }

    /// `NotRunning` as `not running`.
    fn words(name: &str) -> String {
        let mut words = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() && !words.is_empty() {
                words.push(' ');
            }
            words.extend(letter.to_lowercase());
        }
        words
    }

    #[test]
    fn contributing_lists_exactly_the_kinds() {
        let text = include_str!("../../CONTRIBUTING.md");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let kinds = ErrorKind::ALL.map(|kind| words(kind.name())).join(", ");
        let sentence = format!("a kind ({kinds}) that decides policy and exit code");
        assert!(text.contains(&sentence), "{sentence}");
    }
}
