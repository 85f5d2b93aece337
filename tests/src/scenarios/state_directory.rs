//! A state directory that keeps nothing, or holds what nobody can read: nothing is begun, nothing is lost, and a trial boot comes to
//! its end all the same. On a small file system of its own.

mod trouble;

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::trouble::{Place, Trouble};
use super::judge::Judge;
use super::lone::Images;
use super::on_loop_disk;
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::runner::Test;
use crate::standin::{Alone, Health, Sight};

/// Many times what anything here takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a failing trial fails of.
const UNWELL: &str = "required.d/50-app";

/// What `slotd` ends with where the configuration has to change first.
const CONFIGURATION: i32 = 3;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_loop_disk(
            "loop/what-cannot-be-remembered-is-not-begun-and-goes-on-once-it-can-be",
            asked,
        ),
        on_loop_disk(
            "loop/a-trial-boot-comes-to-its-end-whatever-the-state-directory-holds",
            on_trial,
        ),
    ]
}

/// A machine with such a directory.
struct Rig<'a> {
    lab: &'a Lab,
    images: &'a Images,
    // Before the place, which it uses.
    node: Alone,
    place: Place,
    judge: Judge,
}

impl<'a> Rig<'a> {
    fn new(lab: &'a Lab, images: &'a Images, name: &str) -> Result<Self> {
        let root = lab.folder().join(name);
        let (node, judge) = images.machine(&root)?;
        let place = Place::mount(&node, lab.folder())?;
        Ok(Self {
            lab,
            images,
            node,
            place,
            judge,
        })
    }

    /// Switches it on, and waits until its agent answers.
    fn start(&mut self) -> Result<()> {
        self.node.power_cycle()?;
        self.node.start_agent(&[])?;
        wait_until("the agent on its bus", PATIENCE, || {
            self.node.bus().status().map(drop)
        })
    }

    /// Runs `slotd`, which asks this machine's agent.
    fn slotd(&self, arguments: &[&str]) -> Result<Output> {
        Command::new(self.lab.programs()?.join("slotd"))
            .args(arguments)
            .env("DBUS_SYSTEM_BUS_ADDRESS", self.node.address())
            .output()
            .context("starting slotd")
    }

    fn install(&self) -> Result<Output> {
        let Images { url, next, .. } = self.images;
        self.slotd(&["install", url, "--checksum", &next.image.checksum])
    }

    /// That an upgrade is refused for the trouble, with slots and loader as they were.
    fn refuses(&self, says: &str) -> Result<()> {
        let before = self.judge.fingerprint()?;
        let output = self.install()?;
        let text = String::from_utf8_lossy(&output.stderr);
        let place = self.node.state().display().to_string();
        ensure!(
            output.status.code() == Some(CONFIGURATION)
                && text.contains(says)
                && text.contains(&place),
            "not refused with {says:?} and {place}: {output:?}"
        );
        ensure!(
            self.judge.fingerprint()? == before,
            "what was refused changed slots or loader"
        );
        Ok(())
    }

    /// Asks for the upgrade and waits until its reboot is due.
    fn stage(&mut self) -> Result<()> {
        let Images { url, next, .. } = self.images;
        self.node.bus().install(url, &next.image.checksum)?;
        self.node
            .wait("a reboot into the trial", PATIENCE, |_, sight| {
                Ok(sight == Sight::RebootAsked)
            })
    }
}

fn asked(lab: &Lab) -> Result<()> {
    let images = Images::make(lab.folder())?;
    for trouble in Trouble::ALL {
        before_the_start(lab, &images, trouble)
            .with_context(|| format!("{trouble:?} at the start"))?;
    }
    for trouble in [Trouble::Full, Trouble::ReadOnly, Trouble::Immutable] {
        while_it_runs(lab, &images, trouble).with_context(|| format!("{trouble:?} meanwhile"))?;
    }
    Ok(())
}

/// The agent finds it so, refuses, and takes the next request once it is mended, without a restart.
fn before_the_start(lab: &Lab, images: &Images, trouble: Trouble) -> Result<()> {
    let mut rig = Rig::new(lab, images, &format!("start-{trouble:?}").to_lowercase())?;
    rig.place.begin(trouble)?;
    rig.start()?;
    if let Some(says) = trouble.says() {
        rig.refuses(says)?;
    }
    rig.place.end(trouble)?;
    rig.stage()?;
    rig.judge.sound().map(drop)
}

/// What was fit when the agent started is not any more, and is again.
fn while_it_runs(lab: &Lab, images: &Images, trouble: Trouble) -> Result<()> {
    let mut rig = Rig::new(lab, images, &format!("runs-{trouble:?}").to_lowercase())?;
    rig.start()?;
    rig.place.begin(trouble)?;
    rig.refuses(trouble.says().context("words")?)?;
    rig.place.end(trouble)?;
    rig.stage()?;
    rig.judge.sound().map(drop)
}

fn on_trial(lab: &Lab) -> Result<()> {
    let images = Images::make(lab.folder())?;
    for healthy in [true, false] {
        for trouble in Trouble::ALL {
            trial(lab, &images, trouble, healthy)
                .with_context(|| format!("{trouble:?}, healthy: {healthy}"))?;
        }
    }
    Ok(())
}

fn trial(lab: &Lab, images: &Images, trouble: Trouble, healthy: bool) -> Result<()> {
    let name = format!("trial-{trouble:?}-{healthy}").to_lowercase();
    let mut rig = Rig::new(lab, images, &name)?;
    if !healthy {
        let failing = Health::Failing {
            check: UNWELL.to_owned(),
            output: "refused".to_owned(),
        };
        rig.node.set_health(&images.next.image.version, failing)?;
    }
    rig.start()?;
    rig.stage()?;
    rig.node.kill_agent();
    rig.place.begin(trouble)?;
    rig.start()?;
    let (slot, result) = if healthy {
        ('b', "Completed")
    } else {
        rig.node.wait("a reboot back", PATIENCE, |_, sight| {
            Ok(sight == Sight::RebootAsked)
        })?;
        rig.start()?;
        ('a', "RolledBack")
    };
    rig.node.wait("the end of the trial", PATIENCE, |node, _| {
        Ok(node.settled())
    })?;
    let next = rig.judge.sound()?;
    ensure!(
        next.slot == slot && next.left.is_none(),
        "after the trial {next:?} is started"
    );
    rig.place.end(trouble)?;
    // Whoever asks has the agent look; there is nothing to be activated.
    let asked = rig.slotd(&["activate"])?;
    ensure!(!asked.status.success(), "{asked:?}");
    if !healthy && !trouble.keeps_the_record() {
        // Nobody can remember what was rolled back; nothing is made up.
        let history = rig.node.history()?;
        ensure!(
            history.iter().all(|entry| entry.result == result),
            "{history:?}"
        );
        return Ok(());
    }
    rig.node.wait("the history", PATIENCE, |node, _| {
        Ok(!node.history()?.is_empty())
    })?;
    let history = rig.node.history()?;
    let kind = if trouble.keeps_the_record() {
        "install"
    } else {
        "adopted"
    };
    ensure!(
        history.len() == 1 && history[0].result == result && history[0].kind == kind,
        "{history:?}"
    );
    Ok(())
}
