//! Conditions: what holds and why, written again only when it changes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Most characters of a message: the schema's limit, less what makes it readable.
const LONGEST: usize = 4096;

/// A condition before it is compared with the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holds {
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Holds {
    pub(super) fn new(
        kind: &'static str,
        holds: bool,
        reason: &str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            status: if holds { "True" } else { "False" },
            reason: word(reason),
            message: message.into().chars().take(LONGEST).collect(),
        }
    }

    /// The condition as it is written. The time is that of the last change between True and False; one that says the same as
    /// before stays as it is, generation included where nothing else is written.
    pub(super) fn condition(
        self,
        before: Option<&Condition>,
        generation: Option<i64>,
    ) -> Condition {
        let same = before.filter(|before| before.status == self.status);
        Condition {
            last_transition_time: same.map_or_else(
                || Time(Timestamp::now()),
                |same| same.last_transition_time.clone(),
            ),
            message: self.message,
            observed_generation: generation,
            reason: self.reason,
            status: self.status.to_owned(),
            type_: self.kind.to_owned(),
        }
    }

    /// Whether a condition says this already.
    pub(super) fn said_by(&self, condition: &Condition) -> bool {
        condition.type_ == self.kind
            && condition.status == self.status
            && condition.reason == self.reason
            && condition.message == self.message
    }
}

/// The condition of a type.
pub(super) fn find<'a>(
    conditions: Option<&'a Vec<Condition>>,
    kind: &str,
) -> Option<&'a Condition> {
    conditions?.iter().find(|condition| condition.type_ == kind)
}

/// A reason as the API takes it: a word of letters, digits and underscores that begins with a letter.
fn word(reason: &str) -> String {
    let word: String = reason
        .chars()
        .filter(|character| character.is_ascii_alphanumeric() || *character == '_')
        .skip_while(|character| !character.is_ascii_alphabetic())
        .take(1024)
        .collect();
    if word.is_empty() {
        "Unknown".to_owned()
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::{Holds, word};

    #[test]
    fn a_reason_is_a_word() {
        assert_eq!(word("VersionMismatch"), "VersionMismatch");
        assert_eq!(word("2 bad: things!"), "badthings");
        assert_eq!(word(""), "Unknown");
    }

    #[test]
    fn the_time_is_that_of_the_last_change() {
        let holds = |holds| Holds::new("Halted", holds, "Failures", "1 of 3");
        let mut first = holds(true).condition(None, Some(1));
        first.last_transition_time =
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        let second = holds(true).condition(Some(&first), Some(2));
        assert_eq!(second.last_transition_time, first.last_transition_time);
        assert_eq!(second.observed_generation, Some(2));
        let third = holds(false).condition(Some(&first), Some(2));
        assert_ne!(third.last_transition_time, first.last_transition_time);
        assert!(holds(true).said_by(&first) && !holds(false).said_by(&first));
    }
}
