//! The words of bootctl, said in the engine's.

use slotd_engine as engine;

pub(super) fn slot(slot: slotd_bootctl::SlotName) -> engine::Slot {
    match slot {
        slotd_bootctl::SlotName::A => engine::Slot::A,
        slotd_bootctl::SlotName::B => engine::Slot::B,
    }
}

pub(super) fn name(slot: engine::Slot) -> slotd_bootctl::SlotName {
    match slot {
        engine::Slot::A => slotd_bootctl::SlotName::A,
        engine::Slot::B => slotd_bootctl::SlotName::B,
    }
}

pub(super) fn state(state: slotd_bootctl::SlotState) -> engine::SlotState {
    match state {
        slotd_bootctl::SlotState::Good => engine::SlotState::Good,
        slotd_bootctl::SlotState::Trial { left, done } => engine::SlotState::Trial { left, done },
        slotd_bootctl::SlotState::Bad => engine::SlotState::Bad,
        slotd_bootctl::SlotState::Empty => engine::SlotState::Empty,
    }
}
