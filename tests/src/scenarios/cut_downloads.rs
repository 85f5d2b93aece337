//! A download that the agent's death or the machine's cuts off: it begins anew, and of two images no mixture is ever started.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::judge::Judge;
use super::lone::Images;
use super::on_loop_disk;
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::runner::Test;
use crate::server::{Body, Fault};
use crate::standin::{Alone, Sight, StandInImage};

/// Many times what anything here takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where an image is published, and later another one.
const PATH: &str = "/image.ext4.zst";

/// Bytes a second of a download that is to be cut off; an image has some two million.
const SLOWLY: u64 = 256 << 10;

/// What has to be in the slot before. The image's first MiB is not in it: it is written last.
const WRITTEN: u64 = 1 << 20;

pub(super) fn tests() -> Vec<Test> {
    vec![on_loop_disk(
        "loop/a-download-that-is-cut-off-begins-anew-and-mixes-nothing",
        cut_off,
    )]
}

fn cut_off(lab: &Lab) -> Result<()> {
    let images = Images::make(lab.folder())?;
    let other = StandInImage::make(lab.folder(), "v3.0.0")?;
    for (name, power) in [("killed", false), ("power-cut", true)] {
        for replaced in [false, true] {
            let root = lab.folder().join(format!("{name}-{replaced}"));
            let (node, _) = images.machine(&root)?;
            let kernels = [&images.next, &other]
                .map(|image| format!("the kernel of {}\n", image.image.version));
            let judge = Judge::new(
                &root,
                &[
                    (&images.running, "kernel of slot A"),
                    (&images.fallback, "kernel of slot B"),
                    (&images.next, &kernels[0]),
                    (&other, &kernels[1]),
                ],
            )?;
            let cut = Cut {
                images: &images,
                other: &other,
                node,
                judge,
            };
            cut.through(power, replaced)?;
        }
    }
    Ok(())
}

/// A machine, and the images that it is offered one after the other.
struct Cut<'a> {
    images: &'a Images,
    other: &'a StandInImage,
    node: Alone,
    judge: Judge,
}

impl Cut<'_> {
    fn serve(&self, image: &StandInImage, fault: Fault) {
        let body = Body::File(image.image.path.clone());
        self.images.server.serve(PATH, body, fault);
    }

    fn install(&self, image: &StandInImage) -> Result<()> {
        let url = self.images.server.url(PATH);
        wait_until("the agent on its bus", PATIENCE, || {
            self.node
                .bus()
                .install(&url, &image.image.checksum)
                .map(drop)
        })
    }

    fn through(mut self, power: bool, replaced: bool) -> Result<()> {
        let next = &self.images.next;
        self.serve(next, Fault::Slow(SLOWLY));
        self.node.power_cycle()?;
        self.node.start_agent(&[])?;
        self.install(next)?;
        self.node.wait("a part of an image", PATIENCE, |node, _| {
            let status = node.bus().status()?;
            let written = status["upgrade"]["progress"]["bytesWritten"].as_u64();
            Ok(written.is_some_and(|written| written >= WRITTEN))
        })?;
        self.node.kill_agent();
        let cut = self.judge.sound()?;
        ensure!(
            cut.slot == 'a' && self.judge.holds('b')?.is_none(),
            "in the middle of a write {cut:?} would be started"
        );
        if replaced {
            self.serve(self.other, Fault::None);
        } else {
            self.serve(next, Fault::None);
        }
        if power {
            self.node.power_cycle()?;
        }
        self.node.start_agent(&[])?;
        if replaced {
            // It is another one than was asked for, from its first byte on.
            self.node.wait("a refusal", PATIENCE, |node, _| {
                Ok(!node.history()?.is_empty())
            })?;
            let history = self.node.history()?;
            let reason = history[0].failure.as_ref().map(|failure| &failure.reason);
            ensure!(
                history[0].result == "Failed"
                    && reason.is_some_and(|reason| reason.contains("checksum")),
                "{history:?}"
            );
            ensure!(self.judge.holds('b')?.is_none(), "slot B was filled");
            ensure!(self.judge.sound()?.slot == 'a', "slot B would be started");
            self.install(self.other)?;
        }
        self.node
            .wait("a reboot into the trial", PATIENCE, |_, sight| {
                Ok(sight == Sight::RebootAsked)
            })?;
        let wanted = if replaced { self.other } else { next };
        let armed = self.judge.sound()?;
        ensure!(
            armed.slot == 'b' && self.judge.holds('b')? == Some(wanted.image.version.as_str()),
            "{armed:?} with {:?}",
            self.judge.holds('b')?
        );
        let boot = self.node.power_cycle()?;
        ensure!(boot.version == wanted.image.version, "{boot:?}");
        Ok(())
    }
}
