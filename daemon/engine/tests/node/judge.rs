//! The promises that a node keeps, asked for at every effect: of the command before it is carried out, of what it changed, of
//! all that is there afterwards, and of every end at the moment at which it is recorded. It goes by what disk and loader
//! hold, and by what it saw itself; it asks the engine nothing.

use slotd_engine::{Command, Kind, Outcome, Result as Ending, Slot, SlotState};

use super::{Content, Nature, Node, SECRET, digest, index};

/// Reboots that the agent may ask for by itself: to a trial that is not started, three times, or to one that fails each of
/// its three times and is left each time.
const REBOOTS: u32 = 6;

/// What the judge saw.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    /// What the running system was started from.
    pub(super) running: Content,
    /// The image that was read back from each slot since it was written to.
    pub(super) verified: [Option<u8>; 2],
    /// The pods were moved away for the upgrade under way.
    pub(super) drained: bool,
    /// Images, by number, that the loader gave up or that were left on their trial.
    condemned: [bool; 16],
    /// Slots that somebody else armed or gave up.
    pub(super) by_hand: [bool; 2],
    /// A record was lost, or may have been: what was in it may be forgotten.
    pub(super) unrecorded: bool,
    /// Reboots that were asked for since something came from outside.
    pub(super) reboots: u32,
    /// Every end that was recorded.
    ends: Vec<(u64, Ending)>,
}

impl Judge {
    pub(super) fn new(disk: [Content; 2]) -> Self {
        Self {
            running: disk[0],
            verified: [Some(1), Some(0)],
            drained: false,
            condemned: [false; 16],
            by_hand: [false; 2],
            unrecorded: false,
            reboots: 0,
            ends: Vec::new(),
        }
    }

    /// What it holds of a slot that matters to what comes next.
    pub(super) fn of(&self, slot: Slot, content: Content) -> [bool; 3] {
        let at = index(slot);
        let Content::Image(number, _) = content else {
            return [false, false, self.by_hand[at]];
        };
        [
            self.verified[at] == Some(number),
            self.condemned[usize::from(number)],
            self.by_hand[at],
        ]
    }
}

impl Node {
    fn broken(&self, promise: &str) -> ! {
        panic!("{promise}\n{}", self.story())
    }

    fn holds(&self, held: bool, promise: &str) {
        if !held {
            self.broken(promise);
        }
    }

    /// Before a command is carried out.
    pub(super) fn allowed(&self, command: &Command) {
        let written = match command {
            Command::Preflight { slot }
            | Command::Invalidate { slot }
            | Command::Write { slot }
            | Command::PrepareBoot { slot }
            | Command::Discard { slot }
            | Command::Disarm { slot } => Some(*slot),
            Command::Arm(proof) => Some(proof.slot()),
            _ => None,
        };
        let runs = written == Some(self.booted) && !self.trouble.rescue;
        self.holds(!runs, "promise 1: the booted slot is worked on");
        self.remembered(command);
        self.confirms_alone(command);
        match command {
            Command::Invalidate { .. } => {
                self.holds(self.bench[0], "promise 11: begun without a look at it");
            }
            Command::Arm(proof) => {
                let slot = index(proof.slot());
                let Content::Image(number, _) = self.disk[slot] else {
                    self.broken("promise 3: armed without a whole image");
                };
                let proven = *proof.digest() == digest(number);
                self.holds(proven, "promise 3: armed by another image's proof");
                self.asked_for(number);
                self.moved_away();
            }
            Command::Reboot { forced: false } => self.moved_away(),
            Command::Stay { reason } => {
                self.holds(!reason.contains(SECRET), "promise 10: a secret is told");
            }
            _ => {}
        }
    }

    /// What a crash must not forget is on the medium before it is begun.
    fn remembered(&self, command: &Command) {
        let intent = matches!(
            command,
            Command::Invalidate { .. }
                | Command::Write { .. }
                | Command::PrepareBoot { .. }
                | Command::Drain(_)
                | Command::Arm(_)
                | Command::Select { .. }
                | Command::Reboot { forced: false }
        );
        let kept = self.stored.as_ref() == Some(&self.record);
        self.holds(!intent || kept, "promise 4: begun, and nothing recorded");
    }

