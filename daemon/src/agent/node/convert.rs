//! The words of bootctl and image, said in the engine's.

use slotd_engine as engine;
use slotd_engine::Failure;

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

/// An error of bootctl with all that it came from.
pub(super) fn boot_failure(error: &slotd_bootctl::Error) -> Failure {
    let kind = match error.kind() {
        slotd_bootctl::ErrorKind::Retry => engine::ErrorKind::Retry,
        slotd_bootctl::ErrorKind::Reject => engine::ErrorKind::Reject,
        slotd_bootctl::ErrorKind::Unsafe => engine::ErrorKind::Unsafe,
        slotd_bootctl::ErrorKind::Configuration => engine::ErrorKind::Configuration,
        _ => engine::ErrorKind::Bug,
    };
    Failure::new(kind, error.chain())
}

/// An error of image.
pub(super) fn image_failure(error: &slotd_image::Error) -> Failure {
    let kind = match error.kind() {
        slotd_image::ErrorKind::Retry => engine::ErrorKind::Retry,
        slotd_image::ErrorKind::Reject => engine::ErrorKind::Reject,
        slotd_image::ErrorKind::Unsafe => engine::ErrorKind::Unsafe,
        slotd_image::ErrorKind::Configuration => engine::ErrorKind::Configuration,
        slotd_image::ErrorKind::Bug => engine::ErrorKind::Bug,
    };
    Failure::new(kind, chain(error))
}

/// An error and its sources in one line, without what one says of the next already.
fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let text = source.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        next = source.source();
    }
    line
}
