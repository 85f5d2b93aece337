//! The daemon on the host: adapters and the service.
//!
//! What a node does is decided by `slotd-engine`; this crate gives the engine hands (the agent), a voice
//! (D-Bus, the command line) and its settings.

pub mod agent;
mod backoff;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod credential;
pub mod dbus;
pub mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod health;
pub mod journal;
pub mod login;
pub mod node;
mod pace;
mod said;
pub mod service;
mod staging;
pub mod status;
