//! Where the bytes of a published image come from.

mod client;
mod descriptor;
mod failure;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod http;
mod origin;
mod redirect;
mod throttle;

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use bytes::Bytes;
use url::Url;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::settings::FetchSettings;

pub use origin::Origin;
#[cfg(any(test, fuzzing))]
pub(crate) use redirect::Trail;

/// Where an image comes from.
pub enum ImageSource {
    /// A server. Failures that may pass start the transfer again.
    Http(Url),
    /// A file or block device of this machine.
    File(PathBuf),
    /// A pipe, socket or file that is open already, read from where it stands; once only.
    Reader {
        /// What to call it in messages, such as `standard input`.
        label: String,
        /// Open for reading.
        fd: OwnedFd,
    },
}

impl ImageSource {
    /// Understands `http://…`, `https://…`, `file:…`, a path with a slash or a dot in front, and `-`
    /// for standard input.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSource`] for anything else, and where standard input cannot be duplicated.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |shown: String, problem: &str| Error::InvalidSource {
            text: shown,
            problem: problem.to_owned(),
        };
        if text == "-" {
            let fd = std::io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| refuse(text.to_owned(), &error.to_string()))?;
            return Ok(Self::Reader {
                label: "standard input".to_owned(),
                fd,
            });
        }
        if text.starts_with('/') || text.starts_with("./") || text.starts_with("../") {
            return Ok(Self::File(PathBuf::from(text)));
        }
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(url::ParseError::RelativeUrlWithoutBase) => {
                return Err(refuse(
                    hide_query(text),
                    "it is neither a URL nor a path that starts with `/` or `./`, nor `-` for \
                     standard input",
                ));
            }
            Err(error) => return Err(refuse(hide_query(text), &error.to_string())),
        };
        match url.scheme() {
            "http" | "https" => Ok(Self::Http(url)),
            "file" => match url.to_file_path() {
                Ok(path) => Ok(Self::File(path)),
                Err(()) => Err(refuse(shown(&url), "a `file:` URL names no other host")),
            },
            other => Err(refuse(
                shown(&url),
                &format!("the scheme `{other}` is not known here; use https, http or file"),
            )),
        }
    }
}

impl FromStr for ImageSource {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for ImageSource {
    /// As it may be shown: URLs without user and query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(url) => f.write_str(&shown(url)),
            Self::File(path) => path.display().fmt(f),
            Self::Reader { label, .. } => f.write_str(label),
        }
    }
}

impl fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageSource({self})")
    }
}

/// The published file as a stream of chunks. Ends with `None` only when the file is known to be
/// complete as far as the source can tell.
pub(crate) trait Published: Send {
    /// The next bytes, of any number above zero.
    fn next(&mut self, cancel: &Cancel) -> Result<Option<Bytes>>;

    /// Length in bytes, where the source names one.
    fn total(&self) -> Option<u64>;

    /// Whether an early end may be a broken connection that looks like a proper end.
    fn may_end_early(&self) -> bool {
        false
    }
}

/// Connects, checks the status, and stands before the first byte.
///
/// `protected` says that a checksum binds the content, without which plain http is refused;
/// `deadline` is when the whole fetch has to be over.
pub(crate) fn start(
    source: &ImageSource,
    settings: &FetchSettings,
    protected: bool,
    deadline: Instant,
    cancel: &Cancel,
) -> Result<Box<dyn Published>> {
    match source {
        ImageSource::Http(url) => Ok(Box::new(http::HttpBody::request(
            url, settings, protected, deadline, cancel,
        )?)),
        ImageSource::File(path) => Ok(Box::new(descriptor::Descriptor::open(path)?)),
        ImageSource::Reader { label, fd } => {
            Ok(Box::new(descriptor::Descriptor::shared(label, fd.as_fd())?))
        }
    }
}

/// The URL without user, password, query and fragment.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Fails for URLs without a host only, which have no user either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

/// For text that is no URL: cut off what would be the query, and what would be the user.
fn hide_query(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    match text.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_paths_and_standard_input_are_told_apart() {
        assert!(matches!(
            ImageSource::parse("https://h/i.zst").unwrap(),
            ImageSource::Http(_)
        ));
        for path in [
            "/srv/i.zst",
            "file:/srv/i.zst",
            "file:///srv/i.zst",
            "file://localhost/srv/i.zst",
        ] {
            match ImageSource::parse(path).unwrap() {
                ImageSource::File(path) => assert_eq!(path, PathBuf::from("/srv/i.zst")),
                other => panic!("{path}: {other:?}"),
            }
        }
        assert!(matches!(
            ImageSource::parse("./i.zst").unwrap(),
            ImageSource::File(_)
        ));
        assert!(matches!(
            ImageSource::parse("-").unwrap(),
            ImageSource::Reader { .. }
        ));
    }

    #[test]
    fn other_schemes_and_bare_words_are_refused_without_showing_secrets() {
        for text in [
            "ftp://me:pw@h/i?token=s",
            "image.zst?token=s",
            "http://me:pw@:99999/?token=s",
            "file://other/i",
        ] {
            let message = ImageSource::parse(text).unwrap_err().to_string();
            assert!(
                !message.contains("pw") && !message.contains("token"),
                "{message}"
            );
        }
    }

    #[test]
    fn urls_are_shown_without_user_and_query() {
        let source = ImageSource::parse("https://me:pw@example.com:8443/a/b.zst?sig=s#x").unwrap();
        assert_eq!(source.to_string(), "https://example.com:8443/a/b.zst");
        assert_eq!(
            format!("{source:?}"),
            "ImageSource(https://example.com:8443/a/b.zst)"
        );
    }
}
