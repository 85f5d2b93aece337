//! Virtual machines: real firmware, boot loader, kernel and systemd under QEMU.

mod accel;
mod console;
mod faults;
mod machine;
mod qemu;
mod shell;
pub mod socket;

pub use accel::{Acceleration, probe};
pub use console::Console;
pub use faults::DiskFault;
pub use machine::{Boot, Machine, Setup};
pub use qemu::{Bus, MoreDisk};
pub use shell::{End, Output, Shell, quote};
