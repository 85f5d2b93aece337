//! May this version follow the running one?

use std::cmp::Ordering;

use slotd_bootctl::model::version_compare;
use slotd_crds::version::Version;
use slotd_engine::{ErrorKind, Failure};

use super::judgement::Wanted;

/// Refuses the running version and older ones, unless they were asked for by name. Texts that are no
/// SemVer (`VERSION_ID=12`, `20250801`) are ordered as the boot loader orders them, by the UAPI group's version
/// format: an older one must not pass because it is written otherwise.
///
/// # Errors
/// `Reject`, with both versions and the option that would allow it.
pub(crate) fn may_follow(
    running: Option<&str>,
    wanted: &str,
    asked: &Wanted,
) -> Result<(), Failure> {
    let Some(running) = running else {
        return Ok(());
    };
    let refuse = |code, reason: String| Err(Failure::new(ErrorKind::Reject, reason).coded(code));
    match compare(running, wanted) {
        Ordering::Equal if !asked.allow_same_version => refuse(
            "SameVersion",
            format!(
                "version {wanted} is the one that runs already (allow it with --allow-same-version)"
            ),
        ),
        Ordering::Greater if !asked.allow_downgrade => refuse(
            "Downgrade",
            format!(
                "version {wanted} is older than the running {running} (allow it with --allow-downgrade)"
            ),
        ),
        _ => Ok(()),
    }
}

/// Whether two texts name one version.
pub(crate) fn same(one: &str, other: &str) -> bool {
    compare(one, other) == Ordering::Equal
}

fn compare(one: &str, other: &str) -> Ordering {
    match (one.parse::<Version>(), other.parse::<Version>()) {
        (Ok(one), Ok(other)) => one.cmp(&other),
        _ => version_compare(one, other),
    }
}

#[cfg(test)]
mod tests {
    use slotd_engine::ErrorKind;

    use super::{Wanted, may_follow, same};

    fn request(allow_downgrade: bool, allow_same_version: bool) -> Wanted {
        Wanted {
            allow_downgrade,
            allow_same_version,
            ..Wanted::default()
        }
    }

    #[test]
    fn newer_versions_pass() {
        for (running, wanted) in [
            ("1.2.3", "1.2.4"),
            ("v1.9.0", "v1.10.0"),
            ("v1.2.0+k3s2", "v1.2.0+k3s10"),
        ] {
            may_follow(Some(running), wanted, &request(false, false)).unwrap();
        }
        may_follow(None, "1.0.0", &request(false, false)).unwrap();
    }

    #[test]
    fn older_and_same_versions_need_their_own_permission() {
        for (running, wanted, downgrade) in [
            ("1.10.0", "1.9.0", true),
            ("1.0.0", "v1.0.0", false),
            ("12", "12", false),
        ] {
            let error = may_follow(Some(running), wanted, &request(false, false)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Reject);
            assert!(error.reason.contains(wanted), "{}", error.reason);
            may_follow(Some(running), wanted, &request(downgrade, !downgrade)).unwrap();
            assert!(may_follow(Some(running), wanted, &request(!downgrade, downgrade)).is_err());
        }
    }

    #[test]
    fn versions_of_other_schemes_are_ordered_too() {
        for (older, newer) in [
            ("12", "13"),
            ("22.04", "24.04"),
            ("20240101", "20250801"),
            ("1.9", "1.10"),
        ] {
            may_follow(Some(older), newer, &request(false, false)).unwrap();
            assert!(may_follow(Some(newer), older, &request(false, true)).is_err());
            may_follow(Some(newer), older, &request(true, false)).unwrap();
        }
        assert!(same("v1.0.0", "1.0.0"));
        assert!(!same("1.0.0", "1.0.1"));
    }
}
