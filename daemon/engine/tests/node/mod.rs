//! A model of one node: disk, boot loader, power, and the driver of the engine. Every effect checks the
//! promises that it could break.

#![allow(dead_code, reason = "each test program uses its part of the model")]

mod effects;
pub(crate) mod points;
mod told;

use std::collections::HashSet;

use told::Told;

use slotd_engine::{
    Command, Digest, ErrorKind, Failure, ImageRequest, Limits, Observation, Outcome, Point, Record,
    Request, Result as Ending, Slot, SlotState, World, decode, encode, next,
};

/// What an image does when it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// What lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Image(u8, Nature),
    Partial,
}

/// What goes wrong at an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An error, and nothing was done.
    Error(ErrorKind),
    /// It was done, but the answer is an error.
    LostAnswer,
    /// The daemon dies before it.
    DaemonBefore,
    /// The daemon dies after it.
    DaemonAfter,
    /// Power is cut before it.
    PowerBefore,
    /// Power is cut in the middle of it (a write leaves a part).
    PowerWithin,
    /// Power is cut after it.
    PowerAfter,
    /// Power is cut after it, and the record is gone.
    RecordLost,
    /// The record cannot be written for it.
    Unrecorded,
    /// It hangs, and was not done, until somebody ends that: see [`Node::hang`].
    Hangs,
    /// It was done, and hangs before it could say so.
    HangsAfter,
}

/// `WatchdogSec` of slotd.service, in seconds.
const WATCHDOG: u64 = 120;

/// What the boot generator gives a trial boot beyond the agent's deadline, in seconds.
const GENERATOR_MARGIN: u64 = 60;

pub(crate) const FAULTS: [Fault; 13] = [
    Fault::Error(ErrorKind::Retry),
    Fault::Error(ErrorKind::Unsafe),
    Fault::Error(ErrorKind::Reject),
    Fault::LostAnswer,
    Fault::DaemonBefore,
    Fault::DaemonAfter,
    Fault::PowerBefore,
    Fault::PowerWithin,
    Fault::PowerAfter,
    Fault::RecordLost,
    Fault::Unrecorded,
    Fault::Hangs,
    Fault::HangsAfter,
];

pub(crate) fn digest(number: u8) -> Digest {
    Digest::new(&format!("{number:02x}").repeat(32)).unwrap()
}

