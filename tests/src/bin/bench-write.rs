//! One verified write as slotd does it: fetch, expand, write directly, flush, read back. `lab bench` measures this process: the
//! write itself as `slotd install` and `slotd flash` call it, without a boot loader, which the bench's disk does not have.
//!
//! `bench-write URL CHECKSUM DEVICE`

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use slotd_image::{Cancel, Expectation, FetchSettings, ImageSource, WriteTarget};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what| arguments.next().with_context(|| format!("no {what}"));
    let source = ImageSource::parse(&next("URL")?)?;
    let expectation = Expectation {
        checksum: Some(next("checksum")?.parse()?),
        ..Expectation::default()
    };
    let device = PathBuf::from(next("device")?);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
        .open(&device)
        .with_context(|| format!("opening {}", device.display()))?;
    let mut target = WriteTarget::from_exclusive(OwnedFd::from(file), device)?;
    let (settings, cancel) = (FetchSettings::default(), Cancel::new());
    let opened = slotd_image::open(
        source,
        &settings,
        &expectation,
        target.capacity(),
        &cancel,
        &|_| (),
    )?;
    slotd_image::write(opened, &mut target, &expectation, &cancel, &|_| ())?;
    Ok(())
}
