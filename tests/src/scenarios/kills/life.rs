//! An upgrade of a stand-in from its beginning to its end, whatever its agent is killed at.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use slotd_bootctl::SlotName;

use super::calls::{self, Call};
use crate::scenarios::judge::Judge;
use crate::scenarios::lone::Images;
use crate::standin::{Alone, Health, Sight, was_killed};

/// Many times what a whole upgrade takes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Between two looks at the machine.
const TICK: Duration = Duration::from_millis(10);

/// How the new version is.
const UNWELL: &str = "required.d/50-app";

/// How an upgrade ends, by how healthy the new version is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Completed,
    RolledBack,
}

/// What happens after a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// PID 1 starts the agent again.
    AgentStarts,
    /// The machine starts again.
    MachineStarts,
}

/// One upgrade, as often as it is asked for.
#[derive(Debug)]
pub(super) struct Course<'a> {
    folder: PathBuf,
    images: &'a Images,
    end: End,
}

impl<'a> Course<'a> {
    pub(super) fn new(folder: &Path, images: &'a Images, end: End) -> Self {
        Self {
            folder: folder.to_owned(),
            images,
            end,
        }
    }

    /// Goes through it undisturbed; what each of the agent's processes changes, one call after the other.
    pub(super) fn record(&self) -> Result<Vec<Vec<Call>>> {
        let mut run = Run::new(self, None)?;
        run.live()?;
        let root = run.node.root().to_owned();
        let recordings = (0..run.processes).map(|process| {
            let path = run.recording(process);
            let text =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            Ok(calls::changes(&text, &root))
        });
        recordings.collect()
    }

    /// Goes through it with a kill in one of the agent's processes. What it was killed at; none where it did not come that far.
    pub(super) fn kill(&self, process: usize, call: &Call, after: After) -> Result<Option<String>> {
        let kill = Kill {
            process,
            call,
            after,
        };
        let mut run = Run::new(self, Some(kill))?;
        let lived = run.live();
        if let Err(error) = lived {
            let log = fs::read_to_string(run.node.log()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(40)..].join("\n");
            return Err(error.context(format!("the agent's log ends with\n{end}")));
        }
        let place = run.place.take();
        let root = run.node.root().to_owned();
        let log = run.node.log().to_owned();
        drop(run);
        fs::remove_dir_all(&root)
            .and_then(|()| fs::remove_file(log))
            .context("removing a stand-in")?;
        Ok(place)
    }
}

/// When and how the agent dies.
#[derive(Debug, Clone, Copy)]
struct Kill<'a> {
    process: usize,
    call: &'a Call,
    after: After,
}

/// One stand-in on its way.
struct Run<'a> {
    course: &'a Course<'a>,
    kill: Option<Kill<'a>>,
    node: Alone,
    judge: Judge,
    /// Processes of the agent so far.
    processes: usize,
    asked: bool,
    /// What the agent was killed at.
    place: Option<String>,
}

impl<'a> Run<'a> {
    fn new(course: &'a Course<'a>, kill: Option<Kill<'a>>) -> Result<Self> {
        let root = course.folder.join("node");
        if root.exists() {
            // The one before, which was only looked at.
            fs::remove_dir_all(&root).context("removing a stand-in")?;
        }
        let (node, judge) = course.images.machine(&root)?;
        if course.end == End::RolledBack {
            let failing = Health::Failing {
                check: UNWELL.to_owned(),
                output: "refused".to_owned(),
            };
            node.set_health(&course.images.next.image.version, failing)?;
        }
        Ok(Self {
            course,
            kill,
            judge,
            node,
            processes: 0,
            asked: false,
            place: None,
        })
    }

    fn recording(&self, process: usize) -> PathBuf {
        self.node.root().join(format!("calls-{process}"))
    }

    /// From the first boot until the upgrade has ended and all is done for it.
    fn live(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        self.boot()?;
        loop {
            ensure!(Instant::now() < deadline, "no end: {:?}", self.node.boots());
            match self.node.look()? {
                Sight::Working if !self.asked => self.ask()?,
                Sight::Working if self.ended()? => break,
                Sight::Working => std::thread::sleep(TICK),
                Sight::Died(status) if self.kill.is_some() && was_killed(status) => {
                    self.was_killed()?;
                }
                Sight::Died(status) => bail!("the agent ended: {status}"),
                Sight::RebootAsked => self.boot()?,
            }
        }
        self.node.kill_agent();
        self.ended_as_it_should()
    }

