//! slotd's verified write and a pipeline that verifies nothing, side by side on loop disks.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use super::images::BenchImage;
use super::meter::{self, Reading};
use super::{MIB, RUNS, mebibytes};
use crate::build;
use crate::lab::Lab;
use crate::loopdisk::{LoopDisk, Sector};
use crate::server::Server;

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Write {
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

/// Lets both write in turns.
pub(super) fn measure(lab: &Lab) -> Result<Write> {
    let artifacts = lab.artifacts()?;
    let folder = artifacts.folder().join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    eprintln!("lab: making images of real files");
    let image = BenchImage::make(&folder, 1024 * MIB, 700 * MIB)?;
    let writer = build::own("bench-write")?;
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
    Ok(Write {
        image: [image.size, image.published],
        slotd: ours,
        pipeline: theirs,
        ratio,
        peaks,
    })
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

impl Write {
    pub(super) fn print(&self) {
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
    }
}
