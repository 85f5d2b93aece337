//! What is thought of an image and of reasons, without a look at anything.

use slotd_bootctl::{AgentPresence, Architecture, ImageFacts};
use slotd_engine::{ErrorKind, Failure};
use slotd_image::Expectation;

use super::versions;

/// What is asked of an image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// What its bytes have to be.
    pub(crate) expectation: Expectation,
    /// The version that it has to be.
    pub(crate) version: Option<String>,
    /// It may be older than what runs.
    pub(crate) allow_downgrade: bool,
    /// It may be the version that runs.
    pub(crate) allow_same_version: bool,
    /// It may lack an enabled agent.
    pub(crate) allow_no_agent: bool,
}

impl Wanted {
    /// Whether anything is known beforehand of the image's bytes.
    pub(super) fn has_checksum(&self) -> bool {
        self.expectation.checksum.is_some() || self.expectation.expanded_checksum.is_some()
    }
}

pub(super) fn reject(reason: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Reject, reason)
}

/// The kind of several reasons together: what protects the node first, then what is not mended by asking again.
pub(crate) fn kind_of_all<'a>(reasons: impl IntoIterator<Item = &'a Failure>) -> Option<ErrorKind> {
    reasons
        .into_iter()
        .map(|failure| failure.kind)
        .min_by_key(|kind| match kind {
            ErrorKind::Unsafe => 0,
            ErrorKind::Bug => 1,
            ErrorKind::Reject => 2,
            ErrorKind::Configuration => 3,
            ErrorKind::Retry => 4,
        })
}

/// All reasons as one failure; what is said twice is one reason.
pub(crate) fn one(reasons: Vec<Failure>) -> Option<Failure> {
    let kind = kind_of_all(&reasons)?;
    let code = reasons.iter().find_map(|failure| failure.code.clone());
    let mut words: Vec<String> = Vec::new();
    for failure in reasons {
        if !words.contains(&failure.reason) {
            words.push(failure.reason);
        }
    }
    Some(Failure {
        code,
        ..Failure::new(kind, words.join("; "))
    })
}

/// Whether what is in the slot is what was asked for and could confirm itself. Returns its version.
pub(super) fn judge(
    facts: &ImageFacts,
    running: Option<&str>,
    wanted: &Wanted,
    requires_agent: bool,
) -> Result<Option<String>, Failure> {
    let mut reasons = Vec::new();
    let here = Architecture::running();
    if facts.architecture != here {
        reasons.push(reject(format!(
            "the image is made for {}, this machine is {here}",
            facts.architecture
        )));
    }
    if facts.kernel.is_none() {
        reasons.push(reject("the image has no kernel"));
    }
    if requires_agent && !AgentPresence::can_confirm(facts.agent) {
        reasons.push(reject(format!(
            "the image could not confirm itself: it lacks {} (allow it with --allow-no-agent)",
            facts.agent.missing().join(", ")
        )));
    }
    if let (Some(own), Some(asked)) = (&facts.version, &wanted.version)
        && !versions::same(own, asked)
    {
        reasons.push(
            reject(format!(
                "VersionMismatch: the image names itself {own}, but {asked} was asked for"
            ))
            .coded("VersionMismatch"),
        );
    }
    let version = facts
        .version
        .clone()
        .or_else(|| wanted.version.clone())
        .or_else(|| facts.version_id().map(str::to_owned));
    if let Some(version) = &version
        && let Err(failure) = versions::may_follow(running, version, wanted)
    {
        reasons.push(failure);
    }
    match one(reasons) {
        Some(failure) => Err(failure),
        None => Ok(version),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use slotd_bootctl::{AgentPresence, Architecture, BootFile, ImageFacts};
    use slotd_engine::{ErrorKind, Failure};

    use super::{Wanted, judge, one};

    fn facts(version: Option<&str>) -> ImageFacts {
        ImageFacts {
            os_release: BTreeMap::from([("VERSION_ID".to_owned(), "12".to_owned())]),
            version: version.map(str::to_owned),
            architecture: Architecture::running(),
            kernel: Some(BootFile {
                path: PathBuf::from("/boot/vmlinuz"),
                size: 1,
            }),
            fixed_kernel: None,
            initrd: None,
            unified: None,
            cmdline: None,
            agent: AgentPresence {
                binary: true,
                service: true,
                health_gate: true,
                confirm: true,
                generator: true,
            },
        }
    }

    fn wanted(version: Option<&str>) -> Wanted {
        Wanted {
            version: version.map(str::to_owned),
            ..Wanted::default()
        }
    }

    #[test]
    fn the_images_own_version_comes_first_then_the_request_then_version_id() {
        let version = |own, asked| judge(&facts(own), Some("1.0.0"), &wanted(asked), true);
        assert_eq!(
            version(Some("2.0.0"), None).unwrap().as_deref(),
            Some("2.0.0")
        );
        assert_eq!(
            version(None, Some("2.0.1")).unwrap().as_deref(),
            Some("2.0.1")
        );
        assert_eq!(version(None, None).unwrap().as_deref(), Some("12"));
    }

    #[test]
    fn an_image_that_names_another_version_is_refused() {
        let error = judge(&facts(Some("2.0.0")), None, &wanted(Some("2.0.1")), true).unwrap_err();
        assert!(
            error.reason.starts_with("VersionMismatch"),
            "{}",
            error.reason
        );
        judge(&facts(Some("v2.0.1")), None, &wanted(Some("2.0.1")), true).unwrap();
    }

    #[test]
    fn all_that_is_wrong_with_an_image_is_said_at_once() {
        let mut facts = facts(Some("0.9.0"));
        facts.architecture = Architecture::Other(243);
        facts.kernel = None;
        facts.agent.generator = false;
        let error = judge(&facts, Some("1.0.0"), &wanted(None), true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Reject);
        for part in [
            "machine 243",
            "no kernel",
            "slotd-boot-generator",
            "older than",
        ] {
            assert!(error.reason.contains(part), "{}", error.reason);
        }
    }

    #[test]
    fn an_image_without_an_agent_passes_when_allowed() {
        let mut facts = facts(Some("2.0.0"));
        facts.agent = AgentPresence::default();
        assert!(judge(&facts, None, &wanted(None), true).is_err());
        judge(&facts, None, &wanted(None), false).unwrap();
    }

    #[test]
    fn what_no_repetition_mends_names_the_kind_of_many_reasons() {
        use ErrorKind::{Configuration, Reject, Retry, Unsafe};
        for (kinds, kind) in [
            (vec![Configuration, Unsafe], Unsafe),
            (vec![Retry, Configuration, Reject], Reject),
            (vec![Retry, Configuration], Configuration),
            (vec![Retry], Retry),
        ] {
            let reasons = kinds.iter().map(|kind| Failure::new(*kind, "x")).collect();
            assert_eq!(one(reasons).unwrap().kind, kind, "{kinds:?}");
        }
        let reasons = ["full", "booted", "full"].map(|reason| Failure::new(Retry, reason));
        assert_eq!(one(reasons.into()).unwrap().reason, "full; booted");
        assert!(one(Vec::new()).is_none());
    }
}
