//! A number of nodes, or a percentage of them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// How many of the targets: a number, or a percentage such as `25%`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Limit {
    /// So many nodes.
    Number(i64),
    /// A percentage, as it was written.
    Text(String),
}

/// A limit that is neither a number from 1 up nor a percentage from 1 to 100.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is neither a number from 1 up nor a percentage from \"1%\" to \"100%\"")]
pub struct UnreadableLimit(String);

impl Limit {
    /// The limit as a number of nodes out of `targets`: percentages are rounded down, and it is at least 1.
    ///
    /// # Errors
    /// What is written is no limit. The schema lets nothing such through; who gets one anyway has to stop, not to guess.
    pub fn of(&self, targets: u32) -> Result<u32, UnreadableLimit> {
        match self {
            Self::Number(number) => u32::try_from(*number)
                .ok()
                .filter(|number| *number >= 1)
                .ok_or_else(|| UnreadableLimit(number.to_string())),
            Self::Text(text) => {
                let percent = text
                    .strip_suffix('%')
                    .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
                    .and_then(|digits| digits.parse::<u64>().ok())
                    .filter(|percent| (1..=100).contains(percent))
                    .ok_or_else(|| UnreadableLimit(format!("{text:?}")))?;
                let part = u64::from(targets) * percent / 100;
                // A hundredth of a hundred times a u32 fits again.
                Ok(u32::try_from(part).unwrap_or(targets).max(1))
            }
        }
    }
}

impl JsonSchema for Limit {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Limit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 8 })
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;
    use proptest::prelude::{prop_assert, proptest};

    fn of(json: &str, targets: u32) -> Option<u32> {
        serde_json::from_str::<Limit>(json)
            .unwrap()
            .of(targets)
            .ok()
    }

    #[test]
    fn a_percentage_is_rounded_down_and_at_least_one() {
        assert_eq!(of("3", 10), Some(3));
        assert_eq!(of("3", 1), Some(3));
        assert_eq!(of("\"50%\"", 5), Some(2));
        assert_eq!(of("\"33%\"", 3), Some(1));
        assert_eq!(of("\"34%\"", 3), Some(1));
        assert_eq!(of("\"67%\"", 3), Some(2));
        assert_eq!(of("\"1%\"", 5), Some(1));
        assert_eq!(of("\"100%\"", 5), Some(5));
        assert_eq!(of("\"100%\"", 0), Some(1));
        assert_eq!(of("\"100%\"", u32::MAX), Some(u32::MAX));
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for json in [
            "0",
            "-1",
            "4294967296",
            "\"0%\"",
            "\"101%\"",
            "\"2\"",
            "\"%\"",
            "\"-5%\"",
            "\"+5%\"",
            "\"1.5%\"",
            "\"\"",
            "\" 5%\"",
        ] {
            assert_eq!(of(json, 10), None, "{json}");
        }
    }

    proptest! {
        #[test]
        fn a_percentage_never_exceeds_its_share(percent in 1u32..=100, targets in 1u32..100_000) {
            let nodes = Limit::Text(format!("{percent}%")).of(targets).unwrap();
            prop_assert!(nodes >= 1);
            prop_assert!(nodes == 1 || u64::from(nodes) * 100 <= u64::from(percent) * u64::from(targets));
            prop_assert!((u64::from(nodes) + 1) * 100 > u64::from(percent) * u64::from(targets));
        }
    }
}
