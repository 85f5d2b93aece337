//! The image writer on real block devices.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use slotd_image::{Expectation, WriteReport};

use super::on_loop_disk;
use crate::lab::Lab;
use crate::loopdisk::{LoopDisk, Sector};
use crate::process;
use crate::runner::Test;
use crate::writing::write_image;

const MIB: usize = 1 << 20;
/// What the devices hold before: nothing of it may shine through the zeros of an image.
const OLD: u8 = 0xee;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_loop_disk(
            "loop/an-image-replaces-every-byte-with-either-sector-size",
            replaces,
        ),
        on_loop_disk(
            "loop/an-image-that-ends-early-leaves-no-filesystem-behind",
            ends_early,
        ),
    ]
}

fn replaces(lab: &Lab) -> Result<()> {
    for sector in [Sector::B512, Sector::B4096] {
        let (raw, compressed) = image(lab.folder())?;
        let image = fs::read(&raw).context("reading the image")?;
        for source in [&raw, &compressed] {
            let disk = filled(lab, sector, image.len() + 4 * MIB)?;
            let report = write(source, disk.device())?;
            // Every mebibyte of the image that is zero, but for the first, is zeroed by one call of the device.
            let zeros = image[MIB..]
                .chunks(MIB)
                .filter(|piece| piece.iter().all(|byte| *byte == 0))
                .count();
            ensure!(zeros > 20, "the image has too few zeros to prove anything");
            ensure!(
                report.zeroed >= ((zeros - 1) * MIB) as u64,
                "of {zeros} MiB of zeros only {} bytes were zeroed by the device",
                report.zeroed
            );
            let end = image
                .len()
                .next_multiple_of(usize::try_from(sector.bytes())?);
            let found = fs::read(disk.file()).context("reading the disk's file")?;
            ensure!(
                found[..image.len()] == image,
                "the device does not hold the image"
            );
            ensure!(
                found[image.len()..end].iter().all(|byte| *byte == 0),
                "the last sector is not filled up with zeros"
            );
            ensure!(
                found[end..].iter().all(|byte| *byte == OLD),
                "something was written behind the image"
            );
        }
    }
    Ok(())
}

fn ends_early(lab: &Lab) -> Result<()> {
    let (_, compressed) = image(lab.folder())?;
    let whole = fs::read(&compressed).context("reading the image")?;
    let cut = lab.folder().join("cut.zst");
    fs::write(&cut, &whole[..whole.len() / 2]).context("writing half an image")?;
    let disk = filled(lab, Sector::B4096, 72 * MIB)?;
    let error = write(&cut, disk.device())
        .err()
        .context("half an image was accepted")?;
    ensure!(
        format!("{error:#}").contains("not complete"),
        "the error does not say what is wrong: {error:#}"
    );
    let found = fs::read(disk.file()).context("reading the disk's file")?;
    ensure!(
        found[..MIB].iter().all(|byte| *byte == 0),
        "the first MiB holds something that could be taken for an image"
    );
    let probe = process::output("blkid", |command| {
        // Ends with 2 where it finds nothing, which is what is wanted.
        command
            .args(["--probe", "--output", "value", "--match-tag", "TYPE"])
            .arg(disk.device())
    });
    ensure!(probe.is_err(), "blkid finds {probe:?}");
    Ok(())
}

/// An ext4 image with files, long runs of zeros, and a length that is no multiple of any sector: raw and compressed.
fn image(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let (raw, compressed) = (folder.join("image.ext4"), folder.join("image.ext4.zst"));
    if compressed.exists() {
        return Ok((raw, compressed));
    }
    let tree = folder.join("tree");
    fs::create_dir_all(&tree).context("making a folder")?;
    let mut noise = 1u32;
    let content: Vec<u8> = std::iter::repeat_with(|| {
        // A linear congruential generator: nothing that zstd could make small.
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 24) as u8
    })
    .take(9 * MIB + 12_345)
    .collect();
    fs::write(tree.join("content"), content).context("writing a file")?;
    File::create(&raw)
        .and_then(|file| file.set_len(64 * MIB as u64))
        .context("creating the image")?;
    process::run("mke2fs", |command| {
        command
            .args(["-q", "-F", "-t", "ext4", "-d"])
            .arg(&tree)
            .arg(&raw)
    })?;
    OpenOptions::new()
        .append(true)
        .open(&raw)
        .and_then(|mut file| file.write_all(&[7; 100]))
        .context("lengthening the image")?;
    process::run("zstd", |command| {
        command.args(["-q", "-f", "-o"]).arg(&compressed).arg(&raw)
    })?;
    Ok((raw, compressed))
}

/// A disk full of something else.
fn filled(lab: &Lab, sector: Sector, size: usize) -> Result<LoopDisk> {
    let file = lab.folder().join("disk");
    let size = size.next_multiple_of(MIB);
    fs::write(&file, vec![OLD; size]).context("filling a disk")?;
    LoopDisk::attach(&file, size as u64, sector)
}

fn write(source: &Path, device: &Path) -> Result<WriteReport> {
    write_image(
        &source.display().to_string(),
        &Expectation::default(),
        device,
    )
}
