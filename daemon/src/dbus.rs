//! The D-Bus service `io.monok8s.Slotd1` at `/io/monok8s/Slotd1`: served by the agent, called by the command line.

pub mod client;
#[cfg(test)]
pub(crate) mod pair;
pub mod server;
pub mod wire;

/// The bus name and the interface.
pub const NAME: &str = "io.monok8s.Slotd1";

/// The object's path.
pub const PATH: &str = "/io/monok8s/Slotd1";
