//! What a test applies for a while.

use anyhow::Result;

use crate::cluster::Client;

/// Documents of the control plane that tests share. They go with this, also where the test that wanted them fails.
pub(crate) struct Applied<'a> {
    admin: &'a Client,
    kinds: &'static str,
}

impl<'a> Applied<'a> {
    /// Applies them; `kinds` names them, as `kind/name`, with a space between two.
    pub(crate) fn new(admin: &'a Client, documents: &str, kinds: &'static str) -> Result<Self> {
        admin.apply(documents)?;
        Ok(Self { admin, kinds })
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        for kind in self.kinds.split(' ') {
            if let Err(error) = self.admin.run(&["delete", kind]) {
                eprintln!("lab: {kind} is left behind: {error:#}");
            }
        }
    }
}
