//! A number of nodes, or a share of them.

/// How many of an upgrade's targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many nodes.
    Nodes(u32),
    /// So many hundredths of the targets.
    Percent(u32),
}

impl Limit {
    /// As a number out of `targets`: rounded down, and at least 1.
    #[must_use]
    pub fn of(self, targets: usize) -> usize {
        let nodes = match self {
            Self::Nodes(nodes) => usize::try_from(nodes).unwrap_or(usize::MAX),
            Self::Percent(percent) => {
                let percent = usize::try_from(percent.min(100)).unwrap_or(100);
                targets.saturating_mul(percent) / 100
            }
        };
        nodes.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;

    #[test]
    fn a_share_is_rounded_down_and_at_least_one() {
        assert_eq!(Limit::Percent(50).of(5), 2);
        assert_eq!(Limit::Percent(1).of(5), 1);
        assert_eq!(Limit::Percent(100).of(0), 1);
        assert_eq!(Limit::Percent(200).of(3), 3);
        assert_eq!(Limit::Nodes(0).of(3), 1);
        assert_eq!(Limit::Nodes(7).of(3), 7);
    }
}
