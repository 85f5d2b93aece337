//! What can be asked of the agent.

use slotd_engine::{Digest, ImageRequest};
use slotd_image::{Checksum, Expectation, ImageSource};

use crate::staging::Wanted;

/// The number of an upgrade on this node.
pub type UpgradeId = u64;

/// An image to be installed.
#[derive(Debug)]
pub struct InstallRequest {
    /// Where it comes from.
    pub source: ImageSource,
    /// The digest of the file as published (or of the expanded image).
    pub checksum: Option<Checksum>,
    /// The digest of the expanded image.
    pub expanded_checksum: Option<Checksum>,
    /// The expanded size in bytes.
    pub size: Option<u64>,
    /// The version that it is said to be.
    pub version: Option<String>,
    /// Stop once staged, until asked to activate.
    pub stage_only: bool,
    /// An older version than the running one is wanted.
    pub allow_downgrade: bool,
    /// The running version is wanted again.
    pub allow_same_version: bool,
    /// An image without an enabled agent is wanted.
    pub allow_no_agent: bool,
    /// Nobody asked for it just now (a standing order): an image that failed here before is refused.
    pub unattended: bool,
}

impl InstallRequest {
    /// A request for an image with nothing else said about it.
    #[must_use]
    pub fn new(source: ImageSource) -> Self {
        Self {
            source,
            checksum: None,
            expanded_checksum: None,
            size: None,
            version: None,
            stage_only: false,
            allow_downgrade: false,
            allow_same_version: false,
            allow_no_agent: false,
            unattended: false,
        }
    }

    /// The request as the engine remembers it.
    #[must_use]
    pub fn to_engine(&self) -> ImageRequest {
        ImageRequest {
            source: self.source.to_string(),
            locator: locator(&self.source),
            checksum: self.checksum.as_ref().and_then(digest),
            expanded_checksum: self.expanded_checksum.as_ref().and_then(digest),
            size: self.size,
            version: self.version.clone(),
            stage_only: self.stage_only,
            allow_downgrade: self.allow_downgrade,
            allow_same_version: self.allow_same_version,
            allow_no_agent: self.allow_no_agent,
            asked_anew: !self.unattended,
            task: None,
        }
    }
}

/// How the source is opened again after a restart; `None` for what can be read only once.
fn locator(source: &ImageSource) -> Option<String> {
    match source {
        ImageSource::Http(url) => Some(url.to_string()),
        // A path that is no text could not be kept in the record.
        ImageSource::File(path) => {
            let path = std::path::absolute(path).ok()?;
            path.to_str().map(str::to_owned)
        }
        ImageSource::Reader { .. } => None,
    }
}

fn digest(checksum: &Checksum) -> Option<Digest> {
    Digest::new(&checksum.to_hex())
}

/// What is asked of the image, out of the engine's memory of the request.
#[must_use]
pub(super) fn wanted(request: &ImageRequest) -> Wanted {
    let checksum = |digest: &Option<Digest>| {
        // Both types hold 64 checked digits, so parsing cannot fail.
        digest
            .as_ref()
            .and_then(|digest| digest.as_hex().parse::<Checksum>().ok())
    };
    Wanted {
        expectation: Expectation {
            checksum: checksum(&request.checksum),
            expanded_checksum: checksum(&request.expanded_checksum),
            size: request.size,
        },
        version: request.version.clone(),
        allow_downgrade: request.allow_downgrade,
        allow_same_version: request.allow_same_version,
        allow_no_agent: request.allow_no_agent,
    }
}

#[cfg(test)]
mod tests {
    use slotd_image::ImageSource;

    use super::InstallRequest;

    #[test]
    fn a_remembered_request_shows_no_secret_of_its_source() {
        let source =
            ImageSource::parse("https://user:hunter2@host/rootfs.img?token=hunter2").unwrap();
        let request = InstallRequest::new(source);
        let remembered = request.to_engine();
        assert!(remembered.locator.as_deref().unwrap().contains("hunter2"));
        let shown = format!("{request:?} {remembered:?} {}", remembered.source);
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
