//! One verified write as `slotd install` and `slotd flash` do it, to any device: without a boot loader, which the lab's loop disks
//! do not have.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use slotd_image::{Cancel, Expectation, FetchSettings, ImageSource, WriteReport, WriteTarget};

/// Fetches, expands, writes directly, flushes and reads back.
pub fn write_image(source: &str, expectation: &Expectation, device: &Path) -> Result<WriteReport> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
        .open(device)
        .with_context(|| format!("opening {}", device.display()))?;
    let mut target = WriteTarget::from_exclusive(OwnedFd::from(file), device.to_owned())?;
    let cancel = Cancel::new();
    let opened = slotd_image::open(
        ImageSource::parse(source)?,
        &FetchSettings::default(),
        expectation,
        target.capacity(),
        &cancel,
        &|_| (),
    )?;
    Ok(slotd_image::write(
        opened,
        &mut target,
        expectation,
        &cancel,
        &|_| (),
    )?)
}
