//! `lab bench`: slotd's verified write against a pipeline that verifies nothing, side by side on this machine's loop disks, and the
//! idle agent in a guest.

mod goals;
mod images;
mod meter;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::lab::Lab;
use crate::loopdisk::{LoopDisk, Sector, unavailable};
use crate::node::Node;
use crate::process;
use crate::server::Server;
use crate::vm::Machine;
use images::BenchImage;
use meter::Reading;

/// Runs of each contender; the medians are compared.
const RUNS: usize = 5;
/// How long the idle agent is watched.
const IDLE: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Size of the expanded image and of the published file in bytes.
    pub image: [u64; 2],
    /// Medians of slotd: write and read-back.
    pub slotd: Reading,
    /// Medians of `curl | zstd | dd`, which writes only.
    pub pipeline: Reading,
    /// slotd's time over the pipeline's.
    pub ratio: f64,
    /// Peak of anonymous memory with images of 256 MiB, 1 GiB and 2 GiB, each with its frame's window, in bytes.
    pub peaks: Vec<Peak>,
    /// The idle agent.
    pub idle: Idle,
    /// Which of the goals were missed.
    pub missed: Vec<String>,
}

/// Memory that one image took.
#[derive(Debug, Serialize)]
pub struct Peak {
    /// Expanded size.
    pub image: u64,
    /// Window of the zstd frame.
    pub window: u64,
    /// Most anonymous memory at any time.
    pub anonymous: u64,
}

/// The agent with nothing to do.
#[derive(Debug, Serialize)]
pub struct Idle {
    /// Anonymous memory in bytes.
    pub anonymous: u64,
    /// Context switches a minute, of all its threads.
    pub switches_per_minute: f64,
}

/// Runs all benchmarks.
pub fn run(lab: &Lab) -> Result<Report> {
    if let Some(reason) = unavailable() {
        anyhow::bail!("{reason}");
    }
    let artifacts = lab.artifacts()?;
    let folder = artifacts.folder().join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    eprintln!("lab: making images of real files");
    let image = BenchImage::make(&folder, 1024 * MIB, 700 * MIB)?;
    let writer = artifacts.build_writer()?;
    let server = Server::start()?;

    let bench = Bench {
        writer,
        server: &server,
        folder: lab.folder().to_owned(),
    };
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for round in 1..=RUNS {
        // In turns, so that whatever else the machine does falls on both.
        let reading = bench.slotd(&image)?;
        eprintln!("lab: round {round}: slotd {:.2} s", reading.seconds);
        ours.push(reading);
        let reading = bench.pipeline(&image)?;
        eprintln!(
            "lab: round {round}: curl | zstd | dd {:.2} s",
            reading.seconds
        );
        theirs.push(reading);
    }
    let mut peaks = vec![Peak {
        image: image.size,
        window: image.window,
        anonymous: ours
            .iter()
            .map(|reading| reading.anonymous)
            .max()
            .unwrap_or(0),
    }];
    for size in [256 * MIB, 2048 * MIB] {
        let other = BenchImage::make(&folder, size, size / 10 * 7)?;
        let reading = bench.slotd(&other)?;
        peaks.push(Peak {
            image: size,
            window: other.window,
            anonymous: reading.anonymous,
        });
    }
    peaks.sort_by_key(|peak| peak.image);
    let (ours, theirs) = (Reading::median(&ours), Reading::median(&theirs));
    let ratio = ours.seconds / theirs.seconds;
    eprintln!("lab: ratio {ratio:.2}");
    let idle = idle(lab)?;
    let mut report = Report {
        image: [image.size, image.published],
        slotd: ours,
        pipeline: theirs,
        ratio,
        peaks,
        idle,
        missed: Vec::new(),
    };
    report.missed = goals::missed(&report);
    Ok(report)
}

#[derive(Debug)]
struct Bench<'a> {
    writer: PathBuf,
    server: &'a Server,
    folder: PathBuf,
}

impl Bench<'_> {
    /// A fresh disk whose second partition takes the image.
    fn disk(&self, image: &BenchImage) -> Result<(LoopDisk, PathBuf)> {
        let file = self.folder.join("disk");
        if file.exists() {
            std::fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        }
        let mut disk = LoopDisk::attach(&file, image.size + 16 * MIB, Sector::B512)?;
        let sectors = image.size / 512;
        disk.partition(&format!(
            "label: gpt\nstart=2048, size=16384, name=root-a\nstart=18432, size={sectors}, name=root-b\n"
        ))?;
        let partition = disk.partition_device(2);
        Ok((disk, partition))
    }

    fn slotd(&self, image: &BenchImage) -> Result<Reading> {
        let (_disk, partition) = self.disk(image)?;
        let path = "/image.zst";
        self.server.serve(
            path,
            crate::server::Body::File(image.path.clone()),
            crate::server::Fault::None,
        );
        let reading = meter::run(&self.writer, |command| {
            command
                .arg(self.server.url(path))
                .arg(&image.checksum)
                .arg(&partition)
        })?;
        image.compare(&partition)?;
        Ok(reading)
    }

    fn pipeline(&self, image: &BenchImage) -> Result<Reading> {
        let (_disk, partition) = self.disk(image)?;
        let path = "/image.zst";
        self.server.serve(
            path,
            crate::server::Body::File(image.path.clone()),
            crate::server::Fault::None,
        );
        let script = format!(
            "set -e; curl -sf {} | zstd -dc | dd of={} bs=4M iflag=fullblock oflag=direct conv=fsync status=none",
            self.server.url(path),
            partition.display()
        );
        let reading = meter::run(Path::new("/bin/sh"), |command| {
            command.args(["-c", &script])
        })?;
        image.compare(&partition)?;
        Ok(reading)
    }
}

