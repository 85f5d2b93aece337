//! One image, resolved: what a node is told to install.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::api::rules;

/// Longest URL that the schemas admit, in characters.
pub const URL_LIMIT: u32 = 2048;

/// One image of the operating system.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Version of the image, such as v1.35.3.
    #[schemars(length(max = 128))]
    #[x_kube(validation = rules::version())]
    pub version: String,

    /// Where the node downloads the image: a raw filesystem image, usually compressed with zstd, by http or https.
    #[schemars(length(max = URL_LIMIT))]
    #[x_kube(validation = rules::image_url())]
    pub url: String,

    /// SHA-256 of the file as published: sha256: and 64 hexadecimal digits. An image that does not match it is never booted.
    #[schemars(length(max = 256))]
    pub checksum: String,

    /// SHA-256 of the expanded image, written in the same way. With it, a node may fetch only what differs from what it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub expanded_checksum: Option<String>,

    /// Size of the expanded image in bytes. A node compares it with its slot before it writes anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub size: Option<u64>,
}

impl Image {
    /// The image as it is shown: the URL without its query, which may be a secret.
    #[must_use]
    pub fn shown(&self) -> Self {
        Self {
            url: shown_url(&self.url).to_owned(),
            ..self.clone()
        }
    }
}

/// A URL as it is shown: without its query and what follows, which may be secret. A user it cannot have.
#[must_use]
pub fn shown_url(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

/// Whether a text is a SHA-256 digest as a catalog or a document may write it: 64 hexadecimal digits of either case, behind
/// `sha256:` or without it. Only that; what the digest is worth is known where the image is.
#[must_use]
pub fn is_checksum(text: &str) -> bool {
    let digits = match text.split_at_checked("sha256:".len()) {
        Some((prefix, digits)) if prefix.eq_ignore_ascii_case("sha256:") => digits,
        _ => text,
    };
    digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether two checksums, each of which [`is_checksum`], are the same digest.
pub(crate) fn same_checksum(one: &str, other: &str) -> bool {
    let digits = |text: &str| {
        let start = text.len().saturating_sub(64);
        text.get(start..).map(str::to_ascii_lowercase)
    };
    digits(one) == digits(other)
}

/// Why a text is no URL that an object or a catalog may name, of an image or a catalog: `http://` or `https://`, nothing that
/// would have to be escaped, and no user or password, which would be readable in objects and status. A file of the node is named
/// on the node alone: who may write objects is not to have its devices opened.
///
/// # Errors
/// The reason, to be put behind the name of the field.
pub fn check_web_url(text: &str) -> Result<(), &'static str> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .ok_or("it starts with neither http:// nor https://")?;
    check_characters(rest)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(
            "it carries a user or password, which would be readable to many; put them on the host",
        );
    }
    if authority.is_empty() {
        return Err("it names no host");
    }
    Ok(())
}

fn check_characters(text: &str) -> Result<(), &'static str> {
    if text
        .chars()
        .any(|character| character <= ' ' || character == '\x7f' || character == '\\')
    {
        return Err("it contains a space, a control character or a backslash");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{check_web_url, is_checksum, same_checksum};

    const DIGITS: &str = "99af82a263deca44ad91d21d684f0fa944d5d0456a1da540f1c644f8aa59b14b";

    #[test]
    fn a_checksum_has_sixty_four_digits_and_perhaps_its_algorithm() {
        let upper = DIGITS.to_uppercase();
        for good in [
            DIGITS.to_owned(),
            upper.clone(),
            format!("sha256:{DIGITS}"),
            format!("SHA256:{upper}"),
        ] {
            assert!(is_checksum(&good), "{good}");
            assert!(same_checksum(&good, DIGITS), "{good}");
        }
        for bad in [
            String::new(),
            "sha256:...".to_owned(),
            "sha256:".to_owned(),
            "sha256:abc".to_owned(),
            format!("sha512:{DIGITS}"),
            format!("sha256:{}", &DIGITS[1..]),
            format!("{DIGITS}0"),
            format!("sha256:{DIGITS}\n"),
            format!("sha256: {DIGITS}"),
            format!("sha256-{DIGITS}"),
            format!("{}g", &DIGITS[1..]),
            format!("{}é", &DIGITS[2..]),
        ] {
            assert!(!is_checksum(&bad), "{bad}");
        }
        assert!(!same_checksum(DIGITS, &DIGITS.replace('9', "8")));
    }

    #[test]
    fn a_url_has_a_host_and_no_secret() {
        for good in [
            "http://localhost:8000/rootfs.ext4.zst",
            "https://updates.example.com/monok8s-1.2.3.img.zst",
            "https://h/a@b?token=x#y",
            "https://[fd00::1]:443/i",
            "https://h?x",
        ] {
            assert_eq!(check_web_url(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "rootfs.zst",
            "ftp://h/x",
            "HTTP://h/x",
            "http://",
            "http:///x",
            "http://?x",
            "https://user@h/x",
            "https://user:pw@h/x",
            "https://h\\@evil/x",
            "http://h/a b",
            "http://h/\n",
            "file:///",
            "file:///media/usb/rootfs.zst",
            "file:///dev/vda",
            "file://host/x",
            "file:/x",
            "file:///a b",
        ] {
            assert!(check_web_url(bad).is_err(), "{bad}");
        }
    }
}
