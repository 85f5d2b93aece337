//! Bad input and broken nodes: each is refused with an error that names the thing, and nothing is lost by it. A boot is dear and
//! a refusal is cheap, so one machine goes through many.

mod configuration;
mod group;
mod images;
mod interruptions;
mod material;
mod node;
mod servers;

use super::in_machine;
use crate::runner::Test;

pub(super) use group::wait_for;

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_machine("vm/bad-images-and-bad-servers-are-refused", images::run),
        in_machine("vm/a-node-that-is-not-fit-refuses-to-be-written", node::run),
    ]
}