pub(crate) fn request(stage_only: bool) -> ImageRequest {
    ImageRequest {
        source: "https://example.com/image.zst".to_owned(),
        locator: Some("https://example.com/image.zst".to_owned()),
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
    stored: Option<Vec<u8>>,
    pub(crate) record: Record,
    pub(crate) history: Vec<(u64, Ending)>,
    pub(crate) ended: Vec<slotd_engine::Ended>,
    outcome: Option<Outcome>,
    pub(crate) asked: Option<Request>,
    pub(crate) command: Command,
    /// Effects so far.
    pub(crate) effects: usize,
    pub(crate) boots: u32,
    /// What goes wrong, at which effect.
    pub(crate) plan: Vec<(usize, Fault)>,
    /// What happened, for a test that fails.
    log: Vec<Told>,
    /// The states that it was in, each as a digest.
    pub(crate) states: HashSet<u64>,
}

impl Node {
    /// A proven node on slot A, with an older good image in B.
    pub(crate) fn new(nature: Nature) -> Self {
        Self {
            disk: [
                Content::Image(1, Nature::Healthy),
                Content::Image(0, Nature::Healthy),
            ],
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
            stored: None,
            record: Record::default(),
            history: Vec::new(),
            ended: Vec::new(),
            outcome: None,
            asked: None,
            command: Command::Rest,
            effects: 0,
            boots: 0,
            plan: Vec::new(),
            log: Vec::new(),
            states: HashSet::new(),
        }
    }

    pub(crate) fn state(&self, slot: Slot) -> SlotState {
        match self.loader[index(slot)] {
            // A spent trial that does not run is bad.
            SlotState::Trial { left: 0, .. } if self.booted != slot => SlotState::Bad,
            state => state,
        }
    }

    fn order(&self) -> Vec<Slot> {
        let mut slots = vec![Slot::A, Slot::B];
        slots.sort_by_key(|slot| {
            let spent = matches!(
                self.loader[index(*slot)],
                SlotState::Bad | SlotState::Trial { left: 0, .. }
            );
            (spent, std::cmp::Reverse(self.sequence[index(*slot)]))
        });
        slots.retain(|slot| self.loader[index(*slot)] != SlotState::Empty);
        slots
    }

    /// Power comes back: the loader chooses, counts and starts, until something with an agent runs.
    pub(crate) fn power_cycle(&mut self) {
        loop {
            self.boots += 1;
            assert!(self.boots < 60, "endless reboots\n{}", self.story());
            let slot = self
                .order()
                .into_iter()
                .next()
                .expect("nothing can be booted");
            let content = self.disk[index(slot)];
            let state = &mut self.loader[index(slot)];
            if let SlotState::Trial { left, done } = *state {
                *state = SlotState::Trial {
                    left: left - 1,
                    done: done + 1,
                };
                self.trials[index(slot)] += 1;
                let trials = self.trials[index(slot)];
                assert!(
                    trials <= self.limits.tries,
                    "promise 5: {trials} trial boots"
                );
            }
            self.booted = slot;
            self.boot += 1;
            self.uptime = 30;
            self.going_down = false;
            self.boot_complete = !matches!(content, Content::Image(_, Nature::Hangs));
            self.settled = false;
            self.log.push(Told::Boot(slot, self.loader));
            match content {
                Content::Partial => panic!("a partial image was booted"),
                Content::Image(_, Nature::Panics) => {}
                Content::Image(..) => break,
            }
        }
        self.daemon_restart();
    }

    pub(crate) fn daemon_restart(&mut self) {
        self.bench = [false; 3];
        self.outcome = None;
        self.asked = None;
        self.record = match &self.stored {
            Some(bytes) => decode(bytes).expect("our own record can be read"),
            None => Record::default(),
        };
    }

    pub(crate) fn observe(&self) -> Observation {
        let staged = [Slot::A, Slot::B].into_iter().find_map(|slot| {
            let known = self.marker[index(slot)].clone()?;
            (self.state(slot) != SlotState::Good).then_some((slot, known))
        });
        Observation {
            world: World {
                booted: Some(self.booted),
                loader: Some([self.state(Slot::A), self.state(Slot::B)]),
                trouble: None,
                next_boot: self.order().into_iter().next(),
                staged,
                boot_id: format!("boot-{}", self.boot),
                uptime: self.uptime,
                now: 1_700_000_000 + u64::from(self.boot) * 1000 + self.uptime,
                settled: self.settled,
            },
            request: self.asked.clone(),
            limits: self.limits,
        }
    }

    /// One turn of the driver. `false` when it rests.
    pub(crate) fn turn(&mut self) -> bool {
        let step = next(&self.record, &self.observe(), self.outcome.take().as_ref());
        self.asked = None;
        let fault = self
            .plan
            .iter()
            .find(|(at, _)| *at == self.effects)
            .map(|(_, fault)| *fault);
        if step.record != self.record || self.stored.is_none() {
            if fault == Some(Fault::Unrecorded) {
                self.effects += 1;
                if step.command.needs_record() {
                    self.outcome = Some(failed(ErrorKind::Configuration));
                    return true;
                }
            } else {
                self.stored = Some(encode(&step.record).unwrap());
            }
        }
        let ended = step.record.last != self.record.last;
        self.record = step.record;
        self.command = step.command.clone();
        self.log
            .push(Told::Turn(self.record.at, step.command.clone()));
        if ended {
            self.reported();
        }
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

    fn effect(&mut self, command: &Command, fault: Option<Fault>) {
        self.effects += 1;
        match fault {
            None | Some(Fault::Unrecorded) => self.outcome = Some(self.apply(command)),
            Some(Fault::Error(kind)) => self.outcome = Some(failed(kind)),
            Some(Fault::LostAnswer) => {
                self.apply(command);
                self.outcome = Some(failed(ErrorKind::Retry));
            }
            Some(Fault::DaemonBefore) => self.daemon_restart(),
            Some(Fault::DaemonAfter) => {
                self.apply(command);
                self.daemon_restart();
            }
            Some(Fault::PowerBefore) => self.power_cycle(),
            Some(Fault::PowerWithin) => {
                if let Command::Write { slot } = command {
                    assert_ne!(*slot, self.booted, "promise 1");
                    self.disk[index(*slot)] = Content::Partial;
                }
                self.power_cycle();
            }
            Some(Fault::PowerAfter) => {
                self.apply(command);
                self.power_cycle();
            }
            Some(Fault::RecordLost) => {
                self.apply(command);
                self.stored = None;
                self.power_cycle();
            }
            Some(Fault::Hangs) => self.hang(),
            Some(Fault::HangsAfter) => {
                self.apply(command);
                self.hang();
            }
        }
        if let Some(fault) = fault {
            self.log.push(Told::Fault(fault));
        }
        self.states.insert(self.fingerprint());
        self.check();
    }

    /// What hangs is ended by the service's watchdog, or on a trial boot by the generator's limit, whichever is first.
    fn hang(&mut self) {
        let limit = self.limits.trial_deadline + GENERATOR_MARGIN;
        let on_trial = matches!(self.loader[index(self.booted)], SlotState::Trial { .. });
        self.uptime += WATCHDOG;
        if on_trial && self.uptime >= limit {
            self.power_cycle();
        } else {
            self.daemon_restart();
        }
    }

    /// The promises that hold at every instant.
    fn check(&self) {
        let good = [Slot::A, Slot::B].into_iter().any(|slot| {
            self.state(slot) == SlotState::Good
                && matches!(self.disk[index(slot)], Content::Image(..))
        });
        assert!(good, "promise 2: no good slot\n{}", self.story());
        for slot in [Slot::A, Slot::B] {
            if let SlotState::Trial { .. } = self.loader[index(slot)] {
                let Content::Image(number, _) = self.disk[index(slot)] else {
                    panic!("promise 3: a partial image on trial\n{}", self.story());
                };
                assert_eq!(self.marker[index(slot)], Some(digest(number)), "promise 3");
            }
        }
    }

    /// Promise 4, at the moment at which an end is recorded.
    fn reported(&self) {
        let Some(last) = &self.record.last else {
            return;
        };
        let story = || self.story();
        match last.result {
            Ending::Completed => {
                assert_eq!(self.booted, last.slot, "promise 4\n{}", story());
                assert_eq!(
                    self.state(last.slot),
                    SlotState::Good,
                    "promise 4\n{}",
                    story()
                );
            }
            Ending::RolledBack if last.kind == slotd_engine::Kind::Rollback => {
                assert_eq!(self.booted, last.slot, "promise 4\n{}", story());
            }
            Ending::RolledBack => {
                assert_ne!(self.booted, last.slot, "promise 4\n{}", story());
                assert!(last.failure.is_some(), "no reason\n{}", story());
            }
            Ending::Failed => assert!(last.failure.is_some(), "no reason\n{}", story()),
            Ending::Cancelled => {}
        }
    }

    /// The record as it was written.
    pub(crate) fn keep(&mut self, bytes: Vec<u8>) {
        self.stored = Some(bytes);
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
            let step = next(&self.record, &self.observe(), self.outcome.clone().as_ref());
            if step.record.at == at {
                self.record = step.record;
                self.stored = Some(encode(&self.record).unwrap());
                self.outcome = Some(Outcome::Waited);
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

fn failed(kind: ErrorKind) -> Outcome {
    Outcome::Failed(Failure::new(kind, "as planned"))
}

pub(crate) fn index(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}