    /// A trial boot is confirmed or left by what the node has itself.
    fn confirms_alone(&self, command: &Command) {
        let trial = matches!(self.loader[index(self.booted)], SlotState::Trial { .. });
        let alone = matches!(
            command,
            Command::RunChecks { .. }
                | Command::AwaitBootComplete { .. }
                | Command::MarkGood { .. }
                | Command::MarkBad { .. }
                | Command::Reboot { forced: true }
                | Command::Report(_)
                | Command::Settle
                | Command::Stay { .. }
        );
        let blind = self.trouble.blind || self.trouble.rescue;
        self.holds(
            !trial || alone || blind,
            "promise 6: a trial boot waits for others",
        );
    }

    fn moved_away(&self) {
        let wanted = self
            .record
            .upgrade
            .as_ref()
            .is_some_and(|upgrade| upgrade.drain.is_some());
        self.holds(
            !wanted || self.judge.drained,
            "promise 8: on to a reboot, and not drained",
        );
    }

    fn asked_for(&self, number: u8) {
        let request = self
            .record
            .upgrade
            .as_ref()
            .and_then(|upgrade| upgrade.request.as_ref());
        let anew = request.is_some_and(|request| request.asked_anew);
        let known = self.judge.condemned[usize::from(number)];
        self.holds(
            !known || anew || self.judge.unrecorded,
            "promise 9: an image that failed here is tried again by itself",
        );
    }

    /// A command is carried out, and changes what it may.
    pub(super) fn carry_out(&mut self, command: &Command) -> Outcome {
        let before = self.loader;
        let outcome = self.apply(command);
        for slot in [Slot::A, Slot::B] {
            self.changed(slot, before, command);
        }
        match (command, &outcome) {
            (Command::Drain(_), Outcome::Drained) => self.judge.drained = true,
            (Command::Arm(_), _) => self.judge.by_hand = [false; 2],
            (Command::Reboot { .. }, Outcome::Done) => self.judge.reboots += 1,
            _ => {}
        }
        self.holds(
            self.judge.reboots <= REBOOTS,
            "promise 5: reboots without an end",
        );
        outcome
    }

    fn changed(&self, slot: Slot, before: [SlotState; 2], command: &Command) {
        let (was, is) = (before[index(slot)], self.loader[index(slot)]);
        if was == is {
            return;
        }
        let runs = slot == self.booted && !self.trouble.rescue;
        let fallback = before[index(!slot)] == SlotState::Good;
        let (allowed, promise) = match (command, is) {
            (Command::Invalidate { .. } | Command::Discard { .. }, SlotState::Empty) => (
                !runs && (fallback || was != SlotState::Good),
                "promise 2: the last good slot is forgotten",
            ),
            (Command::Disarm { .. }, SlotState::Empty) => (
                !runs && matches!(was, SlotState::Trial { .. }),
                "promise 2: taken back, and was no trial",
            ),
            (Command::Arm(_), SlotState::Trial { .. }) => {
                (fallback, "promise 2: armed without a fallback")
            }
            (Command::MarkGood { .. }, SlotState::Good) => {
                (runs, "promise 4: good without running")
            }
            (Command::MarkBad { .. }, SlotState::Bad) => (
                was != SlotState::Good && fallback,
                "promise 5: a proven slot is given up",
            ),
            _ => (false, "promise 5: a slot lost its state"),
        };
        self.holds(allowed, promise);
    }

