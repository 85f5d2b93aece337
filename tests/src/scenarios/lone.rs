//! A stand-in of no cluster with two proven slots, the image that it is to be moved to, and who judges what comes of it.

use std::path::Path;

use anyhow::Result;

use super::judge::Judge;
use crate::server::Server;
use crate::standin::{Alone, StandInImage};

/// Images, made once for all machines of a test.
#[derive(Debug)]
pub(super) struct Images {
    /// What runs at first, in slot A.
    pub(super) running: StandInImage,
    /// What slot B holds then, proven.
    pub(super) fallback: StandInImage,
    /// What slot B is to hold.
    pub(super) next: StandInImage,
    /// Where that one is to be had.
    pub(super) url: String,
    pub(super) server: Server,
}

impl Images {
    pub(super) fn make(folder: &Path) -> Result<Self> {
        let server = Server::start()?;
        let next = StandInImage::make(folder, "v2.0.0")?;
        Ok(Self {
            running: StandInImage::make(folder, "v1.0.0")?,
            fallback: StandInImage::make(folder, "v0.9.0")?,
            url: next.publish(&server),
            next,
            server,
        })
    }

    /// A machine in a folder of its own, switched off.
    pub(super) fn machine(&self, root: &Path) -> Result<(Alone, Judge)> {
        let node = Alone::create(root, &self.running)?;
        node.put_fallback(&self.fallback)?;
        let kernel = format!("the kernel of {}\n", self.next.image.version);
        let known = [
            // As the fixture has them.
            (&self.running, "kernel of slot A"),
            (&self.fallback, "kernel of slot B"),
            (&self.next, kernel.as_str()),
        ];
        let judge = Judge::new(root, &known)?;
        Ok((node, judge))
    }
}
