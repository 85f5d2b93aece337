//! Others on the same machine who change slots or the loader's data, or hold a slot's device: real processes on loop devices.

mod edits;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use slotd::agent::ChangeLock;
use slotd_bootctl::SlotName;

use super::judge::Judge;
use super::lone::Images;
use super::on_loop_disk;
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::process;
use crate::runner::Test;
use crate::standin::{Alone, Health, Sight};

/// Many times what anything here takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_loop_disk("loop/a-second-agent-ends-at-once", two_agents),
        on_loop_disk(
            "loop/an-agent-changes-nothing-while-somebody-else-does",
            beside_a_flash,
        ),
        on_loop_disk(
            "loop/a-slot-that-somebody-holds-or-mounts-is-not-written",
            held_slot,
        ),
        on_loop_disk(
            "loop/what-the-slot-tool-says-before-the-reboot-counts",
            before_the_reboot,
        ),
        on_loop_disk(
            "loop/what-others-change-while-an-image-is-written-ends-it",
            edits::edited,
        ),
    ]
}

/// A machine whose agent answers.
struct Rig<'a> {
    lab: &'a Lab,
    images: &'a Images,
    node: Alone,
    judge: Judge,
}

impl<'a> Rig<'a> {
    fn new(lab: &'a Lab, images: &'a Images, name: &str) -> Result<Self> {
        let (node, judge) = images.machine(&lab.folder().join(name))?;
        let mut rig = Self {
            lab,
            images,
            node,
            judge,
        };
        rig.start()?;
        Ok(rig)
    }

    fn start(&mut self) -> Result<()> {
        self.node.power_cycle()?;
        self.node.start_agent(&[])?;
        wait_until("the agent on its bus", PATIENCE, || {
            self.node.bus().status().map(drop)
        })
    }

    fn install(&self) -> Result<()> {
        let Images { url, next, .. } = self.images;
        self.node.bus().install(url, &next.image.checksum).map(drop)
    }

    /// Asks for the upgrade and waits until its reboot is due.
    fn stage(&mut self) -> Result<()> {
        self.install()?;
        self.node
            .wait("a reboot into the trial", PATIENCE, |_, sight| {
                Ok(sight == Sight::RebootAsked)
            })
    }

    /// Asks for the upgrade, which has to fail for this reason with slots and loader as they were.
    fn refuses(&mut self, says: &str) -> Result<()> {
        let before = self.judge.fingerprint()?;
        let ended = self.node.history()?.len();
        self.install()?;
        self.node.wait("the end", PATIENCE, |node, _| {
            Ok(node.history()?.len() > ended)
        })?;
        let history = self.node.history()?;
        let last = history.last().context("a history")?;
        let reason = last.failure.as_ref().map(|failure| failure.reason.as_str());
        ensure!(
            last.result == "Failed" && reason.is_some_and(|reason| reason.contains(says)),
            "not refused with {says:?}: {last:?}"
        );
        ensure!(
            self.judge.fingerprint()? == before,
            "what was refused changed slots or loader"
        );
        Ok(())
    }

    /// Runs the slot tool on this machine.
    fn bootctl(&self, arguments: &[&str]) -> Result<Output> {
        Command::new(self.lab.programs()?.join("slotd-bootctl"))
            .arg("--system-root")
            .arg(self.node.root())
            .args(arguments)
            .output()
            .context("starting the slot tool")
    }

    /// Results in the history, the first one first.
    fn results(&self) -> Result<Vec<String>> {
        let history = self.node.history()?;
        Ok(history.into_iter().map(|entry| entry.result).collect())
    }
}

fn two_agents(lab: &Lab) -> Result<()> {
    let images = Images::make(lab.folder())?;
    let mut rig = Rig::new(lab, &images, "two-agents")?;
    let (status, said) = rig.node.run_another_agent()?;
    ensure!(
        !status.success() && said.contains("another agent runs"),
        "the second agent ended with {status}: {said}"
    );
    // The first one goes on.
    rig.stage()?;
    rig.judge.sound().map(drop)
}

