//! What goes over the bus: options, progress and errors, in both directions.

use std::collections::HashMap;

use slotd_image::ImageSource;
use zbus::{OwnedVariant, Variant};

use crate::agent::{AgentError, InstallRequest};
use crate::error::ErrorKind;
use crate::status::{FailureStatus, ProgressStatus, SlotLetter, UpgradeStatus};

/// An error as it is answered: its name ends with the kind, its text is for people.
#[derive(Debug, Clone, PartialEq, Eq, zbus::DBusError)]
#[zbus(prefix = "io.monok8s.Slotd1.Error")]
#[allow(missing_docs, reason = "each is the kind of its name")]
pub enum CallError {
    Retry(String),
    Reject(String),
    Unsafe(String),
    Configuration(String),
    Busy(String),
    NotRunning(String),
    Bug(String),
}

/// What stands before the kind in the errors' names.
const ERROR_PREFIX: &str = "io.monok8s.Slotd1.Error.";

impl CallError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        match kind {
            ErrorKind::Retry => Self::Retry(message),
            ErrorKind::Reject => Self::Reject(message),
            ErrorKind::Unsafe => Self::Unsafe(message),
            ErrorKind::Configuration => Self::Configuration(message),
            ErrorKind::Busy => Self::Busy(message),
            ErrorKind::NotRunning => Self::NotRunning(message),
            ErrorKind::Bug => Self::Bug(message),
        }
    }
}

impl From<AgentError> for CallError {
    fn from(error: AgentError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

/// The kind that an error's name stands for, if it is one of ours.
pub fn kind_of_name(name: &str) -> Option<ErrorKind> {
    ErrorKind::from_name(name.strip_prefix(ERROR_PREFIX)?)
}

/// What may be said of an image beside its source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstallOptions {
    /// `checksum`: the digest of the file as published (or of the expanded image).
    pub checksum: Option<String>,
    /// `expandedChecksum`: the digest of the expanded image.
    pub expanded_checksum: Option<String>,
    /// `size`: the expanded size in bytes.
    pub size: Option<u64>,
    /// `version`: what the image has to be.
    pub version: Option<String>,
    /// `stageOnly`.
    pub stage_only: bool,
    /// `allowDowngrade`.
    pub allow_downgrade: bool,
    /// `allowSameVersion`.
    pub allow_same_version: bool,
    /// `allowNoAgent`.
    pub allow_no_agent: bool,
}

impl InstallOptions {
    /// As they go over the bus; what is not set is left out.
    pub fn to_dict(&self) -> HashMap<&'static str, Variant<'_>> {
        let mut dict = HashMap::new();
        for (key, value) in [
            ("checksum", &self.checksum),
            ("expandedChecksum", &self.expanded_checksum),
            ("version", &self.version),
        ] {
            if let Some(value) = value {
                dict.insert(key, Variant::from(value.as_str()));
            }
        }
        if let Some(size) = self.size {
            dict.insert("size", Variant::from(size));
        }
        for (key, value) in [
            ("stageOnly", self.stage_only),
            ("allowDowngrade", self.allow_downgrade),
            ("allowSameVersion", self.allow_same_version),
            ("allowNoAgent", self.allow_no_agent),
        ] {
            if value {
                dict.insert(key, Variant::from(true));
            }
        }
        dict
    }

    /// Reads them. An option that is not known is refused rather than ignored: it may be one that protects.
    ///
    /// # Errors
    /// Names the option that is not known or has another type.
    pub fn from_dict(dict: HashMap<String, OwnedVariant>) -> Result<Self, CallError> {
        let mut options = Self::default();
        for (key, value) in dict {
            match key.as_str() {
                "checksum" => options.checksum = Some(text(&key, value)?),
                "expandedChecksum" => options.expanded_checksum = Some(text(&key, value)?),
                "version" => options.version = Some(text(&key, value)?),
                "size" => options.size = Some(number(&key, value)?),
                "stageOnly" => options.stage_only = flag(&key, value)?,
                "allowDowngrade" => options.allow_downgrade = flag(&key, value)?,
                "allowSameVersion" => options.allow_same_version = flag(&key, value)?,
                "allowNoAgent" => options.allow_no_agent = flag(&key, value)?,
                _ => {
                    return Err(CallError::Reject(format!(
                        "the option `{key}` is not known"
                    )));
                }
            }
        }
        Ok(options)
    }

