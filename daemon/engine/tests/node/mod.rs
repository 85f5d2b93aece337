//! A model of one node: disk, boot loader, power, and the driver of the engine. Of the engine it has the types that the two
//! speak with, and nothing else: what a loader does, what a medium holds and what was promised is written here once more.
//! After every effect the [`judge`] asks for each promise that a node keeps.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test program uses its part of the model"
)]

mod effects;
mod fault;
mod judge;
pub(crate) mod operation;
pub(crate) mod points;
mod power;
mod told;

use std::rc::Rc;
use std::sync::LazyLock;

use judge::Judge;
use told::{Story, Told};

pub(crate) use fault::{EFFECTS, FAULTS, Fault};

use slotd_engine::{
    Command, Digest, Ended, ErrorKind, Event, Failure, ImageRequest, Limits, Observation, Outcome,
    Phase, Point, Record, Request, Result as Ending, Slot, SlotState, World, next,
};

/// What an image does when it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Nature {
    Healthy,
    /// A required check fails.
    Unhealthy,
    /// No agent ever comes up; the machine reboots by itself.
    Panics,
    /// The checks pass, but `boot-complete.target` is never reached.
    Hangs,
    /// The look into the slot refuses it.
    Unfit,
    /// It is refused before anything is written.
    Refused,
}

pub(crate) const NATURES: [Nature; 6] = [
    Nature::Healthy,
    Nature::Unhealthy,
    Nature::Panics,
    Nature::Hangs,
    Nature::Unfit,
    Nature::Refused,
];

/// What lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Content {
    Image(u8, Nature),
    Partial,
}

/// What is wrong with the node's surroundings until somebody mends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Trouble {
    /// The loader's data can be neither read nor written.
    pub(crate) blind: bool,
    /// The state directory cannot be written.
    pub(crate) sealed: bool,
    /// The loader starts no slot that is on trial.
    pub(crate) deaf: bool,
    /// A pod cannot be moved away.
    pub(crate) stuck: bool,
    /// This system is none of the two slots: a rescue stick.
    pub(crate) rescue: bool,
}

/// What no log and no status may show.
pub(crate) const SECRET: &str = "s3cret";

/// The digest of the image of this number.
pub(crate) fn digest(number: u8) -> Digest {
    digest_of(number).clone()
}

fn digest_of(number: u8) -> &'static Digest {
    static ALL: LazyLock<Vec<Digest>> = LazyLock::new(|| {
        let text = |number| format!("{number:02x}").repeat(32);
        (0..16_u8)
            .map(|number| Digest::new(&text(number)).unwrap())
            .collect()
    });
    &ALL[usize::from(number)]
}

pub(crate) fn request(stage_only: bool) -> ImageRequest {
    ImageRequest {
        source: "https://example.com/image.zst".to_owned(),
        locator: Some(format!("https://example.com/image.zst?token={SECRET}")),
        checksum: None,
        expanded_checksum: None,
        size: None,
        version: Some("2.0.0".to_owned()),
        stage_only,
        allow_downgrade: false,
        allow_same_version: false,
        allow_no_agent: false,
        asked_anew: true,
        task: None,
    }
}

/// The node and the driver of its agent.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) disk: [Content; 2],
    pub(crate) loader: [SlotState; 2],
    pub(crate) marker: [Option<Digest>; 2],
    sequence: [u32; 2],
    pub(crate) booted: Slot,
    boot: u32,
    uptime: u64,
    going_down: bool,
    boot_complete: bool,
    settled: bool,
    /// Whether the node is cordoned by us.
    pub(crate) cordoned: bool,
    pub(crate) limits: Limits,
    /// Trial boots of each slot since it was armed.
    trials: [u32; 2],
    /// The image that an install writes.
    pub(crate) supply: (u8, Nature),
    /// The proofs of the staging under way; gone with the daemon.
    bench: [bool; 3],
    pub(crate) trouble: Trouble,
    /// The record as it is on the medium.
    stored: Option<Record>,
    /// Whether the driver knows that the medium has its record.
    kept: bool,
    pub(crate) record: Record,
    pub(crate) history: Vec<(u64, Ending)>,
    pub(crate) ended: Vec<Rc<Ended>>,
    outcome: Option<Outcome>,
    pub(crate) asked: Option<Request>,
    pub(crate) command: Command,
    /// Effects so far.
    pub(crate) effects: usize,
    pub(crate) boots: u32,
    /// What goes wrong, at which effect.
    pub(crate) plan: Vec<(usize, Fault)>,
    judge: Judge,
    story: Story,
    /// The row that the last turn took.
    pub(crate) moved: Option<(Point, Event)>,
    /// The faults that struck, and what they struck.
    pub(crate) struck: Vec<(Fault, &'static str)>,
}

impl Node {
    /// A proven node on slot A, with an older good image in B.
    pub(crate) fn new(nature: Nature) -> Self {
        let disk = [
            Content::Image(1, Nature::Healthy),
            Content::Image(0, Nature::Healthy),
        ];
        Self {
            disk,
            loader: [SlotState::Good, SlotState::Good],
            marker: [Some(digest(1)), Some(digest(0))],
            sequence: [2, 1],
            booted: Slot::A,
            boot: 1,
            uptime: 30,
            going_down: false,
            boot_complete: true,
            settled: true,
            cordoned: false,
            limits: Limits::default(),
            trials: [0, 0],
            supply: (2, nature),
            bench: [false; 3],
            trouble: Trouble::default(),
            stored: None,
            kept: true,
            record: Record::default(),
            history: Vec::new(),
            ended: Vec::new(),
            outcome: None,
            asked: None,
            command: Command::Rest,
            effects: 0,
            boots: 0,
            plan: Vec::new(),
            judge: Judge::new(disk),
            story: Story::default(),
            moved: None,
            struck: Vec::new(),
        }
    }

