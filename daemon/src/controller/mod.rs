//! `slotd controller`: the fleet's part.
//!
//! Each pass takes a snapshot of what the watches hold, settles which image each upgrade means, lets
//! [`slotd_engine::rollout`] say what comes next, and writes that. Nothing is kept between passes but catalogs that were fetched,
//! and of those the last good ones in the cluster, so whoever leads next goes on where this one stopped. The Lease only keeps two
//! controllers from doing everything twice: what is safe is safe by the places' and the objects' resource versions.

mod access;
mod catalogs;
mod conditions;
mod election;
mod events;
mod original;
mod pass;
mod resolution;
mod service;
mod session;
mod silent;
mod snapshot;
mod status;
mod waiting;
mod watches;
mod writes;

pub use access::{Connection, ControllerAccess, Surroundings};
pub use service::run;
