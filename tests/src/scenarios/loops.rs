//! Loop disks themselves: that they are what the other tests take them for.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::on_loop_disk;
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::loopdisk::{LoopDisk, Sector};
use crate::process;
use crate::runner::Test;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_loop_disk("loop/disks-do-direct-io-with-either-sector-size", direct_io),
        on_loop_disk(
            "loop/partitions-appear-and-everything-is-detached",
            partitions,
        ),
        on_loop_disk("loop/partitions-of-a-killed-run-are-in-nobodys-way", stale),
    ]
}

fn direct_io(lab: &Lab) -> Result<()> {
    for sector in [Sector::B512, Sector::B4096] {
        let file = lab.folder().join(format!("disk-{}", sector.bytes()));
        let disk = LoopDisk::attach(&file, 16 << 20, sector)?;
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_EXCL)
            .open(disk.device())
            .with_context(|| format!("opening {}", disk.device().display()))?;
        // One sector at an aligned address, in the middle of a larger buffer.
        let mut buffer = vec![0u8; 3 * 4096];
        let start = buffer.as_ptr().align_offset(4096);
        let size = usize::try_from(sector.bytes())?;
        buffer[start..start + size].fill(0x5a);
        device.write_all_at(&buffer[start..start + size], sector.bytes())?;
        device.sync_data()?;
        let bytes = std::fs::read(&file)?;
        ensure!(
            bytes[size..2 * size].iter().all(|byte| *byte == 0x5a),
            "the write is not in the file"
        );
        // Half a sector has to be refused, otherwise this is no direct I/O.
        let half = device.write_all_at(&buffer[start..start + size / 2], 0);
        ensure!(half.is_err(), "half a sector was written");
    }
    Ok(())
}

fn partitions(lab: &Lab) -> Result<()> {
    let mut disk = LoopDisk::attach(&lab.folder().join("disk"), 64 << 20, Sector::B512)?;
    disk.partition(
        "label: gpt\nstart=2048, size=4096, name=root-a\nstart=8192, size=8192, name=root-b\n",
    )?;
    let second = disk.partition_device(2);
    let name = second
        .file_name()
        .and_then(|name| name.to_str())
        .context("a name")?
        .to_owned();
    let size = std::fs::read_to_string(format!("/sys/class/block/{name}/size"))?;
    ensure!(size.trim() == "8192", "{name} has {} sectors", size.trim());
    let device = disk.device().to_owned();
    drop(disk);
    ensure!(
        !std::path::Path::new(&format!("/sys/class/block/{name}")).exists(),
        "{name} is still there"
    );
    let attached = process::output("losetup", |command| {
        command
            .arg("--list")
            .arg("--noheadings")
            .arg("--output")
            .arg("NAME")
    })?;
    ensure!(
        !attached
            .lines()
            .any(|line| line.trim() == device.display().to_string()),
        "{} is still attached",
        device.display()
    );
    Ok(())
}

fn stale(lab: &Lab) -> Result<()> {
    let script = "label: gpt\nstart=2048, size=4096, name=root-a\n";
    let file = lab.folder().join("disk");
    let mut first = LoopDisk::attach(&file, 64 << 20, Sector::B512)?;
    first.partition(script)?;
    let device = first.device().to_owned();
    drop(first);
    // The same device again, also where its last user is not gone yet, or somebody else takes one meanwhile.
    let again = || {
        wait_until("the same loop device", Duration::from_secs(30), || {
            let disk = LoopDisk::attach(&file, 64 << 20, Sector::B512)?;
            ensure!(disk.device() == device, "it is {}", disk.device().display());
            Ok(disk)
        })
    };
    // A partition that nobody deletes.
    let killed = again()?;
    process::run("partx", |command| command.arg("--add").arg(&device))?;
    let partition = killed.partition_device(1);
    drop(killed);
    ensure!(
        partition.exists(),
        "{} is gone already",
        partition.display()
    );
    let mut next = again()?;
    ensure!(
        !partition.exists(),
        "{} is still there",
        partition.display()
    );
    next.partition(script)
}
