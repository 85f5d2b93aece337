//! An image as it is named on the command line.

use std::path::{Path, PathBuf};

use slotd_image::ImageSource;

use super::arguments::PlanArguments;
use super::error::CliError;
use crate::dbus::wire::InstallOptions;
use crate::error::ErrorKind;

/// Reads SOURCE. What is there as a file is a file, with or without `./`; relative paths are relative to here.
pub(super) fn source(text: &str) -> Result<ImageSource, CliError> {
    if text == "-" {
        return Ok(ImageSource::parse(text)?);
    }
    let is_file = !text.contains("://") && Path::new(text).exists();
    let source = if is_file {
        ImageSource::File(PathBuf::from(text))
    } else {
        ImageSource::parse(text)?
    };
    match source {
        ImageSource::File(path) => {
            let absolute = std::path::absolute(&path)
                .map_err(|error| CliError::new(ErrorKind::Reject, format!("{text}: {error}")))?;
            if !absolute.exists() {
                return Err(CliError::new(
                    ErrorKind::Reject,
                    format!("{} is not there", absolute.display()),
                ));
            }
            Ok(ImageSource::File(absolute))
        }
        other => Ok(other),
    }
}

/// The options beside the source.
pub(super) fn options(arguments: &PlanArguments) -> InstallOptions {
    let image = arguments.image.clone();
    InstallOptions {
        checksum: image.checksum,
        expanded_checksum: image.expanded_checksum,
        size: image.size,
        version: image.image_version,
        stage_only: arguments.stage_only,
        allow_downgrade: arguments.allow_downgrade,
        allow_same_version: arguments.allow_same_version,
        allow_no_agent: image.allow_no_agent,
    }
}

#[cfg(test)]
mod tests {
    use slotd_image::ImageSource;

    use super::source;
    use crate::error::ErrorKind;

    #[test]
    fn files_become_absolute_and_have_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.img");
        std::fs::write(&file, "").unwrap();
        for text in [
            file.display().to_string(),
            format!("file://{}", file.display()),
        ] {
            assert!(
                matches!(source(&text), Ok(ImageSource::File(path)) if path == file),
                "{text}"
            );
        }
        let missing = dir.path().join("y.img").display().to_string();
        let error = source(&missing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reject);
        assert!(error.to_string().contains(&missing), "{error}");
        // The test runs in the crate's folder.
        assert!(matches!(source("Cargo.toml"), Ok(ImageSource::File(path)) if path.is_absolute()));
        assert!(matches!(source("https://host/x"), Ok(ImageSource::Http(_))));
        assert_eq!(
            source("ftp://host/x").unwrap_err().kind(),
            ErrorKind::Reject
        );
    }
}
