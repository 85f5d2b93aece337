//! A place in the roll-out, as it is kept.

use serde::{Deserialize, Serialize};

/// Who holds a place: a value of the ConfigMap [`crate::names::PLACES_CONFIG_MAP`], under the Node's uid as key.
///
/// Kept as JSON; what a later release adds is ignored by an earlier one, which rewrites no place of others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Name of the Node.
    pub node: String,
    /// The OSUpgrade that the place was claimed for; its object may be gone.
    #[serde(rename = "upgradeUID")]
    pub upgrade_uid: String,
    /// The progress object that the place was claimed for.
    #[serde(rename = "progressUID")]
    pub progress_uid: String,
    /// The attempt that it was claimed for.
    pub attempt: u32,
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_place_is_written_as_the_design_says_and_read_from_a_later_release() {
        let place = Place {
            node: "n1".to_owned(),
            upgrade_uid: "u".to_owned(),
            progress_uid: "p".to_owned(),
            attempt: 2,
        };
        let text = r#"{"node":"n1","upgradeUID":"u","progressUID":"p","attempt":2}"#;
        assert_eq!(serde_json::to_string(&place).unwrap(), text);
        assert_eq!(serde_json::from_str::<Place>(text).unwrap(), place);
        let later = r#"{"node":"n1","upgradeUID":"u","progressUID":"p","attempt":2,"since":"x"}"#;
        assert_eq!(serde_json::from_str::<Place>(later).unwrap(), place);
    }
}
