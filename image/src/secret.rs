//! Values that must reach no log, no status and no error message.

use std::fmt;

use serde::Deserialize;

/// A value that is used but never shown: `Debug` prints `***`, and there is no `Display`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value, without surrounding white space: files with a token end in a newline.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into().trim().to_owned())
    }

    /// The value itself, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_never_shows_the_value() {
        let secret = Secret::new("hunter2\n");
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "*** Some(***)");
        assert_eq!(secret.expose(), "hunter2");
    }
}
