//! Which tests a run takes: what `--only` says of their names.

use anyhow::{Result, bail};

/// Patterns of `--only`. Without one, all tests are taken.
#[derive(Debug)]
pub struct Selection<'a> {
    patterns: &'a [String],
}

impl<'a> Selection<'a> {
    /// Takes the tests whose name, as `--list` and results print it, contains one of the patterns.
    pub fn new(patterns: &'a [String]) -> Self {
        Self { patterns }
    }

    /// Whether it takes the test of this name.
    pub fn takes(&self, name: &str) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| name.contains(pattern))
    }

    /// Whether it may take one of the workspace's own tests: to find out, they have to be compiled, which takes minutes. Patterns of
    /// scenarios are told by a hyphen or another slash than that of `workspace/`, which names of functions do not have.
    pub fn may_take_workspace(&self) -> bool {
        let of_scenarios = |pattern: &String| {
            pattern.contains('-') || (pattern.contains('/') && !pattern.contains("workspace/"))
        };
        self.patterns.is_empty() || !self.patterns.iter().all(of_scenarios)
    }

    /// Each pattern has to take something: one that does not is misspelt, or, where it would take what is `left_out`, asks the wrong
    /// command. An error names it.
    pub fn check(&self, taken: &[&str], left_out: &[&str]) -> Result<()> {
        for pattern in self.patterns {
            if taken.iter().any(|name| name.contains(pattern)) {
                continue;
            }
            let left_out: Vec<&str> = left_out
                .iter()
                .copied()
                .filter(|name| name.contains(pattern))
                .collect();
            if left_out.is_empty() {
                bail!("no test's name contains `{pattern}`; `--list` prints the names");
            }
            bail!("only `lab prove` runs {}", left_out.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Selection;

    const SCENARIOS: [&str; 3] = [
        "loop/writes-a-good-image",
        "vm/good-upgrade",
        "cluster/the-api",
    ];

    fn patterns(patterns: &[&str]) -> Vec<String> {
        patterns.iter().map(|&pattern| pattern.to_owned()).collect()
    }

    #[test]
    fn names_are_taken_as_they_are_printed_and_by_any_part() {
        let name = "workspace/slotd_image::write::relay::tests::a_b";
        for pattern in [name, "slotd_image::write::", "workspace/", "a_b"] {
            let patterns = patterns(&["other", pattern]);
            assert!(Selection::new(&patterns).takes(name), "{pattern}");
        }
        for pattern in ["workspace/write::", "slotd_crds::write::"] {
            let patterns = patterns(&[pattern]);
            assert!(!Selection::new(&patterns).takes(name), "{pattern}");
        }
        assert!(Selection::new(&[]).takes(name));
    }

    #[test]
    fn patterns_of_scenarios_alone_compile_nothing() {
        for (only, workspace) in [
            (&[][..], true),
            (&["vm/"], false),
            (&["good-upgrade", "cluster/the-api"], false),
            // Both a scenario and a function may be called so.
            (&["good"], true),
            (&["vm/", "workspace/slotd_image::"], true),
            (&["slotd_image::write"], true),
            (&["vm/x"], false),
            (&["workspace/documentation"], true),
        ] {
            let patterns = patterns(only);
            let selection = Selection::new(&patterns);
            assert_eq!(selection.may_take_workspace(), workspace, "{only:?}");
        }
    }

    #[test]
    fn a_pattern_that_takes_nothing_is_an_error_that_names_it() {
        let check = |only: &[&str]| {
            let patterns = patterns(only);
            Selection::new(&patterns).check(&SCENARIOS[..2], &SCENARIOS[2..])
        };
        check(&[]).unwrap();
        check(&["good", "vm/"]).unwrap();
        let error = check(&["good", "godo"]).unwrap_err().to_string();
        assert!(error.contains("no test's name contains `godo`"), "{error}");
        let error = check(&["the-api"]).unwrap_err().to_string();
        assert_eq!(error, "only `lab prove` runs cluster/the-api");
    }
}
