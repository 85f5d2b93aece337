//! Values of the configuration that have a form of their own: durations, sizes, names with a fixed choice.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use slotd_bootctl::SlotLocator;
use url::Url;

use crate::cluster::ClusterAccess;
use crate::controller::ControllerAccess;

/// How a value is printed by `slotd config show`.
pub(super) trait Shown {
    /// The value as one would write it; secrets as `***`.
    fn shown(&self) -> serde_json::Value;
}

/// A duration, written as `90s`, `10m`, `1h30m`, `500ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span(pub(super) Duration);

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

impl Span {
    /// Reads a duration as it is written in the configuration.
    ///
    /// # Errors
    /// Says what is wrong with the text, which it names.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no duration: write 90s, 10m or 1h30m");
        let mut rest = text.trim();
        let mut total: u64 = 0;
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let (number, after) = rest.split_at_checked(digits).ok_or_else(wrong)?;
            let letters = after
                .find(|c: char| !c.is_ascii_alphabetic())
                .unwrap_or(after.len());
            let (unit, after) = after.split_at_checked(letters).ok_or_else(wrong)?;
            let number: u64 = number.parse().map_err(|_| wrong())?;
            let (_, scale) = UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(wrong)?;
            total = number
                .checked_mul(*scale)
                .and_then(|part| total.checked_add(part))
                .ok_or_else(|| format!("`{text}` is too long a duration"))?;
            rest = after.trim_start();
        }
        Ok(Self(Duration::from_millis(total)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        for (name, scale) in UNITS.iter().rev() {
            let scale = u128::from(*scale);
            if millis != 0 && millis.is_multiple_of(scale) {
                return write!(f, "{}{name}", millis / scale);
            }
        }
        f.write_str("0s")
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// A number of bytes, written as `134217728` or `128MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bytes(pub(super) u64);

const SIZES: [(&str, u64); 5] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

impl Bytes {
    /// Reads a size as it is written in the configuration.
    ///
    /// # Errors
    /// Says what is wrong with the text, which it names.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no size: write bytes, or 64KiB, 128MiB, 1GiB");
        let text = text.trim();
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at_checked(digits).ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let (_, scale) = SIZES
            .iter()
            .find(|(name, _)| *name == unit.trim())
            .ok_or_else(wrong)?;
        number.checked_mul(*scale).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, scale) in SIZES.iter().rev() {
            if self.0 != 0 && *scale > 1 && self.0.is_multiple_of(*scale) {
                return write!(f, "{}{name}", self.0 / scale);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As text, so that a number and a number with a unit are one case.
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// A slot's place, checked as it is read: `PARTLABEL=…`, `PARTUUID=…` or a device path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Locator(pub(super) SlotLocator);

impl<'de> Deserialize<'de> for Locator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

/// One of a fixed choice of words, as the type that it names reads and prints them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word<T>(pub(super) T);

impl<'de, T: FromStr<Err = String>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

/// `auto`, or a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AutoPath {
    /// Found by slotd.
    Auto,
    /// Given, absolute.
    Path(PathBuf),
}

impl<'de> Deserialize<'de> for AutoPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" {
            return Ok(Self::Auto);
        }
        absolute(text).map(Self::Path).map_err(de::Error::custom)
    }
}

/// `auto`, `none`, or a path.
impl<'de> Deserialize<'de> for ClusterAccess {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            _ => absolute(text)
                .map(Self::Kubeconfig)
                .map_err(de::Error::custom),
        }
    }
}

/// `in-cluster`, or a path.
impl<'de> Deserialize<'de> for ControllerAccess {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "in-cluster" {
            return Ok(Self::InCluster);
        }
        absolute(text)
            .map(Self::Kubeconfig)
            .map_err(de::Error::custom)
    }
}

/// The name of a namespace, which is a DNS label (RFC 1123).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Namespace(pub(super) String);

impl<'de> Deserialize<'de> for Namespace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let label = (1..=63).contains(&text.len())
            && text.bytes().all(|byte| inner(byte) || byte == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        if label {
            Ok(Self(text))
        } else {
            Err(de::Error::custom(format!(
                "`{text}` is no namespace: lower-case letters, digits and dashes within, at most 63"
            )))
        }
    }
}

/// An absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePath(pub(super) PathBuf);

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        absolute(String::deserialize(deserializer)?)
            .map(Self)
            .map_err(de::Error::custom)
    }
}

fn absolute(text: String) -> Result<PathBuf, String> {
    let path = PathBuf::from(&text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("`{text}` is not an absolute path"))
    }
}

/// An `http` or `https` URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WebUrl(pub(super) Url);

impl WebUrl {
    /// Reads an `http` or `https` URL.
    ///
    /// # Errors
    /// Says what is wrong, without repeating what may be a secret in the URL.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("not a URL: {error}"))?;
        match url.scheme() {
            "http" | "https" => Ok(Self(url)),
            other => Err(format!("a URL of http or https is needed, not {other}")),
        }
    }
}

