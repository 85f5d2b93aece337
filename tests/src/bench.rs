//! `lab bench`: slotd's verified write against a pipeline that verifies nothing, side by side on this machine's loop disks, the
//! idle agent in a guest, and a fleet of stand-ins with its controller.

mod cluster;
mod goals;
mod idle;
mod images;
mod meter;
mod write;

use anyhow::Result;
use serde::Serialize;

use crate::lab::Lab;
use crate::loopdisk::unavailable;
use crate::process;
pub use cluster::{Cluster, Crowd, Writes};
pub use idle::Idle;
pub use write::{Peak, Write};

/// Runs of each contender; the medians are compared.
const RUNS: usize = 5;
const MIB: u64 = 1 << 20;

/// One of the benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The write against curl | zstd | dd
    Write,
    /// The idle agent, in a virtual machine
    Idle,
    /// Agents and controller at a Kubernetes API server
    Cluster,
}

/// What was measured.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The write.
    #[serde(flatten)]
    pub write: Option<Write>,
    /// The idle agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    /// The Kubernetes half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// Which of the goals were missed.
    pub missed: Vec<String>,
}

/// Runs these benchmarks; all of them where none is named.
pub fn run(lab: &Lab, parts: &[Part]) -> Result<Report> {
    if let Some(reason) = unavailable() {
        anyhow::bail!("{reason}");
    }
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    let mut report = Report::default();
    if wanted(Part::Write) {
        report.write = Some(write::measure(lab)?);
    }
    if wanted(Part::Idle) {
        report.idle = Some(idle::measure(lab)?);
    }
    // Last: what it leaves at the API server ends with the lab.
    if wanted(Part::Cluster) {
        report.cluster = Some(cluster::measure(lab)?);
    }
    report.missed = goals::missed(&report);
    Ok(report)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

impl Report {
    /// Prints the table for people.
    pub fn print(&self) {
        if let Some(write) = &self.write {
            write.print();
        }
        if let Some(idle) = &self.idle {
            println!(
                "idle agent: {:.1} MiB anonymous, {:.1} context switches a minute",
                mebibytes(idle.anonymous),
                idle.switches_per_minute
            );
        }
        if let Some(cluster) = &self.cluster {
            cluster.print();
        }
        for goal in &self.missed {
            println!("missed: {goal}");
        }
    }
}

/// Writes out what earlier work left dirty, so that no contender pays for it.
fn settle_caches() -> Result<()> {
    process::run("sync", |command| command)
}
