//! The lab: virtual machines, loop disks, a Kubernetes control plane, image servers with faults, the scenarios that run on
//! them, and the benchmarks.

pub mod artifacts;
pub mod bench;
mod binfmt;
pub mod build;
pub mod cluster;
pub mod cross;
mod cuts;
pub mod demo;
pub mod disk;
pub mod earlier;
pub mod esp;
pub mod fuzz;
pub mod images;
pub mod lab;
pub mod loader;
pub mod loopdisk;
pub mod mutants;
pub mod node;
pub mod process;
mod random;
pub mod runner;
pub mod scenarios;
pub mod selection;
pub mod server;
pub mod setup;
pub mod standin;
pub mod vm;
pub mod vm_fleet;
mod wheels;
pub mod workspace;
pub mod writing;
