//! What the bits of both slots mean, and the bits of a state. Pure.
//!
//! | state | priority | tries | successful |
//! |---|---|---|---|
//! | good, in front | 15 | 1 | 1 |
//! | good, behind another good one | 14 | 1 | 1 |
//! | good, while the other one is tried | 15 less the tries given | 1 | 1 |
//! | trial | 15 | boots left | 0 |
//! | bad | 1 | 0 | 0 |
//! | empty | 0 | 0 | 0 |
//!
//! The distance of a trial's priority to the good slot's is where the number of tries given is kept, so that the boots
//! begun are known; a distance that others made says nothing. The last try that runs has no tries left: in GRUB it keeps
//! its priority, in front, where a slot that was given up is behind; ChromeOS's firmware sets its priority to 0, too, and
//! then the distance of the good slot tells it from an empty one.
//!
//! A good slot has one try because GRUB takes it, on the first boot after a change, and writes both copies of the table
//! when it does: a primary copy that a power cut has left unfinished is whole again before the kernel, which looks at no
//! other one, is started. To the state of a slot that is successful its tries mean nothing.

use super::attributes::{Boot, PRIORITY_MAX, TRIES_MAX};
use crate::backend::SlotState;
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;

/// Priority of a slot that was given up.
const GIVEN_UP: u8 = 1;
/// Lowest priority of a good slot behind a trial. Bottlerocket's tool and `cgpt prioritize` make 1 and 2, so that what
/// they wrote is not taken for a count.
const BEHIND_MIN: u8 = 3;
/// Most tries that the distance can tell.
pub(super) const TRIES_GIVEN_MAX: u8 = PRIORITY_MAX - BEHIND_MIN;
/// Tries of a good slot.
const HEALING: u8 = 1;

/// The bits of both slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) a: Boot,
    pub(super) b: Boot,
    /// The one with the lower partition number, which the loader takes where the priority is the same.
    pub(super) lower: SlotName,
}

impl Bits {
    pub(super) fn of(&self, slot: SlotName) -> Boot {
        match slot {
            SlotName::A => self.a,
            SlotName::B => self.b,
        }
    }

    /// Whether either partition carries a priority or is marked successful.
    pub(super) fn speaks(&self) -> bool {
        let carries = |boot: Boot| boot.priority > 0 || boot.successful;
        carries(self.a) || carries(self.b)
    }

    /// What the bits mean.
    pub(super) fn record(&self, booted: Booted) -> Record {
        Record {
            a: self.state(SlotName::A, booted),
            b: self.state(SlotName::B, booted),
            first: self.first(booted),
        }
    }

    fn state(&self, slot: SlotName, booted: Booted) -> SlotState {
        let boot = self.of(slot);
        let is_booted = booted == Booted::Slot(slot);
        match (boot.successful, boot.priority, boot.tries) {
            (true, 1.., _) => SlotState::Good,
            // The loader does not start it again, and yet it runs.
            (true, 0, _) if is_booted => SlotState::Bad,
            (true, 0, _) => SlotState::Empty,
            (false, 1.., 1..) => self.trial(slot, is_booted),
            (false, 1.., 0) if is_booted && !self.is_given_up(slot) => self.trial(slot, true),
            (false, 1.., 0) => SlotState::Bad,
            // Where the other one is not good either, no loader that goes by attributes has started this system.
            (false, 0, _) if is_booted && self.is_good(!slot) => self.trial(slot, true),
            (false, 0, _) if self.ended_in_firmware(slot) => SlotState::Bad,
            (false, 0, _) => SlotState::Empty,
        }
    }

    fn is_good(&self, slot: SlotName) -> bool {
        let boot = self.of(slot);
        boot.successful && boot.priority > 0
    }

    fn trial(&self, slot: SlotName, is_booted: bool) -> SlotState {
        let boot = self.of(slot);
        let left = if boot.priority == 0 { 0 } else { boot.tries };
        let begun = self.given(slot).unwrap_or(0).saturating_sub(left);
        SlotState::Trial {
            left: u32::from(left),
            // One that runs was begun, whoever gave it how many.
            done: u32::from(begun.max(u8::from(is_booted))),
        }
    }

    /// Tries that were given to a trial in front of a good slot, where we armed it.
    pub(super) fn given(&self, slot: SlotName) -> Option<u8> {
        let (boot, other) = (self.of(slot), self.of(!slot));
        let ours = other.successful && (BEHIND_MIN..PRIORITY_MAX).contains(&other.priority);
        let in_front = boot.priority == PRIORITY_MAX || self.ended_in_firmware(slot);
        (ours && in_front && !boot.successful).then(|| PRIORITY_MAX.saturating_sub(other.priority))
    }

    /// Behind the other one, and without tries: what [`bits`] makes of a bad slot, whether it runs or not.
    fn is_given_up(&self, slot: SlotName) -> bool {
        let (boot, other) = (self.of(slot), self.of(!slot));
        boot.priority > 0 && boot.priority < other.priority
    }

    /// What ChromeOS's firmware leaves of a trial of ours whose last try it has started.
    fn ended_in_firmware(&self, slot: SlotName) -> bool {
        let (boot, other) = (self.of(slot), self.of(!slot));
        boot == Boot::default()
            && other.successful
            && (BEHIND_MIN..PRIORITY_MAX).contains(&other.priority)
    }

    fn first(&self, booted: Booted) -> SlotName {
        // A last try that runs was in front when it was started.
        for slot in SlotName::BOTH {
            let last_try = matches!(self.state(slot, booted), SlotState::Trial { left: 0, .. });
            if last_try && self.ended_in_firmware(slot) {
                return slot;
            }
        }
        match self.a.priority.cmp(&self.b.priority) {
            std::cmp::Ordering::Greater => SlotName::A,
            std::cmp::Ordering::Less => SlotName::B,
            std::cmp::Ordering::Equal => self.lower,
        }
    }
}

/// The bits of a record.
pub(super) fn bits(record: &Record, lower: SlotName) -> Bits {
    let [a, b] = SlotName::BOTH.map(|slot| bits_of(record, slot));
    Bits { a, b, lower }
}

fn bits_of(record: &Record, slot: SlotName) -> Boot {
    let other = record.state(!slot);
    let in_front =
        record.first == slot || !matches!(other, SlotState::Good | SlotState::Trial { .. });
    match record.state(slot) {
        SlotState::Empty => Boot::default(),
        SlotState::Bad => Boot {
            priority: GIVEN_UP,
            ..Boot::default()
        },
        SlotState::Good => Boot {
            priority: match other {
                _ if in_front => PRIORITY_MAX,
                SlotState::Trial { left, done } => behind(left.saturating_add(done)),
                _ => behind(1),
            },
            tries: HEALING,
            successful: true,
        },
        SlotState::Trial { left, .. } => Boot {
            priority: if in_front { PRIORITY_MAX } else { behind(1) },
            tries: u8::try_from(left).map_or(TRIES_MAX, |left| left.min(TRIES_MAX)),
            successful: false,
        },
    }
}

/// Priority behind a slot in front, by a distance.
fn behind(distance: u32) -> u8 {
    let distance = u8::try_from(distance).unwrap_or(TRIES_GIVEN_MAX);
    PRIORITY_MAX.saturating_sub(distance.clamp(1, TRIES_GIVEN_MAX))
}
