//! Stand-ins for nodes, for the many cluster tests that need no virtual machine.
//!
//! A stand-in is a folder that looks like a machine, with loop devices as its slots, the model of systemd-boot as its boot loader,
//! and a real agent: slotd's own service in a process of its own, which knows nothing but that folder. The lab is the rest of the
//! machine: power, PID 1, login1, and at the API server the kubelet.
//!
//! What a stand-in cannot show: that a system boots, units, firmware and hardware. Its images are small file systems that the agent
//! writes, reads back and mounts as any other; which version a node runs after a reboot is read from what was written.

pub mod agent;
mod alone;
mod background;
mod bus;
pub mod controller;
mod fleet;
mod hardware;
mod health;
mod image;
mod kubelet;
mod node;
mod observer;
mod pods;
mod power;

pub use alone::{Alone, Sight, was_killed};
pub(crate) use background::{Background, connect};
pub use bus::Bus;
pub use controller::{Controller, USER};
pub use fleet::{FLEET_LABEL, Fleet, FleetOptions};
pub use hardware::Boot;
pub use health::Health;
pub use image::StandInImage;
pub use node::{PodSeen, StandIn};
pub use observer::{Moment, Observer};