impl fmt::Display for WebUrl {
    /// Without user, password and query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.0.clone();
        // Only URLs without a host refuse this, and they are not http.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        url.set_fragment(None);
        f.write_str(url.as_str())
    }
}

impl<'de> Deserialize<'de> for WebUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Something that an HTTP request has to answer for a boot to be healthy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct HttpProbe {
    /// Its name in verdicts.
    pub(super) name: String,
    /// What is asked; any answer from 200 to 399 is healthy.
    pub(super) url: WebUrl,
    /// How long one request may take; 5 s if not given.
    pub(super) timeout: Option<Span>,
}

macro_rules! shown_as_text {
    ($($ty:ty),*) => { $(impl Shown for $ty {
        fn shown(&self) -> serde_json::Value {
            serde_json::Value::String(self.to_string())
        }
    })* };
}

macro_rules! shown_as_json {
    ($($ty:ty),*) => { $(impl Shown for $ty {
        fn shown(&self) -> serde_json::Value {
            serde_json::json!(self)
        }
    })* };
}

shown_as_text!(Span, WebUrl, String);
shown_as_json!(u32, bool, Vec<String>);

impl Shown for Bytes {
    fn shown(&self) -> serde_json::Value {
        serde_json::Value::String(self.to_string())
    }
}

impl Shown for Locator {
    fn shown(&self) -> serde_json::Value {
        serde_json::Value::String(self.0.to_string())
    }
}

impl<T: fmt::Display> Shown for Word<T> {
    fn shown(&self) -> serde_json::Value {
        serde_json::Value::String(self.0.to_string())
    }
}

impl Shown for AutoPath {
    fn shown(&self) -> serde_json::Value {
        serde_json::Value::String(match self {
            Self::Auto => "auto".to_owned(),
            Self::Path(path) => path.display().to_string(),
        })
    }
}

impl Shown for ClusterAccess {
    fn shown(&self) -> serde_json::Value {
        serde_json::Value::String(match self {
            Self::Auto => "auto".to_owned(),
            Self::None => "none".to_owned(),
            Self::Kubeconfig(path) => path.display().to_string(),
        })
    }
}

impl Shown for ControllerAccess {
    fn shown(&self) -> serde_json::Value {
        serde_json::Value::String(match self {
            Self::InCluster => "in-cluster".to_owned(),
            Self::Kubeconfig(path) => path.display().to_string(),
        })
    }
}

impl Shown for Namespace {
    fn shown(&self) -> serde_json::Value {
        serde_json::Value::String(self.0.clone())
    }
}

impl Shown for FilePath {
    fn shown(&self) -> serde_json::Value {
        serde_json::Value::String(self.0.display().to_string())
    }
}

impl Shown for slotd_image::Secret {
    fn shown(&self) -> serde_json::Value {
        serde_json::Value::String("***".to_owned())
    }
}

impl Shown for Vec<slotd_image::Origin> {
    fn shown(&self) -> serde_json::Value {
        self.iter().map(ToString::to_string).collect()
    }
}

impl Shown for Vec<HttpProbe> {
    fn shown(&self) -> serde_json::Value {
        self.iter()
            .map(|probe| {
                serde_json::json!({
                    "name": probe.name,
                    "url": probe.url.to_string(),
                    "timeout": probe.timeout.map(|timeout| timeout.to_string()),
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Bytes, Span, WebUrl};

    #[test]
    fn durations_are_read_and_written_back() {
        for (text, seconds, back) in [
            ("90s", 90, "90s"),
            ("10m", 600, "10m"),
            ("1h30m", 5400, "90m"),
            ("1h 30m", 5400, "90m"),
            ("2000ms", 2, "2s"),
            ("0s", 0, "0s"),
        ] {
            let span = Span::parse(text).unwrap();
            assert_eq!(span.0, Duration::from_secs(seconds), "{text}");
            assert_eq!(span.to_string(), back);
        }
    }

    #[test]
    fn durations_without_a_unit_are_refused() {
        for text in [
            "",
            "10",
            "m",
            "10x",
            "-5s",
            "1.5h",
            "99999999999999999d",
            "10 m",
        ] {
            let said = Span::parse(text).unwrap_err();
            assert!(said.contains(text), "{said}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_have_a_binary_unit() {
        assert_eq!(Bytes::parse("128MiB").unwrap().0, 134_217_728);
        assert_eq!(Bytes::parse("5").unwrap().0, 5);
        assert_eq!(Bytes(134_217_728).to_string(), "128MiB");
        for text in ["128M", "-1", "MiB", "99999999999GiB", "1.5GiB"] {
            assert!(Bytes::parse(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn urls_are_shown_without_user_and_query() {
        let url = WebUrl::parse("https://me:secret@host/path?token=secret").unwrap();
        assert_eq!(url.to_string(), "https://host/path");
        let said = WebUrl::parse("ftp://me:secret@host").unwrap_err();
        assert!(!said.contains("secret"), "{said}");
    }
}
