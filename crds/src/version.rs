//! Versions of operating-system images.
//!
//! An optional `v`, then [Semantic Versioning](https://semver.org). Where SemVer says that build metadata has no
//! precedence, images of this field use it to count revisions of one version (`v1.33.3+k3s1`, `+k3s2`, `+k3s10`), so
//! here it orders, numbers in it by their value.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A version as somebody wrote it, ordered by its meaning.
///
/// Two versions are equal when they mean the same: `v1.2.3` equals `1.2.3`. [`fmt::Display`] gives back what was written.
#[derive(Debug, Clone)]
pub struct Version {
    written: String,
    parsed: semver::Version,
}

/// A text that is no version.
#[derive(Debug, thiserror::Error)]
#[error(
    "{written:?} is not a version: {source} (expected an optional \"v\", then MAJOR.MINOR.PATCH with \
     optional -pre-release and +build)"
)]
pub struct ParseVersionError {
    written: String,
    source: semver::Error,
}

impl Version {
    /// Whether this is a pre-release such as `1.2.0-rc.1`; `latest` never resolves to one.
    #[must_use]
    pub fn is_prerelease(&self) -> bool {
        !self.parsed.pre.is_empty()
    }

    /// The first two numbers, which Kubernetes' skew rules speak of.
    #[must_use]
    pub fn minor(&self) -> (u64, u64) {
        (self.parsed.major, self.parsed.minor)
    }

    /// The version as it was written, a leading `v` included.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }
}

impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match semver::Version::parse(text.strip_prefix('v').unwrap_or(text)) {
            Ok(parsed) => Ok(Self {
                written: text.to_owned(),
                parsed,
            }),
            Err(source) => Err(ParseVersionError {
                written: text.to_owned(),
                source,
            }),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.written)
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parsed.cmp_precedence(&other.parsed).then_with(|| {
            compare_revisions(self.parsed.build.as_str(), other.parsed.build.as_str())
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

/// Compares build metadata run by run: digits by value, everything else by its bytes; nothing comes before something.
///
/// Equal values written with different leading zeros still differ, shorter first, so that the order is total and agrees
/// with equality.
fn compare_revisions(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left.as_bytes(), right.as_bytes());
    loop {
        let (left_run, left_rest) = first_run(left);
        let (right_run, right_rest) = first_run(right);
        if left_run.is_empty() || right_run.is_empty() {
            return left_run.len().cmp(&right_run.len());
        }
        let order = if left_run[0].is_ascii_digit() && right_run[0].is_ascii_digit() {
            compare_digits(left_run, right_run)
        } else {
            left_run.cmp(right_run)
        };
        if order != Ordering::Equal {
            return order;
        }
        (left, right) = (left_rest, right_rest);
    }
}

/// Splits off the longest start that is all digits or all non-digits.
fn first_run(text: &[u8]) -> (&[u8], &[u8]) {
    let digits = text.first().is_some_and(u8::is_ascii_digit);
    let end = text
        .iter()
        .position(|byte| byte.is_ascii_digit() != digits)
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Compares digit strings of any length by value, then by length.
fn compare_digits(left: &[u8], right: &[u8]) -> Ordering {
    let value = |digits: &[u8]| -> usize {
        digits
            .iter()
            .position(|digit| *digit != b'0')
            .unwrap_or(digits.len())
    };
    let (left_value, right_value) = (&left[value(left)..], &right[value(right)..]);
    left_value
        .len()
        .cmp(&right_value.len())
        .then_with(|| left_value.cmp(right_value))
        .then_with(|| left.len().cmp(&right.len()))
}

#[cfg(test)]
mod tests {
    use super::Version;
    use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    /// The precedence example of semver.org, section 11, then revisions.
    #[test]
    fn versions_are_ordered_as_semver_says_and_revisions_by_number() {
        let ascending = [
            "v0.9.9",
            "1.0.0-alpha",
            "v1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "v1.0.0+k3s1",
            "v1.0.0+k3s2",
            "v1.0.0+k3s10",
            "v1.0.0+rke2r1",
            "1.0.1",
            "1.9.0",
            "v1.10.0",
        ];
        for (index, lower) in ascending.iter().enumerate() {
            for higher in &ascending[index + 1..] {
                assert!(version(lower) < version(higher), "{lower} < {higher}");
                assert!(version(higher) > version(lower), "{higher} > {lower}");
            }
        }
    }

    #[test]
    fn a_leading_v_does_not_tell_versions_apart_and_is_kept_in_print() {
        assert_eq!(version("v1.35.3"), version("1.35.3"));
        assert_eq!(version("v1.35.3").to_string(), "v1.35.3");
        assert_eq!(version("v1.35.3").minor(), (1, 35));
        assert!(version("v1.36.0-rc.0").is_prerelease());
        assert!(!version("v1.36.0+rc.0").is_prerelease());
    }

    #[test]
    fn what_is_no_version_is_refused_by_name() {
        for text in [
            "", "v", "1", "1.2", "vv1.2.3", "1.2.3.4", "stable", "1.02.3", "V1.2.3", " 1.2.3",
        ] {
            let error = text.parse::<Version>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{text:?} is not a version")),
                "{error}"
            );
        }
    }

    fn any_version() -> impl Strategy<Value = Version> {
        "v?[0-2]\\.[0-2]\\.[0-2](-(rc|a)\\.[0-9])?(\\+[a-b0-1]{1,5}(\\.[a-b0-1]{1,3})?)?"
            .prop_map(|text| version(&text))
    }

    proptest! {
        #[test]
        fn the_order_is_total(a in any_version(), b in any_version(), c in any_version()) {
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            if a <= b && b <= c {
                prop_assert!(a <= c);
            }
            let same = a.as_str().trim_start_matches('v') == b.as_str().trim_start_matches('v');
            prop_assert_eq!(a == b, same);
        }
    }
}