/// As `slotd flash` holds it from its beginning to its end.
fn beside_a_flash(lab: &Lab) -> Result<()> {
    let images = Images::make(lab.folder())?;
    let mut rig = Rig::new(lab, &images, "beside-a-flash")?;
    let flash = ChangeLock::take(&rig.node.change_lock())?;
    rig.refuses("is held")?;
    drop(flash);
    rig.stage()?;

    // A healthy trial waits for whoever is at work, and is no ill health.
    rig.start()?;
    let flash = ChangeLock::take(&rig.node.change_lock());
    let in_time = flash.is_ok();
    if in_time {
        rig.node
            .wait("a word on what is waited for", PATIENCE, |node, sight| {
                ensure!(sight == Sight::Working, "{sight:?} for a held lock");
                let status = node.bus().status()?;
                let conditions = status["conditions"].to_string();
                Ok(conditions.contains("RecordingFailed") && conditions.contains("is held"))
            })?;
    }
    drop(flash);
    rig.node.wait("the confirmation", PATIENCE, |node, _| {
        Ok(node.history()?.len() == 2)
    })?;
    let next = rig.judge.sound()?;
    ensure!(next.slot == 'b' && next.left.is_none(), "{next:?}");
    ensure!(
        rig.results()? == ["Failed", "Completed"],
        "{:?}",
        rig.results()?
    );
    lab.note(format!(
        "the lock was taken before the confirmation: {in_time}"
    ));
    falls_back_beside_a_flash(lab, &images)
}

/// An unhealthy trial does not wait for it without an end.
fn falls_back_beside_a_flash(lab: &Lab, images: &Images) -> Result<()> {
    let mut rig = Rig::new(lab, images, "falls-back")?;
    let version = &images.next.image.version;
    rig.node.set_health(version, Health::Waiting)?;
    rig.stage()?;
    rig.start()?;
    let flash = ChangeLock::take(&rig.node.change_lock())?;
    let failing = Health::Failing {
        check: "required.d/50-app".to_owned(),
        output: "refused".to_owned(),
    };
    rig.node.set_health(version, failing)?;
    rig.node.wait("a reboot back", PATIENCE, |_, sight| {
        Ok(sight == Sight::RebootAsked)
    })?;
    drop(flash);
    // The loader's own counter ends what could not be marked.
    for _ in 0..3 {
        rig.judge.sound()?;
        rig.node.kill_agent();
        rig.start()?;
        rig.node.wait("the next step", PATIENCE, |node, sight| {
            Ok(sight == Sight::RebootAsked || !node.history()?.is_empty())
        })?;
        if !rig.node.history()?.is_empty() {
            break;
        }
    }
    ensure!(rig.results()? == ["RolledBack"], "{:?}", rig.results()?);
    let next = rig.judge.sound()?;
    ensure!(next.slot == 'a', "{next:?}");
    Ok(())
}

fn held_slot(lab: &Lab) -> Result<()> {
    let images = Images::make(lab.folder())?;
    let mut rig = Rig::new(lab, &images, "held-slot")?;
    let device = rig.node.device(SlotName::B).to_owned();
    let name = device.display().to_string();
    let held: File = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(&device)
        .context("holding a slot")?;
    rig.refuses("held by another program")?;
    drop(held);
    let folder = lab.folder().join("mounted");
    fs::create_dir_all(&folder).context("making a folder")?;
    process::run("mount", |command| {
        command.args(["-o", "ro"]).arg(&device).arg(&folder)
    })?;
    let refused = rig
        .refuses("held by another program")
        .with_context(|| format!("{name} is mounted"));
    process::run("umount", |command| command.arg(&folder))?;
    refused?;
    rig.stage()?;
    rig.judge.sound().map(drop)
}

/// Between arming and the reboot somebody decides otherwise with the slot tool.
fn before_the_reboot(lab: &Lab) -> Result<()> {
    let images = Images::make(lab.folder())?;
    for (index, command) in [&["mark-bad", "B"][..], &["activate", "A"]]
        .into_iter()
        .enumerate()
    {
        let mut rig = Rig::new(lab, &images, &format!("before-the-reboot-{index}"))?;
        rig.stage()?;
        // Nobody may lose the last way back.
        let last = rig.bootctl(&["mark-bad", "A"])?;
        ensure!(last.status.code() == Some(5), "{last:?}");
        let done = rig.bootctl(command)?;
        ensure!(done.status.success(), "{done:?}");
        let next = rig.judge.sound()?;
        ensure!(
            next.slot == 'a' && next.left.is_none(),
            "{command:?}: {next:?}"
        );
        rig.start()?;
        rig.node.wait("the end", PATIENCE, |node, sight| {
            Ok(sight == Sight::RebootAsked || !node.history()?.is_empty())
        })?;
        let results = rig.results()?;
        ensure!(
            results.iter().all(|result| result != "Completed"),
            "{command:?}: {results:?}"
        );
        let next = rig.judge.sound()?;
        lab.note(format!(
            "{command:?} before the reboot: {results:?}, then {next:?}"
        ));
    }
    Ok(())
}
