//! What a node went through: its story, for a test that fails, and what tells its states apart.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use slotd_engine::{Command, Digest, Image, Outcome, Phase, Point, Record, Slot, SlotState};

use super::operation::Operation;
use super::{Content, Fault, Nature, Node, digest_of, index};

/// What happened, put into words only where a test fails.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Turn(Point, Command),
    Boot(Slot, [SlotState; 2]),
    Fault(Fault),
    Operation(Operation),
}

/// All that happened, latest first. What two nodes went through together, they share.
#[derive(Clone, Debug, Default)]
pub(super) struct Story(Option<Rc<(Told, Story)>>);

impl Story {
    pub(super) fn push(&mut self, told: Told) {
        let before = std::mem::take(self);
        self.0 = Some(Rc::new((told, before)));
    }

    fn iter(&self) -> impl Iterator<Item = &Told> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let (told, before) = rest.0.as_deref()?;
            rest = before;
            Some(told)
        })
    }
}

impl Drop for Story {
    /// One after the other: a long story would be too deep for the stack.
    fn drop(&mut self) {
        let mut rest = self.0.take();
        while let Some(mut link) = rest.and_then(Rc::into_inner) {
            rest = link.1.0.take();
        }
    }
}

impl Node {
    /// The faults that are planned and all that happened, for a test that fails.
    pub(crate) fn story(&self) -> String {
        let mut lines: Vec<String> = self
            .story
            .iter()
            .map(|told| match told {
                Told::Turn(at, command) => format!("{at:?} {command:?}"),
                Told::Boot(slot, loader) => format!("boot {slot} {loader:?}"),
                Told::Fault(fault) => format!("FAULT {fault:?}"),
                Told::Operation(operation) => format!("== {operation:?}"),
            })
            .collect();
        lines.push(format!("{:?}", self.plan));
        lines.reverse();
        lines.join("\n")
    }

    /// How often a point's command was begun.
    pub(crate) fn turns_at(&self, point: Point) -> usize {
        let here = |told: &&Told| matches!(told, Told::Turn(at, _) if *at == point);
        self.story.iter().filter(here).count()
    }

    /// What tells one state from another: all that what happens next depends on, but no names, numbers and times. Which of
    /// the slots runs is no difference, nor is which of two images is which.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let to = &mut hasher;
        for slot in [self.booted, !self.booted] {
            let at = index(slot);
            state(self.loader[at]).hash(to);
            // What nothing knows of is as good as nothing.
            let known = self.loader[at] != SlotState::Empty || self.marker[at].is_some();
            if known || self.bench[2] {
                let marked = self.marker[at].as_ref().map(|own| self.same(own, slot));
                (nature(self.disk[at]), marked, self.trials[at]).hash(to);
                self.judge.of(slot, self.disk[at]).hash(to);
            }
        }
        let first = self.order().first() == Some(&self.booted);
        (first, self.bench, self.trouble).hash(to);
        (self.going_down, self.boot_complete, self.settled).hash(to);
        (self.cordoned, self.kept, self.judge.drained).hash(to);
        let late = [self.limits.trial_deadline, 540].map(|limit| self.uptime >= limit);
        late.hash(to);
        self.recorded(&self.record, to);
        if let Some(stored) = self
            .stored
            .as_ref()
            .filter(|stored| **stored != self.record)
        {
            self.recorded(stored, to);
        }
        self.stored.is_some().hash(to);
        match &self.outcome {
            None => 0.hash(to),
            Some(Outcome::Failed(failure)) => (1, failure.kind as u8).hash(to),
            Some(outcome) => (2, std::mem::discriminant(outcome)).hash(to),
        }
        hasher.finish()
    }

    /// Whether this is the digest of what lies in a slot.
    fn same(&self, digest: &Digest, slot: Slot) -> bool {
        match self.disk[index(slot)] {
            Content::Image(number, _) => digest_of(number) == digest,
            Content::Partial => false,
        }
    }

    fn recorded(&self, record: &Record, to: &mut DefaultHasher) {
        record.at.hash(to);
        record.unreported.len().hash(to);
        // Of what failed here, what lies here, and what is asked for again.
        let slots = [self.booted, !self.booted];
        let [own, other] = slots.map(|slot| self.disk[index(slot)]);
        for content in [own, other, AGAIN] {
            if let Content::Image(number, _) = content {
                record.refused(&[digest_of(number)]).is_some().hash(to);
            }
        }
        let Some(upgrade) = &record.upgrade else {
            return;
        };
        let places = |image: &Option<Image>| {
            let image = image.as_ref()?;
            Some(slots.map(|slot| self.same(&image.digest, slot)))
        };
        let runs = upgrade.target == self.booted;
        if record.at.is_rest() {
            if record.at == Point::Completed && runs {
                places(&upgrade.image).hash(to);
            }
            if self.loader[index(self.booted)] == SlotState::Good {
                return;
            }
        }
        let here = upgrade.boot_id.as_ref().map(|id| *id == self.boot_id());
        (runs, here, upgrade.failure.is_some()).hash(to);
        if record.at.is_rest() {
            return;
        }
        if record.phase() == Phase::Staging {
            let (number, nature) = self.supply;
            let lies = [own, other].map(|content| content == Content::Image(number, nature));
            (nature, lies).hash(to);
        }
        // As far as patience goes: three times, or thirty.
        let tries = if upgrade.tries < 29 {
            upgrade.tries.min(3)
        } else {
            29
        };
        (upgrade.kind as u8, upgrade.attempt, tries).hash(to);
        (upgrade.restarts, upgrade.trials, upgrade.granted).hash(to);
        (places(&upgrade.image), places(&upgrade.left)).hash(to);
        let drain = upgrade.drain.map(|drain| drain.force);
        let failure = upgrade.failure.as_ref();
        let failure = failure.map(|failure| (failure.kind as u8, failure.check.is_some()));
        let ending = upgrade.ending.as_ref().map(std::mem::discriminant);
        let request = upgrade.request.as_ref();
        let request = request.map(|own| (own.stage_only, own.asked_anew, own.locator.is_some()));
        (drain, failure, ending, request).hash(to);
    }
}

/// The image that somebody may ask for although it failed here: see `paths.rs`.
const AGAIN: Content = Content::Image(4, Nature::Unhealthy);

fn nature(content: Content) -> Option<Nature> {
    match content {
        Content::Image(_, nature) => Some(nature),
        Content::Partial => None,
    }
}

fn state(state: SlotState) -> (u8, u32, u32) {
    match state {
        SlotState::Good => (0, 0, 0),
        SlotState::Trial { left, done } => (1, left, done),
        SlotState::Bad => (2, 0, 0),
        SlotState::Empty => (3, 0, 0),
    }
}