    /// Starts the machine, which has to start what anybody could have said before, and then the agent.
    fn boot(&mut self) -> Result<()> {
        self.node.kill_agent();
        let next = self.judge.sound().context("before a boot")?;
        let boot = self.node.power_cycle()?;
        let letter = |slot: SlotName| if slot == SlotName::A { 'a' } else { 'b' };
        ensure!(
            letter(boot.slot) == next.slot,
            "{boot:?} instead of {next:?}"
        );
        self.start_agent()
    }

    fn start_agent(&mut self) -> Result<()> {
        let process = self.processes;
        self.processes += 1;
        let output = self.recording(process);
        let under = match &self.kill {
            None => calls::recorder(&output),
            Some(kill) if kill.process == process => calls::killer(kill.call, &output),
            Some(_) => Vec::new(),
        };
        self.node.start_agent(&under)
    }

    fn was_killed(&mut self) -> Result<()> {
        let kill = self.kill.context("a kill")?;
        let path = self.recording(kill.process);
        let recording =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        self.place = calls::last_entered(&recording, self.node.root());
        ensure!(
            self.processes == kill.process + 1 && self.place.is_some(),
            "the agent died by itself"
        );
        // Whoever asked may never have heard.
        self.asked = false;
        match kill.after {
            After::MachineStarts => self.boot(),
            After::AgentStarts => {
                self.judge.sound().context("after the kill")?;
                self.start_agent()
            }
        }
    }

    /// Asks for the upgrade, unless the agent knows of one. An agent that does not answer is asked again.
    fn ask(&mut self) -> Result<()> {
        let bus = self.node.bus();
        let Ok(status) = bus.status() else {
            return Ok(());
        };
        let Images { url, next, .. } = self.course.images;
        self.asked = status["upgrade"]["phase"] != "Idle"
            || !self.node.history()?.is_empty()
            || bus.install(url, &next.image.checksum).is_ok();
        Ok(())
    }

    fn ended(&self) -> Result<bool> {
        Ok(self.node.settled() && !self.node.history()?.is_empty())
    }

    fn ended_as_it_should(&mut self) -> Result<()> {
        let Images { running, next, .. } = self.course.images;
        let (slot, version) = match self.course.end {
            End::Completed => ('b', &next.image.version),
            End::RolledBack => ('a', &running.image.version),
        };
        let entry = self.judge.sound().context("at the end")?;
        ensure!(
            entry.slot == slot
                && entry.left.is_none()
                && self.judge.holds(slot)? == Some(version.as_str()),
            "at the end {entry:?}"
        );
        let history = self.node.history()?;
        let results: Vec<(&str, &str)> = history
            .iter()
            .map(|entry| (entry.kind.as_str(), entry.result.as_str()))
            .collect();
        let result = format!("{:?}", self.course.end);
        ensure!(results == [("install", result.as_str())], "{history:?}");
        if self.course.end == End::RolledBack {
            let check = history
                .first()
                .and_then(|entry| entry.failure.as_ref()?.check.clone());
            ensure!(check.as_deref() == Some(UNWELL), "{history:?}");
        }
        self.nothing_is_left_over()?;
        let boot = self.node.power_cycle()?;
        ensure!(boot.version == *version, "the next boot is {boot:?}");
        Ok(())
    }

    /// That no file that was being written stays on the loader's partition.
    fn nothing_is_left_over(&self) -> Result<()> {
        let esp = self.node.root().join("efi");
        for folder in ["loader/entries", "slotd/a", "slotd/b"] {
            let Ok(files) = fs::read_dir(esp.join(folder)) else {
                continue;
            };
            for file in files {
                let name = file.context("listing files")?.file_name();
                ensure!(
                    !name.to_string_lossy().contains(".tmp"),
                    "{folder}/{} is left over",
                    name.display()
                );
            }
        }
        Ok(())
    }
}
