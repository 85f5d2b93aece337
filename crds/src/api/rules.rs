//! Rules of the schemas, in CEL, with messages for the person whose document is refused.
//!
//! What a rule admits, the Rust side can read; `crds/tests/rules.rs` holds both against the same examples.

use kube::core::Rule;

/// What [`crate::version::Version`] reads, as an RE2 expression: the one that semver.org suggests, with an optional `v`.
const VERSION: &str = concat!(
    r"v?(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)",
    r"(-(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*)?",
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
);

const A_VERSION: &str = "a version such as v1.35.3 (an optional v, then MAJOR.MINOR.PATCH with optional -pre-release and +build)";

/// What [`crate::image::check_web_url`] accepts.
const WEB_URL: &str = r"https?://[^/?#@\\\x00-\x20\x7f]+([/?#][^\\\x00-\x20\x7f]*)?";

fn rule(expression: impl Into<String>, message: impl AsRef<str>) -> Rule {
    Rule::new(expression).message(message.as_ref())
}

/// The version of an image.
pub(crate) fn version() -> Rule {
    rule(
        format!("self.matches(r'^{VERSION}$')"),
        format!("version must be {A_VERSION}"),
    )
}

/// What an OSUpgrade may ask for.
pub(crate) fn wanted_version() -> Rule {
    rule(
        format!("self in ['', 'stable', 'latest'] || self.matches(r'^{VERSION}$')"),
        format!("version must be {A_VERSION}, stable, latest, or empty for the latest"),
    )
}

/// Where an image may come from. Credentials belong on the host: everybody who may read the object reads its URL. A query is
/// kept, since nodes need it, and a catalog's message never repeats a URL.
pub(crate) fn image_url() -> Rule {
    rule(
        format!("self.matches(r'^{WEB_URL}$')"),
        "must be a http:// or https:// URL without spaces and without a user or password, which everybody who may read \
         this object could read; an image in a file of the node is installed there (slotd install)",
    )
}

/// Where a catalog may come from.
pub(crate) fn catalog_url() -> Rule {
    rule(
        format!("self.matches(r'^{WEB_URL}$')"),
        "catalog.URL must be a http:// or https:// URL without spaces and without a user or password, \
         which everybody who may read this object could read",
    )
}

/// `name` or `namespace/name`.
pub(crate) fn config_map() -> Rule {
    rule(
        "self.matches('^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$')",
        "catalog.ConfigMap must be the name of a ConfigMap, or its namespace and name as namespace/name",
    )
}

/// Exactly one source of a catalog.
pub(crate) fn one_catalog_source() -> Rule {
    rule(
        "(has(self.URL) ? 1 : 0) + (has(self.ConfigMap) ? 1 : 0) + (has(self.inline) ? 1 : 0) == 1",
        "catalog needs exactly one of URL, ConfigMap and inline",
    )
}

/// `imageURL` says nothing of its version.
pub(crate) fn image_url_needs_version() -> Rule {
    rule(
        "!has(self.imageURL) || (has(self.version) && !(self.version in ['', 'stable', 'latest']))",
        "imageURL needs version to be the version of that image, such as v1.35.3 (not stable, latest or none)",
    )
}

/// `imageURL` is bound by its checksum alone.
pub(crate) fn image_url_needs_checksum() -> Rule {
    rule(
        "!has(self.imageURL) || has(self.checksum)",
        "imageURL needs the checksum of that file: sha256: and 64 hexadecimal digits",
    )
}

/// With a catalog, the catalog's own apply; these would be ignored.
pub(crate) fn image_fields_need_image_url() -> Rule {
    rule(
        "has(self.imageURL) || !(has(self.checksum) || has(self.expandedChecksum) || has(self.size))",
        "checksum, expandedChecksum and size describe the image at imageURL and need it; \
         an image from the catalog has its own there",
    )
}

/// There is something to install.
pub(crate) fn an_image_or_a_catalog() -> Rule {
    rule(
        "has(self.imageURL) || has(self.catalog)",
        "either imageURL or catalog is needed to find an image",
    )
}

/// A [`super::limit::Limit`].
pub(crate) fn limit(field: &str) -> Rule {
    rule(
        "type(self) == int ? self >= 1 && self <= 1000000 : self.matches('^([1-9][0-9]?|100)%$')",
        format!(
            "{field} must be a number from 1 up, or a percentage of the targets from \"1%\" to \"100%\"; \
             to stop a roll-out, set suspend"
        ),
    )
}

/// A length of time that [`super::rollout::Drain::timeout`] reads.
pub(crate) fn duration() -> Rule {
    rule(
        "self.matches('^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?$') && self.matches('[1-9]')",
        "must be a length of time above zero in hours, minutes and seconds, such as 10m, 90s or 1h30m",
    )
}

/// The name of a Node.
pub(crate) fn node_name() -> Rule {
    rule(
        "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        "nodeName must be the name of a Node: lower-case letters, digits, dashes and dots",
    )
}

/// A required field that is set once.
pub(crate) fn immutable(field: &str) -> Rule {
    rule(
        "self == oldSelf",
        format!("{field} cannot be changed: delete this object and make another one"),
    )
}

/// An optional field that is set at creation or never.
pub(crate) fn immutable_optional(field: &str) -> Rule {
    rule(
        format!(
            "has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
        ),
        format!(
            "{field} cannot be set, changed or removed later: delete this object and make another one"
        ),
    )
}

/// `attempt` of a progress object: places are told apart by it.
pub(crate) fn attempt_only_rises() -> Rule {
    rule(
        "(has(self.attempt) ? self.attempt : 0) >= (has(oldSelf.attempt) ? oldSelf.attempt : 0)",
        "attempt can only be raised",
    )
}

/// Who speaks for an upgrade knows the node's uid.
pub(crate) fn source_needs_node_uid() -> Rule {
    rule(
        "!has(self.sourceRef) || has(self.nodeUID)",
        "sourceRef needs nodeUID: an object made for an upgrade is tied to one Node by its uid",
    )
}
