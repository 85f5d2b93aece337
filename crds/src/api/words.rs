//! Words of a fixed list on the wire, such as phases.

/// Makes an enum of words that reads what it does not know as `Other`, so that an object written by a later release is
/// still an object; the schema lists the known words alone, so nobody can write another one through the API server.
macro_rules! words {
    ($(#[$outer:meta])* pub enum $name:ident { $($(#[$inner:meta])* $word:ident),+ $(,)? }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $($(#[$inner])* $word,)+
            /// A word of a later release. What it asks for is not known, so nothing is done on its account.
            Other(String),
        }

        impl $name {
            /// Every word that this release knows.
            pub const KNOWN: &'static [Self] = &[$(Self::$word),+];

            /// The word as it is written.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$word => stringify!($word),)+
                    Self::Other(word) => word,
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <String as ::serde::Deserialize>::deserialize(deserializer)?;
                Ok(match word.as_str() {
                    $(stringify!($word) => Self::$word,)+
                    _ => Self::Other(word),
                })
            }
        }

        impl ::schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!({ "type": "string", "enum": [$(stringify!($word)),+] })
            }
        }
    };
}

pub(super) use words;

#[cfg(test)]
mod tests {
    words! {
        /// For the test.
        pub enum Tool { Saw, Axe }
    }

    #[test]
    fn a_word_of_a_later_release_is_read_and_written_back() {
        for (text, tool) in [
            ("\"Saw\"", Tool::Saw),
            ("\"Plane\"", Tool::Other("Plane".to_owned())),
            ("\"saw\"", Tool::Other("saw".to_owned())),
        ] {
            assert_eq!(serde_json::from_str::<Tool>(text).unwrap(), tool);
            assert_eq!(serde_json::to_string(&tool).unwrap(), text);
        }
        assert_eq!(Tool::KNOWN, &[Tool::Saw, Tool::Axe]);
    }
}
