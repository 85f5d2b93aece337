//! Slots, partition discovery and boot loader state of an A/B node.
//!
//! Three things live here: which partitions the slots are and which one runs ([`SlotTable`]), what
//! the boot loader holds of them and how that changes ([`Backend`]), and the proofs, as types, that
//! lead from an inactive slot to one that may be started ([`InactiveSlot`], [`InvalidatedSlot`],
//! [`VerifiedSlot`]). Everything is synchronous and works in an initrd: no D-Bus, no TLS, no
//! configuration.

mod backend;
mod block;
mod direct;
mod discovery;
mod dos;
mod durable;
mod efi;
mod efivar;
pub mod entry;
mod error;
mod evidence;
mod exclusive;
mod facts;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gpt;
mod gptprio;
mod grub;
mod inspect;
mod ioctl;
mod loader;
mod lock;
mod machine;
mod marker;
mod markers;
mod memory;
pub mod model;
mod mounts;
mod options;
mod part_uuid;
mod pe;
mod proof;
mod record;
mod rules;
mod slot;
mod system;
mod systemd_boot;
mod table;
mod uboot;

pub use backend::{
    Backend, BootOptions, Counting, LoaderState, NextBoot, PlannedChange, PreflightRequest,
    Problem, ProblemCode, Refusal, RefusalCode, SlotState, StagedImage, Transition,
    require_no_refusals,
};
pub use discovery::{Candidate, Survey, SurveyedDisk, SurveyedMount};
pub use error::{Error, ErrorKind, Result};
pub use exclusive::check_free;
pub use facts::{
    AgentPresence, Architecture, BootFile, ImageFacts, InspectSettings, parse_os_release,
};
pub use grub::{GrubConvention, GrubSetting, GrubSlotVariables, GrubVariables};
pub use inspect::{SlotView, inspect};
pub use loader::{LoaderKind, LoaderSetting};
pub use machine::machine_id;
pub use memory::MemoryBackend;
pub use options::{TRIAL_OPTION, trial_announced};
pub use part_uuid::PartUuid;
pub use proof::{InactiveSlot, InvalidatedSlot, ReadBack, VerifiedSlot};
pub use slot::{DeviceNumber, SlotLocator, SlotName, SlotSettings};
pub use system::System;
pub use systemd_boot::{EspSetting, SystemdBoot};
pub use table::{Booted, Evidence, Partition, SlotTable, Witness};
pub use uboot::{UbootConvention, UbootSetting};

#[cfg(test)]
mod scenarios;
