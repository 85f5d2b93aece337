//! The errors of bootctl and image, as failures of the engine: one vocabulary from here on.

use slotd_bootctl as boot;
use slotd_engine as engine;
use slotd_engine::Failure;
use slotd_image::Error;

use crate::agent::Trouble;
use crate::error::causes;

/// An error of bootctl with all that it came from.
pub(crate) fn boot_failure(error: &boot::Error) -> Failure {
    Failure::new(kind_of_boot(error.kind()), error.chain())
}

/// A refusal of bootctl.
pub(super) fn refusal(refusal: &boot::Refusal) -> Failure {
    Failure::new(kind_of_boot(refusal.kind()), refusal.message.clone())
}

fn kind_of_boot(kind: boot::ErrorKind) -> engine::ErrorKind {
    match kind {
        boot::ErrorKind::Retry => engine::ErrorKind::Retry,
        boot::ErrorKind::Reject => engine::ErrorKind::Reject,
        boot::ErrorKind::Unsafe => engine::ErrorKind::Unsafe,
        boot::ErrorKind::Configuration => engine::ErrorKind::Configuration,
        _ => engine::ErrorKind::Bug,
    }
}

/// An error of image; being told to stop is none.
pub(super) fn trouble(error: &Error) -> Trouble {
    if error.is_cancelled() {
        return Trouble::Stopped;
    }
    Trouble::Failed(image_failure(error))
}

/// An error of image.
pub(crate) fn image_failure(error: &Error) -> Failure {
    let kind = match error.kind() {
        slotd_image::ErrorKind::Retry => engine::ErrorKind::Retry,
        slotd_image::ErrorKind::Reject => engine::ErrorKind::Reject,
        slotd_image::ErrorKind::Unsafe => engine::ErrorKind::Unsafe,
        slotd_image::ErrorKind::Configuration => engine::ErrorKind::Configuration,
        slotd_image::ErrorKind::Bug => engine::ErrorKind::Bug,
    };
    Failure::new(kind, causes(error))
}
