//! What a loader's record says of both slots, and what becomes of it. Pure.

use crate::backend::{NextBoot, SlotState, Transition};
use crate::slot::SlotName;

/// What the loader holds of both slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    /// Slot A.
    pub(crate) a: SlotState,
    /// Slot B.
    pub(crate) b: SlotState,
    /// The slot that is preferred where both can be started.
    pub(crate) first: SlotName,
}

impl Record {
    pub(crate) fn state(&self, slot: SlotName) -> SlotState {
        match slot {
            SlotName::A => self.a,
            SlotName::B => self.b,
        }
    }

    pub(crate) fn set(&mut self, slot: SlotName, state: SlotState) {
        match slot {
            SlotName::A => self.a = state,
            SlotName::B => self.b = state,
        }
    }

    /// Whether two records say the same. The order says nothing where not both slots can be started; a loader that holds
    /// it in priorities has none to hold it in then.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let startable =
            |state| matches!(state, SlotState::Good | SlotState::Trial { left: 1.., .. });
        let ordered = startable(self.a) && startable(self.b);
        (self.a, self.b) == (other.a, other.b) && (!ordered || self.first == other.first)
    }

    /// What a loader starts that goes through the order and passes over what may not be started.
    pub(crate) fn first_startable(&self) -> NextBoot {
        let found = [self.first, !self.first].into_iter().find_map(|slot| {
            let trial = match self.state(slot) {
                SlotState::Good => false,
                SlotState::Trial { left: 1.., .. } => true,
                SlotState::Trial { .. } | SlotState::Bad | SlotState::Empty => return None,
            };
            Some(NextBoot::Slot { slot, trial })
        });
        found.unwrap_or(NextBoot::Nothing)
    }

    /// A try less for a slot on trial: a boot of it begins.
    pub(crate) fn take_try(&mut self, slot: SlotName) {
        if let SlotState::Trial { left, done } = self.state(slot) {
            let (left, done) = (left.saturating_sub(1), done.saturating_add(1));
            self.set(slot, SlotState::Trial { left, done });
        }
    }

    /// The record after a transition that the rules allow. `start` is what the loader does when it starts a slot.
    pub(super) fn after(
        mut self,
        transition: &Transition,
        tries: u32,
        start: impl Fn(&Self) -> Self,
    ) -> Self {
        match transition {
            Transition::Invalidate { slot } => self.leave(*slot, SlotState::Empty),
            Transition::InstallBootFiles { .. } => {}
            Transition::Arm { slot, .. } => {
                self.set(
                    *slot,
                    SlotState::Trial {
                        left: tries,
                        done: 0,
                    },
                );
                self.first = *slot;
            }
            Transition::TrialBoot { .. } => self = start(&self),
            Transition::Disarm { slot } => self.leave(*slot, SlotState::Empty),
            Transition::MarkGood { slot } if self.state(*slot) != SlotState::Good => {
                self.set(*slot, SlotState::Good);
                self.first = *slot;
            }
            Transition::MarkGood { .. } => {}
            Transition::MarkBad { slot }
                if !matches!(self.state(*slot), SlotState::Empty | SlotState::Bad) =>
            {
                self.leave(*slot, SlotState::Bad);
            }
            Transition::MarkBad { .. } => {}
            Transition::Select { slot } => {
                if matches!(self.state(!*slot), SlotState::Trial { .. }) {
                    self.set(!*slot, SlotState::Empty);
                }
                self.first = *slot;
            }
        }
        self
    }

    /// The slot is not to be started any more.
    fn leave(&mut self, slot: SlotName, state: SlotState) {
        self.set(slot, state);
        self.first = !slot;
    }
}
