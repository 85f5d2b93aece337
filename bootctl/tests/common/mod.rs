//! What the tests of the crate's surface share.

use slotd_bootctl::fixture::FixtureNode;
use tempfile::TempDir;

/// The usual node, and the directory that it lies in.
pub(crate) struct Machine {
    pub(crate) node: FixtureNode,
    pub(crate) dir: TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            node: FixtureNode::create(dir.path()).unwrap(),
            dir,
        }
    }
}