    pub(crate) fn observe(&self) -> Observation {
        let seen = !self.trouble.blind;
        Observation {
            world: World {
                booted: (!self.trouble.rescue).then_some(self.booted),
                loader: seen.then(|| [self.state(Slot::A), self.state(Slot::B)]),
                trouble: (!seen).then(|| failure(ErrorKind::Configuration)),
                next_boot: self.order().into_iter().next().filter(|_| seen),
                images: self.marker.clone().map(|known| known.filter(|_| seen)),
                boot_id: self.boot_id(),
                uptime: self.uptime,
                now: 1_700_000_000 + u64::from(self.boot) * 1000 + self.uptime,
                settled: self.settled,
            },
            request: self.asked.clone(),
            limits: self.limits,
        }
    }

    fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    /// One turn of the driver. `false` when it rests.
    pub(crate) fn turn(&mut self) -> bool {
        let last = self.outcome.take();
        let step = next(&self.record, &self.observe(), last.as_ref());
        let asked = self.asked.take().is_some();
        let fault = self
            .plan
            .iter()
            .find(|(at, _)| *at == self.effects)
            .map(|(_, fault)| *fault);
        if (!self.kept || step.record != self.record) && !self.keep(&step.record, fault) {
            self.kept = false;
            if step.command.needs_record() {
                // Whoever asked is told, and all goes on as if nobody had.
                self.outcome = if asked {
                    last
                } else {
                    Some(failed(ErrorKind::Configuration))
                };
                self.moved = None;
                return true;
            }
        }
        self.moved = step.event.map(|event| (self.record.at, event));
        let ended = step.record.last != self.record.last;
        self.record = step.record;
        self.command = step.command.clone();
        self.story
            .push(Told::Turn(self.record.at, step.command.clone()));
        if ended {
            self.reported();
        }
        self.uncordon();
        match step.command {
            Command::Rest if !self.going_down => return false,
            Command::Rest | Command::Wait { .. } => {
                if let Command::Wait { seconds } = step.command {
                    self.uptime += seconds;
                }
                if self.going_down {
                    self.power_cycle();
                } else {
                    self.outcome = Some(Outcome::Waited);
                }
            }
            command => self.effect(&command, fault),
        }
        true
    }

    /// Writes the record down; whether the driver hears that it was.
    fn keep(&mut self, record: &Record, fault: Option<Fault>) -> bool {
        let fails = self.trouble.sealed || fault == Some(Fault::Unrecorded);
        if !fails {
            self.stored = Some(record.clone());
            self.kept = true;
        }
        if let Some(fault @ (Fault::Unrecorded | Fault::RecordUnanswered)) = fault {
            self.strikes(fault, "the record");
            self.effects += 1;
        }
        let heard = !fails && fault != Some(Fault::RecordUnanswered);
        self.judge.unrecorded |= !heard;
        heard
    }

    /// What comes after a fault is counted anew.
    fn strikes(&mut self, fault: Fault, effect: &'static str) {
        self.struck.push((fault, effect));
        self.story.push(Told::Fault(fault));
        self.judge.reboots = 0;
    }

    /// What the adapter does between two steps: a cordon of ours stays for as long as the upgrade needs it.
    fn uncordon(&mut self) {
        let needed = matches!(
            self.record.phase(),
            Phase::Draining | Phase::Activating | Phase::Confirming
        );
        if !needed {
            self.cordoned = false;
            self.judge.drained = false;
        }
    }

    /// The record is that one from now on, and it is on the medium.
    pub(crate) fn resume(&mut self, record: Record) {
        self.stored = Some(record.clone());
        self.kept = true;
        self.record = record;
    }

    /// Runs until it rests.
    pub(crate) fn settle(&mut self) {
        for _ in 0..2000 {
            if !self.turn() {
                return;
            }
        }
        panic!("no end\n{}", self.story());
    }

    /// Runs until the record stands there, before the command of that point is carried out.
    pub(crate) fn run_to(&mut self, at: Point) {
        for _ in 0..200 {
            if self.stops_at(at) {
                return;
            }
            assert!(
                self.turn(),
                "it rests at {:?}\n{}",
                self.record.at,
                self.story()
            );
        }
        panic!("never at {at:?}");
    }

    /// Whether the next step leads there; then the record stands there, and nothing was done yet.
    pub(crate) fn stops_at(&mut self, at: Point) -> bool {
        let step = next(&self.record, &self.observe(), self.outcome.as_ref());
        if step.record.at != at {
            return false;
        }
        self.resume(step.record);
        self.outcome = Some(Outcome::Waited);
        self.asked = None;
        true
    }

    pub(crate) fn ask(&mut self, request: Request) {
        self.asked = Some(request);
    }

    pub(crate) fn install(&mut self, stage_only: bool) {
        self.ask(Request::Install(request(stage_only)));
    }

    /// A whole upgrade.
    pub(crate) fn upgrade(&mut self) {
        self.install(false);
        self.settle();
    }

    /// The result of the last upgrade in the history.
    pub(crate) fn last(&self) -> Option<Ending> {
        self.ended.last().map(|ended| ended.result)
    }
}

fn failure(kind: ErrorKind) -> Failure {
    Failure::new(kind, "as planned")
}

fn failed(kind: ErrorKind) -> Outcome {
    Outcome::Failed(failure(kind))
}

pub(crate) fn index(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}
