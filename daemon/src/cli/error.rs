//! What a command ends with when it fails: a kind, which is the exit code, and a sentence.

use std::fmt;
use std::io;
use std::path::Path;

use super::arguments::OutputFormat;
use crate::agent::{AgentError, LockError, kind_of};
use crate::config::ConfigError;
use crate::dbus::client::ClientError;
use crate::error::ErrorKind;
use crate::staging::{boot_failure, image_failure};
use crate::status::FailureStatus;

/// A command failed.
#[derive(Debug)]
pub(super) struct CliError {
    kind: ErrorKind,
    message: String,
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

impl CliError {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// A fault of slotd itself, or of the system under it.
    pub(super) fn internal(error: impl Into<anyhow::Error>) -> Self {
        Self::new(ErrorKind::Bug, format!("{:#}", error.into()))
    }

    /// A file that cannot be read or written.
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::new(
            ErrorKind::Configuration,
            format!("{}: {source}", path.display()),
        )
    }

    pub(super) fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Prints it to standard error.
    pub(super) fn print(&self, output: OutputFormat) {
        match output {
            OutputFormat::Table => eprintln!("slotd: {}", self.message),
            OutputFormat::Json => eprintln!(
                "{}",
                serde_json::json!({"error": {"kind": self.kind.name(), "message": self.message}})
            ),
        }
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<AgentError> for CliError {
    fn from(error: AgentError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<slotd_engine::Failure> for CliError {
    fn from(failure: slotd_engine::Failure) -> Self {
        Self::new(kind_of(failure.kind), failure.reason)
    }
}

impl From<LockError> for CliError {
    fn from(error: LockError) -> Self {
        let kind = match error {
            LockError::Held { .. } | LockError::Running { .. } => ErrorKind::Busy,
            LockError::Open { .. } => ErrorKind::Configuration,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<slotd_bootctl::Error> for CliError {
    fn from(error: slotd_bootctl::Error) -> Self {
        Self::from(boot_failure(&error))
    }
}

impl From<slotd_image::Error> for CliError {
    fn from(error: slotd_image::Error) -> Self {
        Self::from(image_failure(&error))
    }
}

impl From<&FailureStatus> for CliError {
    fn from(failure: &FailureStatus) -> Self {
        let kind = ErrorKind::from_name(&failure.kind).unwrap_or(ErrorKind::Bug);
        let mut message = failure.reason.clone();
        if let Some(check) = &failure.check {
            message = format!("{message} (check: {check})");
        }
        if let Some(output) = failure
            .output
            .as_deref()
            .filter(|output| !output.is_empty())
        {
            message = format!("{message}\n{output}");
        }
        Self::new(kind, message)
    }
}

#[cfg(test)]
mod tests {
    use super::CliError;
    use crate::error::ErrorKind;
    use crate::status::FailureStatus;

    #[test]
    fn a_failed_upgrades_kind_check_and_output_are_told() {
        let error = CliError::from(&FailureStatus {
            kind: "Unsafe".to_owned(),
            reason: "rolled back".to_owned(),
            code: None,
            check: Some("required.d/10-api".to_owned()),
            output: Some("no API".to_owned()),
        });
        assert_eq!(error.kind(), ErrorKind::Unsafe);
        assert_eq!(
            error.to_string(),
            "rolled back (check: required.d/10-api)\nno API"
        );
    }
}