    /// After every effect, and whatever somebody else did.
    pub(super) fn check(&mut self) {
        let own = self.disk[index(self.booted)] == self.judge.running;
        self.holds(
            own || self.trouble.rescue,
            "promise 1: the booted slot was written",
        );
        self.selectable();
        for slot in [Slot::A, Slot::B] {
            let at = index(slot);
            let image = match self.disk[at] {
                Content::Image(number, nature) => Some((number, nature)),
                Content::Partial => None,
            };
            let state = self.state(slot);
            if let SlotState::Trial { .. } = self.loader[at] {
                let Some((number, nature)) = image else {
                    self.broken("promise 3: a partial image on trial");
                };
                let verified = self.judge.verified[at] == Some(number)
                    && self.marker[at] == Some(digest(number));
                self.holds(verified, "promise 3: on trial, and not read back");
                let fit = !matches!(nature, Nature::Unfit | Nature::Refused);
                self.holds(fit, "promise 11: a refused image on trial");
                self.holds(
                    self.trials[at] <= self.limits.tries,
                    "promise 5: more trial boots than were granted",
                );
            }
            let (Some((number, _)), false) = (image, self.judge.by_hand[at]) else {
                continue;
            };
            match state {
                SlotState::Bad => self.judge.condemned[usize::from(number)] = true,
                SlotState::Good if slot == self.booted => {
                    self.judge.condemned[usize::from(number)] = false;
                }
                _ => {}
            }
        }
    }

    /// Power is cut now, and every trial that the loader starts dies: a good, whole slot comes up, and soon.
    fn selectable(&self) {
        let mut node = (self.loader, self.order());
        for _ in 0..=self.limits.tries {
            let Some(slot) = node.1.first().copied() else {
                self.broken("promise 2: nothing can be selected");
            };
            let content = self.disk[index(slot)];
            self.holds(
                matches!(content, Content::Image(..)),
                "promise 3: a partial image is selected",
            );
            match &mut node.0[index(slot)] {
                SlotState::Good => return,
                SlotState::Trial { left, .. } if *left > 1 => *left -= 1,
                _ => node.1.rotate_left(1),
            }
        }
        self.broken("promise 2: no good slot can be selected");
    }

    /// At the moment at which an end is recorded.
    pub(crate) fn reported(&mut self) {
        let Some(last) = self.record.last.clone() else {
            return;
        };
        let told = format!("{last:?} {:?}", self.record);
        self.holds(!told.contains(SECRET), "promise 10: a secret is told");
        let here = self.booted == last.slot && !self.trouble.rescue;
        let good = self.state(last.slot) == SlotState::Good && !self.trouble.blind;
        let same = match (self.disk[index(last.slot)], &last.digest) {
            (Content::Image(number, _), Some(own)) => *own == digest(number),
            _ => false,
        };
        match last.result {
            Ending::Completed => {
                self.holds(here && good, "promise 4: a success that is none");
                let own = same || last.kind != Kind::Install;
                self.holds(own, "promise 4: a success of another image");
                self.holds(last.failure.is_none(), "promise 4: a success that failed");
            }
            Ending::RolledBack if last.kind == Kind::Rollback => {
                self.holds(here, "promise 4: not back, and said to be");
            }
            Ending::RolledBack => {
                let back = !here && !self.trouble.rescue;
                self.holds(back, "promise 4: a rollback that is none");
            }
            Ending::Failed | Ending::Cancelled => {
                let confirmed = here && good && same;
                self.holds(!confirmed, "promise 4: a success is not told");
            }
        }
        let reason = last.failure.is_some();
        let needed = matches!(last.result, Ending::RolledBack | Ending::Failed);
        self.holds(reason || !needed, "promise 4: no reason is given");
        let known = self.judge.ends.iter().any(|(id, _)| *id == last.id);
        self.holds(
            !known || self.judge.unrecorded,
            "promise 4: one end after another",
        );
        self.judge.ends.push((last.id, last.result));
    }

    /// At rest: every end that was recorded was told, once, and as it was.
    pub(crate) fn told_all(&self) {
        let mut told = self.history.clone();
        told.sort_by_key(|(id, _)| *id);
        told.dedup_by_key(|(id, _)| *id);
        self.holds(told.len() == self.history.len(), "promise 4: told twice");
        let waits = self.trouble.sealed || !self.record.unreported.is_empty();
        let all = self.judge.ends.iter().all(|end| self.history.contains(end));
        self.holds(
            all || waits || self.judge.unrecorded,
            "promise 4: an end is not told",
        );
    }
}