    /// The request to the agent.
    ///
    /// # Errors
    /// When a checksum is none.
    pub fn request(self, source: ImageSource) -> Result<InstallRequest, AgentError> {
        let checksum = |text: Option<String>| {
            text.map(|text| text.parse())
                .transpose()
                .map_err(|error: slotd_image::Error| {
                    AgentError::new(ErrorKind::Reject, error.to_string())
                })
        };
        Ok(InstallRequest {
            checksum: checksum(self.checksum)?,
            expanded_checksum: checksum(self.expanded_checksum)?,
            size: self.size,
            version: self.version,
            stage_only: self.stage_only,
            allow_downgrade: self.allow_downgrade,
            allow_same_version: self.allow_same_version,
            allow_no_agent: self.allow_no_agent,
            ..InstallRequest::new(source)
        })
    }
}

fn wrong_type(key: &str, wanted: &str) -> CallError {
    CallError::Reject(format!("the option `{key}` has to be {wanted}"))
}

fn text(key: &str, value: OwnedVariant) -> Result<String, CallError> {
    String::try_from(value).map_err(|_| wrong_type(key, "a string"))
}

fn number(key: &str, value: OwnedVariant) -> Result<u64, CallError> {
    u64::try_from(value).map_err(|_| wrong_type(key, "an unsigned 64-bit number"))
}

fn flag(key: &str, value: OwnedVariant) -> Result<bool, CallError> {
    bool::try_from(value).map_err(|_| wrong_type(key, "a boolean"))
}

/// An upgrade's status as the `Progress` signal carries it; what is not known is left out.
pub fn progress_to_dict(status: &UpgradeStatus) -> HashMap<&'static str, Variant<'_>> {
    let mut dict = HashMap::from([
        ("phase", Variant::from(status.phase.as_str())),
        ("step", Variant::from(status.step.as_str())),
    ]);
    let mut text = |key, value: Option<&str>| {
        if let Some(value) = value {
            dict.insert(key, Variant::from(value.to_owned()));
        }
    };
    text("kind", status.kind.as_deref());
    text("targetVersion", status.target_version.as_deref());
    text("source", status.source.as_deref());
    text("message", status.message.as_deref());
    let slot = status.target_slot.map(|slot| slot.to_string());
    text("targetSlot", slot.as_deref());
    if let Some(failure) = &status.failure {
        text("failureKind", Some(&failure.kind));
        text("failureReason", Some(&failure.reason));
        text("failureCode", failure.code.as_deref());
        text("failureCheck", failure.check.as_deref());
        text("failureOutput", failure.output.as_deref());
    }
    if let Some(progress) = &status.progress {
        for (key, value) in [
            ("percent", progress.percent.map(u64::from)),
            ("bytesWritten", Some(progress.bytes_written)),
            ("bytesVerified", Some(progress.bytes_verified)),
            ("bytesTotal", progress.bytes_total),
            ("publishedBytes", Some(progress.published_bytes)),
            ("publishedTotal", progress.published_total),
            ("rate", Some(progress.rate)),
            ("secondsLeft", progress.seconds_left),
        ] {
            if let Some(value) = value {
                dict.insert(key, Variant::from(value));
            }
        }
    }
    dict
}

/// Reads what [`progress_to_dict`] made. Keys that are not known are of a newer daemon, and ignored.
pub fn progress_from_dict(id: u64, mut dict: HashMap<String, OwnedVariant>) -> UpgradeStatus {
    let mut progress = ProgressStatus::default();
    let mut number = |key: &str| dict.remove(key).and_then(|value| u64::try_from(value).ok());
    let written = number("bytesWritten");
    progress.percent = number("percent").and_then(|percent| u8::try_from(percent).ok());
    progress.bytes_written = written.unwrap_or_default();
    progress.bytes_verified = number("bytesVerified").unwrap_or_default();
    progress.bytes_total = number("bytesTotal");
    progress.published_bytes = number("publishedBytes").unwrap_or_default();
    progress.published_total = number("publishedTotal");
    progress.rate = number("rate").unwrap_or_default();
    progress.seconds_left = number("secondsLeft");
    let mut text = |key: &str| {
        dict.remove(key)
            .and_then(|value| String::try_from(value).ok())
    };
    let failure = text("failureReason").map(|reason| FailureStatus {
        kind: text("failureKind").unwrap_or_default(),
        reason,
        code: text("failureCode"),
        check: text("failureCheck"),
        output: text("failureOutput"),
    });
    UpgradeStatus {
        phase: text("phase").unwrap_or_default(),
        step: text("step").unwrap_or_default(),
        id: (id != 0).then_some(id),
        kind: text("kind"),
        target_slot: match text("targetSlot").as_deref() {
            Some("A") => Some(SlotLetter::A),
            Some("B") => Some(SlotLetter::B),
            _ => None,
        },
        target_version: text("targetVersion"),
        source: text("source"),
        message: text("message"),
        failure,
        progress: written.map(|_| progress),
        ..UpgradeStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use slotd_image::ImageSource;
    use zbus::{DBusError, OwnedVariant, Variant};

    use super::{CallError, InstallOptions, kind_of_name, progress_from_dict, progress_to_dict};
    use crate::error::ErrorKind;
    use crate::status::{FailureStatus, ProgressStatus, SlotLetter, UpgradeStatus};

    fn owned(dict: HashMap<&'static str, Variant<'_>>) -> HashMap<String, OwnedVariant> {
        dict.into_iter()
            .map(|(key, value)| (key.to_owned(), value.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn options_arrive_as_they_were_sent() {
        let options = InstallOptions {
            checksum: Some("sha256:00".to_owned()),
            size: Some(1 << 40),
            stage_only: true,
            allow_no_agent: true,
            ..InstallOptions::default()
        };
        let dict = owned(options.to_dict());
        assert_eq!(dict.len(), 4);
        assert_eq!(InstallOptions::from_dict(dict), Ok(options));
    }

    #[test]
    fn options_that_are_not_known_or_of_another_type_are_named() {
        let dict = owned(HashMap::from([("chekcsum", Variant::from("x"))]));
        assert_eq!(
            InstallOptions::from_dict(dict),
            Err(CallError::Reject(
                "the option `chekcsum` is not known".to_owned()
            ))
        );
        let dict = owned(HashMap::from([("size", Variant::from("many"))]));
        let error = InstallOptions::from_dict(dict).unwrap_err();
        assert!(error.description().unwrap().contains("`size`"), "{error:?}");
    }

    #[test]
    fn a_checksum_that_is_none_is_rejected_by_name() {
        let options = InstallOptions {
            checksum: Some("sha256:abc".to_owned()),
            ..InstallOptions::default()
        };
        let source = ImageSource::parse("/image").unwrap();
        let error = options.request(source).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reject);
        assert!(error.to_string().contains("sha256:abc"), "{error}");
    }

    #[test]
    fn error_names_carry_the_kind() {
        let error = CallError::new(ErrorKind::Busy, "upgrade 3 is under way");
        assert_eq!(error.name().as_str(), "io.monok8s.Slotd1.Error.Busy");
        assert_eq!(kind_of_name(error.name().as_str()), Some(ErrorKind::Busy));
        assert_eq!(kind_of_name("org.freedesktop.DBus.Error.Failed"), None);
    }

    #[test]
    fn progress_arrives_as_it_was_sent() {
        let status = UpgradeStatus {
            phase: "Staging".to_owned(),
            step: "write".to_owned(),
            id: Some(7),
            kind: Some("install".to_owned()),
            target_slot: Some(SlotLetter::B),
            target_version: Some("1.2.3".to_owned()),
            source: Some("https://host/x".to_owned()),
            message: Some("tried again in 3 s".to_owned()),
            failure: Some(FailureStatus {
                kind: "Retry".to_owned(),
                reason: "reset".to_owned(),
                code: None,
                check: None,
                output: Some("words".to_owned()),
            }),
            progress: Some(ProgressStatus {
                percent: Some(12),
                bytes_written: 120,
                bytes_verified: 100,
                bytes_total: Some(1000),
                published_bytes: 50,
                published_total: None,
                rate: 10,
                seconds_left: Some(88),
            }),
            ..UpgradeStatus::default()
        };
        assert_eq!(
            progress_from_dict(7, owned(progress_to_dict(&status))),
            status
        );
    }
}