fn idle(lab: &Lab) -> Result<Idle> {
    eprintln!("lab: watching the idle agent for {} s", IDLE.as_secs());
    let mut node = Node::start(lab)?;
    let phase = node.status()?["upgrade"]["phase"].clone();
    ensure!(phase == "Idle", "the agent is not idle but {phase}");
    let process = node
        .machine
        .run("systemctl show --property MainPID --value slotd.service")?;
    let process = process.trim().to_owned();
    // Threads that the question above kept busy end some seconds after it.
    let deadline = Instant::now() + node.machine.patience(60);
    let mut before = switches(&mut node.machine, &process)?;
    loop {
        node.machine.try_run("sleep 15")?;
        let now = switches(&mut node.machine, &process)?;
        let is_settled = now.keys().eq(before.keys());
        before = now;
        if is_settled {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "the agent's threads come and go: {before:?}"
        );
    }
    let patience = IDLE + node.machine.patience(30);
    node.machine
        .try_run_within(&format!("sleep {}", IDLE.as_secs()), patience)?;
    let after = switches(&mut node.machine, &process)?;
    let memory = node.machine.run(&format!(
        "awk '/RssAnon/ {{ print $2 }}' /proc/{process}/status"
    ))?;
    let kibibytes: u64 = memory.trim().parse().context("the agent's memory")?;
    Ok(Idle {
        anonymous: kibibytes << 10,
        switches_per_minute: switches_per_minute(&before, &after)?,
    })
}

/// From the counts of each thread at both ends of the time that the agent was watched. A thread that ends takes its count along,
/// and an idle agent starts none.
fn switches_per_minute(before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>) -> Result<f64> {
    ensure!(
        after.keys().eq(before.keys()),
        "the idle agent's threads were {before:?} and are {after:?}"
    );
    let count: u64 = after
        .values()
        .zip(before.values())
        .map(|(after, before)| after.saturating_sub(*before))
        .sum();
    Ok(count as f64 / IDLE.as_secs_f64() * 60.0)
}

/// Context switches of each thread of a process in a guest.
fn switches(machine: &mut Machine, process: &str) -> Result<BTreeMap<u32, u64>> {
    let listing = machine.run(&format!(
        "cd /proc/{process}/task && for thread in *; do \
         echo $thread $(awk '/ctxt_switches/ {{ n += $2 }} END {{ print n }}' $thread/status); done"
    ))?;
    listing
        .lines()
        .map(|line| {
            let (thread, count) = line.split_once(' ').context("a thread and its count")?;
            Ok((thread.parse()?, count.trim().parse()?))
        })
        .collect::<Result<_>>()
        .with_context(|| format!("context switches in\n{listing}"))
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

impl Report {
    /// Prints the table for people.
    pub fn print(&self) {
        println!(
            "image of {:.0} MiB, published as {:.0} MiB; medians of {RUNS}, in turns",
            mebibytes(self.image[0]),
            mebibytes(self.image[1])
        );
        println!(
            "{:32} {:>8} {:>8} {:>12} {:>12}",
            "", "seconds", "CPU s", "anon MiB", "cache MiB"
        );
        for (name, reading) in [
            ("slotd (write and read-back)", &self.slotd),
            ("curl | zstd | dd (write only)", &self.pipeline),
        ] {
            println!(
                "{name:32} {:8.2} {:8.2} {:12.1} {:12.1}",
                reading.seconds,
                reading.cpu_seconds,
                mebibytes(reading.anonymous),
                mebibytes(reading.cache_growth)
            );
        }
        println!("ratio {:.2}", self.ratio);
        for peak in &self.peaks {
            println!(
                "peak with {:.0} MiB: {:.1} MiB (window {:.1} MiB)",
                mebibytes(peak.image),
                mebibytes(peak.anonymous),
                mebibytes(peak.window)
            );
        }
        println!(
            "idle agent: {:.1} MiB anonymous, {:.1} context switches a minute",
            mebibytes(self.idle.anonymous),
            self.idle.switches_per_minute
        );
        for goal in &self.missed {
            println!("missed: {goal}");
        }
    }
}

/// Writes out what earlier work left dirty, so that no contender pays for it.
fn settle_caches() -> Result<()> {
    process::run("sync", |command| command)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::switches_per_minute;

    #[test]
    fn switches_of_all_threads_count_and_a_change_of_threads_is_an_error() {
        // Ten switches in five minutes.
        let before = BTreeMap::from([(7, 100), (8, 3)]);
        let after = BTreeMap::from([(7, 106), (8, 7)]);
        assert!((switches_per_minute(&before, &after).unwrap() - 2.0).abs() < 1e-9);
        for threads in [&[(7, 106)][..], &[(7, 106), (8, 7), (9, 1)]] {
            let after = threads.iter().copied().collect();
            assert!(switches_per_minute(&before, &after).is_err());
        }
    }
}
